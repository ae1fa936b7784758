"""Spans of publishes, of arriving messages, and of their processing.

The context of a publish travels in the headers of its messages, on extended topics, in the form that the program's
propagator writes: W3C's ``traceparent`` by default. Headers of the application with the same names win.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider

from nsq_ha._version import __version__
from nsq_ha.errors import PublishError, RemoteProtocolError
from nsq_ha.telemetry import conventions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextvars import Token

    from nsq_ha.message import Message, Receipt

MOST_LINKS: Final = 128
"""Links of one span; SDKs drop more by default."""


class Spans:
    """Makes spans; ``nsq_ha.engine.observe`` calls it.

    Args:
        provider: Gets the spans. None for the global one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("nsq_ha", __version__, provider)

    def begin_publish(self, topic: str, messages: Sequence[object]) -> _PublishSpan:
        """Begin the span of one call of ``publish`` or ``publish_many``."""
        span = self._tracer.start_span(
            f"publish {topic}",
            kind=SpanKind.PRODUCER,
            attributes=conventions.of_operation("send", "publish", topic) | conventions.of_bodies(messages),
        )
        return _PublishSpan(span)

    def delivered(self, topic: str, messages: Sequence[Message]) -> None:
        """Make the span of messages that arrived together."""
        span = self._tracer.start_span(
            f"receive {topic}",
            context=Context(),  # no span of the application is active here but the one that opened the consumer
            kind=SpanKind.CLIENT,
            links=_links(map(_context_of, messages[:MOST_LINKS])),
            attributes=conventions.of_operation("receive", "receive", topic) | conventions.of_messages(messages),
        )
        span.end()

    def begin_process(self, topic: str, messages: Sequence[Message]) -> _ProcessSpan:
        """Begin the span of messages that are being processed, and make it the current one."""
        creators = [_context_of(message) for message in messages[:MOST_LINKS]]
        # Many messages have many publishes, of which none is the parent.
        parent = creators[0] if len(messages) == 1 else Context()
        span = self._tracer.start_span(
            f"process {topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            links=_links(creators),
            attributes=conventions.of_operation("process", "process", topic) | conventions.of_messages(messages),
        )
        return _ProcessSpan(span, parent)


class _PublishSpan:
    """The span of one call.

    Args:
        span: The span.

    Attributes:
        headers: What to add to the headers of the messages.
    """

    def __init__(self, span: Span) -> None:
        self._span = span
        self.headers: dict[str, str] = {}
        propagate.inject(self.headers, context=trace.set_span_in_context(span))

    def end(self, outcomes: Sequence[Receipt | PublishError], error: BaseException | None) -> None:
        """End the span.

        Args:
            outcomes: The outcome of each message, if the call returned.
            error: What the call raised. None if it returned.
        """
        if error is not None:
            _fail(self._span, error)
        elif len(outcomes) == 1 and not isinstance(outcomes[0], PublishError):
            self._span.set_attributes(conventions.of_receipt(outcomes[0]))
        else:
            self._span.set_attributes(conventions.of_outcomes(outcomes))
            failed = [outcome for outcome in outcomes if isinstance(outcome, PublishError)]
            if len(failed) == len(outcomes) == 1:
                _fail(self._span, failed[0])
            elif failed:
                self._span.record_exception(failed[0])
                self._span.set_attribute("error.type", conventions.error_type(failed[0]))
                self._span.set_status(StatusCode.ERROR, f"{len(failed)} of {len(outcomes)} messages failed")
        self._span.end()


class _ProcessSpan:
    """The span of messages that are being processed; it is the current one until its end.

    Args:
        span: The span.
        parent: The context for the block.
    """

    def __init__(self, span: Span, parent: Context) -> None:
        self.headers: dict[str, str] = {}  # nothing is published
        self._span = span
        self._token: Token[Context] = contexts.attach(trace.set_span_in_context(span, parent))

    def end(self, outcomes: Sequence[Receipt | PublishError], error: BaseException | None) -> None:
        """End the span; the processing raised ``error``, or None, and has no outcomes."""
        contexts.detach(self._token)
        if error is not None:
            _fail(self._span, error)
        self._span.end()


def _fail(span: Span, error: BaseException) -> None:
    span.set_attributes(conventions.of_error(error))
    try:
        span.record_exception(error)
        span.set_status(StatusCode.ERROR, str(error))
    except Exception:  # noqa: BLE001 - the text of an application's error may raise anything
        span.set_status(StatusCode.ERROR)


def _context_of(message: Message) -> Context:
    """Return the context that the headers of a message name. An empty one if they name none."""
    if not message.ext:
        return Context()
    try:
        headers = message.headers
    except RemoteProtocolError:  # another program wrote it
        return Context()
    carrier = {name: value for name, value in headers.items() if isinstance(value, str)}
    return propagate.extract(carrier, context=Context())


def _links(creators: Iterable[Context]) -> list[Link]:
    found = (trace.get_current_span(creator).get_span_context() for creator in creators)
    # The messages of one batch name the same span.
    distinct = {(each.trace_id, each.span_id): each for each in found if each.is_valid}
    return [Link(each) for each in distinct.values()]
