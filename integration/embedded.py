"""The embedded cluster as the suite wants it."""

import uuid
from typing import Final, Unpack

from integration.cluster import TopicOptions
from nsq_ha import TlsConfig
from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.tls_renewal import WRITES_FOR
from tests.support.certificates import CA_FILE, server_context

NODES: Final = 3


class EmbeddedNodes:
    """The nodes of a :class:`DevCluster` in this process, of either kind."""

    _cluster: DevCluster

    def kill_node(self, address: str) -> None:
        self._cluster.kill(self._named(address))

    def start_node(self, address: str) -> None:
        self._cluster.start(self._named(address))

    def await_writable(self) -> None:
        """Wait for nothing: it is at once."""

    def _named(self, address: str) -> str:
        return next(name for name, its in self._cluster.nsqds.items() if its == address)

    def close(self) -> None:
        self._cluster.close()


class EmbeddedCluster(EmbeddedNodes):
    """A :class:`DevCluster` in this process, with TLS that has the real server's defect."""

    is_plain = False

    def __init__(self) -> None:
        self._cluster = DevCluster(nsqds=NODES, tls=server_context(), tls_write_deadline=WRITES_FOR)
        self._cluster.__enter__()
        self.lookupd = tuple(self._cluster.lookupd)
        self.nodes = NODES
        self.tls: TlsConfig | None = TlsConfig(ca_file=CA_FILE)

    def create_topic(self, partitions: int = 1, replicas: int = 1, **options: Unpack[TopicOptions]) -> str:
        return self._cluster.create_topic(f"ct_{uuid.uuid4().hex[:12]}", partitions, min(replicas, NODES), **options)

    def move_leader(self, topic: str, partition: int) -> str:
        return self._cluster.nsqds[self._cluster.move_leader(topic, partition)]

    def leader(self, topic: str, partition: int) -> str:
        name = self._cluster.leader(topic, partition)
        assert name is not None
        return self._cluster.nsqds[name]

    def expand(self, topic: str, partitions: int) -> None:
        self._cluster.expand(topic, partitions)

    def delete_channel(self, channel: str) -> None:
        """Leave it: it costs nothing here."""
