"""All pending publishes of a producer: their bytes, and one timer for all their time limits.

A timer for each publish would cost more than the rest of the publish. Publishes
with equal limits expire in the order in which they began, so only the oldest one
of each limit has to be checked, and of the limits only those that may be over.

The invariants: a publish is in here exactly while its caller waits. A stored one
is removed at once (:meth:`PendingPublishes.stored`); any other when its caller's
call ends (:meth:`PendingPublishes.let_go`). A publish that waits for space was
not written and its bytes do not count.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.producer_limits import has_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.message import Receipt
    from nsq_ha.producer.requests import Request


_UNUSED_LIMITS: Final = 64
"""Limits that nobody uses anymore which are kept before they are removed all at once."""


class _Group:
    """The publishes with one time limit, oldest first.

    Attributes:
        requests: The publishes.
        due: When to check the group: the deadline of the oldest one, or of one before it. Infinite if all are over.
    """

    __slots__ = ("due", "requests")

    def __init__(self) -> None:
        self.requests: dict[Request, None] = {}
        self.due: float = math.inf


class PendingPublishes:
    """All pending publishes of one producer.

    Args:
        usual_timeout: The limit of publishes without their own.
        max_bytes: See the attribute.

    Attributes:
        loop: The producer's event loop.
        new_future: Creates the future of a publish.
        total_bytes: Bytes of all queued and unanswered bodies, in all partitions.
        max_bytes: The limit of ``total_bytes``, see ``policy.producer_limits``.
        full_buffers: Buffers of partitions in which publishes wait for space.
        usual: Publishes with the usual limit, oldest first.
        is_open: Whether the producer accepts publishes.
        is_closed: Whether publishes no longer expire.
    """

    def __init__(self, usual_timeout: float, max_bytes: int) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[list[Receipt]]] = self.loop.create_future
        self.total_bytes: int = 0
        self.max_bytes = max_bytes
        self.is_open = True
        self._clock = self.loop.time
        self._usual_timeout = usual_timeout
        self.usual: dict[Request, None] = {}
        self._others: dict[float, _Group] = {}
        self._order: list[tuple[float, float]] = []  # a heap: when each of these groups is due, and its limit
        self._due = math.inf
        self._handle: asyncio.TimerHandle | None = None
        self.full_buffers: dict[PartitionBuffer, None] = {}
        self._admit_is_due = False
        self._buffer_moved = asyncio.Event()
        self.is_closed: bool = False

    def add(self, request: Request, timeout: float | None) -> None:
        """Add a publish; its bytes count once it is queued.

        Args:
            request: The publish.
            timeout: Seconds until it expires. None for the usual limit.
        """
        if timeout is None:
            self.usual[request] = None
            deadline = request.deadline = self._clock() + self._usual_timeout
        else:
            request.timeout = timeout
            deadline = request.deadline = self._clock() + timeout
            self._add_other(request, timeout, deadline)
        if deadline < self._due:
            self._check_at(deadline)

    def _add_other(self, request: Request, timeout: float, deadline: float) -> None:
        group = self._others.get(timeout)
        if group is None:
            group = self._others[timeout] = _Group()
            if len(self._order) > 2 * len(self._others) + _UNUSED_LIMITS:
                self._order = [(each.due, limit) for limit, each in self._others.items() if each.due < math.inf]
                heapify(self._order)
        group.requests[request] = None
        if deadline < group.due:
            group.due = deadline
            heappush(self._order, (deadline, timeout))

    def stored(self, request: Request, receipts: list[Receipt]) -> None:
        """Return ``receipts`` to the caller, if it still waits, and remove the publish."""
        if not request.future.done():
            request.future.set_result(receipts)
            if request.timeout is None:
                del self.usual[request]
            else:
                self._remove_other(request, request.timeout)
            self._free(request)

    def free(self, size: int) -> None:
        """Subtract ``size`` bytes from the total, and queue publishes that now have space."""
        self.total_bytes -= size
        if self.full_buffers and not self._admit_is_due:
            # Not at once: the caller may be in the middle of its partition's answers.
            self._admit_is_due = True
            self.loop.call_soon(self._admit_waiting)

    def _free(self, request: Request) -> None:
        if request.place is not None:
            request.place.held_bytes -= request.size
        self.free(request.size)

    def _admit_waiting(self) -> None:
        self._admit_is_due = False
        if self.is_closed:
            return
        for buffer in tuple(self.full_buffers):
            buffer.admit_waiting()
        self.buffer_moved()

    def buffer_moved(self) -> None:
        """Wake the callers of :meth:`until_queued`."""
        self._buffer_moved.set()

    def let_go(self, request: Request) -> None:
        """Remove a publish whose caller has stopped waiting, for any reason; it may have been removed before."""
        if not request.future.done() or request.future.cancelled():
            request.give_up()
        if request.timeout is not None:
            group = self._others.get(request.timeout)
            if group is None or request not in group.requests:
                return
            self._remove_other(request, request.timeout)
        elif request in self.usual:
            del self.usual[request]
        else:
            return
        if request.place is not None and not request.waits_for_room:
            self._free(request)

    def _remove_other(self, request: Request, timeout: float) -> None:
        requests = self._others[timeout].requests
        del requests[request]
        # Callers may use many different limits: keep no group for unused ones.
        if not requests:
            del self._others[timeout]

    async def until_queued(self, request: Request) -> None:
        """Wait until ``request`` has space, or until :meth:`close`. Cancelling leaves nothing behind."""
        while request.waits_for_room and not request.future.done() and not self.is_closed:
            self._buffer_moved.clear()
            await self._buffer_moved.wait()

    def futures(self) -> list[asyncio.Future[list[Receipt]]]:
        """Return the futures of the pending publishes."""
        groups = (self.usual, *(group.requests for group in self._others.values()))
        return [request.future for requests in groups for request in requests]

    def close(self) -> None:
        """Stop expiring publishes, and stop queueing those that wait for space."""
        self.is_closed = True
        self.full_buffers.clear()
        self.buffer_moved()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _check_at(self, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = when
        self._handle = self.loop.call_at(when, self._check)

    def _check(self) -> None:
        # Timers may fire a tick of the clock early.
        now = max(self.loop.time(), self._due)
        self._handle, self._due = None, math.inf
        expired: list[Request] = []
        following = _expired(self.usual, now, expired)
        while self._order:
            due, timeout = self._order[0]
            group = self._others.get(timeout)
            if group is None or group.due != due:
                heappop(self._order)
            elif due <= now:
                heappop(self._order)
                group.due = _expired(group.requests, now, expired)
                if group.due < math.inf:
                    heappush(self._order, (group.due, timeout))
            else:
                following = min(following, due)
                break
        for request in expired:
            if request.place is not None:  # else it waits in its topic's queue, which checks the limit itself
                request.place.expire(request)
        if following < math.inf:
            self._check_at(following)


def _expired(requests: Iterable[Request], now: float, expired: list[Request]) -> float:
    """Append those that are over to ``expired``; return the deadline of the first other one, or infinity."""
    for request in requests:
        if request.deadline > now:
            return request.deadline
        if not request.future.done():
            expired.append(request)
    return math.inf


class PartitionBuffer:
    """The bytes that one partition holds, and the publishes that wait for space in it.

    ``policy.producer_limits`` decides which publish has space. Queued publishes are
    in the lane of the partition's sender.

    Args:
        pending: Counts the bytes of all partitions.
        submit: Queues a publish that has space.
        give_up: Called when the caller of a queued publish has stopped waiting.
        expire: Fails a publish whose time limit has passed.

    Attributes:
        held_bytes: Queued and unanswered bytes of the partition.
        waiting: Publishes that wait for space, oldest first.
    """

    __slots__ = ("_expire", "_give_up", "_pending", "_submit", "held_bytes", "waiting")

    def __init__(
        self,
        pending: PendingPublishes,
        *,
        submit: Callable[[Request], None],
        give_up: Callable[[Request], None],
        expire: Callable[[Request], None],
    ) -> None:
        self.held_bytes: int = 0
        self.waiting: OrderedDict[Request, None] = OrderedDict()  # they leave from anywhere in it
        self._pending = pending
        self._submit = submit
        self._give_up = give_up
        self._expire = expire

    def has_room(self, size: int) -> bool:
        """Return whether there is space for ``size`` more bytes and no publish waits for space."""
        pending = self._pending
        is_free = has_room(size, self.held_bytes, pending.total_bytes, pending.max_bytes)
        return is_free and not self.waiting

    def take_in(self, request: Request) -> bool:
        """Queue a publish if there is space, even if others wait; return whether it was queued."""
        pending, size = self._pending, request.size
        if not has_room(size, self.held_bytes, pending.total_bytes, pending.max_bytes):
            return False
        request.place = self
        self.held_bytes += size
        pending.total_bytes += size
        self._submit(request)
        return True

    def admit(self, request: Request) -> None:
        """Queue a publish if there is space and none waits; else let it wait."""
        request.waits_for_room = False
        if self.waiting or not self.take_in(request):
            request.place = self
            request.waits_for_room = True
            self.waiting[request] = None
            self._pending.full_buffers[self] = None

    def admit_waiting(self) -> None:
        """Queue the waiting publishes that now have space."""
        while self.waiting:
            request, _ = self.waiting.popitem(last=False)
            if request.future.done():
                continue  # its caller is about to call let_go
            request.waits_for_room = False
            if not self.take_in(request):
                request.waits_for_room = True
                self.waiting[request] = None
                self.waiting.move_to_end(request, last=False)
                break
        if not self.waiting:
            self._pending.full_buffers.pop(self, None)

    def give_up(self, request: Request) -> None:
        """Record that the caller of ``request`` has stopped waiting."""
        if request.waits_for_room:
            self.remove(request)
        else:
            self._give_up(request)

    def expire(self, request: Request) -> None:
        """Fail ``request``, whose time limit has passed."""
        self._expire(request)

    def move(self, request: Request, target: PartitionBuffer) -> None:
        """Count a queued publish for ``target`` instead; the caller moves it to that lane."""
        self.held_bytes -= request.size
        target.held_bytes += request.size
        request.place = target

    def remove(self, request: Request) -> None:
        """Remove a waiting publish that ends. ``waits_for_room`` stays set, since its bytes were never counted."""
        if request in self.waiting:
            del self.waiting[request]
            self._pending.buffer_moved()

    def withdraw(self) -> list[Request]:
        """Remove and return all waiting publishes without keys; the caller queues them at another partition."""
        out = [request for request in self.waiting if not request.keys]
        for request in out:
            del self.waiting[request]
        return out

    def free(self, size: int) -> None:
        """Subtract ``size`` bytes from this partition and from the total."""
        self.held_bytes -= size
        self._pending.free(size)

    def full_reason(self, size: int) -> str:
        """Return the error text for a publish of ``size`` bytes that got no space in time."""
        pending = self._pending
        return (
            f"timed out waiting for buffer space: {size} bytes are needed, the partition holds {self.held_bytes}, and "
            f"all partitions together {pending.total_bytes} of max_pending_bytes={pending.max_bytes}. No partition "
            "may hold more than is left free: raise max_pending_bytes, or publish less at once"
        )
