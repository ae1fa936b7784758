"""Publishes that nobody waits for: how many may be under way, and what becomes of their errors.

The invariants: the memory of the publishes under way is bounded; an error that no caller has seen is raised by the
next flush, or logged when the producer closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from _thread import LockType, allocate_lock
from collections import deque
from concurrent.futures import wait
from threading import RLock, get_ident
from typing import Final

from nsq_ha.base.clock import monotonic
from nsq_ha.errors import ResponseTimeoutError
from nsq_ha.message import Receipt
from nsq_ha.process.loop_thread import AsyncCall, CallFuture, Portal
from nsq_ha.sync.facade import MOMENT

log: logging.Logger = logging.getLogger("nsq_ha.producer")

OVERHEAD: Final = 1024
"""Bytes that a publish takes besides its body: future, task, request."""

MOST_FAILED: Final = 1000
"""Failed publishes that are kept; of more, the oldest are forgotten."""


class PublishFuture(CallFuture[Receipt]):
    """The future of one publish.

    Attributes:
        size: Bytes that it counts for.
        was_seen: Somebody has asked for its outcome.
    """

    def __init__(self, portal: Portal, publish: AsyncCall[Receipt], owner: Outstanding, size: int) -> None:
        """Start nothing yet."""
        super().__init__(portal, publish)
        self.size: int = size
        self.was_seen: bool = False
        self._owner = owner

    def succeeded(self, result: Receipt) -> None:
        """Set the result (in the loop)."""
        try:
            super().succeeded(result)
        finally:  # a callback may raise SystemExit
            self._owner.ended(self, has_failed=False)

    def failed(self, error: BaseException) -> None:
        """Set the error (in the loop)."""
        try:
            super().failed(error)
        finally:
            self._owner.ended(self, has_failed=not self.cancelled())

    def result(self, timeout: float | None = None) -> Receipt:
        """Return the receipt or raise the error."""
        try:
            return super().result(timeout)
        finally:
            self.was_seen = self.done()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error. None if there is none."""
        try:
            return super().exception(timeout)
        finally:
            self.was_seen = self.done()


class Outstanding:
    """The publishes of one producer that nobody waits for."""

    def __init__(self, most_bytes: int) -> None:
        """Start without any; ``most_bytes`` may be under way."""
        self._most_bytes = most_bytes
        self._futures: set[PublishFuture] = set()
        self._failed: deque[PublishFuture] = deque(maxlen=MOST_FAILED)
        self._waiters: deque[LockType] = deque()
        # Two counters: the loop writes the second one, and never waits for a lock that a thread may hold.
        self._begun_bytes = 0
        self._ended_bytes = 0
        self._counting = RLock()
        self._none_left = asyncio.Event()
        self._last_end = 0.0  # when the last one has ended, unless something blocks the loop

    def begin(self, portal: Portal, publish: AsyncCall[Receipt], body: object, limit: float) -> PublishFuture:
        """Start a publish that ends within ``limit`` seconds, once there is room; the loop's own thread waits for none.

        Raises:
            ResponseTimeoutError: There was no room within ``limit`` seconds.
        """
        size = OVERHEAD + (len(body) if isinstance(body, bytes | bytearray | memoryview) else 0)
        if get_ident() != portal.thread:
            deadline = monotonic() + limit
            while self._is_full():
                if not self._wait_for_room(deadline - monotonic()):
                    raise ResponseTimeoutError(
                        f"publish_nowait(): publishes of max_pending_bytes={self._most_bytes} were under way for"
                        f" {limit:g} s"
                    )
        future = PublishFuture(portal, publish, self, size)
        with self._counting:
            self._begun_bytes += size
        self._last_end = max(self._last_end, monotonic() + limit)
        self._futures.add(future)
        try:
            portal.post(future.begin)
        except BaseException:
            future.abandon()
            self._futures.discard(future)
            with self._counting:
                self._begun_bytes -= size
            raise
        return future

    def ended(self, future: PublishFuture, *, has_failed: bool) -> None:
        """Record that a publish has ended (in the loop)."""
        if future not in self._futures:  # begin() failed
            return
        self._futures.discard(future)
        self._ended_bytes += future.size
        if has_failed and not future.was_seen:
            self._failed.append(future)
        if not self._futures:
            self._none_left.set()
        if self._waiters and not self._is_full():
            while self._waiters:
                self._waiters.popleft().release()

    def flush(self, timeout: float | None) -> None:
        """Wait until all publishes have ended that have begun; see :meth:`nsq_ha.sync.Producer.flush`."""
        if timeout is None:
            timeout = max(0.0, self._last_end - monotonic()) + MOMENT
        late = wait(self._futures.copy(), timeout).not_done
        if late:
            raise TimeoutError(f"{len(late)} publishes are still under way after {timeout:g} s")
        unseen = self._unseen()
        if unseen and (error := unseen[0].exception()) is not None:
            if len(unseen) > 1:
                error.add_note(f"{len(unseen)} publishes by publish_nowait() have failed")
            raise error

    async def drain(self, timeout: float) -> None:
        """Wait until no publish is under way, but no longer than ``timeout`` seconds (in the loop)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._futures:
                    self._none_left.clear()
                    await self._none_left.wait()

    def warn(self) -> None:
        """Log the errors that nobody has seen."""
        unseen = self._unseen()
        if unseen:
            log.warning("%d publishes by publish_nowait() failed: %s", len(unseen), unseen[0].exception())

    def _unseen(self) -> list[PublishFuture]:
        """Remove and return the failed publishes that nobody has seen."""
        found = []
        while self._failed:
            future = self._failed.popleft()
            if not future.was_seen:
                found.append(future)
        return found

    def _is_full(self) -> bool:
        return self._begun_bytes - self._ended_bytes >= self._most_bytes

    def _wait_for_room(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether there may be room."""
        waiter = allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        if self._is_full():  # otherwise there was room before anybody could know of the waiter
            return waiter.acquire(timeout=max(0.0, timeout))
        return True
