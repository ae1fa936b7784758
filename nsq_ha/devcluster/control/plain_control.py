"""The plain cluster: several independent nsqlookupds, and nsqds that register at each of them.

Each nsqd has a link to each nsqlookupd: it registers what it creates, pings, and
registers everything again after a link broke. There is nothing else: no
replication, no elections, no leaders. The links have no sockets, so the TCP port of an nsqlookupd refuses connections.
Topics and channels stay there when the last nsqd goes; only ephemeral ones go with it.

Source: nsqio/nsq ``nsqd/lookup.go``, ``nsqlookupd/registration_db.go``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.control.changes import ChangeRefusedError
from nsq_ha.devcluster.control.control import Control
from nsq_ha.devcluster.host import Host
from nsq_ha.devcluster.nodes import HOST, ClusterNode, Reserved, WebServer
from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
from nsq_ha.devcluster.storage.log import is_ephemeral

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import App


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


PING_EVERY: Final = 15.0
"""Seconds between two PINGs of an nsqd, with which it also notices a broken link."""


class _Link:
    """The connection of one nsqd to one nsqlookupd.

    Args:
        nsqd: The nsqd.
        lookupd: The nsqlookupd.

    Attributes:
        up: The nsqd takes the connection for open.
    """

    def __init__(self, nsqd: PlainNsqd, lookupd: PlainNsqlookupd) -> None:
        self.up: bool = False
        self.lookupd = lookupd
        self._nsqd = nsqd

    def ping(self) -> None:
        """PING, or connect again."""
        if self._begin():
            self.lookupd.seen[self._nsqd] = self.lookupd.host.now()

    def tell(self, topic: str, channel: str, *, exists: bool) -> None:
        """Register or unregister a topic, or a channel if it is not empty."""
        if not self._begin():
            return
        if exists:
            self.lookupd.add(topic, channel, self._nsqd)
        else:
            self.lookupd.remove(topic, channel, self._nsqd)

    def _begin(self) -> bool:
        """Return whether a command arrives; connect first if the link is down."""
        if not self.lookupd.reachable:
            self.up = False
            return False
        if not self.up:
            self.settle()
            self._connect()
        return True

    def _connect(self) -> None:
        nsqd, lookupd = self._nsqd, self.lookupd
        lookupd.seen[nsqd] = lookupd.host.now()
        for topic in nsqd.topics.values():
            lookupd.add(topic.name, "", nsqd)
            for channel in topic.channels:
                lookupd.add(topic.name, channel, nsqd)
        self.up = True

    def settle(self) -> None:
        """Let the nsqlookupd notice that the link is down, if it runs."""
        if not self.up and self.lookupd.reachable:
            self.lookupd.disconnected(self._nsqd)


class PlainControl(Control[PlainNsqd, PlainNsqlookupd]):
    """The nodes of a plain cluster, and what their comings and goings cause."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._links: dict[PlainNsqd, list[_Link]] = {}
        self._next_ping = host.now()

    def begin(self) -> None:
        """Start all nodes."""
        for lookupd in self.lookupds:
            lookupd.start()
        for nsqd in self.nsqds:
            self._links[nsqd] = [_Link(nsqd, lookupd) for lookupd in self.lookupds]
            self.start(nsqd)

    def changed(self, nsqd: PlainNsqd, topic: str, channel: str, exists: bool) -> None:
        """Register or unregister a topic of an nsqd, or a channel if it is not empty."""
        for link in self._links[nsqd]:
            link.tell(topic, channel, exists=exists)

    def channels_of(self, topic: str) -> list[str]:
        """Return the channels of a topic that the nsqlookupds know, without ephemeral ones."""
        names = [name for lookupd in self.lookupds if lookupd.reachable for name in lookupd.channels(topic)]
        return [name for name in dict.fromkeys(names) if not is_ephemeral(name)]

    def tick(self, now: float) -> None:
        """Let time pass: the nsqds ping the nsqlookupds."""
        super().tick(now)
        if now >= self._next_ping:
            self._next_ping = now + PING_EVERY * self.host.timing.scale
            for nsqd in self.nsqds:
                if nsqd.reachable:
                    for link in self._links[nsqd]:
                        link.ping()

    # ------------------------------------------------------------ topics

    def create_topic(self, name: str) -> None:
        """Create a topic on every running nsqd."""
        for nsqd in self.nsqds:
            if nsqd.reachable:
                nsqd.topic(name)

    def delete_topic(self, name: str) -> None:
        """Delete a topic on every running nsqd, and from the nsqlookupds.

        Raises:
            ChangeRefusedError: There is no such topic.
        """
        having = [nsqd for nsqd in self.nsqds if nsqd.reachable and name in nsqd.topics]
        for nsqd in having:
            nsqd.delete_topic(nsqd.topics[name])
        known = [lookupd.forget(name) for lookupd in self.lookupds if lookupd.reachable]
        if not having and not any(known):
            raise ChangeRefusedError(f"no nsqd has a topic {name!r}")

    # ------------------------------------------------------------ faults

    def stop(self, node: ClusterNode) -> None:
        """Shut a process down cleanly."""
        if node.reachable and isinstance(node, PlainNsqd):
            node.leave()
            self._went(node)
        else:
            self.kill(node)

    def _went(self, node: ClusterNode) -> None:
        """Break the links of a process that ended or was cut off."""
        for nsqd, links in self._links.items():
            for link in links:
                if node in (nsqd, link.lookupd):
                    link.up = False
                    link.settle()

    def _came(self, node: ClusterNode) -> None:
        """Let an nsqd register at once."""
        if isinstance(node, PlainNsqd):
            for link in self._links[node]:
                link.ping()

    def _thawed(self, node: ClusterNode) -> None:
        for links in self._links.values():
            for link in links:
                link.settle()

    def cut(self, node: ClusterNode) -> None:
        """Reset the connections of a process."""
        node.cut()
        if isinstance(node, PlainNsqlookupd):
            self._went(node)

    def refuse_writes(self, node: ClusterNode | None, *, refuse: bool) -> None:
        """Fail: an upstream nsqd cannot refuse to write.

        Raises:
            ValueError: Always.
        """
        raise ValueError("the nodes of a plain cluster cannot be told to refuse writes; kill or freeze one")
