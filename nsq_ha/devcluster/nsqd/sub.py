"""One subscribed connection: SUB and its refusals, deliveries, FIN, REQ and TOUCH.

Source: server protocol 5, 7; youzan/nsq ``internalSUB``, ``FIN``, ``REQ``, ``TOUCH``.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nsqd.subscribers import AnySubscriber
from nsq_ha.devcluster.storage.replica import NOT_LEADER, NOT_WRITABLE, Waiting
from nsq_ha.devcluster.storage.search import SearchError, start_index
from nsq_ha.devcluster.storage.unanswered import Refusal
from nsq_ha.protocol import commands
from nsq_ha.protocol.ext_filter import Filter
from nsq_ha.protocol.messages import layout_for
from nsq_ha.protocol.server.gotext import byte_list

if TYPE_CHECKING:
    from nsq_ha.devcluster.auth import Credentials
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.log import Record
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.devcluster.storage.replicas import StorageNode
    from nsq_ha.protocol.ext_filter import FilterRule
    from nsq_ha.protocol.messages import Layout

NOT_EXIST: Final = b"E_TOPIC_NOT_EXIST "
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


class Subscriber(AnySubscriber):
    """A consumer of one channel; implements :class:`nsq_ha.devcluster.storage.unanswered.Consumer`.

    Attributes:
        credentials: What the client may do.
    """

    def __init__(
        self, connection: Connection, replica: Replica, channel: Channel, credentials: Credentials, *, detail: bool
    ) -> None:
        super().__init__(connection)
        self.credentials: Credentials = credentials
        self.replica = replica
        self.channel = channel
        extended = replica.options.extended and connection.settings.extend_support
        self._layout = layout_for(detail=detail, ext=extended)
        self.tag: str = connection.settings.desired_tag if extended else ""
        self._filter = _filter_of(connection.settings.ext_filter) if extended else None

    def leave(self) -> None:
        """Return the unanswered messages and leave the channel."""
        self.ready = 0
        self.channel.remove(self, self._host.now())
        self.replica.leave(self.channel)

    # ------------------------------------------------------------ Consumer

    def wants(self, record: Record) -> bool:
        """Return whether to deliver the message; sampling and the client's filter leave others out."""
        return self.is_sampled() and (self._filter is None or self._filter.passes(record.ext))

    def deliver(self, record: Record, attempts: int, *, at_once: bool) -> None:
        """Write the message; at once if RDY allows no more."""
        self.count(received=1)
        frame = message_frame(record, attempts, self._layout)
        self.connection.send_message(frame, at_once=at_once or self.holds >= self.ready)

    def _dispatch(self) -> None:
        self.channel.dispatch(self._host.now())

    # ------------------------------------------------------------ answers

    def finish(self, message_id: bytes) -> None:
        """FIN. On an ordered channel it needs the replicas, like a write."""
        replica = self.replica
        if not replica.leads:
            self.connection.fail(NOT_LEADER)
            return
        if replica.stalled and self.channel.ordered:
            if replica.gave_up:
                self.connection.fail(NOT_WRITABLE)
                return
            _wait(self.connection, replica, lambda: self._finish(message_id))
            return
        self._finish(message_id)

    def _finish(self, message_id: bytes) -> None:
        try:
            self.channel.finish(int.from_bytes(message_id[:8], "big"), self, self._host.now())
            self.count(finished=1)
        except Refusal as refusal:
            self._refuse("FIN", message_id, f"ErrType:7 ErrCode:0 : {refusal}")

    def requeue(self, message_id: bytes, delay: float) -> None:
        """REQ; nsqd shortens a delay that is too long."""
        delay = min(delay, self._host.limits.max_delay / 1000)
        try:
            self.channel.requeue(int.from_bytes(message_id[:8], "big"), self, delay, self._host.now())
            self.count(requeued=1)
        except Refusal as refusal:
            self._refuse("REQ", message_id, str(refusal))

    def touch(self, message_id: bytes) -> None:
        """TOUCH."""
        try:
            self.channel.touch(int.from_bytes(message_id[:8], "big"), self, self._host.now())
        except Refusal as refusal:
            self._refuse("TOUCH", message_id, str(refusal))

    def _refuse(self, word: str, message_id: bytes, why: str) -> None:
        self.connection.refuse(f"E_{word}_FAILED {word} {byte_list(message_id)} failed {why}".encode())


def subscribe(
    connection: Connection,
    node: StorageNode,
    command: commands.Sub,
    credentials: Credentials,
    subscribed: Callable[[Subscriber], None],
) -> None:
    """Execute SUB: check in nsqd's order, wait for the replicas if they do not answer, then subscribe.

    Args:
        connection: The client's connection; closed if SUB is refused.
        node: The nsqd.
        command: The SUB command.
        credentials: What the client may do.
        subscribed: Called with the new subscriber, before the answer is sent.
    """
    if connection.settings.heartbeat_interval <= 0:
        connection.fail(b"E_INVALID cannot SUB with heartbeats disabled")
        return
    refusal = credentials.refusal("SUB", command.topic, command.channel)
    if refusal is not None:
        connection.fail(refusal)
        return
    replica = node.find(command.topic, command.partition if _start_of(command) is None else None)
    if replica is None:
        connection.fail(NOT_EXIST)
        return
    subscribe_here = functools.partial(_subscribe, connection, command, replica, credentials, subscribed)
    refusal = _refusal(connection, command, replica)
    if refusal is not None:
        connection.fail(refusal)
    elif replica.stalled and not replica.gave_up:
        _wait(connection, replica, subscribe_here)
    else:
        subscribe_here()


def _subscribe(
    connection: Connection,
    command: commands.Sub,
    replica: Replica,
    credentials: Credentials,
    subscribed: Callable[[Subscriber], None],
) -> None:
    if not replica.leads:
        connection.fail(NOT_LEADER)
        return
    if replica.stalled or not replica.writable:
        connection.fail(NOT_WRITABLE)
        return
    ordered = isinstance(command, commands.SubOrdered)
    if ordered and connection.settings.sample_rate:
        connection.fail(_NO_SAMPLING)
        return
    channel = replica.channel(command.channel)
    start = _start_of(command)
    try:
        index = None if start is None else start_index(replica.log, channel.end, start)
    except ValueError as error:
        connection.fail(f"E_INVALID {error}".encode())
        return
    except SearchError as error:
        if not channel.consumers:
            connection.fail(f"E_INVALID {error}".encode())
            return
        index = None  # nsqd does not search for a position that it would not use
    if ordered:
        channel.switch_to_ordered()
        channel.dispatch(connection.node.host.now())
    if index is not None and not channel.consumers:
        channel.reset(index)
    subscriber = Subscriber(connection, replica, channel, credentials, detail=command.word != b"SUB")
    channel.add(subscriber)
    subscribed(subscriber)


def _filter_of(rule: FilterRule | None) -> Filter | None:
    """Return the client's filter. None if it has none, or a wrong one, which nsqd ignores."""
    if rule is None or not rule.type:
        return None
    try:
        return Filter(rule)
    except ValueError:
        return None


def _start_of(command: commands.Sub) -> str | None:
    return command.start if isinstance(command, commands.SubAdvanced) else None


def _refusal(connection: Connection, command: commands.Sub, replica: Replica) -> bytes | None:
    """Return the first reason, in nsqd's order, to refuse a SUB permanently. None if there is none."""
    options, extend_support = replica.options, connection.settings.extend_support
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


def _wait(connection: Connection, replica: Replica, act: Callable[[], None]) -> None:
    """Call ``act`` once the replicas answer; close the connection if the wait ends without an answer."""

    def resume() -> None:
        connection.unblock()
        act()

    connection.block()
    replica.wait(Waiting(resume, connection.fail))


def message_frame(record: Record, attempts: int, layout: Layout) -> bytes:
    """Encode a message frame: size, type, timestamp, attempts, id, the parts that the layout requires, and the body.

    Golden exchanges compare this fast path and ``protocol.messages`` with the real server's bytes.

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
