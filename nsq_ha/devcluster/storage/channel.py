"""A channel on the leader of its partition: what is in flight, delayed, requeued, and to whom it goes.

Owns delivery and its order. Does not know frames or sockets: a consumer is
anything that takes a record.

The invariants: a message is in flight with at most one consumer; an ordered
channel has at most one message in flight in total; only flushed records are
delivered, up to the channel's own end.

Source: protocol reference 7 - 9; youzan/nsq ``nsqd/channel.go``.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.names import EPHEMERAL_SUFFIX

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.cursor import Cursor
    from nsq_ha.devcluster.storage.log import Log
    from nsq_ha.devcluster.storage.record import Record

MAX_ATTEMPTS: Final = 4000
MAX_CONFIRM_WINDOW: Final = 500
"""Runs confirmed out of order until reading stops."""
MAX_MSG_TIMEOUT: Final = 900.0
"""Longest time a message can be held by TOUCH, from its delivery."""
DISK_DELAY: Final = 900.0
"""A longer delay leaves memory: the message is then no longer known by its id."""
MAX_DELAY: Final = 3 * 24 * 3600.0
_MANY_ATTEMPTS: Final = 100
_TOO_MANY_ATTEMPTS: Final = MAX_ATTEMPTS // 2
_SHORT: Final = 0.1


def is_ephemeral(name: str) -> bool:
    """Whether a channel goes with its last consumer, and is not replicated."""
    return name.endswith(EPHEMERAL_SUFFIX)


class Consumer(Protocol):
    """Who takes messages: one subscribed connection."""

    client_id: int
    ready: int
    holds: int
    msg_timeout: float

    def wants(self, record: Record) -> bool:
        """Whether the record goes to this consumer; False confirms it for the channel (sampling)."""

    def deliver(self, record: Record, attempts: int, *, at_once: bool) -> None:
        """Take one message; ``at_once`` when it must not wait in a buffer."""

    def drop(self) -> None:
        """Close the connection without a word."""


class Refusal(Exception):  # noqa: N818 - it is the answer, not a failure of ours
    """Why FIN, REQ or TOUCH cannot be done; the text goes into the error frame."""


class InFlight:
    """One delivered, unanswered message."""

    __slots__ = ("attempts", "consumer", "deadline", "delivered", "index", "record", "stray")

    def __init__(
        self, record: Record, index: int, attempts: int, consumer: Consumer, delivered: float, *, stray: bool
    ) -> None:
        """Start its clock."""
        self.record = record
        self.index = index
        self.attempts = attempts
        self.consumer = consumer
        self.delivered = delivered
        self.deadline = delivered + consumer.msg_timeout
        self.stray = stray


class Channel:
    """The live state of one channel.

    Attributes:
        name: Its name.
        cursor: What is confirmed, replicated through ``peers``.
        peers: The cursors of the other in-sync replicas.
        ordered: One message at a time, in order.
        ephemeral: It goes with its last consumer.
        end: Index behind the last record that it may read.
        scanned: The node checks its timeouts; for a new channel from the next refresh on.

    Args:
        name: Its name.
        log: What it reads.
        cursor: What is confirmed.
        refresh: Called when the reader is at its end; may flush, and extend the channel.
    """

    def __init__(self, name: str, log: Log, cursor: Cursor, refresh: Callable[[Channel], None]) -> None:
        """Start at the cursor, with nothing in flight."""
        self.name = name
        self.cursor = cursor
        self.peers: list[Cursor] = []
        self.ordered = False
        self.ephemeral = is_ephemeral(name)
        self.paused = False
        self.skipped = False
        self.scanned = False
        self.consumers: list[Consumer] = []
        self.in_flight: dict[int, InFlight] = {}
        self.requeued = self.timed_out = self.delivered = 0
        self.end = log.flushed
        self._log = log
        self._refresh = refresh
        self._read = cursor.confirmed
        self._again: deque[tuple[int, int]] = deque()  # (index, attempts so far)
        self._deferred: dict[int, tuple[float, int, int]] = {}  # id -> due, index, attempts
        self._due: list[tuple[float, int, int, int]] = []  # heap: due, id, index, attempts
        self._hand: tuple[int, int] | None = None  # what goes out next
        self._stray = False  # the reader was reset while that was in hand
        self._restarts = False  # the reader is reset once that was sent
        self._turn = 0
        self._earliest = float("inf")

    # ------------------------------------------------------------ consumers

    def add(self, consumer: Consumer) -> None:
        """Let a consumer take part; it gets nothing until it is ready."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer, now: float) -> None:
        """Give back at once what a consumer held, attempts as they were, the last delivered first."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        held = [entry for entry in self.in_flight.values() if entry.consumer is consumer]
        for entry in reversed(held):
            del self.in_flight[entry.record.internal_id]
            self._give_back(entry.index, entry.attempts - 1)
        consumer.holds = 0
        if held:
            self.dispatch(now)

    def _give_back(self, index: int, attempts: int) -> None:
        """Requeue a message; the server counts it as requeued for every reason."""
        self.requeued += 1
        self._again.append((index, attempts))

    # ------------------------------------------------------------ delivery

    def dispatch(self, now: float) -> None:
        """Deliver what can be delivered."""
        self._fill(asks=False)
        while self._hand is not None and not self.paused and (place := self._next_place()) is not None:
            # Only now: a look at an empty queue is nobody's turn.
            self._turn = place + 1
            self._hand_over(self.consumers[place], now)
            self._fill(asks=True)

    def _fill(self, *, asks: bool) -> None:
        """Take the next message in hand, even if no consumer is ready for it.

        The message in hand is always sent next: before one that is requeued meanwhile, and even after an
        ``empty``. An ordered channel reads on when its one message is answered.

        Args:
            asks: The reader moved, so it asks for more at its end.
        """
        while self._hand is None and not (self.ordered and self.in_flight):
            item = self._next_item()
            if item is None:
                if not (asks and self._grows()):
                    return
            elif item[0] >= self._log.start:  # else it was cleaned before it could be sent again
                if self.skipped:
                    self._confirm(item[0])
                else:
                    self._hand = item

    def _hand_over(self, consumer: Consumer, now: float) -> None:
        item, stray = self._hand, self._stray
        self._hand, self._stray = None, False
        if item is not None and item[0] >= self._log.start:
            self._deliver(*item, consumer, now, stray=stray)
        if self._restarts:
            self._restart()

    def _deliver(self, index: int, attempts: int, consumer: Consumer, now: float, *, stray: bool) -> None:
        record = self._log.records[index]
        if not consumer.wants(record):
            self._confirm(index)
            return
        attempts = min(attempts + 1, MAX_ATTEMPTS)
        entry = InFlight(record, index, attempts, consumer, now, stray=stray)
        self.in_flight[record.internal_id] = entry
        self._earliest = min(self._earliest, entry.deadline)
        consumer.holds += 1
        self.delivered += 1
        consumer.deliver(record, attempts, at_once=self.ordered)

    def _next_place(self) -> int | None:
        """The next ready consumer behind the one that was served last, as an index."""
        consumers = self.consumers
        count = len(consumers)
        for step in range(count):
            place = (self._turn + step) % count
            consumer = consumers[place]
            if consumer.holds < consumer.ready:
                return place
        return None

    def _next_item(self) -> tuple[int, int] | None:
        """Index and attempts of what is read next: requeued ones, then the queue."""
        if self._again:
            return self._again.popleft()
        cursor = self.cursor
        if cursor.ranges > MAX_CONFIRM_WINDOW and not self.ordered:
            return None
        while self._read < self.end:
            index = self._read
            self._read = index + 1
            if index >= cursor.confirmed and index not in cursor.beyond:
                return index, 0
        return None

    # ------------------------------------------------------------ answers

    def finish(self, internal_id: int, consumer: Consumer, now: float) -> None:
        """FIN.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        entry = self._owned(internal_id, consumer)
        del self.in_flight[internal_id]
        consumer.holds -= 1
        if not entry.stray:
            self._confirm(entry.index)
        if not self.in_flight:
            self._grows()
        self.dispatch(now)

    def requeue(self, internal_id: int, consumer: Consumer, delay: float, now: float) -> None:
        """REQ; an ordered channel ignores a delay without a word.

        Raises:
            Refusal: The message is not in flight with this consumer, or comes back too often.
        """
        if self.ordered and delay > 0:
            return
        if internal_id in self._deferred:
            raise Refusal("Message is deferred")
        entry = self.in_flight.get(internal_id)
        if entry is not None and delay == 0:
            often = entry.attempts > _MANY_ATTEMPTS and now - entry.delivered < _SHORT
            if often or entry.attempts >= _TOO_MANY_ATTEMPTS:
                raise Refusal("Message too much requeue")
        entry = self._owned(internal_id, consumer)
        if delay > 0 and self.cursor.ranges > MAX_CONFIRM_WINDOW and now + delay >= entry.deadline:
            raise Refusal("Too much deferred messages in flight")
        del self.in_flight[internal_id]
        consumer.holds -= 1
        if delay == 0:
            self._give_back(entry.index, entry.attempts)
        else:
            due = now + min(delay, MAX_DELAY)
            heapq.heappush(self._due, (due, internal_id, entry.index, entry.attempts))
            if delay <= DISK_DELAY or self.ephemeral:
                self._deferred[internal_id] = (due, entry.index, entry.attempts)
        self.dispatch(now)

    def touch(self, internal_id: int, consumer: Consumer, now: float) -> None:
        """TOUCH: restart the message's clock, within bounds.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        entry = self._owned(internal_id, consumer)
        entry.deadline = min(now + consumer.msg_timeout, entry.delivered + MAX_MSG_TIMEOUT)

    def _owned(self, internal_id: int, consumer: Consumer) -> InFlight:
        entry = self.in_flight.get(internal_id)
        if entry is None:
            if internal_id in self._deferred:
                raise Refusal(f"client does not own message : 0 vs {consumer.client_id}")
            raise Refusal("Message ID not in flight")
        if entry.consumer is not consumer:
            owner = entry.consumer.client_id
            raise Refusal(f"client does not own message : {owner} vs {consumer.client_id}")
        return entry

    def _confirm(self, index: int) -> None:
        self.cursor.confirm(index)
        for peer in self.peers:
            peer.confirm(index)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Give back what timed out and what has waited its delay."""
        due = self._due
        moved = False
        while due and due[0][0] <= now:
            _, internal_id, index, attempts = heapq.heappop(due)
            self._deferred.pop(internal_id, None)
            self._give_back(index, attempts)
            moved = True
        if now >= self._earliest:
            moved |= self._time_out(now)
        if moved:
            self.dispatch(now)

    def _time_out(self, now: float) -> bool:
        late = [entry for entry in self.in_flight.values() if entry.deadline <= now]
        for entry in late:
            del self.in_flight[entry.record.internal_id]
            entry.consumer.holds -= 1
            self._give_back(entry.index, entry.attempts)
        self.timed_out += len(late)
        self._earliest = min((entry.deadline for entry in self.in_flight.values()), default=float("inf"))
        return bool(late)

    # ------------------------------------------------------------ operators

    def switch_to_ordered(self) -> None:
        """Become ordered: forget unanswered messages and restart the reader after the last confirmed one.

        A message in hand is sent before that, so it arrives twice in a row, and only one of the two can be finished.

        Source: protocol reference 9 ("Duplicate at start").
        """
        if self.ordered:
            return
        self.ordered = True
        if self._hand is None:
            self._restart()
        else:
            self._restarts = True

    def _restart(self) -> None:
        self._restarts = False
        self._begin_at(self.cursor.confirmed)

    def switch_to_unordered(self) -> None:
        """Turn ordinary again, which cuts all consumers."""
        if self.ordered:
            self.ordered = False
            for consumer in tuple(self.consumers):
                consumer.drop()

    def reset(self, index: int) -> None:
        """Start at ``index``; the message in hand may still come first.

        An index behind the channel's end is silently ignored, as by the server.

        Source: protocol reference 5 ("Start positions"); Spark reference 1.3.
        """
        if index > self.end:
            return
        self._stray = self._hand is not None
        self._begin_at(index)

    def _begin_at(self, index: int) -> None:
        """Forget unanswered and delayed messages and confirmations out of order, and read on from ``index``."""
        for entry in self.in_flight.values():
            entry.consumer.holds -= 1
        self.in_flight.clear()
        self._again.clear()
        self._deferred.clear()
        self._due.clear()
        self._read = index
        for cursor in (self.cursor, *self.peers):
            cursor.reset(index)
        self._fill(asks=True)

    def empty(self) -> None:
        """Confirm all readable messages; the message in hand is still sent."""
        self.reset(self.end)

    def empty_delayed(self) -> None:
        """Confirm all that waits for its delay."""
        for _, _, index, _ in self._due:
            self._confirm(index)
        self._due.clear()
        self._deferred.clear()

    def grow(self, end: int) -> None:
        """Move the end; the caller delivers once it has handled its commands."""
        self.end = end
        self._fill(asks=False)

    def skip_on(self) -> None:
        """Skip messages since the last turn of the clock, if this channel skips."""
        if self.skipped and self.depth > 0:
            self.empty()

    def refresh(self) -> None:
        """Ask for more if the reader is at its end."""
        self._grows()

    def _grows(self) -> bool:
        """Ask for more if the reader is at its end; return whether there was more."""
        if self._hand is not None or self._again or self._read < self.end:
            return False
        before = self.end
        self._refresh(self)
        return self.end > before

    @property
    def waits(self) -> bool:
        """Whether everything is confirmed, so that new messages are flushed at once."""
        return self.cursor.confirmed >= self.end and not self.paused and not self.skipped

    @property
    def depth(self) -> int:
        """Number of readable records that are not confirmed."""
        return self.end - self.cursor.confirmed - len(self.cursor.beyond)

    @property
    def deferred_count(self) -> int:
        """Messages that wait for their delay."""
        return len(self._due)
