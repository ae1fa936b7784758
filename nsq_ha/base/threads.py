"""Threads for the application's plain functions.

asyncio's default executor has ``min(32, cores + 4)`` threads and also resolves
host names. Fewer handlers than ``concurrency`` would run at a time, and a
reconnect would wait for them. So each call of ``run`` has its own threads, at
most ``concurrency``, started when needed; ``on_give_up`` and ``auth_secret``
have their own, too. They are daemons: a handler that never returns does not keep
the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from nsq_ha.base.resuming import detached, may_resume, resume

if TYPE_CHECKING:
    from collections.abc import Callable

    _Job = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[], object]]
    """The event loop of a call, the future for its outcome, and the call."""

T = TypeVar("T")
U = TypeVar("U")


def is_async(function: Callable[..., object]) -> bool:
    """Return whether a call of ``function`` returns a coroutine; it may be an object with an async ``__call__``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


class HandlerThreads:
    """Calls functions in its own threads, for one event loop. Starts a thread when it is needed.

    Args:
        most: Maximum number of threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._started = 0
        self._busy = 0

    async def call(self, function: Callable[[U], T], argument: U) -> T:
        """Return ``function(argument)``, called in a thread with the caller's context variables.

        If cancelled, a function that has begun continues in its thread and its result is dropped.
        """
        if self._jobs is None:
            self._jobs = SimpleQueue()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        if self._busy == self._started < self._most:
            name = f"nsq_ha handler {self._started + 1}"
            threading.Thread(target=self._work, args=(self._jobs,), name=name, daemon=True).start()
            self._started += 1  # not before: the system may have no thread left
        self._busy += 1
        self._jobs.put((loop, outcome, partial(contextvars.copy_context().run, function, argument)))
        return await outcome

    def close(self) -> None:
        """End the threads: idle ones now, the others when their function returns."""
        if self._jobs is not None:
            for _ in range(self._started):
                self._jobs.put(None)

    def _work(self, jobs: SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            loop, outcome, call = job
            result: object = None
            error: BaseException | None = None
            try:
                result = None if outcome.cancelled() else call()
            except StopIteration as raised:
                # A future cannot hold a StopIteration; its waiter would wait forever.
                error = RuntimeError(f"handler raised {raised!r}")
                error.__cause__ = raised
            except BaseException as raised:  # noqa: BLE001 - raised again in the task that awaits it
                error = raised
            # An idle thread must not keep the last message alive, not even for a moment.
            del job, call
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcome
                loop.call_soon_threadsafe(self._done, outcome, result, error)
            del result, error, outcome

    def _done(self, outcome: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._busy -= 1
        if outcome.cancelled():
            return
        # The thread has nothing to do until its caller goes on, so do not wait for one more turn of the event loop.
        waiting = detached(outcome) if may_resume(outcome.get_loop()) else None
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)
        if waiting is not None:
            resume(waiting)


async def in_thread(function: Callable[[], T]) -> T:
    """Return ``function()``, called in a thread of its own.

    If cancelled, the function continues in its thread and its result is dropped.
    """
    threads = HandlerThreads(1)
    try:
        return await threads.call(lambda _: function(), None)
    finally:
        threads.close()
