"""The plain cluster: several independent nsqlookupds, and nsqds that register at each of them.

Each nsqd has a link to each nsqlookupd: it registers what it creates, pings, and
registers everything again after a link broke. There is nothing else: no
replication, no elections, no leaders.

Source: nsqio/nsq ``nsqd/lookup.go``.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.devcluster.control.changes import ChangeRefusedError
from nsq_ha.devcluster.control.control import Control
from nsq_ha.devcluster.control.plain_lookupd import PlainNsqlookupd
from nsq_ha.devcluster.host import Host
from nsq_ha.devcluster.nodes import ClusterNode
from nsq_ha.devcluster.nsqd.plain_node import PlainNsqd
from nsq_ha.devcluster.storage.log import is_ephemeral

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
