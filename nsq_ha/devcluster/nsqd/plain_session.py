"""Execute the commands of one connection, in the order and with the answers of upstream's nsqd.

Source: nsqio/nsq ``nsqd/protocol_v2.go``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.nsqd.any_session import AnySession, AnySubscriber
from nsq_ha.devcluster.nsqd.connection import OK_FRAME, Manner
from nsq_ha.devcluster.storage.queues import PlainChannel, PlainNsqdTopic, Queued
from nsq_ha.protocol import commands
from nsq_ha.protocol.server.answers import encode_plain_identity
from nsq_ha.protocol.server.identify import PLAIN_SETTINGS, SessionSettings, read_plain_identify
from nsq_ha.protocol.server.plain_decoder import DeferredPub, PlainDecoder, TopicNamed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.server.command_lines import Malformed

PLAIN_MANNER: Final = Manner(
    settings=PLAIN_SETTINGS,
    consumer_buffer=PLAIN_SETTINGS.output_buffer_size,
    silent_intervals=2,
    flushes_at_zero=False,
    has_write_deadline=True,
)
_HEAD: Final = struct.Struct(">iiqH16s")


class PlainSession(AnySession):
    """Executes the commands of one connection of an upstream nsqd.

    Args:
        node: The nsqd.
        connections: The open connections of the node.
        client_id: Number of the connection on its node.

    Attributes:
        identified: The client sent IDENTIFY.
    """

    is_partitioned = False

    def __init__(self, node: PlainNsqd, connections: set[Self], client_id: int) -> None:
        super().__init__(node, connections, client_id, PlainDecoder(node.host.limits), PLAIN_MANNER)
        self.identified: bool = False
        self._node = node
        self._handlers |= {
            TopicNamed: self._topic_named,
            commands.Sub: self._subscribe,
            commands.Pub: self._publish,
            commands.Mpub: self._publish_many,
            DeferredPub: self._publish_deferred,
        }

    def _read_identify(self, body: bytes) -> SessionSettings | Malformed:
        self.identified = True
        return read_plain_identify(body, self.settings, self._limits)

    def _agree(self, settings: SessionSettings, *, tls: bool, auth: bool) -> tuple[Identity, bytes]:
        identity = settings.plain_identity(PLAIN_VERSION, tls=tls, auth=auth, limits=self._limits)
        return identity, encode_plain_identity(identity)

    # ------------------------------------------------------------ SUB

    def _subscribe(self, command: commands.Sub) -> None:
        if self._is_forbidden(command.word) or self._is_unauthorized("SUB", command.topic, command.channel):
            return
        topic = self._node.topic(command.topic)
        channel = self._node.channel(topic, command.channel)
        subscriber = PlainSubscriber(self, self._node, topic, channel)
        channel.add(subscriber)
        self._subscribed(subscriber)

    # ------------------------------------------------------------ PUB

    def _topic_named(self, event: TopicNamed) -> None:
        if not self._is_unauthorized("MPUB", event.topic):
            self._node.topic(event.topic)

    def _publish(self, command: commands.Pub) -> None:
        if not self._is_unauthorized("PUB", command.topic):
            self._store(command.topic, (command.body,))

    def _publish_many(self, command: commands.Mpub) -> None:
        self._store(command.topic, command.bodies)

    def _publish_deferred(self, command: DeferredPub) -> None:
        if not self._is_unauthorized("DPUB", command.topic):
            self._store(command.topic, (command.body,), command.delay_ms / 1000)

    def _store(self, name: str, bodies: Sequence[bytes], delay: float = 0.0) -> None:
        topic = self._node.topic(name)
        self._node.store(topic, bodies, delay)
        self._has_changed(topic)
        self.send(OK_FRAME)


class PlainSubscriber(AnySubscriber[bytes, Queued, "PlainChannel"]):
    """A consumer of one channel of an upstream nsqd."""

    received: int

    def __init__(self, session: PlainSession, node: PlainNsqd, topic: PlainNsqdTopic, channel: PlainChannel) -> None:
        super().__init__(session, channel)
        self._node = node
        self._topic = topic

    def leave(self) -> None:
        """Leave the channel; what is in flight comes again once it times out."""
        self.ready = 0
        self._channel.remove(self)
        if self._channel.ephemeral and not self._channel.consumers:
            self._node.delete_channel(self._topic, self._channel)

    def deliver(self, message: Queued, attempts: int, *, at_once: bool) -> None:
        """Write the message; at once if the client can take no more."""
        self.received += 1
        frame = plain_message_frame(message, attempts)
        self.session.send_message(frame, at_once=at_once or self.holds >= self.ready)

    def set_ready(self, count: int) -> None:
        """RDY."""
        super().set_ready(count)
        if self.ready <= self.holds:
            self.flush()

    def _id(self, message_id: bytes) -> bytes:
        return message_id

    def _refused(self, word: str, message_id: bytes, why: str) -> bytes:
        return b"E_%b_FAILED %b %b failed %b" % (word.encode(), word.encode(), message_id, why.encode())


def plain_message_frame(message: Queued, attempts: int) -> bytes:
    """Encode a message frame: size, type, timestamp, attempts, id and the body."""
    body = message.body
    return _HEAD.pack(30 + len(body), 2, message.timestamp_ns, attempts, message.message_id) + body
