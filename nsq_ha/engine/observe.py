"""The seam through which one client reports what happens: to the application's ``on_event``, and to whoever waits.

Every producer and consumer has one :class:`Observer` and passes it down to the parts that know. A part reports each
change once, at the place that decides it, as one of the types in ``nsq_ha.events``.

Three kinds of things are observed:

* Changes are rare, so each may cost an object: :meth:`Observer.event`, for one client.
* Single messages must cost nothing if nobody watches. A part checks ``watched.is_any``, one attribute, and only then
  calls :func:`published`, :func:`delivered`, :func:`processing` or :func:`answered`. They write the trace log, and are
  for the whole process, as the trace log's switch is. A tracer of spans (:func:`trace_spans`) turns ``is_any`` on. A
  publish may need a header of the tracer, so producers follow :func:`is_traced`, and wrap their calls in
  :func:`publishing`.
* Counts are kept by the parts, once per batch, and read when somebody asks: ``stats()``. Metrics are read there.

Frames are observed elsewhere: a connection logs them if the wire log is on when it opens (``engine.wire``).

The invariant: nothing that a listener does can hurt the client. It runs in the event loop after the code that
reports, or, for a client for threads, in a thread of its own. So it may call any method of the client, and its errors
end here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

import msgspec

from nsq_ha import tracelog
from nsq_ha.base import aside
from nsq_ha.base.unexpected import log_traceback
from nsq_ha.process.clients import clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from nsq_ha.errors import PublishError
    from nsq_ha.events import Event
    from nsq_ha.message import Message, Receipt

log: logging.Logger = logging.getLogger("nsq_ha.events")

watched: Final = tracelog.switch
"""Whether anybody watches single messages: check ``watched.is_any`` before a call of the functions below."""


def published(topic: str, receipts: Iterable[Receipt], began_ns: int) -> None:
    """Report a publish that the server has acknowledged; untraced messages have no id and are left out.

    Args:
        topic: The topic.
        receipts: The receipts.
        began_ns: When the publish was called, in nanoseconds since the epoch.
    """
    if tracelog.switch.is_on(topic):
        for receipt in receipts:
            if receipt.offset is not None:
                tracelog.log_publish(receipt, began_ns)


def delivered(topic: str, messages: Sequence[Message]) -> None:
    """Report messages that have just arrived."""
    _spans.use(lambda tracer: tracer.delivered(topic, messages))
    if tracelog.switch.is_on(topic):
        for message in messages:
            tracelog.log_message("delivery", message)


def answered(event: str, message: Message) -> None:
    """Report that a message is being answered: ``finish`` or ``requeue``."""
    if tracelog.switch.is_on(message.topic):
        tracelog.log_message(event, message)


# ---------------------------------------------------------------- spans


class Span(Protocol):
    """A span that runs: of one publish, or of messages that are being processed.

    Attributes:
        headers: What to add to the headers of the messages of a publish, if they may have headers.
    """

    headers: dict[str, str]

    def end(self, outcomes: Sequence[Receipt | PublishError], error: BaseException | None) -> None:
        """End it: the publish returned ``outcomes``, or the code in it raised ``error``."""


class SpanTracer(Protocol):
    """Makes spans; ``nsq_ha.telemetry`` implements it."""

    def begin_publish(self, topic: str, messages: Sequence[object]) -> Span:
        """Begin the span of one call, whose messages are not checked yet."""

    def delivered(self, topic: str, messages: Sequence[Message]) -> None:
        """Make a span of messages that have just arrived together."""

    def begin_process(self, topic: str, messages: Sequence[Message]) -> Span:
        """Begin the span of messages that the calling task or thread is going to process."""


_T = TypeVar("_T")


class _Guard:
    """Calls code of the application, whose errors end here; the first one is logged."""

    def __init__(self) -> None:
        self._has_failed = False

    def call(self, name: str, work: Callable[[], _T]) -> _T | None:
        """Return what ``work`` returns. None if it fails."""
        try:
            return work()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the application's may raise anything
            if not self._has_failed:
                self._has_failed = True
                log_traceback(log, f"{name} failed: {error!r}. Further errors of it are not logged", error)
            return None


class _Spans(_Guard):
    """The process's tracer."""

    def __init__(self) -> None:
        super().__init__()
        self.tracer: SpanTracer | None = None

    def use(self, use: Callable[[SpanTracer], _T]) -> _T | None:
        """Return what ``use`` returns for the tracer. None without one, or if it fails."""
        tracer = self.tracer
        return None if tracer is None else self.call("tracing spans", lambda: use(tracer))


_spans: Final = _Spans()


def trace_spans(tracer: SpanTracer | None) -> None:
    """Let ``tracer`` make spans in the whole process, instead of the present one. None for no spans."""
    _spans.tracer = tracer
    watched.watch(is_on=tracer is not None)
    clients.watched()


def is_traced() -> bool:
    """Return whether spans are made."""
    return _spans.tracer is not None


class Spanned:
    """A publish, or the processing of messages, with or without a span. Use it with ``with``.

    Args:
        span: The span. None for none.

    Attributes:
        headers: What to add to the headers of the messages of a publish, if they may have headers.
    """

    __slots__ = ("_outcomes", "_span", "headers")

    def __init__(self, span: Span | None) -> None:
        self._span = span
        self._outcomes: Sequence[Receipt | PublishError] = ()
        self.headers: dict[str, str] = {} if span is None else span.headers

    def returns(self, outcomes: Sequence[Receipt | PublishError]) -> None:
        """Record the outcome of each published message."""
        self._outcomes = outcomes

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the span."""
        span = self._span
        if span is not None:
            _spans.call("tracing spans", lambda: span.end(self._outcomes, error))


def publishing(topic: str, messages: Sequence[object]) -> Spanned:
    """Return the span of one publish, which begins now, or a stand-in."""
    return Spanned(_spans.use(lambda tracer: tracer.begin_publish(topic, messages)))


def processing(messages: Sequence[Message]) -> Spanned:
    """Return the span of processing ``messages``, at least one, which begins now, or a stand-in."""
    return Spanned(_spans.use(lambda tracer: tracer.begin_process(messages[0].topic, messages)))


# ---------------------------------------------------------------- events


class Observer:
    """Passes the events of one client on. All methods are for the client's event loop.

    Args:
        on_event: The application's function. None if it has none.
    """

    def __init__(self, on_event: Callable[[Event], object] | None = None) -> None:
        self._on_event = on_event
        self._events: list[Event] = []
        self._guard = _Guard()

    def event(self, event: Event) -> None:
        """Report ``event``; its time is set here. Listeners get it soon, in order."""
        if self._on_event is None:
            return
        event = msgspec.structs.replace(event, at=time.time())
        if aside.is_loop():
            aside.hand_over(partial(self._pass_on, event))
            return
        if not self._events:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
            except RuntimeError:  # the loop has ended, and what is left of the client is collected
                return
        self._events.append(event)

    def flush(self) -> None:
        """Pass on what was reported, without waiting for the next turn of the event loop."""
        while self._events:
            self._pass_on(self._events.pop(0))

    def _pass_on(self, event: Event) -> None:
        self._guard.call(f"on_event for {type(event).__name__}", partial(self._call, event))

    def _call(self, event: Event) -> None:
        outcome = None if self._on_event is None else self._on_event(event)
        if asyncio.iscoroutine(outcome):
            outcome.close()
            raise TypeError("it returned a coroutine, which is not awaited: give a plain function")


SILENT: Final = Observer()
"""For parts that report to nobody."""
