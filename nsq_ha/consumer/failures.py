"""What the log says of failed messages.

Failures of handlers are logged: one of each kind with its traceback, then fewer and fewer lines, which count the rest.

The invariant: a handler that fails thousands of times a second fills no log.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from types import CodeType

    from nsq_ha.message import Message

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

MOST_KINDS: Final = 100
"""Kinds of failures that are told apart; beyond that the oldest one is forgotten, and logged in full again."""

cause: ContextVar[BaseException | None] = ContextVar("nsq_ha cause of a requeue", default=None)
"""What a thread handled while it requeued a message, for the event loop."""


def take_cause() -> BaseException | None:
    """Return the exception that the application handles while it requeues a message, perhaps in a thread.

    None if it handles none. Tasks that start after this do not inherit it.
    """
    found = sys.exception() or cause.get()
    cause.set(None)
    return found


def facts(message: Message) -> dict[str, Any]:
    """Return the fields that the events about single messages share."""
    names = ("topic", "partition", "nsqd", "internal_id", "trace_id", "attempts")
    return {name: getattr(message, name) for name in names} | {"channel": message.source.channel}


class FailureLog:
    """The failures of one consumer's handlers. Of one kind are those of one type that are raised in one line."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[type[BaseException], CodeType | None, int], Rarely] = {}

    def failed(self, message: Message, error: BaseException, now: float) -> None:
        """Log a failure, or count it."""
        trace, code, line = error.__traceback__, None, 0
        while trace is not None:
            code, line, trace = trace.tb_frame.f_code, trace.tb_lineno, trace.tb_next
        kind = type(error), code, line
        if kind not in self._kinds and len(self._kinds) >= MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]
        more = self._kinds.setdefault(kind, Rarely()).more(now)
        if more is None:
            log.debug("handler failed on %r: %r", message, error)
        else:
            log.warning("handler failed on %r: %r%s", message, error, more, exc_info=None if more else error)
