"""One upstream nsqlookupd: its process, its ports and its memory.

The embedded nsqds register without a socket (see ``plain_control``), so its TCP port refuses connections. Topics and
channels stay when the last nsqd goes; only ephemeral ones go with it.

Source: nsqio/nsq ``nsqlookupd/registration_db.go``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nodes import HOST, ClusterNode, Reserved, WebServer
from nsq_ha.devcluster.storage.log import is_ephemeral

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host
    from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
    from nsq_ha.devcluster.security import App

INACTIVE_AFTER: Final = 300.0
"""Seconds without a PING after which lookups leave an nsqd out (``-inactive-producer-timeout``)."""
TOMBSTONE_LIFETIME: Final = 45.0
"""Seconds for which a tombstone hides an nsqd from the lookups of a topic (``-tombstone-lifetime``)."""


Key = tuple[str, str]
"""Topic and channel; the channel is empty for the topic itself."""


class PlainNsqlookupd(ClusterNode):
    """One upstream nsqlookupd.

    Args:
        name: Its name in controls, ``nsqlookupd-0``.
        host: What it runs on.
        app: Makes the application that answers its HTTP.
        port: The port of its HTTP, one above that of its TCP, as 4161 and 4160 are; 0 for free ones.

    Attributes:
        seen: All nsqds that are connected, and the time of their last PING.
        entries: The nsqds of each topic and channel, and when each got a tombstone there.
        requests: Number of lookups that it answered; tests of clients check it.

    Raises:
        OSError: A port is taken.
    """

    def __init__(self, name: str, host: Host, app: Callable[[PlainNsqlookupd], App], port: int = 0) -> None:
        super().__init__(name, host)
        self.seen: dict[PlainNsqd, float] = {}
        self.entries: dict[Key, dict[PlainNsqd, float | None]] = {}
        self.requests = 0
        self.tcp_port: int = self._reserve(lambda: Reserved(port and port - 1)).port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, port)).port

    def kill(self) -> None:
        """End the process at once; it knows nothing until the nsqds register again."""
        super().kill()
        self.seen.clear()
        self.entries.clear()

    # ------------------------------------------------------------ memory

    def add(self, topic: str, channel: str = "", nsqd: PlainNsqd | None = None) -> None:
        """Add a topic, a channel of it if it is not empty, and the nsqd that has them."""
        for key in {(topic, channel), (topic, "")}:
            nsqds = self.entries.setdefault(key, {})
            if nsqd is not None:
                nsqds.setdefault(nsqd, None)

    def remove(self, topic: str, channel: str, nsqd: PlainNsqd) -> None:
        """Remove an nsqd from a channel, or from a topic and all its channels if ``channel`` is empty."""
        keys = [(topic, channel)] if channel else [key for key in self.entries if key[0] == topic]
        for key in keys:
            nsqds = self.entries.get(key, {})
            nsqds.pop(nsqd, None)
            if not nsqds and is_ephemeral(key[1] or key[0]) and key[1] == channel:
                self.entries.pop(key, None)

    def forget(self, topic: str, channel: str = "") -> bool:
        """Delete a channel, or a topic and all its channels; return whether there was one."""
        keys = [key for key in self.entries if key == (topic, channel) or (key[0] == topic and not channel)]
        for key in keys:
            del self.entries[key]
        return bool(keys)

    def disconnected(self, nsqd: PlainNsqd) -> None:
        """Remove an nsqd from everything."""
        self.seen.pop(nsqd, None)
        for nsqds in self.entries.values():
            nsqds.pop(nsqd, None)

    # ------------------------------------------------------------ questions

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return [topic for topic, channel in self.entries if not channel]

    def channels(self, topic: str) -> list[str]:
        """Return the names of a topic's channels."""
        return [channel for name, channel in self.entries if name == topic and channel]

    def producers(self, topic: str) -> list[PlainNsqd] | None:
        """Return the active nsqds of a topic without those that have a tombstone; None for an unknown topic."""
        nsqds = self.entries.get((topic, ""))
        if nsqds is None:
            return None
        return [nsqd for nsqd in nsqds if self._is_active(nsqd) and not self.is_tombstoned(topic, nsqd)]

    def nodes(self) -> list[PlainNsqd]:
        """Return the active nsqds."""
        return [nsqd for nsqd in self.seen if self._is_active(nsqd)]

    def topics_of(self, nsqd: PlainNsqd) -> list[str]:
        """Return the topics of an nsqd."""
        return [topic for (topic, channel), nsqds in self.entries.items() if not channel and nsqd in nsqds]

    def tombstone(self, topic: str, node: str) -> None:
        """Mark an nsqd, given as ``address:http_port``, so that lookups of a topic leave it out."""
        nsqds = self.entries.get((topic, ""), {})
        for nsqd in nsqds:
            if f"{HOST}:{nsqd.http_port}" == node:
                nsqds[nsqd] = self.host.now()

    def is_tombstoned(self, topic: str, nsqd: PlainNsqd) -> bool:
        """Return whether an nsqd has a tombstone for a topic."""
        marked = self.entries.get((topic, ""), {}).get(nsqd)
        return marked is not None and self.host.now() - marked < TOMBSTONE_LIFETIME * self.host.timing.scale

    def _is_active(self, nsqd: PlainNsqd) -> bool:
        return self.host.now() - self.seen.get(nsqd, 0.0) <= INACTIVE_AFTER * self.host.timing.scale
