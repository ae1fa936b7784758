"""One nsqlookupd: what it remembers, and who of them leads.

Each has its own memory and learns of changes at its own pace. It answers from
that memory alone, so two of them may disagree for seconds, and one that has
just started knows less than the cluster.

Source: failures reference 2, 3.6, 3.8, 3.9.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nsq_ha.devcluster.http.nsqlookupd import lookupd_app
from nsq_ha.devcluster.nsqd.node import Absence
from nsq_ha.devcluster.ports import HOST, Listener
from nsq_ha.devcluster.web import WebServer

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.changes import Changes
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.placement import TopicOptions
    from nsq_ha.devcluster.nsqd.node import Nsqd
    from nsq_ha.devcluster.security import Security


class Registered(NamedTuple):
    """What a nsqlookupd knows of one partition."""

    leader: Nsqd
    writable: bool


class Meta(NamedTuple):
    """What a nsqlookupd knows of one topic."""

    partition_num: int
    options: TopicOptions


class Nsqlookupd:
    """One node that answers lookups.

    Attributes:
        name: As controls know it, ``nsqlookupd-0``.
        metas: Topics it knows.
        registered: Partitions whose leader it knows.
        alive: The process runs.
        frozen: It runs and does nothing.
        listed: The others list it; a dead one stays listed for a while.
        delay: Seconds by which every answer is delayed.
        requests: Number of lookups it was asked, for tests of clients' manners.
    """

    def __init__(
        self,
        name: str,
        coordinator: Coordinator,
        changes: Changes,
        *,
        write_without_channels: bool,
        security: Security,
        http_port: int = 0,
    ) -> None:
        """Reserve the ports; nothing listens yet.

        Raises:
            OSError: Somebody else has ``http_port``.
        """
        self.name = name
        self.coordinator = coordinator
        self.changes = changes
        self.write_without_channels = write_without_channels
        self.metas: dict[str, Meta] = {}
        self.registered: dict[tuple[str, int], Registered] = {}
        self.alive = self.frozen = self.listed = False
        self.delay = 0.0
        self.requests = 0
        self.absence: Absence | None = None
        self._web = WebServer(security.guarded(lookupd_app(self)), lambda: self.delay, http_port)
        self._tcp = Listener(asyncio.Protocol)  # never opened: nsqds register without a socket here
        self._rpc = Listener(asyncio.Protocol)
        self.http_port = self._web.port
        self.tcp_port = self._tcp.port
        self.rpc_port = self._rpc.port

    def __repr__(self) -> str:
        return f"<{self.name} http://{HOST}:{self.http_port}>"

    @property
    def reachable(self) -> bool:
        """Whether it answers."""
        return self.alive and not self.frozen

    @property
    def leads(self) -> bool:
        """Whether it is the leading one."""
        return self.coordinator.leading is self

    # ------------------------------------------------------------ memory

    def learn(self, topic: str, number: int) -> None:
        """Remember a partition as it is now."""
        if not self.reachable:
            return
        known = self.coordinator.topics.get(topic)
        partition = known.partitions.get(number) if known else None
        if partition is None or partition.registered is None:
            self.registered.pop((topic, number), None)
        else:
            self.registered[topic, number] = Registered(partition.registered, partition.writable)

    def learn_meta(self, name: str) -> None:
        """Remember a topic as it is now; a topic that is gone takes its partitions along."""
        if not self.reachable:
            return
        topic = self.coordinator.topics.get(name)
        if topic is not None:
            self.metas[name] = Meta(topic.partition_num, topic.options)
            return
        self.metas.pop(name, None)
        for key in [key for key in self.registered if key[0] == name]:
            del self.registered[key]

    def learn_all(self) -> None:
        """Remember everything as it is now."""
        for name in self.metas.keys() | self.coordinator.topics.keys():
            self.learn_meta(name)
        for key in self.registered.keys() | {partition.key for partition in self.coordinator.partitions()}:
            self.learn(*key)

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process: topics are read from etcd, partitions come as the nsqds register."""
        self.alive, self.frozen, self.listed = True, False, True
        self.absence = None
        self.metas.clear()
        self.registered.clear()
        for name in self.coordinator.topics:
            self.learn_meta(name)
        self._web.open()
        self.coordinator.after(self.coordinator.timing.register, self.learn_all)
        self._lead_soon()

    def kill(self) -> None:
        """End the process without goodbye."""
        self.alive = self.frozen = False
        self._web.abort()
        self._went()

    def freeze(self) -> None:
        """Stop answering; connections are still accepted by the kernel."""
        self.frozen = True
        self._web.freeze()
        self._went()

    def thaw(self) -> None:
        """Answer what waits, and catch up."""
        self.frozen = False
        self.listed = True
        self.absence = None
        self._web.thaw()
        self.learn_all()
        self._lead_soon()

    def cut(self) -> None:
        """Reset the open connections."""
        self._web.cut()

    def release(self) -> None:
        """Stop and give up the ports."""
        self.alive = self.frozen = False
        for port in (self._web, self._tcp, self._rpc):
            port.release()

    # ------------------------------------------------------------ leading

    def _went(self) -> None:
        absence = self.absence = Absence(self.coordinator.loop.time())
        led = self.leads
        if led:
            self.coordinator.leading = None
            self.coordinator.last_leading = self

        def expire() -> None:
            if self.absence is absence:
                self.listed = False
            if led:
                self._succeed()

        self.coordinator.after(self.coordinator.timing.leading_lookupd, expire)

    def _succeed(self) -> None:
        """Let another one lead now that the key of the last one has ended."""
        coordinator = self.coordinator
        coordinator.last_leading = None
        for lookupd in coordinator.lookupds:
            if lookupd.reachable and coordinator.leading is None:
                coordinator.leading = lookupd
                coordinator.after(coordinator.timing.periodic_check, coordinator.check)

    def _lead_soon(self) -> None:
        """Lead if nobody does and no former leader's key is left."""
        if self.coordinator.leading is None and self.coordinator.last_leading is None:
            self._succeed()
