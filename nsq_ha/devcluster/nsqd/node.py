"""One nsqd process: its ports, what it stores, its connections.

When a partitioned one dies, it loses its connections and channels; logs and positions stay, as files would.

The port from which other nsqds copy partitions has neither TLS nor AUTH, also if the other ports require them. It knows
one call (:mod:`nsq_ha.spark.pull.calls`). An entry is what one PUB or MPUB wrote. The call reads whole entries:
committed ones, of any replica, whether it leads or not. It fails as a whole if the first one is not flushed yet.

Source: youzan/nsq ``consistence/nsqd_coordinator.go`` ``pullCommitLogsAndData``, ``readTopicRawData``;
``consistence/commitlog.go`` ``ConvertToOffsetIndex``; ``nsqd/disk_queue_snapshot.go``.
"""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from nsq_ha.devcluster.nodes import HOST, Accepted, ClusterNode, Listener, WebServer
from nsq_ha.devcluster.nsqd.connection import ServerConnection
from nsq_ha.devcluster.nsqd.pulls import AnswerWriter, Called, CallReader, StoredEntry, encode_stored, within_limits
from nsq_ha.devcluster.storage.log import Log, raw_size
from nsq_ha.devcluster.storage.replica import ALL, Replica, TopicPartition, is_flushed
from nsq_ha.errors import RemoteProtocolError

if TYPE_CHECKING:
    from nsq_ha.devcluster.host import App, Host


NOT_HERE: Final = "ErrType:5 ErrCode:24 : missing topic coordinator"
CLEANED: Final = "commit log read index is less than segment start"
BEYOND: Final = "commit log offset is out of bound"
NOT_FLUSHED: Final = "ErrType:7 ErrCode:1 : EOF: local commit log data end mismatch queue data end"
OVERFLOWED: Final = "ErrType:7 ErrCode:1 : disk reader move offset overflowed the end"


class PullError(Exception):
    """The call fails; the text is the server's."""


def pull(replica: Replica | None, entry: int, count: int) -> list[StoredEntry]:
    """Return entries of a log.

    Args:
        replica: The partition's replica on this node. None if there is none.
        entry: Number of the first one, from 0.
        count: Number of them at most.

    Raises:
        PullError: The first one does not exist, was cleaned or is not flushed.
    """
    if replica is None:
        raise PullError(NOT_HERE)
    log = replica.log
    total = bisect_left(log.entries, log.committed)
    if entry < bisect_left(log.entries, log.start):
        raise PullError(CLEANED)
    if entry > total:
        raise PullError(BEYOND)
    stop = min(total, entry + max(count, 0))
    firsts = log.entries[entry:stop]
    lasts = [*firsts[1:], log.entries[stop] if stop < total else log.committed][: len(firsts)]
    sizes = [log.offset_at(last) - log.offset_at(first) for first, last in zip(firsts, lasts, strict=True)]
    limit = within_limits(sizes)
    readable = log.offset_at(log.flushed)
    found: list[StoredEntry] = []
    for first, last in zip(firsts[:limit], lasts[:limit], strict=True):
        if log.offset_at(first) == readable:
            if found:
                break
            raise PullError(NOT_FLUSHED)
        if log.offset_at(last) > readable:
            raise PullError(OVERFLOWED)
        found.append(_stored(log, first, last))
    return found


def _stored(log: Log, first: int, last: int) -> StoredEntry:
    records = log.records[first:last]
    data = b"".join(
        encode_stored(
            each.timestamp_ns,
            each.internal_id,
            each.trace_id,
            each.body,
            each.ext,
            extended=each.raw_size > raw_size(each.body, None, extended=False),  # not if it is older than the upgrade
        )
        for each in records
    )
    return StoredEntry(records[0].internal_id, records[-1].internal_id, records[0].offset, first, last - first, data)


class CopyConnection(Accepted):
    """One connection.

    Args:
        node: The nsqd.
        connections: The open connections of the port.
        replicas: The replicas of the node, by topic and partition.
    """

    def __init__(self, node: ClusterNode, connections: set[Self], replicas: Mapping[tuple[str, int], Replica]) -> None:
        super().__init__(node, connections)
        self._replicas = replicas
        self._reader = CallReader()
        self._writer = AnswerWriter()

    def data_received(self, data: bytes) -> None:
        """Answer the calls that are complete; close the connection after bytes that are none."""
        try:
            for call in self._reader.feed(data):
                if self.node.delay > 0:
                    self.node.host.after(self.node.delay, functools.partial(self._answer, call))
                else:
                    self._answer(call)
        except RemoteProtocolError:
            self.abort()

    def _answer(self, call: Called) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        asked = call.pull
        if asked is None:
            answer = self._writer.refuse(call.number, f"gorpc.Dispatcher: unknown method [{call.method}]")
        else:
            replica = self._replicas.get((asked.topic, asked.partition))
            try:
                answer = self._writer.answer(call.number, pull(replica, asked.entry, asked.count))
            except PullError as error:
                answer = self._writer.refuse(call.number, str(error))
        self._transport.write(answer)


class AnyNsqd(ClusterNode):
    """What the nsqds of both kinds have in common: their ports.

    Args:
        name: Its name in controls, ``nsqd-0``.
        host: Its environment.
        connect: Creates a connection from the node, its open connections, and a number.
        app: Creates the application that answers its HTTP.
        port: The port of its TCP, one below that of its HTTP; 0 for free ones.

    Attributes:
        connections: Open TCP connections.

    Raises:
        OSError: A port is taken.
    """

    def __init__(
        self, name: str, host: Host, connect: Callable[..., ServerConnection], app: Callable[[Any], App], port: int
    ) -> None:
        super().__init__(name, host)
        numbers = itertools.count(1)
        tcp = self._reserve(
            lambda: Listener[ServerConnection](lambda others: connect(self, others, next(numbers)), port)
        )
        self.connections: set[ServerConnection] = tcp.connections
        self.tcp_port: int = tcp.port
        self.http_port: int = self._reserve(lambda: WebServer(app(self), self, port and port + 1, needs_tls=True)).port


class HaNsqd(AnyNsqd):
    """One nsqd of a partitioned cluster, with its replicas and the clocks by which it flushes and scans them.

    Takes the arguments of its base.

    Attributes:
        replicas: By topic and partition.
        next_flush: When the flush clock ticks next.
        copy_port: The port for copying partitions; part of the node's id.
        started: How often the process was started.
        overdue: The node should have been removed, but no nsqlookupd led.
    """

    def __init__(
        self, name: str, host: Host, connect: Callable[..., ServerConnection], app: Callable[[Any], App], port: int = 0
    ) -> None:
        super().__init__(name, host, connect, app, port)
        self.replicas: dict[tuple[str, int], Replica] = {}
        self.overdue = False
        self.started: int = 0
        self._ticks = 0
        self.next_flush: float = 0.0
        self._next_scan = self._next_refresh = 0.0
        copies = self._reserve(
            lambda: Listener[CopyConnection](lambda others: CopyConnection(self, others, self.replicas))
        )
        self.copy_port: int = copies.port
        self.distributed_id: str = f"{HOST}:{self.copy_port}:{self.tcp_port}:1"

    @property
    def linked(self) -> bool:
        """Whether the node is registered at the nsqlookupds."""
        return self.reachable and self.absence is None

    # ------------------------------------------------------------ process

    def start(self) -> None:
        """Start the process, and the flush clock with its first tick."""
        super().start()
        self.started += 1
        self._ticks, self.next_flush = 0, self.host.now() + self.host.timing.flush

    def leave(self) -> None:
        """Begin a clean shutdown: replicate what is finished, disconnect consumers, refuse publishers."""
        super().leave()
        for replica in self.replicas.values():
            replica.replicate_channels()
            replica.drop_consumers()

    def kill(self) -> None:
        """End the process at once and reset its connections."""
        super().kill()
        for replica in self.replicas.values():
            replica.forget()

    # ------------------------------------------------------------ replicas

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
