"""One process of upstream's nsqd: its topics and channels, the clock by which it scans them, and its connections.

A clean exit writes all messages to the backends, so a restart brings them back. A killed process loses what was in
memory, in flight or deferred; topics, channels and what is paused stay, as its metadata file would. A session executes
the commands of a connection, in the order and with the answers of upstream's nsqd.

Source: nsqio/nsq ``nsqd/nsqd.go``, ``nsqd/protocol_v2.go``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from nsq_ha.devcluster.host import PLAIN_VERSION
from nsq_ha.devcluster.nsqd.any_session import AnySession, AnySubscriber
from nsq_ha.devcluster.nsqd.connection import OK_FRAME, Manner
from nsq_ha.devcluster.nsqd.node import AnyNsqd
from nsq_ha.devcluster.storage.queues import Guids, PlainChannel, PlainNsqdTopic, Queue, Queued
from nsq_ha.protocol import commands
from nsq_ha.protocol.server.answers import encode_plain_identity
from nsq_ha.protocol.server.identify import PLAIN_SETTINGS, SessionSettings, read_plain_identify
from nsq_ha.protocol.server.plain_decoder import DeferredPub, PlainDecoder, TopicNamed

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import App, Host
    from nsq_ha.devcluster.nsqd.connection import ServerConnection
    from nsq_ha.protocol.identify import Identity
    from nsq_ha.protocol.server.command_lines import Malformed


SCAN: Final = 0.1
"""Seconds between two scans for messages that timed out or whose delay ended (``QueueScanInterval``)."""


class PlainNsqd(AnyNsqd):
    """One upstream nsqd.

    Args:
        name: As for its base, like the next three and ``port``.
        host: See ``name``.
        connect: See ``name``.
        app: See ``name``.
        port: See ``name``.
        changed: Called with this node, topic and channel (empty for the topic itself), and whether it was created or
            deleted.
        channels_of: Returns the channels of a new topic that the nsqlookupds know.

    Attributes:
        topics: By name.
    """

    def __init__(
        self,
        name: str,
        host: Host,
        connect: Callable[..., ServerConnection],
        app: Callable[[Any], App],
        port: int,
        *,
        changed: Callable[[PlainNsqd, str, str, bool], None],
        channels_of: Callable[[str], Iterable[str]],
    ) -> None:
        super().__init__(name, host, connect, app, port)
        self.topics: dict[str, PlainNsqdTopic] = {}
        self._changed = changed
        self._channels_of = channels_of
        self._next_scan = self._next_refresh = 0.0
        self._scanned: list[PlainChannel] = []  # a new channel is added with the next refresh

    def topic(self, name: str) -> PlainNsqdTopic:
        """Return a topic. A new one gets the channels that the nsqlookupds know."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = PlainNsqdTopic(name, self.host.chance, Guids())
            self._changed(self, name, "", True)
            for channel in self._channels_of(name):
                self.channel(topic, channel)
        return topic

    def channel(self, topic: PlainNsqdTopic, name: str) -> PlainChannel:
        """Return a channel. The first one of a topic gets all that the topic has."""
        channel = topic.channels.get(name)
        if channel is None:
            channel = topic.add_channel(name)
            self._changed(self, topic.name, name, True)
            topic.pump(self.host.now())
        return channel

    def delete_topic(self, topic: PlainNsqdTopic) -> None:
        """Delete a topic and its channels, and disconnect its consumers."""
        if self.topics.get(topic.name) is topic:
            del self.topics[topic.name]
            self._changed(self, topic.name, "", False)
            for channel in tuple(topic.channels.values()):
                self._remove(topic, channel)

    def delete_channel(self, topic: PlainNsqdTopic, channel: PlainChannel) -> None:
        """Delete a channel and disconnect its consumers. An ephemeral topic ends with its last channel."""
        if topic.channels.get(channel.name) is not channel:
            return
        self._remove(topic, channel)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic)

    def _remove(self, topic: PlainNsqdTopic, channel: PlainChannel) -> None:
        del topic.channels[channel.name]
        self._changed(self, topic.name, channel.name, False)
        channel.empty()
        channel.drop_consumers()

    def store(self, topic: PlainNsqdTopic, bodies: Sequence[bytes], delay: float = 0.0) -> None:
        """Publish messages; the topic's :meth:`~PlainNsqdTopic.dispatch` delivers them.

        Args:
            topic: The topic.
            bodies: Their payloads.
            delay: Seconds before the first delivery.
        """
        now = self.host.now()
        for body in bodies:
            topic.put(Queued(topic.guids.next(), time.time_ns(), body, delay=delay), now)

    # ------------------------------------------------------------ process

    def leave(self) -> None:
        """Exit cleanly, with all messages written to the backends."""
        self._keep_stored(lambda stored: stored.flush())
        closing = tuple(self.connections)
        for connection in closing:
            connection.close()
        self.connections.clear()  # they are not reset: they end once what was written to them is read
        super().kill()
        self.connections.update(closing)

    def kill(self) -> None:
        """End the process at once and reset its connections; lose what was in memory."""
        self._keep_stored(lambda stored: stored.forget_memory())
        super().kill()

    def _keep_stored(self, act: Callable[[Queue | PlainChannel], None]) -> None:
        """Keep what a process leaves behind when it ends: all but ephemeral topics and channels.

        Args:
            act: What happens to each queue: it is flushed, or loses what was in memory.
        """
        self._scanned.clear()
        self._next_refresh = 0.0
        self.topics = {name: topic for name, topic in self.topics.items() if not topic.ephemeral}
        for topic in self.topics.values():
            topic.restart(act)

    def _tick(self, now: float) -> None:
        """Let time pass: timeouts and delays of messages."""
        if now < self._next_scan:
            return
        self._next_scan = now + SCAN
        if now >= self._next_refresh:
            self._next_refresh = now + self.host.timing.scan_refresh
            self._scanned = [channel for topic in self.topics.values() for channel in topic.channels.values()]
        for channel in self._scanned:
            channel.tick(now)


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
