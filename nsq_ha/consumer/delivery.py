"""The messages of one connection, and the path back for their answers.

The invariant: an answer goes only through the connection that delivered its
message, and only while that is open. Later answers are dropped: the server has
delivered the message again, or will.

Source: server failures 4.3; server protocol 9.
"""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Final

from nsq_ha import observe
from nsq_ha.consumer.causes import with_cause
from nsq_ha.consumer.counts import DeliveryCounts
from nsq_ha.policy.overrun import Granted
from nsq_ha.policy.redelivery import OrderedRequeue, Unsettled
from nsq_ha.policy.timing import delay_after
from nsq_ha.protocol.encoding import encode_fin, encode_fins, encode_req, encode_touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.connection import Connection
    from nsq_ha.errors import NsqError
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message
    from nsq_ha.options.types import Backoff

_watched: Final = observe.watched


class Delivery:
    """The ``source`` of the messages that one connection delivers; :meth:`attach` sets the connection.

    A message may be answered from any thread, since plain handlers run in
    threads; the answer then goes through the event loop. Only one thread at a
    time may answer a message: there is no lock.

    Args:
        topic: The topic.
        channel: The channel.
        partition: The partition.
        is_ordered: The channel is read in order.
        is_returned_at_end: The server requeues unanswered messages when the connection ends.
        backoff: Delay of a requeue without an explicit one.
        on_freed: Called when a message was answered.
        gives_up: Asked for each requeue of the application; True takes the message over.
        on_requeued: Called with each message that is requeued, and with the delay that was given.
        on_interrupted: Called when the block around a message is cancelled; True takes the message over.
        counts: Counts of the partition's messages. None for counts of its own.
        on_late: Called, from any thread, when a message is answered after its connection ended; with
            ``finish``, ``requeue`` or ``touch``.
        on_unsettled: Called with each message whose FIN may have been without effect.

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
        touched_at: When a message was last touched.
    """

    __slots__ = (
        "_backoff",
        "_connection",
        "_finished",
        "_first",
        "_gives_up",
        "_held",
        "_loop",
        "_on_freed",
        "_on_interrupted",
        "_on_late",
        "_on_requeued",
        "_on_unsettled",
        "_thread",
        "_unsettled",
        "arrived_at",
        "channel",
        "counts",
        "delivered",
        "granted",
        "in_flight",
        "is_alive",
        "is_arriving",
        "is_ordered",
        "is_returned_at_end",
        "max_msg_timeout",
        "may_repeat",
        "msg_timeout",
        "nsqd",
        "partition",
        "peak",
        "ready",
        "topic",
        "touched_at",
    )

    def __init__(
        self,
        topic: str,
        channel: str,
        partition: int,
        *,
        is_ordered: bool,
        is_returned_at_end: bool = True,
        backoff: Backoff,
        on_freed: Callable[[], None],
        on_late: Callable[[Message, str], None] = lambda _message, _answer: None,
        gives_up: Callable[[Message], bool] = lambda _: False,
        on_requeued: Callable[[Message, float | None], None] = lambda _message, _delay: None,
        on_interrupted: Callable[[Message], bool] = lambda _: False,
        on_unsettled: Callable[[Identity], None] = lambda _: None,
        counts: DeliveryCounts | None = None,
    ) -> None:
        self.counts: DeliveryCounts = DeliveryCounts() if counts is None else counts
        self.topic: str = topic
        self.channel: str = channel
        self.partition: int = partition
        self.nsqd: str = ""
        self.is_ordered: bool = is_ordered
        self.is_returned_at_end: bool = is_returned_at_end
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
        self.touched_at: float = 0.0
        self._backoff = backoff
        self._on_freed = on_freed
        self._on_interrupted = on_interrupted
        self._on_late = on_late
        self._on_requeued = on_requeued
        self._on_unsettled = on_unsettled
        self._unsettled = Unsettled()
        self._gives_up = gives_up
        self._connection: Connection | None = None
        self._finished: list[bytes] = []
        self._first: Message | None = None
        self._held: set[asyncio.TimerHandle] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self.granted: Granted = Granted(self._loop.time(), self.msg_timeout)

    @property
    def held(self) -> int:
        """Number of requeued messages that wait here for their delay; for the server they are in flight."""
        return len(self._held)

    def attach(self, connection: Connection) -> None:
        """Answer through ``connection`` from now on."""
        self._connection = connection
        self.nsqd = connection.node.address
        self.msg_timeout = connection.identity.msg_timeout / 1000
        self.max_msg_timeout = connection.identity.max_msg_timeout / 1000
        self.granted = Granted(self._loop.time(), self.msg_timeout)
        self.is_alive = True

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

    def detach(self) -> None:
        """Drop all answers from now on: the connection is lost or will be closed."""
        self._finished.clear()
        self._no_repeat()
        self.is_alive = False
        self._connection = None
        self._on_freed = _nothing  # it may lead back to this object
        for message in self._unsettled.lost(self._loop.time()):
            self._on_unsettled(message)
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
        """Remove a second copy of the first message; call this while ``may_repeat``.

        nsqd restarts its reader at the first SUB_ORDERED on a channel with a backlog, and when a start position is
        set. It sends the message that it had ready first. The reader may then reach that message again and send it a
        second time, with the same number of attempts: on an ordered channel immediately or never, else when the
        reader gets there. A message that was requeued or timed out has more attempts; a message of another
        connection is no copy. Calling ``/channel/setorder`` first does not prevent the copy.

        Source: server protocol 5.2, 9.1.
        """
        kept: list[Message] = []
        for message in messages:
            first = self._first
            if first is None:
                if self.may_repeat:
                    self._first = message
            elif message.attempts == first.attempts and message.is_copy_of(first):
                self._no_repeat()
                # While the application works on the first copy, its answer counts for both: they have the same id.
                if first.answered and not self._held:
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

    def follows(self, messages: list[Message]) -> None:
        """Record that messages of an ordered channel arrived: another message proves the FIN before it."""
        self.arrived_at = now = self._loop.time()
        for message in messages:
            if self._unsettled.arrived(message.identity, message.attempts, now):
                self._on_unsettled(message.identity)

    def fin_refused(self, message_id: bytes) -> None:
        """Record that nsqd refused a FIN."""
        finished = self._unsettled.refused(message_id)
        if finished is not None:
            self._on_unsettled(finished)

    def may_be_refused(self, message: Message) -> None:
        """Keep the identity of a message whose FIN is sent now, in case the FIN is without effect."""
        self._unsettled.sent(message.identity, self._loop.time())

    def finish(self, message: Message) -> None:
        """Buffer a FIN; all FINs of one turn of the loop are written together."""
        if get_ident() != self._thread:
            if not self._in_loop(self.finish, message):
                self._on_late(message, "finish")
            return
        if self.is_ordered and self._connection is not None:
            self.may_be_refused(message)
        finished = self._finished
        if not finished:
            connection = self._connection
            if connection is None:
                self._on_late(message, "finish")
                return
            if self.in_flight == 1:  # no other message could be answered in this turn
                self.in_flight = 0
                connection.write_now(encode_fin(message.id))
                self._on_freed()
                if _watched.is_any:
                    observe.finished(self.topic, message)
                return
            if not self.is_arriving:
                self._loop.call_soon(self.flush)
        finished.append(message.id)
        if _watched.is_any:
            observe.finished(self.topic, message)

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
            if not self._in_loop(with_cause(self.requeue), message, delay):
                self._on_late(message, "requeue")
            return
        self._on_requeued(message, delay)
        if self._connection is None:
            self._on_late(message, "requeue")
            return
        if self._gives_up(message):
            return
        if delay is None:
            delay = delay_after(self._backoff, message.attempts, _no_chance)
        if _watched.is_any:
            observe.requeued(self.topic, message)
        if self.is_ordered and delay > 0:
            self._hold(message, delay)
        else:
            self._requeue_now(message, delay)

    def touch(self, message: Message) -> None:
        """Buffer a TOUCH."""
        if get_ident() != self._thread:
            if not self._in_loop(self.touch, message):
                self._on_late(message, "touch")
        elif self._connection is None:
            self._on_late(message, "touch")
        else:
            self.touched_at = self._loop.time()
            self._connection.write(encode_touch(message.id))

    def interrupted(self, message: Message) -> bool:
        """Return whether the consumer takes over a message whose ``async with`` block was cancelled."""
        return get_ident() == self._thread and self._on_interrupted(message)

    def _in_loop(self, answer: Callable[..., None], *arguments: object) -> bool:
        try:
            self._loop.call_soon_threadsafe(answer, *arguments)
        except RuntimeError:  # the loop is closed, and so is the connection
            return False
        return True

    def _requeue_now(self, message: Message, delay: float) -> None:
        if self._connection is not None:
            if self._first is not None and message.is_copy_of(self._first):
                self._no_repeat()  # from now on a copy is the redelivery that this requeue asks for
            self._connection.write(encode_req(message.id, round(delay * 1000)))
            self.counts.requeued += 1
            self.in_flight -= 1
            self._on_freed()

    def _hold(self, message: Message, delay: float) -> None:
        connection = self._connection
        if connection is None:
            return
        identity = connection.identity
        held = OrderedRequeue(
            self._loop.time(),
            delay,
            self.arrived_at,
            msg_timeout=identity.msg_timeout / 1000,
            max_msg_timeout=identity.max_msg_timeout / 1000,
        )
        self._look_at(held, message)

    def _look_at(self, held: OrderedRequeue, message: Message) -> None:
        look = held.look(self._loop.time())
        if look.is_over:
            self._requeue_now(message, 0)
            return
        if look.touch:
            self.touch(message)

        def again() -> None:
            self._held.discard(handle)
            self._look_at(held, message)

        handle = self._loop.call_at(look.again_at, again)
        self._held.add(handle)


def _nothing() -> None:
    """Do nothing."""


def _no_chance() -> float:
    return 0.0
