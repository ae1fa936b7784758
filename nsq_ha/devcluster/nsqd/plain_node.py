"""One process of upstream's nsqd: its topics and channels, and the clock by which it scans them.

A clean exit writes all messages to the backends, so a restart brings them back. A killed process loses what was in
memory, in flight or deferred; topics, channels and what is paused stay, as its metadata file would.

Source: nsqio/nsq ``nsqd/nsqd.go``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.devcluster.nsqd.node import AnyNsqd
from nsq_ha.devcluster.storage.guids import Guids
from nsq_ha.devcluster.storage.queues import PlainChannel, PlainNsqdTopic, Queue, Queued

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.connection import ServerConnection
    from nsq_ha.devcluster.security import App

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
        node_id: Part of its message ids (``-node-id``).
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
        node_id: int,
        changed: Callable[[PlainNsqd, str, str, bool], None],
        channels_of: Callable[[str], Iterable[str]],
    ) -> None:
        super().__init__(name, host, connect, app, port)
        self.topics: dict[str, PlainNsqdTopic] = {}
        self._changed = changed
        self._channels_of = channels_of
        self._node_id = node_id
        self._next_scan = self._next_refresh = 0.0
        self._scanned: list[PlainChannel] = []  # a new channel is added with the next refresh

    def topic(self, name: str) -> PlainNsqdTopic:
        """Return a topic. A new one gets the channels that the nsqlookupds know."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = PlainNsqdTopic(name, self.host.chance, Guids(self._node_id))
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
