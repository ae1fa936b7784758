"""The cluster that the contract suite runs on, and what the suite needs of it.

By default the embedded one, in this process; with ``NSQ_HA_TEST_LOOKUPD`` a real one. Every
method blocks: tests call those that take long through ``asyncio.to_thread``.
"""

import asyncio
import os
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypedDict, TypeVar, Unpack

from nsq_ha import OutgoingMessage, Producer, Receipt, TlsConfig
from nsq_ha.admin import AdminClient
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.errors import NsqError

LOOKUPD_VARIABLE: Final = "NSQ_HA_TEST_LOOKUPD"
REQUIRE_VARIABLE: Final = "NSQ_HA_TEST_REQUIRE"
TLS_VARIABLE: Final = "NSQ_HA_TEST_TLS_CA"
NODE_VARIABLE: Final = "NSQ_HA_TEST_NODE_COMMAND"
AUTH_VARIABLE: Final = "NSQ_HA_TEST_AUTH_SECRET"
COMPRESSION_VARIABLE: Final = "NSQ_HA_TEST_COMPRESSION"

T = TypeVar("T")


class TopicOptions(TypedDict, total=False):
    """How a topic is created.

    Attributes:
        ordered: For ordered consumers only.
        multi_part: Several partitions may share a node, so that there may be more of them than nodes.
        extended: Messages may have headers.
        sync_every: How many acknowledged messages nsqd may keep unflushed; it cannot find those.
    """

    ordered: bool
    multi_part: bool
    extended: bool
    sync_every: int


class ClusterUnderTest(Protocol):
    """What the suite needs of a cluster.

    Attributes:
        lookupd: Base URLs of its nsqlookupds.
        nodes: How many nsqds it has.
        tls: How to reach it by TLS. None when it offers none.
        is_plain: Whether its nsqds are upstream's, without partitions.
    """

    is_plain: bool
    lookupd: tuple[str, ...]
    nodes: int
    tls: TlsConfig | None

    def create_topic(self, partitions: int = 1, replicas: int = 1, **options: Unpack[TopicOptions]) -> str:
        """Create a topic with a name of its own, wait until it is usable and return the name."""

    def move_leader(self, topic: str, partition: int) -> str:
        """Have another replica lead, wait until it does and return its TCP address."""

    def leader(self, topic: str, partition: int) -> str:
        """Return the TCP address of who leads."""

    def expand(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions, and wait until they are usable."""

    def delete_channel(self, channel: str) -> None:
        """Delete a channel of all topics that were created here."""

    def kill_node(self, address: str) -> None:
        """Kill the nsqd with this TCP address."""

    def start_node(self, address: str) -> None:
        """Start what was killed."""

    def await_writable(self) -> None:
        """Wait until all topics that were created here can be published to again after a fault."""

    def close(self) -> None:
        """Remove what was created."""


class OperatedNodes:
    """The nodes of a real cluster, by the command that :data:`NODE_VARIABLE` names."""

    def kill_node(self, address: str) -> None:
        subprocess.run([*shlex.split(os.environ[NODE_VARIABLE]), "kill", address], check=True, timeout=60)

    def start_node(self, address: str) -> None:
        subprocess.run([*shlex.split(os.environ[NODE_VARIABLE]), "start", address], check=True, timeout=60)

    def await_writable(self) -> None:
        """Wait for nothing: a plain nsqd takes messages from the beginning."""


class AdministeredCluster(OperatedNodes):
    """A cluster that is known only by its nsqlookupds: everything goes through its HTTP."""

    is_plain = False

    def __init__(self, lookupd: str | tuple[str, ...], tls: TlsConfig | None = None) -> None:
        self.lookupd = tuple(lookupd.split(",")) if isinstance(lookupd, str) else lookupd
        self.tls = tls
        self._topics: dict[str, int] = {}  # how many partitions each has
        self.nodes = len(self._ask(lambda admin: admin.nodes()))

    def create_topic(self, partitions: int = 1, replicas: int = 1, **options: Unpack[TopicOptions]) -> str:
        topic = f"ct_{uuid.uuid4().hex[:12]}"
        copies = min(replicas, self.nodes)
        self._topics[topic] = partitions
        self._ask(lambda admin: admin.create_topic(topic, partitions, copies, **options))
        return topic

    def move_leader(self, topic: str, partition: int) -> str:
        return self._ask(lambda admin: admin.move_leader(topic, partition, timeout=240.0)).address

    def leader(self, topic: str, partition: int) -> str:
        return self._ask(lambda admin: admin.describe(topic)).view.leaders[partition].address

    def expand(self, topic: str, partitions: int) -> None:
        self._ask(lambda admin: admin.expand(topic, partitions, timeout=240.0))
        self._topics[topic] = partitions

    def delete_channel(self, channel: str) -> None:
        async def delete(admin: AdminClient) -> None:
            for topic in self._topics:
                view = (await admin.describe(topic)).view
                for partition, node in view.leaders.items():
                    async with NsqdHttp(node) as nsqd:
                        try:
                            await nsqd.change_channel("delete", topic, partition, channel)
                        except NsqError:
                            continue  # it was never made there, or the leader is moving

        self._ask(delete)

    def await_writable(self) -> None:
        """Publish to each partition: one that nsqlookupd names for writing may refuse it for a minute."""

        async def publish() -> None:
            async with Producer(lookupd=self.lookupd) as producer:
                for topic, partitions in self._topics.items():
                    messages = [OutgoingMessage(b"is it writable?", partition=number) for number in range(partitions)]
                    for outcome in await producer.publish_many(topic, messages, timeout=120.0):
                        assert isinstance(outcome, Receipt), outcome

        asyncio.run(publish())

    def close(self) -> None:
        async def delete(admin: AdminClient) -> None:
            await asyncio.gather(*(admin.delete_topic(topic) for topic in self._topics))

        self._ask(delete)

    def _ask(self, question: Callable[[AdminClient], Awaitable[T]]) -> T:
        async def ask() -> T:
            async with AdminClient(self.lookupd) as admin:
                return await question(admin)

        return asyncio.run(ask())


def replace_leader(
    cluster: ClusterUnderTest, topic: str, partition: int, meanwhile: Callable[[], object] = lambda: None
) -> None:
    """Kill the node that leads a partition, wait until another one leads, and start it again.

    The wait is part of the fault. A real nsqd that is back before its key in etcd has expired (20 s) leads on without
    the acknowledged messages that it had not written to its files: their replicas have them, but nobody reads those.

    Args:
        cluster: Its nodes can be killed.
        topic: With a replica on another node.
        partition: Whose leader is killed.
        meanwhile: Called when the node is dead.
    """
    leader = cluster.leader(topic, partition)
    cluster.kill_node(leader)
    try:
        meanwhile()
        until = time.monotonic() + 120.0
        while not _is_led_by_another(cluster, topic, partition, leader):
            assert time.monotonic() < until, f"{topic}-{partition}: no node has replaced {leader} within 120 s"
            threading.Event().wait(0.2)
    finally:
        cluster.start_node(leader)


def _is_led_by_another(cluster: ClusterUnderTest, topic: str, partition: int, former: str) -> bool:
    try:
        return cluster.leader(topic, partition) != former
    except (KeyError, AssertionError):
        return False  # nobody leads


def real_cluster() -> ClusterUnderTest | None:
    """Return the cluster that the environment names. None when it names none."""
    lookupd = os.environ.get(LOOKUPD_VARIABLE)
    if not lookupd:
        return None
    ca_file = os.environ.get(TLS_VARIABLE)
    return AdministeredCluster(lookupd, TlsConfig(ca_file=ca_file) if ca_file else None)
