"""What one upstream nsqlookupd knows: topics, channels, and the nsqds that registered for them.

Topics and channels stay when the last nsqd goes; only ephemeral ones go with it.

Source: nsqio/nsq ``nsqlookupd/registration_db.go``, ``lookup_protocol_v1.go``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from nsq_ha.devcluster.storage.log import is_ephemeral

INACTIVE_AFTER: Final = 300.0
"""Seconds without a PING after which lookups leave an nsqd out (``-inactive-producer-timeout``)."""
TOMBSTONE_LIFETIME: Final = 45.0
"""Seconds for which a tombstone hides an nsqd from the lookups of a topic (``-tombstone-lifetime``)."""


@dataclass(slots=True, eq=False)
class Peer:
    """An nsqd as it describes itself.

    Attributes:
        remote_address: Its end of the connection.
        hostname: Name of its machine.
        broadcast_address: Where clients reach it.
        tcp_port: Port of its TCP.
        http_port: Port of its HTTP.
        version: Its version.
        seen: Time of its last PING.
    """

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    seen: float


Key = tuple[str, str]
"""Topic and channel; the channel is empty for the topic itself."""


@dataclass(slots=True, eq=False)
class Registrations:
    """The memory of one nsqlookupd.

    Attributes:
        peers: All nsqds that are connected.
        entries: The nsqds of each topic and channel, and when each got a tombstone there.
        now: Returns the time.
        factor: Factor of the server's own times.
    """

    now: Callable[[], float]
    factor: float
    peers: list[Peer] = field(default_factory=list)
    entries: dict[Key, dict[Peer, float | None]] = field(default_factory=dict)

    def add(self, topic: str, channel: str = "", peer: Peer | None = None) -> None:
        """Add a topic, a channel of it if it is not empty, and the nsqd that has them."""
        for key in {(topic, channel), (topic, "")}:
            peers = self.entries.setdefault(key, {})
            if peer is not None:
                peers.setdefault(peer, None)

    def remove(self, topic: str, channel: str, peer: Peer) -> None:
        """Remove an nsqd from a channel, or from a topic and all its channels if ``channel`` is empty."""
        keys = [(topic, channel)] if channel else [key for key in self.entries if key[0] == topic]
        for key in keys:
            peers = self.entries.get(key, {})
            peers.pop(peer, None)
            if not peers and is_ephemeral(key[1] or key[0]) and key[1] == channel:
                self.entries.pop(key, None)

    def forget(self, topic: str, channel: str = "") -> bool:
        """Delete a channel, or a topic and all its channels; return whether there was one."""
        keys = [key for key in self.entries if key == (topic, channel) or (key[0] == topic and not channel)]
        for key in keys:
            del self.entries[key]
        return bool(keys)

    def disconnected(self, peer: Peer) -> None:
        """Remove an nsqd from everything."""
        if peer in self.peers:
            self.peers.remove(peer)
        for peers in self.entries.values():
            peers.pop(peer, None)

    def clear(self) -> None:
        """Forget everything, as a process that ends."""
        self.peers.clear()
        self.entries.clear()

    # ------------------------------------------------------------ questions

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return [topic for topic, channel in self.entries if not channel]

    def channels(self, topic: str) -> list[str]:
        """Return the names of a topic's channels."""
        return [channel for name, channel in self.entries if name == topic and channel]

    def producers(self, topic: str) -> list[Peer] | None:
        """Return the active nsqds of a topic without those that have a tombstone; None for an unknown topic."""
        peers = self.entries.get((topic, ""))
        if peers is None:
            return None
        return [peer for peer in peers if self._is_active(peer) and not self.is_tombstoned(topic, peer)]

    def nodes(self) -> list[Peer]:
        """Return the active nsqds."""
        return [peer for peer in self.peers if self._is_active(peer)]

    def topics_of(self, peer: Peer) -> list[str]:
        """Return the topics of an nsqd."""
        return [topic for (topic, channel), peers in self.entries.items() if not channel and peer in peers]

    def tombstone(self, topic: str, node: str) -> None:
        """Mark an nsqd, given as ``broadcast_address:http_port``, so that lookups of a topic leave it out."""
        peers = self.entries.get((topic, ""), {})
        for peer in peers:
            if f"{peer.broadcast_address}:{peer.http_port}" == node:
                peers[peer] = self.now()

    def is_tombstoned(self, topic: str, peer: Peer) -> bool:
        """Return whether an nsqd has a tombstone for a topic."""
        marked = self.entries.get((topic, ""), {}).get(peer)
        return marked is not None and self.now() - marked < TOMBSTONE_LIFETIME * self.factor

    def _is_active(self, peer: Peer) -> bool:
        return self.now() - peer.seen <= INACTIVE_AFTER * self.factor
