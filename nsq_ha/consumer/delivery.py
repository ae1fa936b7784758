"""The messages of one connection, and the path back for their answers.

The invariant: an answer goes only through the connection that delivered its
message, and only while that is open. Later answers are dropped: the server has
delivered the message again, or will.

Source: server failures 4.3; server protocol 9.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from contextvars import ContextVar
from copy import copy as copied
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsq_ha.base.clock import monotonic
from nsq_ha.engine import observe
from nsq_ha.policy.overrun import Granted
from nsq_ha.policy.redelivery import OrderedRequeue, Unsettled, requeue_delay
from nsq_ha.protocol.encoding import encode_fin, encode_fins, encode_ready, encode_req, encode_touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.engine.connection import Connection
    from nsq_ha.errors import NsqError
    from nsq_ha.message import Message, Watch
    from nsq_ha.options.config import ConsumerConfig

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_watched: Final = observe.watched

CLOSED: Final = "the consumer was closed before it was answered"
"""Why the close returned a message."""

_cause: ContextVar[BaseException | None] = ContextVar("nsq_ha cause of a requeue", default=None)


class DeliveryCounts:
    """Counts of one partition's messages that only grow; fields of :class:`~nsq_ha.stats.ConsumerPartition`.

    Finished messages are not counted one by one: they are what was delivered and is neither unanswered nor counted
    here.

    Attributes:
        lag_ns: Nanoseconds from the publish to the arrival of the last message; no count. None before the first one.
    """

    def __init__(self) -> None:
        self.delivered: int = 0
        self.requeued: int = 0
        self.timed_out: int = 0
        self.returned: int = 0
        self.skipped: int = 0
        self.finished_unhandled: int = 0
        self.reconnects: int = 0
        self.lag_ns: int | None = None

    def add(self, other: DeliveryCounts) -> None:
        """Add all counts of ``other``."""
        for name, count in vars(other).items():
            if name != "lag_ns":
                setattr(self, name, getattr(self, name) + count)

    def fields(self, in_flight: int) -> dict[str, int]:
        """Return the counts as they are named in statistics, given the number of unanswered messages."""
        counts = {name: count for name, count in vars(self).items() if name != "lag_ns"}
        counts["finished"] = self.delivered - self.requeued - self.timed_out - self.returned - in_flight
        return counts | {"in_flight": in_flight}


class Reports(Protocol):
    """Where deliveries report; ``consumer.ledger`` implements it.

    Attributes:
        topic: The topic.
        channel: The channel.
        config: The consumer's options.
    """

    topic: str
    channel: str
    config: ConsumerConfig

    def freed(self) -> None:
        """Record that messages were answered."""

    def finished(self, message: Message, watch: Watch, delivery: Delivery) -> None:
        """Record that a watched message is finished; its FIN follows."""

    def requeued(self, message: Message, delay: float | None) -> bool:
        """Record that a message is requeued, with the delay that was given; return whether it is given up instead."""

    def given_back(self, message: Message) -> None:
        """Record that a message that has not failed goes back to the server."""

    def interrupted(self, message: Message) -> bool:
        """Take back a message whose ``async with`` block was cancelled; return whether it is taken."""

    def unsettled(self, message: MessageIdentity) -> None:
        """Record a message whose FIN may have been without effect."""

    def late(self, message: Message, answer: str) -> None:
        """Record, from any thread, that a message was answered after its connection ended, and how."""


class Delivery:
    """The ``source`` of the messages that one connection delivers; :meth:`attach` sets the connection.

    A message may be answered from any thread, since plain handlers run in
    threads; the answer then goes through the event loop. Only one thread at a
    time may answer a message: there is no lock.

    Args:
        ledger: The consumer's.
        partition: The partition.
        counts: Counts of the partition's messages.
        is_ordered: The channel is read in order.
        is_returned_at_end: The server requeues unanswered messages when the connection ends.
        longest_delay: Seconds by which nsqd delays a requeue at most, as far as is known.

    Attributes:
        arrived_at: When the last message of an ordered channel arrived; only one is in flight there.
        counts: Counts of the partition's messages, over all its connections.
        delivered: Number of messages delivered.
        granted: What the server may deliver.
        in_flight: Number of messages delivered and not answered.
        is_arriving: Messages are being passed on; :meth:`flush` follows immediately.
        is_alive: Answers can be sent.
        is_ordered: The channel is read in order: one message in flight.
        is_returned_at_end: The server requeues unanswered messages when the connection ends. Plain nsqd waits for their
            timeout.
        max_msg_timeout: Seconds after a delivery at which the server requeues even a touched message.
        may_repeat: The first message may come a second time, see :meth:`without_repeat`.
        msg_timeout: Seconds after which the server requeues an unanswered message.
        peak: The most messages in flight since the last check.
        ready: The RDY sent last.
        repeats_ready: nsqd counts RDY down, so it is sent again with each read.
        touched_at: When a message was last touched.
    """

    def __init__(
        self,
        ledger: Reports,
        partition: int,
        counts: DeliveryCounts,
        *,
        is_ordered: bool,
        is_returned_at_end: bool = True,
        longest_delay: float = math.inf,
    ) -> None:
        self.topic: str = ledger.topic
        self.channel: str = ledger.channel
        self.partition: int = partition
        self.nsqd: str = ""
        self.counts: DeliveryCounts = counts
        self.is_ordered: bool = is_ordered
        self.is_returned_at_end: bool = is_returned_at_end
        self._longest_delay = longest_delay
        self.is_alive: bool = False
        self.is_arriving: bool = False
        self.arrived_at: float = 0.0
        self.delivered: int = 0
        self.in_flight: int = 0
        self.may_repeat: bool = is_ordered
        self.max_msg_timeout: float = 900.0
        self.msg_timeout: float = 60.0
        self.peak: int = 0
        self.ready: int = 0
        self.repeats_ready: bool = False
        self.touched_at: float = 0.0
        self.granted: Granted = Granted(0.0, self.msg_timeout)
        self._ledger = ledger
        self._on_freed: Callable[[], None] = ledger.freed
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._unsettled = Unsettled()
        self._finished: list[bytes] = []
        self._first: Message | None = None
        self._is_first_finished = False
        self._held: set[asyncio.TimerHandle] = set()

    @property
    def held(self) -> int:
        """Number of requeued messages that wait here for their delay; for the server they are in flight."""
        return len(self._held)

    def attach(self, connection: Connection) -> None:
        """Answer through ``connection`` from now on."""
        self._connection = connection
        self._loop, self._thread = asyncio.get_running_loop(), get_ident()
        self.nsqd = connection.node.address
        self.repeats_ready = connection.identity.counts_ready_down
        self.msg_timeout = connection.identity.msg_timeout / 1000
        self.max_msg_timeout = connection.identity.max_msg_timeout / 1000
        self.granted = Granted(monotonic(), self.msg_timeout)
        self.is_alive = True

    def passed_on(self) -> None:
        """Send the answers to the messages of one read, and RDY again if nsqd counts it down."""
        self.is_arriving = False
        self.flush()
        if self.repeats_ready and self.ready and self._connection is not None:
            self._connection.write(encode_ready(self.ready))

    def abort(self, reason: NsqError) -> None:
        """End the connection at once."""
        if self._connection is not None:
            self._connection.abort(reason)

    def retire(self, on_freed: Callable[[], None]) -> None:
        """Keep the connection for answers only.

        Args:
            on_freed: Called from now on when a message was answered.
        """
        self.ready = 0
        self._on_freed = on_freed

    def reject(self) -> None:
        """Requeue what arrives from now on; :meth:`refuse` does that."""
        self.ready = 0
        self.is_alive = False
        self._on_freed = _nothing
        self.flush()

    def refuse(self, messages: list[Message]) -> None:
        """Requeue messages that arrived after :meth:`reject`; after the end of the connection, do nothing."""
        for message in messages:
            self.requeue_unseen(message.id)

    def detach(self) -> None:
        """Drop all answers from now on: the connection is lost or will be closed."""
        self._finished.clear()
        self._no_repeat()
        self.is_alive = False
        self._connection = None
        self._on_freed = _nothing  # it may lead back to this object
        for message in self._unsettled.lost(monotonic()):
            self._ledger.unsettled(message)
        self.counts.returned += self.in_flight
        self.in_flight = 0
        for handle in self._held:
            handle.cancel()
        self._held.clear()

    def dropped(self) -> None:
        """Record that a message needs no answer: the server has requeued it, or a copy of it was finished."""
        if self.is_alive:
            self.counts.timed_out += 1
            self.in_flight -= 1
            self._on_freed()

    def without_repeat(self, messages: list[Message]) -> list[Message]:
        """Remove further copies of the first message; call this while ``may_repeat``.

        nsqd restarts its reader at the first SUB_ORDERED on a channel with a backlog, and when a start position is
        set. It sends the message that it had ready first. The reader may then reach that message again and send it a
        second time, and after a change of the leader a third time, with the same number of attempts: on an ordered
        channel immediately or never, else when the reader gets there. A message that was requeued or timed out has
        more attempts; a message of another connection is no copy. Calling ``/channel/setorder`` first does not prevent
        the copies.

        Source: server protocol 5.2, 9.1.
        """
        kept: list[Message] = []
        for message in messages:
            first = self._first
            if first is None:
                if self.may_repeat:
                    self._first = message
            elif message.attempts == first.attempts and message.is_copy_of(first):
                # Until the answer to the first copy is sent, it counts for all: they have the same id.
                if self._is_first_finished:
                    self.counts.finished_unhandled += 1
                    self.finish_unseen(message.id)
                continue
            elif self.is_ordered or message.internal_id > first.internal_id:
                self._no_repeat()  # the reader has passed it
            kept.append(message)
        return kept

    def _no_repeat(self) -> None:
        self.may_repeat = False
        self._first = None

    def replaced(self, message: Message, again: Message) -> None:
        """Record that ``again`` will be answered in the place of ``message``."""
        if self._first is message:
            self._first = again

    def follows(self, messages: list[Message]) -> None:
        """Record that messages of an ordered channel arrived: another message proves the FIN before it."""
        self.arrived_at = now = monotonic()
        for message in messages:
            if self._unsettled.arrived(message.identity, message.attempts, now):
                self._ledger.unsettled(message.identity)

    def fin_refused(self, message_id: bytes) -> None:
        """Record that nsqd refused a FIN."""
        finished = self._unsettled.refused(message_id)
        if finished is not None:
            self._ledger.unsettled(finished)

    def may_be_refused(self, message: Message) -> None:
        """Keep the identity of a message whose FIN is sent now, in case the FIN is without effect."""
        self._unsettled.sent(message.identity, monotonic())

    # -- answers

    def finish(self, message: Message) -> None:
        """Buffer a FIN; all FINs of one turn of the loop are written together."""
        if get_ident() != self._thread:
            self._in_loop("finish", self.finish, message)
            return
        if message.watch is not None:
            self.finish_watched(message, message.watch)
            return
        self._is_first_finished |= message is self._first
        finished = self._finished
        if not finished:
            connection = self._connection
            if connection is None:
                self._ledger.late(message, "finish")
                self._ledger.unsettled(message.identity)  # it was handled, and nsqd delivers it again
                return
            if self.is_ordered:
                self.may_be_refused(message)
            if self.in_flight == 1 or self.is_ordered:  # no other message could be answered in this turn
                self.in_flight -= 1
                connection.write_now(encode_fin(message.id))
                self._on_freed()
                if _watched.is_any:
                    observe.finished(self.topic, message)
                return
            if not self.is_arriving and self._loop is not None:
                self._loop.call_soon(self.flush)
        finished.append(message.id)
        if _watched.is_any:
            observe.finished(self.topic, message)

    def finish_watched(self, message: Message, watch: Watch) -> None:
        """Finish a message and its copies."""
        message.watch = None
        self._ledger.finished(message, watch, self)
        self.finish(message)
        for copy in self._copies(watch):
            finish_copy(copy)

    def finish_unseen(self, message_id: bytes) -> None:
        """Finish a message that is not handed out."""
        if self._connection is not None:
            self._connection.write(encode_fin(message_id))

    def requeue_unseen(self, message_id: bytes) -> None:
        """Requeue a message that is not handed out, without a delay."""
        if self._connection is not None:
            self._connection.write(encode_req(message_id, 0))

    def flush(self) -> None:
        """Write the buffered FINs."""
        finished, connection = self._finished, self._connection
        if connection is None or not finished:
            return
        connection.write_now(encode_fins(finished))
        self.in_flight -= len(finished)
        finished.clear()
        self._on_freed()

    def requeue(self, message: Message, delay: float | None) -> None:
        """Buffer a REQ, or hold the message here until its delay is over (ordered)."""
        if get_ident() != self._thread:
            self._in_loop("requeue", _with_cause(self.requeue), message, delay)
        elif not self._ledger.requeued(message, delay):  # else it is given up; its copies wait for that
            if self._connection is None:
                self._ledger.late(message, "requeue")
            for copy in self._send_back(message, delay):
                copy.requeue(delay)

    def give_back(self, message: Message) -> None:
        """Requeue a message that has not failed, without a delay."""
        self._ledger.given_back(message)
        for copy in self._send_back(message, 0.0):
            give_back(copy, "the message that it is a copy of was given back")

    def touch(self, message: Message) -> None:
        """Buffer a TOUCH, for copies from other connections, too."""
        if get_ident() != self._thread:
            self._in_loop("touch", self.touch, message)
            return
        now, watch = monotonic(), message.watch
        if watch is not None and now <= watch.deadline:  # else nsqd may have sent a copy, and the TOUCH is for that
            watch.deadline = now + self.msg_timeout
        if self._connection is None:
            self._ledger.late(message, "touch")
        else:
            self.touched_at = now
            self._connection.write(encode_touch(message.id))
        for copy in self.open_copies(watch):
            copy.touch()

    def interrupted(self, message: Message) -> bool:
        """Return whether the consumer takes over a message whose ``async with`` block was cancelled."""
        return get_ident() == self._thread and self._ledger.interrupted(message)

    def _in_loop(self, name: str, answer: Callable[..., None], message: Message, *more: object) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(answer, message, *more)
        except RuntimeError:  # the loop is closed, and so is the connection
            self._ledger.late(message, name)

    def open_copies(self, watch: Watch | None) -> list[Message]:
        """Return the copies from other open connections."""
        return [] if watch is None else [copy for copy in watch.copies if copy.source is not self and is_open(copy)]

    def _copies(self, watch: Watch | None) -> list[Message]:
        """Return the same; on this connection, the id's answer counts for all copies."""
        for copy in () if watch is None else watch.copies:
            if copy.source is self:
                self.dropped()
        return self.open_copies(watch)

    def _send_back(self, message: Message, delay: float | None) -> list[Message]:
        """Requeue a message, unless its connection is lost; return its copies from other open connections."""
        watch, message.watch = message.watch, None
        if self._connection is not None:
            self._hold_or_requeue(message, delay)
        return self._copies(watch)

    def _hold_or_requeue(self, message: Message, delay: float | None) -> None:
        if delay is None:
            delay = requeue_delay(self._ledger.config, message.attempts, is_ordered=self.is_ordered)
        if _watched.is_any:
            observe.requeued(self.topic, message)
        if self.is_ordered and delay > 0:
            held = OrderedRequeue(
                monotonic(),
                delay,
                self.arrived_at,
                msg_timeout=self.msg_timeout,
                max_msg_timeout=self.max_msg_timeout,
            )
            self._look_at(held, message)
        else:
            self._requeue_now(message, delay)

    def _requeue_now(self, message: Message, delay: float) -> None:
        if self._connection is not None:
            if self._first is not None and message.is_copy_of(self._first):
                self._no_repeat()  # from now on a copy is the redelivery that this requeue asks for
            self._connection.write(encode_req(message.id, round(min(delay, self._longest_delay) * 1000)))
            self.counts.requeued += 1
            self.in_flight -= 1
            self._on_freed()

    def _look_at(self, held: OrderedRequeue, message: Message) -> None:
        look = held.look(monotonic())
        if look.is_over:
            self._requeue_now(message, 0)
            return
        if look.touch:
            self.touch(message)

        def again() -> None:
            self._held.discard(handle)
            self._look_at(held, message)

        handle = asyncio.get_running_loop().call_at(look.again_at, again)
        self._held.add(handle)


class Returned:
    """Replaces the source of a message that this library returned to nsqd; warns if the message is answered later.

    Args:
        source: The source to replace.
        why: Completes "the message was given back because ...".
    """

    is_alive = False
    """No answer has an effect."""

    def __init__(self, source: Delivery | Returned, why: str) -> None:
        self.topic: str = source.topic
        self.channel: str = source.channel
        self.partition: int = source.partition
        self.nsqd: str = source.nsqd
        self.is_ordered: bool = source.is_ordered
        self.msg_timeout: float = source.msg_timeout
        self._why = why

    def returned(self, message: Message, answer: str) -> None:
        """Warn that an answer has no effect."""
        warn_of_no_effect(message, answer, f"the message was given back because {self._why}")

    def finish(self, message: Message) -> None:
        """Warn."""
        self.returned(message, "finish")

    def requeue(self, message: Message, delay: float | None) -> None:
        """Warn."""
        self.returned(message, "requeue")

    def touch(self, message: Message) -> None:
        """Warn."""
        self.returned(message, "touch")


def warn_of_no_effect(message: Message, answer: str, why: str, advice: str = "") -> None:
    """Warn about an answer that comes too late. nsqd replies to no answer, so the call cannot fail."""
    log.warning("%r: %s() has no effect: %s, and nsqd delivers the message again%s", message, answer, why, advice)


def source_of(message: Message) -> Delivery | Returned:
    """Return the source of a message that a consumer has received."""
    return message.source  # type: ignore[return-value]  # nothing else is the source of a consumer's message


def facts(message: Message) -> dict[str, Any]:
    """Return the fields that the events about single messages share."""
    names = ("topic", "partition", "nsqd", "internal_id", "trace_id", "attempts")
    return {name: getattr(message, name) for name in names} | {"channel": message.source.channel}


def is_open(message: Message) -> bool:
    """Return whether an answer to the message would have an effect."""
    return not message.answered and source_of(message).is_alive


def delivery_of(message: Message) -> Delivery | None:
    """Return the delivery of a message. None if it was given back."""
    return message.source if isinstance(message.source, Delivery) else None


def give_back(message: Message, why: str) -> None:
    """Requeue an unanswered message that has not failed, without delay.

    Args:
        message: The message.
        why: Completes "the message was given back because ...", for an answer that comes later.
    """
    source, message.answered = source_of(message), True
    message.source = Returned(source, why)
    if isinstance(source, Delivery):
        source.give_back(message)


def reopened(message: Message) -> Message:
    """Return an unanswered copy of a message, for its answer later on."""
    again = copied(message)
    again.answered = False
    if (delivery := delivery_of(message)) is not None:
        delivery.replaced(message, again)
    return again


def leave_to_end(message: Message) -> None:
    """Leave a message unanswered: nsqd requeues it when the connection ends, and counts no attempt."""
    delivery = delivery_of(message)
    if delivery is not None and delivery.is_alive:
        delivery.in_flight -= 1
        delivery.counts.returned += 1
        delivery.replaced(message, copied(message))  # which stays unanswered, so that no copy is finished
    message.answered = True
    message.source = Returned(source_of(message), CLOSED)


def finish_copy(copy: Message) -> None:
    """Finish a copy that no handler gets, and count it."""
    delivery = delivery_of(copy)
    if delivery is not None:
        delivery.counts.finished_unhandled += 1
    copy.finish()


def take_cause() -> BaseException | None:
    """Return the exception that the application handles while it requeues a message, perhaps in a thread.

    None if it handles none. Tasks that start after this do not inherit it.
    """
    cause = sys.exception() or _cause.get()
    _cause.set(None)
    return cause


def _with_cause(call: Callable[..., None]) -> Callable[..., None]:
    """Return ``call`` for the event loop, where :func:`take_cause` returns the exception that this thread handles."""
    cause = sys.exception()
    if cause is None:
        return call

    def caused(*arguments: object) -> None:
        token = _cause.set(cause)
        try:
            call(*arguments)
        finally:
            _cause.reset(token)

    return caused


def _nothing() -> None:
    """Do nothing."""
