"""All pending publishes of a producer: their bytes, those that wait for space, and their time limits.

Bytes: if one partition stops, the others must have space. No partition may hold more than is left free::

    bytes of the partition  <=  limit - bytes of all partitions

One partition alone holds at most half of the limit, two hold a third each, n of them 1/(n + 1) each. A share of that
size always stays free for healthy partitions, which free it again within milliseconds. The rule does not depend on
which partitions are healthy, so it holds before a fault is detected.

A partition that holds nothing accepts one publish of any size, so that it never starves. Therefore the sum can exceed
the limit by at most one publish per partition.

===================  ============================  =======================
the partition holds  its bytes + all bytes + size  the publish
===================  ============================  =======================
nothing              any                           is accepted
something            up to the limit               is accepted
something            more than the limit           waits in the queue of its partition
===================  ============================  =======================

Time: most publishes have the producer's limit. They expire in the order in which they began, so one timer for the
oldest is enough; a timer for each would cost as much as the rest of the publish.

The invariants: a publish is in here exactly while its caller waits. A stored one is removed at once
(:meth:`PendingPublishes.stored`); any other when its caller's call ends (:meth:`PendingPublishes.let_go`). A publish
that waits for space was not written and its bytes do not count.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.loops import TO_READ
from nsq_ha.policy.lane import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.errors import PublishError
    from nsq_ha.message import Receipt
    from nsq_ha.policy.sharding import Key

EXPIRED_AT_ONCE: Final = 200
"""Most publishes that expire in one turn of the loop: each makes an error, and thousands may have begun together."""


class PendingPublish(Entry, eq=False, kw_only=True):
    """A publish: what ``producer.requests`` sends as a PUB or an MPUB. It is also the entry of its partition's lane.

    Attributes:
        topic: The topic.
        future: Gets one Receipt for each message, or the PublishError.
        size: Bytes of the bodies, for back-pressure.
        body: The body of a PUB. Empty for an MPUB.
        key: The caller's key. None for no key.
        partition: The caller's partition. None if the key or the producer chooses.
        trace_id: The trace id of a PUB. None for no trace.
        ext: The extension header of a PUB, as JSON. None for no header.
        ext_if_extended: The extension header of a PUB if the topic is extended, which is not known before it is
            admitted. None if that makes no difference.
        defer_ms: Of a PUB, the milliseconds until its delivery. None for no delay.
        count: Number of messages.
        is_plain: Whether it has neither trace ids nor headers; the answer then is ``OK``.
        closes_when_refused: Whether the connection is unusable after a refusal.
        buffer: Of the partition that holds it; it may move while it waits. None before.
        waits_for_room: Whether it waits for space, or ended while waiting; its bytes do not count.
        deadline: When its time limit ends, in the loop's time.
        timer: Ends it at its own time limit. None if it has the producer's.
        began_ns: When the call began, in nanoseconds since the epoch; 0 if it is not traced.
        is_counted: Of one that was written more than once, whether an acknowledgement was counted.
    """

    topic: str
    future: asyncio.Future[list[Receipt]]
    size: int
    body: bytes = b""
    key: Key | None = None
    partition: int | None = None
    trace_id: int | None = None
    ext: bytes | None = None
    ext_if_extended: bytes | None = None
    defer_ms: int | None = None
    count: int = 1
    is_plain: bool = True
    closes_when_refused: bool = False
    buffer: PartitionBuffer | None = None
    waits_for_room: bool = False
    deadline: float = 0.0
    timer: asyncio.TimerHandle | None = None
    began_ns: int = 0
    is_counted: bool = False

    def encode(self, partition: int | None) -> bytes:
        """Return the command for ``partition``; None omits the number, for servers without partitions."""
        raise NotImplementedError

    def gather(self, partition: int | None) -> list[bytes]:
        """Return the command as parts to send one after another."""
        return [self.encode(partition)]

    def receipts(self, answer: bytes, partition: int, nsqd: str) -> list[Receipt]:
        """Return the receipts for the server's answer.

        Raises:
            RemoteProtocolError: The answer does not fit: answers and publishes are misaligned.
        """
        raise NotImplementedError

    def fail(self, error: PublishError) -> None:
        """Raise ``error`` in the caller if it still waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def give_up(self) -> None:
        """Record that the caller has stopped waiting."""
        if self.buffer is not None:
            self.buffer.give_up(self)
        self.future.cancel()


class PendingPublishes:
    """All pending publishes of one producer.

    Args:
        usual_timeout: The limit of publishes without their own.
        max_bytes: See the attribute.

    Attributes:
        loop: The producer's event loop.
        new_future: Creates the future of a publish.
        total_bytes: Bytes of all queued and unanswered bodies, in all partitions.
        max_bytes: The limit of ``total_bytes``.
        freed: How often bytes were subtracted from it.
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
        self.freed: int = 0
        self.full_buffers: dict[PartitionBuffer, None] = {}
        self.usual: dict[PendingPublish, None] = {}
        self.is_open = True
        self.is_closed: bool = False
        self._clock = self.loop.time
        self._usual_timeout = usual_timeout
        self._others: dict[PendingPublish, None] = {}
        self._check: asyncio.TimerHandle | None = None
        self._check_at = 0.0
        self._admit_is_due = False
        self._buffer_moved = asyncio.Event()

    def add(self, request: PendingPublish, timeout: float | None) -> None:
        """Add a publish; its bytes count once it is queued.

        Args:
            request: The publish.
            timeout: Seconds until it expires. None for the usual limit.
        """
        if timeout is None:
            self.usual[request] = None
            request.deadline = self._clock() + self._usual_timeout
            if self._check is None:
                self._check_later(request.deadline)
        else:
            self._others[request] = None
            request.deadline = self._clock() + timeout
            request.timer = self.loop.call_at(request.deadline, self._read, request)

    def stored(self, request: PendingPublish, receipts: list[Receipt]) -> None:
        """Return ``receipts`` to the caller, if it still waits, and remove the publish."""
        if not request.future.done():
            request.future.set_result(receipts)
            self._remove(request)

    def let_go(self, request: PendingPublish) -> None:
        """Remove a publish whose caller has stopped waiting, for any reason; it may have been removed before."""
        if not request.future.done() or request.future.cancelled():
            request.give_up()
        if request in (self.usual if request.timer is None else self._others):
            self._remove(request)

    def _remove(self, request: PendingPublish) -> None:
        self.forget(request)
        if request.buffer is not None and not request.waits_for_room:
            request.buffer.free(request.size)

    def forget(self, request: PendingPublish) -> None:
        """Let a publish expire no more; the caller frees its bytes."""
        if request.timer is None:
            del self.usual[request]
        else:
            request.timer.cancel()
            del self._others[request]

    def free(self, size: int) -> None:
        """Subtract ``size`` bytes from the total, and queue publishes that now have space."""
        self.total_bytes -= size
        self.freed += 1
        if self.full_buffers and not self._admit_is_due:
            # Not at once: the caller may be in the middle of its partition's answers.
            self._admit_is_due = True
            self.loop.call_soon(self._admit_waiting)

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

    async def until_queued(self, request: PendingPublish) -> None:
        """Wait until ``request`` has space, or until :meth:`close`. Cancelling leaves nothing behind."""
        while request.waits_for_room and not request.future.done() and not self.is_closed:
            self._buffer_moved.clear()
            await self._buffer_moved.wait()

    def futures(self) -> list[asyncio.Future[list[Receipt]]]:
        """Return the futures of the pending publishes."""
        return [request.future for requests in (self.usual, self._others) for request in requests]

    def close(self) -> None:
        """Stop expiring publishes, and stop queueing those that wait for space."""
        self.is_closed = True
        self.full_buffers.clear()
        self.buffer_moved()
        for timer in (self._check, *(request.timer for request in self._others)):
            if timer is not None:
                timer.cancel()

    def _check_later(self, when: float) -> None:
        self._check_at = when
        self._check = self.loop.call_at(when, self._read, None)

    def _read(self, request: PendingPublish | None) -> None:
        """Expire a publish, or the usual ones, when the sockets have been read: its answer may have come."""
        if request is None:
            self._check = self.loop.call_later(TO_READ, self._check_usual)
        else:
            request.timer = self.loop.call_later(TO_READ, _expire, request)

    def _check_usual(self) -> None:
        """Expire those whose time is over."""
        self._check = None
        now = max(self._clock(), self._check_at)  # timers may fire a tick of the clock early
        expired: list[PendingPublish] = []
        for request in self.usual:
            if request.deadline > now or len(expired) == EXPIRED_AT_ONCE:
                self._check_later(max(request.deadline, now))
                break
            if not request.future.done() and request.buffer is not None:
                expired.append(request)
        for request in expired:
            _expire(request)


def _expire(request: PendingPublish) -> None:
    if request.buffer is not None and not request.future.done():
        request.buffer.expire(request)  # without a buffer it waits in its topic's queue, which checks the limit itself


class PartitionBuffer:
    """The bytes that one partition holds, and the publishes that wait for space in it.

    Queued publishes are in the lane of the partition's sender.

    Args:
        pending: Counts the bytes of all partitions.
        submit: Queues a publish that has space.
        give_up: Called when the caller of a queued publish has stopped waiting.
        expire: Fails a publish whose time limit has passed.

    Attributes:
        held_bytes: Queued and unanswered bytes of the partition.
        waiting: Publishes that wait for space, oldest first.
        expire: See above.
    """

    __slots__ = ("_give_up", "_pending", "_submit", "expire", "held_bytes", "waiting")

    def __init__(
        self,
        pending: PendingPublishes,
        *,
        submit: Callable[[PendingPublish], None],
        give_up: Callable[[PendingPublish], None],
        expire: Callable[[PendingPublish], None],
    ) -> None:
        self.held_bytes: int = 0
        self.waiting: OrderedDict[PendingPublish, None] = OrderedDict()  # they leave from anywhere in it
        self.expire: Callable[[PendingPublish], None] = expire
        self._pending = pending
        self._submit = submit
        self._give_up = give_up

    def take_in(self, request: PendingPublish, *, is_first: bool = False) -> bool:
        """Queue a publish if there is space; return whether it was queued.

        Args:
            request: The publish.
            is_first: Whether it goes before those that wait for space; any other one waits behind them.
        """
        size, held, pending = request.size, self.held_bytes, self._pending
        if (held and held + pending.total_bytes + size > pending.max_bytes) or (self.waiting and not is_first):
            return False
        request.buffer = self
        self.held_bytes = held + size
        pending.total_bytes += size
        self._submit(request)
        return True

    def admit(self, request: PendingPublish) -> None:
        """Queue a publish if there is space and none waits; else let it wait."""
        request.waits_for_room = False
        if not self.take_in(request):
            request.buffer, request.waits_for_room = self, True
            self.waiting[request] = None
            self._pending.full_buffers[self] = None

    def admit_waiting(self) -> None:
        """Queue the waiting publishes that now have space."""
        while self.waiting:
            request, _ = self.waiting.popitem(last=False)
            if request.future.done():
                continue  # its caller is about to call let_go
            request.waits_for_room = False
            if not self.take_in(request, is_first=True):
                request.waits_for_room = True
                self.waiting[request] = None
                self.waiting.move_to_end(request, last=False)
                return
        self._pending.full_buffers.pop(self, None)

    def give_up(self, request: PendingPublish) -> None:
        """Record that the caller of ``request`` has stopped waiting."""
        if request.waits_for_room:
            self.remove(request)
        else:
            self._give_up(request)

    def move(self, request: PendingPublish, target: PartitionBuffer) -> None:
        """Count a queued publish for ``target`` instead; the caller moves it to that lane."""
        self.held_bytes -= request.size
        target.held_bytes += request.size
        request.buffer = target

    def remove(self, request: PendingPublish) -> None:
        """Remove a waiting publish that ends. ``waits_for_room`` stays set, since its bytes were never counted."""
        if request in self.waiting:
            del self.waiting[request]
            self._pending.buffer_moved()

    def withdraw(self) -> list[PendingPublish]:
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
