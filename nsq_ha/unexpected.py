"""Reporting errors that nobody foresaw.

A producer and a consumer run for months. Whatever is raised inside them, by a
library, by a server's bytes or by a bug of ours, is reported and survived: the
traceback once, then how often it came.

The invariant: reporting costs a bounded amount of memory and of log, however
often and wherever errors come.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    import logging

E = TypeVar("E", bound=BaseException)

MAX_PLACES: Final = 1000
"""Places and kinds of errors that are counted; beyond them the oldest is forgotten, and logged in full again."""

_counts: dict[tuple[str, type[BaseException]], int] = {}
_lock: Final = threading.Lock()


def report_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Log an error that was not foreseen, and is survived.

    The first of its type at a place is logged with its traceback, later ones
    when their number doubles.

    Args:
        log: Where to.
        where: Whose work failed, such as ``orders-3``.
        error: What was raised.
    """
    count = _count(where, error)
    if count == 1:
        log.error(
            "%s: unexpected error, continuing; please report it as a bug of nsq_ha: %r", where, error, exc_info=error
        )
    elif count & (count - 1) == 0:
        log.error("%s: the same unexpected error, %d times so far: %r", where, count, error)


def without_frames(error: E) -> E:
    """Take the tracebacks from an error that is kept, and from its causes.

    A traceback holds the frames that it went through, and so all that they had
    read: megabytes, for as long as the error is remembered.
    """
    todo: list[BaseException | None] = [error]
    seen: set[int] = set()
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = None
        todo += (each.__cause__, each.__context__)
    return error


def forget() -> None:
    """Forget what was counted; the next error is logged in full."""
    with _lock:
        _counts.clear()


def _count(where: str, error: BaseException) -> int:
    key = (where, type(error))
    with _lock:
        count = _counts.pop(key, 0) + 1
        if len(_counts) >= MAX_PLACES:
            del _counts[next(iter(_counts))]
        _counts[key] = count
    return count
