"""Execute the commands of one connection, in the order and with the answers of the partitioned nsqd.

``any_session`` has what both kinds of server do.

Source: server protocol 3-7; youzan/nsq ``nsqdserver/protocol_v2.go`` ``preparePub``, ``internalPubExtAndTrace``,
``internalSUB``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.devcluster.host import VERSION
from nsq_ha.devcluster.nsqd.any_session import AnySession, AnySubscriber, MessageAnswer
from nsq_ha.devcluster.nsqd.connection import OK_FRAME, Manner
from nsq_ha.devcluster.storage.log import Draft, Record, SearchError, raw_size, start_index
from nsq_ha.devcluster.storage.replica import EXITING, NOT_LEADER, NOT_WRITABLE, Replica, Waiting
from nsq_ha.protocol import commands
from nsq_ha.protocol.ext_filter import Filter, FilterRule
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.messages import Layout, Traced, layout_for
from nsq_ha.protocol.server.answers import encode_identity, encode_traced
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.decoder import CommandDecoder, PublishHeader
from nsq_ha.protocol.server.gotext import byte_list
from nsq_ha.protocol.server.headers import trace_id_of
from nsq_ha.protocol.server.identify import SessionSettings, read_identify

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.node import HaNsqd
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.protocol.identify import Identity

Answer = Callable[[Sequence["Record"]], bytes]
"""Encodes the success frame from the stored records."""

_MANNER: Final = Manner(settings=SessionSettings(), consumer_buffer=4096, silent_intervals=3)
_NOT_EXIST: Final = b"E_TOPIC_NOT_EXIST "
_PUB_FAILED: Final = b"E_PUB_FAILED "
_MPUB_FAILED: Final = b"E_MPUB_FAILED "
_TOO_LARGE: Final = b"ErrType:7 ErrCode:0 : invalid message write size (%d) maxMsgSize=%d"
_SIZE_WORD: Final = 4
_PARTITION_NEEDED: Final = b"E_BAD_PARTITION topic partition is not valid for multi partition: -1"
_ORDER_IS_MUST: Final = b"E_SUB_ORDER_IS_MUST this topic is configured only allow ordered sub"
_EXTEND_NEED: Final = b"E_SUB_EXTEND_NEED this topic is extended and should identify as extend support."
_EXTEND_FORBIDDEN: Final = (
    b"E_SUB_EXTEND_FORBIDDON this topic is not extended and should not identify as extend support."
)
_NOT_REGISTERED: Final = b"E_SUB_CHANNEL_NOT_REGISTERED channel is not registered under topic."
_NO_SAMPLING: Final = b"E_INVALID order consume is not allowed while sample rate is not 0"
_HEAD: Final = struct.Struct(">iiqHQQ")
_DETAIL: Final = struct.Struct(">QI")
_JSON: Final = b"\x04"


class Session(AnySession):
    """Executes the commands of one connection of a partitioned nsqd.

    Args:
        node: The nsqd.
        connections: The open connections of the node.
        client_id: Number of the connection on its node.
    """

    is_partitioned = True

    def __init__(self, node: HaNsqd, connections: set[Self], client_id: int) -> None:
        self._commands = CommandDecoder(node.host.limits)
        super().__init__(node, connections, client_id, self._commands, _MANNER)
        self._node = node
        self._replica: Replica | None = None  # of the publish that is being read
        self._handlers |= {
            PublishHeader: self._publish_header,
            commands.Sub: self._subscribe,
            commands.SubAdvanced: self._subscribe,
            commands.SubOrdered: self._subscribe,
            commands.Pub: self._publish,
            commands.PubTrace: self._pub_trace,
            commands.PubExt: self._pub_ext,
            commands.Mpub: self._mpub,
            commands.MpubTrace: self._mpub_trace,
            commands.MpubExt: self._mpub_ext,
        }

    def _read_identify(self, body: bytes) -> SessionSettings | Malformed:
        return read_identify(body, self.settings, self._limits)

    def _agree(self, settings: SessionSettings, *, tls: bool, auth: bool) -> tuple[Identity, bytes]:
        identity = settings.identity(VERSION, tls=tls, auth=auth, limits=self._limits)
        return identity, encode_identity(identity)

    # ------------------------------------------------------------ PUB

    def _publish_header(self, header: PublishHeader) -> None:
        """Find the replica of a publish, and tell the decoder whether its topic is extended."""
        replica = self._node.find(header.topic, header.partition)
        if replica is None:
            self.fail(_NOT_EXIST)
        elif header.partition is None and replica.options.ordered:
            self.fail(_PARTITION_NEEDED)
        elif not self._is_unauthorized("PUB", header.topic):  # nsqd calls all publishes PUB here
            self._replica = replica
            self._commands.accept(extended=replica.options.extended)

    def _publish(self, command: commands.Pub) -> None:
        self._store((Draft(command.body),), _PUB_FAILED, _ok)

    def _pub_trace(self, command: commands.PubTrace) -> None:
        self._store((Draft(command.body, command.trace_id),), _PUB_FAILED, _traced)

    def _pub_ext(self, command: commands.PubExt) -> None:
        """PUB_EXT; a trace id in the header asks for the long answer."""
        trace_id = trace_id_of(command.ext)
        draft = Draft(command.body, trace_id or 0, command.ext)
        self._store((draft,), _PUB_FAILED, _ok if trace_id is None else _traced)

    def _mpub(self, command: commands.Mpub) -> None:
        self._store([Draft(body) for body in command.bodies], _MPUB_FAILED, _ok)

    def _mpub_trace(self, command: commands.MpubTrace) -> None:
        """MPUB_TRACE: the answer has the position of the first message, and the size of all."""
        drafts = [Draft(body, trace_id) for trace_id, body in command.messages]
        self._store(drafts, _MPUB_FAILED, _traced_batch)

    def _mpub_ext(self, command: commands.MpubExt) -> None:
        """MPUB_EXT: an empty header counts as none."""
        drafts = [Draft(body, (trace_id_of(ext) or 0) if ext else 0, ext or None) for ext, body in command.messages]
        self._store(drafts, _MPUB_FAILED, _ok)

    def _store(self, drafts: Sequence[Draft], failed: bytes, answer: Answer) -> None:
        replica = self._replica
        if replica is None:
            raise RuntimeError("internal error: a publish without its header")
        if self._node.exiting:
            self.refuse(failed + EXITING)
            return
        if replica.refusal is not None:
            self.refuse(replica.refusal)
            return
        if replica.options.extended and (text := self._too_large(drafts)) is not None:
            self.refuse(failed + text)
            return
        if replica.stalled:
            self._store_later(replica, drafts, answer)
            return
        self.send(answer(replica.store(drafts)))
        self._has_changed(replica)

    def _too_large(self, drafts: Sequence[Draft]) -> bytes | None:
        """Return why an extended topic cannot store these messages. None if it can."""
        largest = raw_size(b"", None, extended=False) - _SIZE_WORD + self._limits.max_message_bytes
        size = max(raw_size(draft.body, draft.ext, extended=True) for draft in drafts) - _SIZE_WORD
        return _TOO_LARGE % (size, largest) if size > largest else None

    def _store_later(self, replica: Replica, drafts: Sequence[Draft], answer: Answer) -> None:
        def stored(records: list[Record]) -> None:
            self.send(answer(records))
            self.unblock()

        def refuse(frame: bytes) -> None:
            self.refuse(frame)
            self.unblock()

        self.block()
        replica.store_later(drafts, stored, refuse)

    # ------------------------------------------------------------ SUB

    def _subscribe(self, command: commands.Sub) -> None:
        """Check in nsqd's order, wait for the replicas if they do not answer, then subscribe."""
        if self._is_forbidden(command.word) or self._is_unauthorized("SUB", command.topic, command.channel):
            return
        replica = self._node.find(command.topic, command.partition if _start_of(command) is None else None)
        if replica is None:
            self.fail(_NOT_EXIST)
            return
        refusal = self._refusal(command, replica)
        if refusal is not None:
            self.fail(refusal)
        elif replica.stalled and not replica.gave_up:
            _wait(self, replica, functools.partial(self._subscribe_to, command, replica))
        else:
            self._subscribe_to(command, replica)

    def _refusal(self, command: commands.Sub, replica: Replica) -> bytes | None:
        """Return the first reason, in nsqd's order, to refuse a SUB permanently. None if there is none."""
        options, extend_support = replica.options, self.settings.extend_support
        if options.ordered and not isinstance(command, commands.SubOrdered):
            return _ORDER_IS_MUST
        if options.extended and not extend_support:
            return _EXTEND_NEED
        if extend_support and not options.extended:
            return _EXTEND_FORBIDDEN
        if not replica.leads:
            return NOT_LEADER
        if options.disable_channel_auto_create and command.channel not in replica.partition.channels:
            return _NOT_REGISTERED
        return None

    def _subscribe_to(self, command: commands.Sub, replica: Replica) -> None:
        if not replica.leads:
            self.fail(NOT_LEADER)
            return
        if replica.stalled or not replica.writable:
            self.fail(NOT_WRITABLE)
            return
        ordered = isinstance(command, commands.SubOrdered)
        if ordered and self.settings.sample_rate:
            self.fail(_NO_SAMPLING)
            return
        channel = replica.channel(command.channel)
        start = _start_of(command)
        try:
            index = None if start is None else start_index(replica.log, channel.end, start)
        except ValueError as error:
            self.fail(f"E_INVALID {error}".encode())
            return
        except SearchError as error:
            if not channel.consumers:
                self.fail(f"E_INVALID {error}".encode())
                return
            index = None  # nsqd does not search for a position that it would not use
        if ordered:
            channel.switch_to_ordered()
            channel.dispatch(self._host.now())
        if index is not None and not channel.consumers:
            channel.reset(index)
        subscriber = Subscriber(self, replica, channel, detail=command.word != b"SUB")
        channel.add(subscriber)
        self._subscribed(subscriber)


def _start_of(command: commands.Sub) -> str | None:
    return command.start if isinstance(command, commands.SubAdvanced) else None


def _ok(_records: Sequence[Record]) -> bytes:
    return OK_FRAME


def _traced(records: Sequence[Record]) -> bytes:
    record = records[0]
    traced = Traced(record.internal_id, record.trace_id, record.offset, record.raw_size)
    return encode_frame(FrameType.RESPONSE, encode_traced(traced))


def _traced_batch(records: Sequence[Record]) -> bytes:
    first = records[0]
    traced = Traced(first.internal_id, 0, first.offset, sum(record.raw_size for record in records))
    return encode_frame(FrameType.RESPONSE, encode_traced(traced))


class Subscriber(AnySubscriber[int, "Record", "Channel"]):
    """A consumer of one channel of a partitioned nsqd."""

    received: int

    def __init__(self, session: AnySession, replica: Replica, channel: Channel, *, detail: bool) -> None:
        super().__init__(session, channel)
        self._replica = replica
        extended = replica.options.extended and session.settings.extend_support
        self._extended = extended
        self._layout = layout_for(detail=detail, ext=extended)
        self.tag: str = session.settings.desired_tag if extended else ""
        self._filter = _filter_of(session.settings.ext_filter) if extended else None

    def leave(self) -> None:
        """Return the unanswered messages and leave the channel."""
        self.ready = 0
        self._channel.remove(self, self._host.now())
        self._replica.leave(self._channel)

    def wants(self, message: Record) -> bool:
        """Return whether to deliver the message; sampling and the client's filter leave others out."""
        return super().wants(message) and (self._filter is None or self._filter.passes(message.ext))

    def deliver(self, message: Record, attempts: int, *, at_once: bool) -> None:
        """Write the message, at once if RDY allows no more; end the connection if the topic was upgraded to headers.

        Source: youzan/nsq ``nsqdserver/protocol_v2.go`` ``messagePump``.
        """
        if self._replica.options.extended and not self._extended:
            self.fall_silent()
            self._host.loop.call_soon(self.drop)  # a drop dispatches, which is under way here
            return
        self.received += 1
        frame = message_frame(message, attempts, self._layout)
        self.session.send_message(frame, at_once=at_once or self.holds >= self.ready)

    def answer(self, command: MessageAnswer) -> None:
        """FIN, REQ or TOUCH. On an ordered channel FIN needs the replicas, like a write."""
        replica = self._replica
        is_finish = isinstance(command, commands.Finish)
        if is_finish and not replica.leads:
            self.session.fail(NOT_LEADER)
        elif not (is_finish and replica.stalled and self._channel.ordered):
            super().answer(command)
        elif replica.gave_up:
            self.session.fail(NOT_WRITABLE)
        else:
            _wait(self.session, replica, lambda: AnySubscriber.answer(self, command))

    def _id(self, message_id: bytes) -> int:
        return int.from_bytes(message_id[:8], "big")

    def _refused(self, word: str, message_id: bytes, why: str) -> bytes:
        kind = "ErrType:7 ErrCode:0 : " if word == "FIN" else ""
        return f"E_{word}_FAILED {word} {byte_list(message_id)} failed {kind}{why}".encode()


def _filter_of(rule: FilterRule | None) -> Filter | None:
    """Return the client's filter. None if it has none, or a wrong one, which nsqd ignores."""
    if rule is None or not rule.type:
        return None
    try:
        return Filter(rule)
    except ValueError:
        return None


def _wait(session: AnySession, replica: Replica, act: Callable[[], None]) -> None:
    """Call ``act`` once the replicas answer; close the connection if the wait ends without an answer."""

    def resume() -> None:
        session.unblock()
        act()

    session.block()
    replica.wait(Waiting(resume, session.fail))


def message_frame(record: Record, attempts: int, layout: Layout) -> bytes:
    """Encode a message frame: size, type, timestamp, attempts, id, the parts that the layout requires, and the body.

    Golden exchanges compare this fast path and that of the tests with the real server's bytes.

    Source: server protocol 2.
    """
    ext, detail = layout.value
    parts = b""
    if ext:
        header = record.ext
        parts = b"\0" if header is None else _JSON + len(header).to_bytes(2, "big") + header
    if detail:
        parts += _DETAIL.pack(record.offset, record.raw_size)
    body = record.body
    size = 30 + len(parts) + len(body)
    head = _HEAD.pack(size, 2, record.timestamp_ns, attempts, record.internal_id, record.trace_id)
    return head + parts + body
