"""All pending publishes of a producer, and their time limits.

Most publishes have the producer's limit. They expire in the order in which they
began, so one timer for the oldest is enough; a timer for each would cost as much
as the rest of the publish.

The invariant: a publish is in here exactly while its caller waits. A stored one is
removed at once (:meth:`PendingPublishes.stored`); any other when its caller's call
ends (:meth:`PendingPublishes.let_go`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.engine.loops import TO_READ
from nsq_ha.policy.lane import Entry

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.errors import PublishError
    from nsq_ha.message import Receipt
    from nsq_ha.policy.sharding import Key

EXPIRED_AT_ONCE: Final = 200
"""Most publishes that expire in one turn of the loop: each makes an error, and thousands may have begun together."""


class Holder(Protocol):
    """Has queued a publish."""

    def give_up(self, request: PendingPublish) -> None:
        """Record that the caller of ``request`` has stopped waiting."""

    def expire(self, request: PendingPublish) -> None:
        """Fail ``request``: its time limit has passed."""


class PendingPublish(Entry, eq=False, kw_only=True):
    """A publish: what ``producer.requests`` sends as a PUB or an MPUB. It is also the entry of its partition's lane.

    Attributes:
        topic: The topic.
        future: Gets one Receipt for each message, or the PublishError.
        size: Bytes of the bodies.
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
        holder: The sender of the partition that it waits in; it may move while it waits. None before.
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
    holder: Holder | None = None
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
        if self.holder is not None:
            self.holder.give_up(self)
        self.future.cancel()


class PendingPublishes:
    """All pending publishes of one producer.

    Args:
        usual_timeout: The limit of publishes without their own.

    Attributes:
        loop: The producer's event loop.
        new_future: Creates the future of a publish.
        usual: Publishes with the usual limit, oldest first.
        is_open: Whether the producer accepts publishes.
        is_closed: Whether publishes no longer expire.
    """

    def __init__(self, usual_timeout: float) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.new_future: Callable[[], asyncio.Future[list[Receipt]]] = self.loop.create_future
        self.usual: dict[PendingPublish, None] = {}
        self.is_open = True
        self.is_closed: bool = False
        self._clock = self.loop.time
        self._usual_timeout = usual_timeout
        self._others: dict[PendingPublish, None] = {}
        self._check: asyncio.TimerHandle | None = None
        self._check_at = 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes of the bodies of all pending publishes. It may be read from any thread."""
        return sum(request.size for requests in (self.usual, self._others) for request in tuple(requests))

    def add(self, request: PendingPublish, timeout: float | None) -> None:
        """Add a publish.

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
            self.forget(request)

    def let_go(self, request: PendingPublish) -> None:
        """Remove a publish whose caller has stopped waiting, for any reason; it may have been removed before."""
        if not request.future.done() or request.future.cancelled():
            request.give_up()
        if request in (self.usual if request.timer is None else self._others):
            self.forget(request)

    def forget(self, request: PendingPublish) -> None:
        """Remove a publish; it expires no more."""
        if request.timer is None:
            del self.usual[request]
        else:
            request.timer.cancel()
            del self._others[request]

    def futures(self) -> list[asyncio.Future[list[Receipt]]]:
        """Return the futures of the pending publishes."""
        return [request.future for requests in (self.usual, self._others) for request in requests]

    def close(self) -> None:
        """Stop expiring publishes."""
        self.is_closed = True
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
            if not request.future.done() and request.holder is not None:
                expired.append(request)
        for request in expired:
            _expire(request)


def _expire(request: PendingPublish) -> None:
    if request.holder is not None and not request.future.done():
        request.holder.expire(request)  # without a holder it waits in its topic's queue, which checks the limit itself
