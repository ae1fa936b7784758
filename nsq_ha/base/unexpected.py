"""Report unexpected errors.

A producer and a consumer run for months. An unexpected error inside them, from a
library, a server's data or a bug of ours, is logged and does not end them: first
with its traceback, then with a count.

The invariant: reporting uses a bounded amount of memory and log, however often
errors occur.
"""

from __future__ import annotations

import logging
from typing import Final, TypeVar

from nsq_ha.base.forks import Mutex
from nsq_ha.base.redaction import harmless, redact, trace_of

E = TypeVar("E", bound=BaseException)

MAX_PLACES: Final = 1000
"""Maximum number of counted places and types; the oldest is forgotten, and later logged in full again."""

_counts: dict[tuple[str, type[BaseException]], int] = {}
_lock: Final = Mutex()


def report_unexpected(log: logging.Logger, where: str, error: BaseException) -> None:
    """Log an unexpected error that does not end the client.

    The first one of its type at a place is logged with its traceback, later
    ones each time their number doubles.

    Args:
        log: The logger.
        where: The part that failed, such as ``orders-3``.
        error: The error.
    """
    count = _count(where, error)
    if count == 1:
        log_traceback(
            log, f"{where}: unexpected error, continuing; please report it as a bug of nsq_ha: {error!r}", error
        )
    elif count & (count - 1) == 0:
        log.error("%s: the same unexpected error, %d times so far: %s", where, count, redact(repr(error)))


def log_traceback(log: logging.Logger, text: str, error: BaseException) -> None:
    """Log an error with its traceback. If that contains a secret, log it as text with the secret replaced."""
    if harmless(error) is not None:
        log.error("%s", redact(text), exc_info=error)
    else:
        log.error("%s\n%s", redact(text), redact(trace_of(error)))


def without_frames(error: E) -> E:
    """Remove the tracebacks from an error that is kept, and from its causes.

    A traceback keeps its frames, and these keep all data that they have read:
    megabytes, as long as the error is kept.
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


def _count(where: str, error: BaseException) -> int:
    key = (where, type(error))
    with _lock:
        count = _counts.pop(key, 0) + 1
        if len(_counts) >= MAX_PLACES:
            del _counts[next(iter(_counts))]
        _counts[key] = count
    return count
