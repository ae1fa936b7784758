"""One nsqd: its ports, its replicas, its connections, and whether it lives.

Owns what a process owns. Dying loses connections and channels; the replicas'
logs and positions stay, as files would.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING

from nsq_ha.devcluster.http.nsqd import nsqd_app
from nsq_ha.devcluster.nsqd.connection import Connection
from nsq_ha.devcluster.ports import HOST, Listener
from nsq_ha.devcluster.storage.flushing import ALL, is_turn
from nsq_ha.devcluster.storage.replica import Replica
from nsq_ha.devcluster.web import WebServer

if TYPE_CHECKING:
    from nsq_ha.devcluster.control.coordinator import Coordinator
    from nsq_ha.devcluster.control.placement import Partition
    from nsq_ha.devcluster.security import Security


class Absence:
    """One time that a node was away: what was planned for it is void once it is back."""

    def __init__(self, since: float) -> None:
        """Begin now."""
        self.since = since


class Nsqd:
    """One node that stores messages.

    Attributes:
        name: As controls know it, ``nsqd-0``.
        replicas: By topic and partition.
        connections: Open TCP connections.
        alive: The process runs.
        frozen: It runs and does nothing.
        exiting: It is about to stop in good order.
        writes_disabled: An operator disabled writing on this node.
        delay: Seconds by which everything that arrives is delayed.
        absence: Set while it is away. None when it is in good standing.
        started: How often the process was started.
        overdue: It should have been taken out, but no nsqlookupd led.
    """

    def __init__(self, name: str, coordinator: Coordinator, security: Security) -> None:
        """Reserve the ports; nothing listens yet."""
        self.name = name
        self.coordinator = coordinator
        self.security = security
        self.replicas: dict[tuple[str, int], Replica] = {}
        self.connections: set[Connection] = set()
        self.alive = self.frozen = self.exiting = self.writes_disabled = self.overdue = False
        self.delay = 0.0
        self.started = 0
        self.absence: Absence | None = None
        self.start_time = time.time()
        self._turn = 0
        self._next_turn = self._next_scan = self._next_refresh = 0.0
        self._client_ids = itertools.count(1)
        self._tcp = Listener(self._connection)
        self._web = WebServer(security.guarded(nsqd_app(self), plain=False), lambda: self.delay)
        self._rpc = Listener(asyncio.Protocol)  # never opened: a number for the node's id
        self.tcp_port = self._tcp.port
        self.http_port = self._web.port
        self.registration_port = self._rpc.port
        self.distributed_id = f"{HOST}:{self._rpc.port}:{self.tcp_port}:1"

    def __repr__(self) -> str:
        return f"<{self.name} {HOST}:{self.tcp_port}>"

    @property
    def reachable(self) -> bool:
        """Whether it answers."""
        return self.alive and not self.frozen

    @property
    def linked(self) -> bool:
        """Whether the nsqlookupds hear of it."""
        return self.reachable and self.absence is None

    @property
    def refuses_writes(self) -> bool:
        """Whether an operator disabled writing, here or in the cluster."""
        return self.writes_disabled or self.coordinator.writes_disabled

    def now(self) -> float:
        """The cluster's clock."""
        return self.coordinator.loop.time()

    def next_client_id(self) -> int:
        """A number for a new connection, as it appears in error texts."""
        return next(self._client_ids)

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process."""
        self.alive, self.frozen, self.exiting = True, False, False
        self.started += 1
        self._turn, self._next_turn = 0, self.now() + self.coordinator.timing.flush
        self.start_time = time.time()
        self._tcp.open()
        self._web.open()

    def leave(self) -> None:
        """Begin to stop in good order: consumers are closed, publishers refused."""
        self.exiting = True
        for replica in self.replicas.values():
            replica.drop_consumers()

    def kill(self) -> None:
        """End the process without goodbye: connections are reset."""
        self.alive = self.frozen = self.exiting = False
        self._tcp.close()
        self._web.abort()
        self.cut()
        for replica in self.replicas.values():
            replica.forget()

    def freeze(self) -> None:
        """Stop doing anything, as a hanging machine."""
        self.frozen = True
        self._tcp.freeze()
        self._web.freeze()
        for connection in self.connections:
            connection.freeze()

    def thaw(self) -> None:
        """Work off what waits, and go on."""
        self.frozen = False
        self._tcp.thaw()
        self._web.thaw()
        for connection in tuple(self.connections):
            connection.thaw()

    def cut(self) -> None:
        """Reset all client connections, those that wait to be accepted too."""
        self._tcp.cut()
        for connection in tuple(self.connections):
            connection.abort()

    def release(self) -> None:
        """Stop and give up the ports."""
        self.kill()
        for port in (self._tcp, self._web, self._rpc):
            port.release()

    def tick(self, now: float) -> None:
        """Let time pass: timeouts of messages, heartbeats of connections."""
        if not self.reachable:
            return
        for connection in tuple(self.connections):
            connection.tick(now)
        if now >= self._next_refresh:
            self._next_refresh = now + self.coordinator.timing.scan_refresh
            for replica in self.replicas.values():
                replica.refresh_scan()
        if now >= self._next_scan:
            self._next_scan = now + self.coordinator.timing.scan
            for replica in self.replicas.values():
                if replica.channels:
                    replica.tick(now)
        while now >= self._next_turn:
            self._next_turn += self.coordinator.timing.flush
            self._turn += 1
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Flush the partitions whose turn it is; from time to time those not led here, too."""
        for (_, number), replica in self.replicas.items():
            if is_turn(self._turn, number) and (replica.leads or self._turn % ALL == 0):
                replica.flushing.turn()
                replica.deliver(now)

    def _connection(self) -> Connection:
        return Connection(self)

    # ------------------------------------------------------------ replicas

    def replica_of(self, partition: Partition) -> Replica:
        """The replica of a partition, made when it is new here."""
        replica = self.replicas.get(partition.key)
        if replica is None or replica.partition is not partition:
            replica = self.replicas[partition.key] = Replica(partition, self)
        return replica

    def drop_replica(self, partition: Partition) -> None:
        """Delete a replica, its consumers are cut."""
        replica = self.replicas.get(partition.key)
        if replica is not None and replica.partition is partition:
            del self.replicas[partition.key]
            replica.step_down()

    def led_partition(self, topic: str) -> int | None:
        """Some partition of ``topic`` that this node leads. None when it leads none.

        Source: protocol reference 5 ("Partition omitted").
        """
        led = [number for (name, number), replica in self.replicas.items() if name == topic and replica.leads]
        return self.coordinator.chance.choice(led) if led else None

    def update_refusals(self) -> None:
        """Work out again what publishes are answered, after an operator's change."""
        for replica in self.replicas.values():
            replica.update_refusal()
