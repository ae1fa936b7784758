"""Resume a task inside the call that brings what it waits for, instead of one turn of the event loop later.

Between a future's result and its task, asyncio looks at all sockets once more. If each call waits for the answer to the
one before, as on an ordered channel or in a loop of publishes, that turn is a good part of the round trip.

The invariant: a task is resumed at once only if no task is running, since tasks cannot nest; else in the next turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    Waiting = tuple[asyncio.Future[Any], Callable[[asyncio.Future[Any]], object], Context]
    """A future, and the callback of the only task that awaits it."""


def detached(future: asyncio.Future[Any]) -> Waiting | None:
    """Detach the task that awaits ``future``, so that a result does not resume it; pass it to :func:`resume`.

    Returns:
        None if no task awaits it, or if something else waits, too: a result then resumes all, as usual.
    """
    # Not public. A subclass of Future that keeps the callback is: but tasks are so much slower with subclasses that a
    # publish would gain nothing.
    callbacks = getattr(future, "_callbacks", None)
    if not callbacks or len(callbacks) != 1:
        return None
    callback, context = callbacks[0]
    future.remove_done_callback(callback)
    return future, callback, context


def resume(waiting: Waiting) -> None:
    """Resume a detached task, whose future is done; only if no task is running.

    A task's exception stays with the task. Only KeyboardInterrupt and SystemExit are raised, by the event loop.
    """
    future, callback, context = waiting
    try:
        context.run(callback, future)
    except (KeyboardInterrupt, SystemExit) as error:  # must not pass through the connection that is being read
        future.get_loop().call_soon(_raise, error)
    finally:
        del waiting, future, callback, context  # otherwise such an error keeps its task, in a circle of references


def may_resume(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether no task is running."""
    # Without the argument, CPython 3.11 makes a system call (getpid) first.
    return asyncio.current_task(loop) is None


def _raise(error: BaseException) -> None:
    raise error
