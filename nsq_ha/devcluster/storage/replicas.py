"""The replicas of one node, and the clocks by which the node flushes and scans them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.devcluster.nodes import ClusterNode
from nsq_ha.devcluster.storage.replica import ALL, Replica, TopicPartition, is_flushed

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import Host


class StorageNode(ClusterNode):
    """A node with replicas.

    Attributes:
        replicas: By topic and partition.
        next_flush: When the flush clock ticks next.
    """

    def __init__(self, name: str, host: Host) -> None:
        super().__init__(name, host)
        self.replicas: dict[tuple[str, int], Replica] = {}
        self._ticks = 0
        self.next_flush: float = 0.0
        self._next_scan = self._next_refresh = 0.0

    def replica_of(self, partition: TopicPartition) -> Replica:
        """Return the replica of a partition; create a new one."""
        replica = self.replicas.get(partition.key)
        if replica is None or replica.partition is not partition:
            replica = self.replicas[partition.key] = Replica(partition, self)
        return replica

    def drop_replica(self, partition: TopicPartition) -> None:
        """Delete a replica and disconnect its consumers."""
        replica = self.replicas.get(partition.key)
        if replica is not None and replica.partition is partition:
            del self.replicas[partition.key]
            replica.step_down()

    def find(self, topic: str, partition: int | None) -> Replica | None:
        """Return the replica of a partition; if ``partition`` is None, of any partition that this node leads.

        Source: server protocol 5.1.
        """
        if partition is None:
            led = [number for (name, number), replica in self.replicas.items() if name == topic and replica.leads]
            partition = self.host.chance.choice(led) if led else None
        return None if partition is None else self.replicas.get((topic, partition))

    def update_refusals(self) -> None:
        """Recompute how publishes are refused, after an operator disabled or enabled writing."""
        for replica in self.replicas.values():
            replica.update_refusal()

    def start_clock(self) -> None:
        """Start the flush clock with its first tick."""
        self._ticks, self.next_flush = 0, self.host.now() + self.host.timing.flush

    def _tick(self, now: float) -> None:
        """Flush and scan the replicas that are due."""
        timing = self.host.timing
        if now >= self._next_refresh:
            self._next_refresh = now + timing.scan_refresh
            for replica in self.replicas.values():
                replica.refresh_scan()
        if now >= self._next_scan:
            self._next_scan = now + timing.scan
            for replica in self.replicas.values():
                if replica.channels:
                    replica.tick(now)
        while now >= self.next_flush:
            self.next_flush += timing.flush
            self._ticks += 1
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Flush the led partitions that are due; at every 30th tick flush all replicas."""
        for (_, number), replica in self.replicas.items():
            if is_flushed(self._ticks, number) and (replica.leads or self._ticks % ALL == 0):
                replica.flushing.tick()
                replica.dispatch(now)
                replica.replicate_channels()
                if replica.leads and self.host.retain_bytes is not None:
                    replica.clean_finished(self.host.retain_bytes)
