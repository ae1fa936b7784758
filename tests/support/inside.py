"""The private parts of clients, of the dev cluster and of event loops that tests look at, each named here only."""

import asyncio
import gc
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import TypeVar

from nsq_ha import Consumer, Producer
from nsq_ha.base import redaction, unexpected
from nsq_ha.consumer.inflight import ReadPartition
from nsq_ha.consumer.machine import ConsumerMachine
from nsq_ha.consumer.shell import ConsumerShell
from nsq_ha.devcluster import DevCluster
from nsq_ha.devcluster.control.coordinator import Coordinator
from nsq_ha.devcluster.control.placement import ClusterPartition
from nsq_ha.devcluster.control.plain_control import PlainControl
from nsq_ha.devcluster.nsqd.node import HaNsqd
from nsq_ha.engine.connection import Connection
from nsq_ha.producer.machine import ProducerMachine
from nsq_ha.producer.state import ProducerTopic

_Result = TypeVar("_Result")


def shell_of(consumer: Consumer) -> ConsumerShell:
    """Return the shell around the machine of a consumer."""
    return consumer._shell


def consumer_machine_of(consumer: Consumer) -> ConsumerMachine:
    """Return the machine of a consumer."""
    return consumer._shell.machine


def partitions_of(consumer: Consumer) -> dict[int, ReadPartition]:
    """Return what a consumer reads, by partition."""
    return consumer._shell.machine.partitions


def connection_of(partition: ReadPartition) -> Connection | None:
    """Return the connection that a partition is read over."""
    return None if partition.conn is None else partition.conn.handle


def machine_of(producer: Producer) -> ProducerMachine:
    """Return the machine of a producer; it must have been entered."""
    assert producer._shell is not None
    return producer._shell.machine


def topics_of(producer: Producer) -> dict[str, ProducerTopic]:
    """Return the topics of a producer, by name."""
    return machine_of(producer).topics


def connection_to(producer: Producer, topic: str) -> Connection | None:
    """Return the connection of a producer to the leader of a topic's first partition."""
    conn = topics_of(producer)[topic].lanes[0].conn
    return None if conn is None else conn.handle


def coordinator_of(cluster: DevCluster) -> Coordinator:
    """Return what a cluster consists of; look at it in :func:`in_cluster`."""
    return cluster._state()


def plain_of(cluster: DevCluster) -> PlainControl:
    """Return what a plain cluster consists of; look at it in :func:`in_cluster`."""
    control = cluster._control()
    assert isinstance(control, PlainControl)
    return control


def begin_to_stop(cluster: DevCluster, name: str) -> None:
    """Begin to shut a node down cleanly; :meth:`nsq_ha.devcluster.DevCluster.stop` waits for the end."""
    cluster._call(lambda: cluster._control().stop(cluster._node(name)))


def nsqd_of(cluster: DevCluster, name: str) -> HaNsqd:
    """Return a node of a cluster."""
    return cluster._nsqd(name)


def partition_of(cluster: DevCluster, topic: str, partition: int) -> ClusterPartition:
    """Return a partition of a cluster."""
    return cluster._partition(topic, partition)


def in_cluster(cluster: DevCluster, function: Callable[[], _Result]) -> _Result:
    """Call ``function`` in the event loop of a cluster."""
    return cluster._call(function)


def next_timer() -> float:
    """Return when the next timer of the running loop is due; 0 if there is none at this moment."""
    timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return min((timer.when() for timer in timers if not timer.cancelled()), default=0.0)


def watched_sockets() -> int:
    """Count the sockets that the running loop watches; one is its own, by which threads wake it."""
    return len(asyncio.get_running_loop()._selector.get_map())  # type: ignore[attr-defined]


def tls_in_memory() -> int:
    """Count the TLS connections of clients that are in memory, open or not; each has 256 KiB for what it reads."""
    return sum(isinstance(each, SSLProtocol) and not each._server_side for each in gc.get_objects())


def forget_secrets() -> None:
    redaction._secrets, redaction._changes = {}, redaction._changes + 1


def forget_errors() -> None:
    """Have the next unexpected error logged in full."""
    unexpected._counts.clear()
