"""One subscribed connection: SUB with its refusals, deliveries, and FIN, REQ, TOUCH.

Source: protocol reference 5, 7; youzan/nsq ``internalSUB``, ``FIN``, ``REQ``, ``TOUCH``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nsqd.delivery import error_frame, message_frame
from nsq_ha.devcluster.storage.channel import Refusal
from nsq_ha.devcluster.storage.replica import NOT_LEADER, NOT_WRITABLE, Waiting
from nsq_ha.devcluster.storage.search import SearchError
from nsq_ha.devcluster.storage.start import start_index
from nsq_ha.protocol import commands
from nsq_ha.protocol.gotext import byte_list
from nsq_ha.protocol.messages import layout_for

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.session import Session
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.record import Record
    from nsq_ha.devcluster.storage.replica import Replica

NOT_EXIST: Final = b"E_TOPIC_NOT_EXIST "
_ORDER_IS_MUST: Final = b"E_SUB_ORDER_IS_MUST this topic is configured only allow ordered sub"
_EXTEND_NEED: Final = b"E_SUB_EXTEND_NEED this topic is extended and should identify as extend support."
_EXTEND_FORBIDDEN: Final = (
    b"E_SUB_EXTEND_FORBIDDON this topic is not extended and should not identify as extend support."
)
_NOT_REGISTERED: Final = b"E_SUB_CHANNEL_NOT_REGISTERED channel is not registered under topic."
_NO_SAMPLING: Final = b"E_INVALID order consume is not allowed while sample rate is not 0"


class Subscription:
    """A consumer of one channel; implements :class:`nsq_ha.devcluster.storage.channel.Consumer`.

    Attributes:
        client_id: Number of the connection, as it stands in error texts.
        ready: RDY.
        holds: Messages in flight here.
        msg_timeout: Seconds until an unanswered one comes again.
        connected: When it subscribed, seconds since the epoch.
        received: Messages delivered here.
        finished: FINs that counted.
        requeued: REQs that counted.
    """

    def __init__(self, session: Session, replica: Replica, channel: Channel, *, detail: bool) -> None:
        """Begin with RDY 0."""
        self.session = session
        self.replica = replica
        self.channel = channel
        self.client_id = session.client_id
        self.ready = self.holds = 0
        self.received = self.finished = self.requeued = 0
        self._silent = False
        self.msg_timeout = session.terms.msg_timeout
        self._layout = layout_for(detail=detail, ext=replica.options.extended and session.terms.client.extend_support)
        self._sample = session.terms.client.sample_rate

    # ------------------------------------------------------------ SUB

    @classmethod
    def begin(cls, session: Session, command: commands.Sub) -> None:
        """SUB: check in nsqd's order, then wait for the replicas if need be, then subscribe."""
        node = session.node
        start = command.start if isinstance(command, commands.SubAdvanced) else None
        if session.terms.heartbeat <= 0:
            session.fail(b"E_INVALID cannot SUB with heartbeats disabled")
            return
        number = command.partition if start is None else None
        if number is None:
            number = node.led_partition(command.topic)
        replica = None if number is None else node.replicas.get((command.topic, number))
        if replica is None:
            session.fail(NOT_EXIST)
            return
        refusal = _refusal(session, command, replica)
        if refusal is not None:
            session.fail(refusal)
        elif replica.stalled and not replica.gave_up:
            session.connection.block()
            replica.wait(_waiting(session, lambda: cls._subscribe(session, command, replica)))
        else:
            cls._subscribe(session, command, replica)

    @classmethod
    def _subscribe(cls, session: Session, command: commands.Sub, replica: Replica) -> None:
        if not replica.leads:
            session.fail(NOT_LEADER)
            return
        if replica.stalled or not replica.writable:
            session.fail(NOT_WRITABLE)
            return
        ordered = isinstance(command, commands.SubOrdered)
        if ordered and session.terms.client.sample_rate:
            session.fail(_NO_SAMPLING)
            return
        channel = replica.channel(command.channel)
        start = command.start if isinstance(command, commands.SubAdvanced) else None
        try:
            index = None if start is None else start_index(replica.log, channel.end, start)
        except ValueError as error:
            session.fail(f"E_INVALID {error}".encode())
            return
        except SearchError as error:
            if not channel.consumers:
                session.fail(f"E_INVALID {error}".encode())
                return
            index = None  # nsqd does not search for a position that it would not use
        if ordered:
            channel.switch_to_ordered()
            channel.dispatch(session.node.now())
        if index is not None and not channel.consumers:
            channel.reset(index)
        subscription = cls(session, replica, channel, detail=command.word != b"SUB")
        channel.add(subscription)
        session.subscribed(subscription)

    def leave(self) -> None:
        """Give back what is held and leave the channel."""
        self.ready = 0
        self.channel.remove(self, self.session.node.now())
        self.replica.leave(self.channel)

    # ------------------------------------------------------------ Consumer

    def wants(self, record: Record) -> bool:
        """Whether the record is delivered; sampling confirms the others."""
        return not self._sample or self.session.node.coordinator.chance.randrange(100) <= self._sample

    def deliver(self, record: Record, attempts: int, *, at_once: bool) -> None:
        """Write the message; at once when the client can take no more."""
        self.received += 1
        frame = message_frame(record, attempts, self._layout)
        self.session.connection.send_message(frame, at_once=at_once or self.holds >= self.ready)

    def drop(self) -> None:
        """Close the connection without a word."""
        self.session.connection.close()

    # ------------------------------------------------------------ answers

    def set_ready(self, count: int) -> None:
        """RDY."""
        if self._silent:
            return
        self.ready = count
        if count > self.holds:
            self.channel.dispatch(self.session.node.now())

    def fall_silent(self) -> None:
        """Accept no more messages."""
        self._silent = True
        self.ready = 0

    def finish(self, message_id: bytes) -> None:
        """FIN; on an ordered channel it needs the replicas, like a write."""
        replica = self.replica
        if not replica.leads:
            self.session.fail(NOT_LEADER)
            return
        if replica.stalled and self.channel.ordered:
            if replica.gave_up:
                self.session.fail(NOT_WRITABLE)
                return
            self.session.connection.block()
            replica.wait(_waiting(self.session, lambda: self._finish(message_id)))
            return
        self._finish(message_id)

    def _finish(self, message_id: bytes) -> None:
        try:
            self.channel.finish(int.from_bytes(message_id[:8], "big"), self, self.session.node.now())
            self.finished += 1
        except Refusal as refusal:
            self._refuse("FIN", message_id, f"ErrType:7 ErrCode:0 : {refusal}")

    def requeue(self, message_id: bytes, delay: float) -> None:
        """REQ."""
        try:
            self.channel.requeue(int.from_bytes(message_id[:8], "big"), self, delay, self.session.node.now())
            self.requeued += 1
        except Refusal as refusal:
            self._refuse("REQ", message_id, str(refusal))

    def touch(self, message_id: bytes) -> None:
        """TOUCH."""
        try:
            self.channel.touch(int.from_bytes(message_id[:8], "big"), self, self.session.node.now())
        except Refusal as refusal:
            self._refuse("TOUCH", message_id, str(refusal))

    def _refuse(self, word: str, message_id: bytes, why: str) -> None:
        text = f"E_{word}_FAILED {word} {byte_list(message_id)} failed {why}"
        self.session.send(error_frame(text.encode()))


def _refusal(session: Session, command: commands.Sub, replica: Replica) -> bytes | None:
    """The first reason, in nsqd's order, to refuse a SUB for good. None when there is none."""
    options = replica.options
    if options.ordered and not isinstance(command, commands.SubOrdered):
        return _ORDER_IS_MUST
    if options.extended and not session.terms.client.extend_support:
        return _EXTEND_NEED
    if session.terms.client.extend_support and not options.extended:
        return _EXTEND_FORBIDDEN
    if not replica.leads:
        return NOT_LEADER
    if options.disable_channel_auto_create and command.channel not in replica.partition.topic.channels:
        return _NOT_REGISTERED
    return None


def _waiting(session: Session, act: Callable[[], None]) -> Waiting:
    """Do ``act`` once the replicas answer; a refusal closes the connection."""

    def resume() -> None:
        session.connection.unblock()
        act()

    return Waiting(resume, session.fail)
