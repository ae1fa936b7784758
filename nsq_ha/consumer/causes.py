"""The exception that an application is handling when it requeues a message, also in a thread."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_cause: ContextVar[BaseException | None] = ContextVar("nsq_ha cause of a requeue", default=None)


def with_cause(call: Callable[..., None]) -> Callable[..., None]:
    """Return ``call`` for the event loop, where :func:`take_cause` returns the exception that this thread handles."""
    cause = sys.exception()
    if cause is None:
        return call

    def caused(*arguments: object) -> None:
        token = _cause.set(cause)
        try:
            call(*arguments)
        finally:
            _cause.reset(token)

    return caused


def take_cause() -> BaseException | None:
    """Return the exception that is being handled; None if none is. Tasks that start after this do not inherit it."""
    cause = sys.exception() or _cause.get()
    _cause.set(None)
    return cause
