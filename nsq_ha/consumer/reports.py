"""Tells what happens to the messages of a consumer: log lines and events.

Failures of handlers are logged: one of each kind with its traceback, then fewer and fewer lines, which count the rest.
Of one kind are those of one type that are raised in one line.

The invariant: a handler that fails thousands of times a second fills no log.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.engine import observe
from nsq_ha.events import BackoffChanged, FinishedAgain, GaveUp
from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from types import CodeType

    from nsq_ha.consumer.answers import Said
    from nsq_ha.consumer.machine import FinishedCopy
    from nsq_ha.consumer.pause import Paused
    from nsq_ha.engine.observe import Observer
    from nsq_ha.errors import BodyError
    from nsq_ha.message import Message
    from nsq_ha.options.config import GiveUp

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

MOST_KINDS: Final = 100
"""Kinds of failures that are told apart; beyond that the oldest one is forgotten, and logged in full again."""


class MessageReports:
    """Tells of a consumer's messages, and of its pauses.

    Args:
        name: Topic and channel.
        observer: The consumer's.
    """

    def __init__(self, name: str, observer: Observer) -> None:
        self._name = name
        self._observer = observer
        self._failures: dict[tuple[type[BaseException], CodeType | None, int], Rarely] = {}
        self._unreadable = Rarely()  # their publisher may send any number
        self._copies = Rarely()
        self._pauses = Rarely()
        self._is_pause_logged = False

    def said(self, said: Said) -> None:
        """Write a line."""
        log.log(logging.WARNING if said.is_warning else logging.DEBUG, "%s: %s", self._name, said.text)

    def failed(self, message: Message, error: BaseException) -> None:
        """Tell of a failure of a handler, or count it."""
        trace, code, line = error.__traceback__, None, 0
        while trace is not None:
            code, line, trace = trace.tb_frame.f_code, trace.tb_lineno, trace.tb_next
        kind, kinds = (type(error), code, line), self._failures
        if kind not in kinds and len(kinds) >= MOST_KINDS:
            del kinds[next(iter(kinds))]
        more = kinds.setdefault(kind, Rarely()).more(monotonic())
        if more is None:
            log.debug("handler failed on %r: %r", message, error)
        else:
            log.warning("handler failed on %r: %r%s", message, error, more, exc_info=None if more else error)

    def unreadable(self, message: Message, error: BodyError) -> None:
        """Tell of a message that no handler can get."""
        if (more := self._unreadable.more(monotonic())) is not None:
            log.warning("not handing out %r: %r%s", message, error, more, exc_info=error)

    def gave_up(self, message: Message, policy: GiveUp | None, error: str | None) -> None:
        """Tell that a message was given up, or why not."""
        name = "function" if callable(policy) else policy or "drop"
        self._observer.event(GaveUp(**_facts(message), policy=name, error=error))

    def finished_copy(self, action: FinishedCopy) -> None:
        """Tell that a message is finished unhandled; after a connection is lost, there may be a thousand."""
        copy = action.message
        if (more := self._copies.more(monotonic())) is not None:
            log.info(
                "%r was handled before, but its FIN was without effect: finishing this copy unhandled%s", copy, more
            )
        self._observer.event(FinishedAgain(**_facts(copy)))
        if observe.watched.is_any:
            observe.answered("finish", copy)

    def paused(self, change: Paused) -> None:
        """Tell of a pause after failures, and of its end."""
        if change.state is not None:
            topic, _, channel = self._name.partition("/")
            self._observer.event(
                BackoffChanged(topic=topic, channel=channel, state=change.state, seconds=change.seconds)
            )
        if change.state == "paused" and (missed := self._pauses.take(monotonic())) is not None:
            self._is_pause_logged = True
            log.warning(
                "%s: handlers fail: pausing for %.1f s, then testing with one message (%d in a row failed%s)",
                self._name,
                change.seconds,
                change.level + 1,
                f"; {missed} earlier changes not logged" if missed else "",
            )
        elif change.state == "ended" and self._is_pause_logged:
            self._is_pause_logged = False
            log.info(
                "%s: handlers work again, after %.1f s and %d failures: asking for messages as before",
                self._name,
                change.since,
                change.failures,
            )


def _facts(message: Message) -> dict[str, Any]:
    """Return the fields that the events about single messages share."""
    names = ("topic", "partition", "nsqd", "internal_id", "trace_id", "attempts")
    return {name: getattr(message, name) for name in names} | {"channel": message.source.channel}
