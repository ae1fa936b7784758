"""A channel on the leader of its partition: messages in flight, delayed and requeued, and their delivery.

If some consumer has the tag of a message, only consumers with that tag get it. All other messages go to consumers
without a tag, and wait for one.

The invariants: a message is in flight with at most one consumer; an ordered
channel has at most one message in flight in total; only flushed records are
delivered, up to the channel's own end.

Source: server protocol 7-9; youzan/nsq ``nsqd/channel.go``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from nsq_ha.devcluster.storage.any_channel import AnyChannel, AnyConsumer, Delayed, Delivered, Refusal
from nsq_ha.devcluster.storage.log import Cursor, Log, Record
from nsq_ha.protocol.server.headers import tag_of

MAX_ATTEMPTS: Final = 4000
MAX_CONFIRM_WINDOW: Final = 500
"""Number of runs confirmed out of order at which reading stops; or of unconfirmed messages, if most are delayed."""
MAX_REPLICATED_RUNS: Final = 100
"""Number of runs confirmed out of order above which the followers do not learn them."""
DISK_DELAY: Final = 900.0
"""A message with a longer delay leaves memory; its id is then unknown."""
_MANY_ATTEMPTS: Final = 100
_TOO_MANY_ATTEMPTS: Final = MAX_ATTEMPTS // 2
_SHORT: Final = 0.1


@dataclass(eq=False, slots=True)
class InFlight(Delivered[Record]):
    """One delivered, unanswered message. FIN of a stray one does not confirm it, since the reader was reset."""

    index: int
    attempts: int
    stray: bool


class Channel(AnyChannel[int, InFlight]):
    """The live state of one channel.

    Args:
        name: The name of the channel.
        log: The log to read.
        cursor: Which records are confirmed.
        refresh: Called when the reader reaches its end; it may flush and call :meth:`grow`.
        share: Called to make the channel known to the followers; it sets ``peers``.

    Attributes:
        cursor: Which records are confirmed; replicated through ``peers``.
        peers: The cursors of the other in-sync replicas.
        ordered: Whether messages are delivered one at a time, in order.
        end: Index after the last record that the channel may read.
        scanned: Whether the node's scans for timeouts include the channel, from the next refresh of the scans.
    """

    paused: bool
    requeued: int

    def __init__(
        self,
        name: str,
        log: Log,
        cursor: Cursor,
        refresh: Callable[[Channel], None],
        share: Callable[[Channel], None],
    ) -> None:
        super().__init__(name)
        self.cursor = cursor
        self.peers: list[Cursor] = []
        self.ordered: bool = False
        self.skipped: bool = False
        self.scanned = False
        self.end: int = log.flushed
        self._log = log
        self._refresh = refresh
        self._share = share
        self._read = cursor.confirmed
        self._again: deque[tuple[int, int]] = deque()  # (index, attempts so far)
        self._delayed = Delayed[int, InFlight]()
        self._hand: tuple[int, int] | None = None  # the next message to deliver
        self._stray = False  # the reader was reset while this message was in hand
        self._restarts = False  # reset the reader after the message in hand is delivered
        self._tags = frozenset[str]()  # of the consumers

    # ------------------------------------------------------------ delivery

    def add(self, consumer: AnyConsumer[Record]) -> None:
        """Add a consumer; it gets no messages until it is ready."""
        super().add(consumer)
        self._tags = frozenset(each.tag for each in self.consumers if each.tag)

    def remove(self, consumer: AnyConsumer[Record], now: float) -> None:
        """Requeue the messages of a consumer that left, last delivered first; attempts do not change."""
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        self._tags = frozenset(each.tag for each in self.consumers if each.tag)
        held = [entry for entry in self.in_flight.values() if entry.consumer is consumer]
        for entry in reversed(held):
            self._release(entry.message.internal_id)
            self._give_back(entry.index, entry.attempts - 1)
        if held or consumer.tag:
            self.dispatch(now)

    def _give_back(self, index: int, attempts: int) -> None:
        """Deliver a message again later; the server counts it as requeued, whatever the reason."""
        self.requeued += 1
        self._again.append((index, attempts))

    def dispatch(self, now: float) -> None:
        """Deliver as many messages as possible."""
        self._fill(asks=False)
        # An attempt on an empty queue does not count as a scan.
        while self._hand is not None and not self.paused:
            consumer = self._next_consumer(self._tag_in_hand())
            if consumer is None:
                return
            self._hand_over(consumer, now)
            self._fill(asks=True)

    def _fill(self, *, asks: bool) -> None:
        """Take the next message in hand, even if no consumer is ready.

        The message in hand is always delivered next: before messages that are requeued meanwhile, and even after an
        ``empty``. An ordered channel reads the next message when its one message is answered.

        Args:
            asks: Whether to ask for more at the end, since the reader moved.
        """
        while self._hand is None and not (self.ordered and self.in_flight):
            item = self._next_item()
            if item is None:
                if not (asks and self.refresh()):
                    return
            elif item[0] >= self._log.start:  # otherwise it was cleaned before it could be delivered again
                if self.skipped:
                    self._confirm(item[0])
                else:
                    self._hand = item

    def _hand_over(self, consumer: AnyConsumer[Record], now: float) -> None:
        item, stray = self._hand, self._stray
        self._hand, self._stray = None, False
        if item is not None and item[0] >= self._log.start:
            self._deliver(*item, consumer, now, stray=stray)
        if self._restarts:
            self._restart()

    def _deliver(self, index: int, attempts: int, consumer: AnyConsumer[Record], now: float, *, stray: bool) -> None:
        record = self._log.records[index]
        if not consumer.wants(record):
            self._confirm(index)
            return
        attempts = min(attempts + 1, MAX_ATTEMPTS)
        entry = InFlight(record, consumer, now, now + consumer.msg_timeout, index, attempts, stray)
        self._hold(record.internal_id, entry)
        consumer.deliver(record, attempts, at_once=self.ordered)

    def _tag_in_hand(self) -> str:
        """Return the tag that a consumer must have to get the message in hand; empty for none."""
        if not self._tags:
            return ""
        index = self._hand[0] if self._hand is not None else -1
        header = self._log.records[index].ext if index >= self._log.start else None
        tag = tag_of(header) if header else ""
        return tag if tag in self._tags else ""

    def _next_item(self) -> tuple[int, int] | None:
        """Return index and attempts of the next message: requeued ones first, then the queue."""
        if self._again:
            return self._again.popleft()
        cursor = self.cursor
        if self._is_held_up and not self.ordered:
            return None
        while self._read < self.end:
            index = self._read
            self._read = index + 1
            if index >= cursor.confirmed and index not in cursor.beyond:
                return index, 0
        return None

    @property
    def _is_held_up(self) -> bool:
        """Whether too much of what was read is finished out of order, or delayed, to read on.

        Source: youzan/nsq ``nsqd/channel.go`` ``messagePump``, ``isTooMuchDeferredInMem``.
        """
        unconfirmed = self._read - self.cursor.confirmed
        has_many = unconfirmed >= MAX_CONFIRM_WINDOW and self._delayed.in_memory > unconfirmed / 2
        return has_many or self.cursor.ranges > MAX_CONFIRM_WINDOW

    # ------------------------------------------------------------ answers

    def finish(self, message_id: int, consumer: AnyConsumer[Record], now: float) -> None:
        """FIN.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        entry = self._owned(message_id, consumer)
        self._release(message_id)
        if not entry.stray:
            self._confirm(entry.index)
        if not self.in_flight:
            self.refresh()
        self.dispatch(now)

    def requeue(self, message_id: int, consumer: AnyConsumer[Record], delay: float, now: float) -> None:
        """REQ. An ordered channel silently ignores one with a delay.

        Raises:
            Refusal: The message is not in flight with this consumer, or was requeued too often.
        """
        if self.ordered and delay > 0:
            return
        if message_id in self._delayed:
            raise Refusal("Message is deferred")
        entry = self.in_flight.get(message_id)
        if entry is not None and delay == 0:
            often = entry.attempts > _MANY_ATTEMPTS and now - entry.delivered < _SHORT
            if often or entry.attempts >= _TOO_MANY_ATTEMPTS:
                raise Refusal("Message too much requeue")
        entry = self._owned(message_id, consumer)
        if delay > 0 and self._is_held_up and now + delay >= entry.deadline:
            raise Refusal("Too much deferred messages in flight")
        self._release(message_id)
        if delay == 0:
            self._give_back(entry.index, entry.attempts)
        else:
            # An ephemeral channel keeps all of them in memory.
            is_known = delay <= DISK_DELAY or self.ephemeral
            self._delayed.add(message_id, entry, now + delay, is_known=is_known)
        self.dispatch(now)

    def _owned(self, message_id: int, consumer: AnyConsumer[Record]) -> InFlight:
        entry = self.in_flight.get(message_id)
        if entry is None:
            if message_id in self._delayed:
                raise Refusal(f"client does not own message : 0 vs {consumer.client_id}")
            raise Refusal("Message ID not in flight")
        if entry.consumer is not consumer:
            owner = entry.consumer.client_id
            raise Refusal(f"client does not own message : {owner} vs {consumer.client_id}")
        return entry

    def share(self) -> None:
        """Make the channel known to the followers."""
        if not self.cursor.shared:
            self._share(self)

    def _confirm(self, index: int) -> None:
        self.share()
        self.cursor.confirm(index)
        for peer in self.peers:
            peer.advance(self.cursor.confirmed)

    def replicate(self) -> None:
        """Send the followers what was confirmed out of order, which they learn only now and then.

        Source: youzan/nsq ``consistence/nsqd_coordinator.go`` ``trySyncTopicChannels``.
        """
        if self.cursor.ranges <= MAX_REPLICATED_RUNS:
            for peer in self.peers:
                peer.copy_from(self.cursor)

    # ------------------------------------------------------------ time

    def tick(self, now: float) -> None:
        """Requeue messages that timed out or whose delay ended."""
        due = self._delayed.pop_due(now)
        back = [*due, *self._late(now)]
        for entry in back:
            self._give_back(entry.index, entry.attempts)
        if back:
            self.dispatch(now)

    # ------------------------------------------------------------ operators

    def pause(self, _now: float) -> None:
        """Deliver nothing; the state is replicated, and with it the channel."""
        self.paused = True
        self.share()

    def unpause(self, now: float) -> None:
        """Deliver again; the state is replicated, and with it the channel."""
        self.paused = False
        self.share()
        self.dispatch(now)

    def skip(self, now: float) -> None:
        """Confirm everything undelivered, now and until :meth:`unskip`."""
        self.skipped = True
        self.empty_and_dispatch(now)

    def unskip(self, now: float) -> None:
        """Confirm everything undelivered for the last time."""
        self.skipped = False
        self.refresh()
        self.empty_and_dispatch(now)

    def empty_and_dispatch(self, now: float) -> None:
        """Confirm everything that can be read, and deliver a message in hand."""
        self.empty()
        self.dispatch(now)

    def switch_to_ordered(self) -> None:
        """Become ordered: forget unanswered messages, and read again from the first unconfirmed one.

        A message in hand is delivered first, so it arrives twice in a row, and only one of the two can be finished.

        Source: server protocol 9.1.
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
        """Become unordered again, and disconnect all consumers."""
        if self.ordered:
            self.ordered = False
            self.drop_consumers()

    def reset(self, index: int) -> None:
        """Read from ``index``; a message in hand is still delivered first.

        Silently ignore an index after the channel's end, as the server does.

        Source: server protocol 5.2; Spark design 1.3.
        """
        if index > self.end:
            return
        self._stray = self._hand is not None
        self.share()
        self._begin_at(index)

    def _begin_at(self, index: int) -> None:
        """Forget messages that are unanswered, delayed or confirmed out of order, and read from ``index``."""
        for entry in self.in_flight.values():
            entry.consumer.holds -= 1
        self._forget_held()
        self._again.clear()
        self._delayed.clear()
        self._read = index
        for cursor in (self.cursor, *self.peers):
            cursor.reset(index)
        self._fill(asks=True)

    def empty(self) -> None:
        """Confirm everything that can be read; a message in hand is still delivered."""
        self.reset(self.end)

    def grow(self, end: int) -> None:
        """Move the end, so that more can be read. The caller dispatches after this turn's commands."""
        self.end = end
        self._fill(asks=False)

    def skip_on(self) -> None:
        """Confirm the messages since the last tick, if this channel is skipped."""
        if self.skipped and self.depth > 0:
            self.empty()

    def refresh(self) -> bool:
        """Ask for more messages if the reader is at its end; return whether there were more."""
        if self._hand is not None or self._again or self._read < self.end:
            return False
        before = self.end
        self._refresh(self)
        return self.end > before

    @property
    def waits(self) -> bool:
        """Whether everything is confirmed and the channel wants new messages immediately."""
        return self.cursor.confirmed >= self.end and not self.paused and not self.skipped

    @property
    def depth(self) -> int:
        """Number of readable records after the confirmed position, including those confirmed out of order.

        Source: youzan/nsq ``nsqd/diskqueue_reader.go`` ``Depth``.
        """
        return self.end - self.cursor.confirmed

    @property
    def deferred_count(self) -> int:
        """Number of delayed messages in memory."""
        return self._delayed.in_memory

    @property
    def delayed_on_disk(self) -> int:
        """Number of the other delayed messages, which the real channel has confirmed."""
        return len(self._delayed) - self._delayed.in_memory
