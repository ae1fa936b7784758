"""Plain clusters for the contract suite: an embedded one, or a real one of upstream's servers.

With ``NSQ_HA_TEST_UPSTREAM_LOOKUPD``, base URLs separated by commas, it is the real one.
"""

import os
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Unpack

from integration.cluster import TLS_VARIABLE, OperatedNodes, TopicOptions
from integration.embedded import EmbeddedNodes
from nsq_ha import OutgoingMessage, Producer, PublishError, Receipt, TlsConfig
from nsq_ha.devcluster import DevCluster
from tests.support import web
from tests.support.certificates import CA_FILE, server_context

UPSTREAM_VARIABLE: Final = "NSQ_HA_TEST_UPSTREAM_LOOKUPD"
NODES: Final = 2


class KeylessProducer(Producer):
    """Leaves out what a plain cluster does not have, so that tests of other matters publish alike everywhere."""

    async def publish(self, topic: str, body: bytes, **options: Any) -> Receipt:  # noqa: ANN401
        for name in ("key", "partition", "trace_id"):
            options.pop(name, None)
        return await super().publish(topic, body, **options)

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        **options: Any,  # noqa: ANN401
    ) -> list[Receipt | PublishError]:
        bodies = [message.body if isinstance(message, OutgoingMessage) else message for message in messages]
        return await super().publish_many(topic, bodies, **options)


class PlainCluster(OperatedNodes):
    """A plain cluster that is known only by its nsqlookupds: everything goes through its HTTP."""

    is_plain = True

    def __init__(self, lookupd: tuple[str, ...], tls: TlsConfig | None = None) -> None:
        self.lookupd = lookupd
        self.tls = tls
        self._topics: list[str] = []
        self.nodes = len(self._nsqds())

    def _nsqds(self) -> set[str]:
        """The base URLs of the HTTP of all nsqds."""
        found = set()
        for url in self.lookupd:
            for node in web.get(f"{url}/nodes").raise_for_status().json()["producers"]:
                found.add(f"http://{node['broadcast_address']}:{node['http_port']}")
        return found

    def create_topic(self, partitions: int = 1, replicas: int = 1, **options: Unpack[TopicOptions]) -> str:
        """Create a topic on all nsqds: each is what a partition is elsewhere."""
        topic = f"ct_{uuid.uuid4().hex[:12]}"
        self._topics.append(topic)
        nsqds = self._nsqds()
        for nsqd in nsqds:
            web.post(f"{nsqd}/topic/create", params={"topic": topic}).raise_for_status()
        limit = time.monotonic() + 30
        while not all(self._listed(url, topic) == len(nsqds) for url in self.lookupd):
            assert time.monotonic() < limit, f"no nsqlookupd lists all nsqds of {topic}"
        return topic

    @staticmethod
    def _listed(url: str, topic: str) -> int:
        answer = web.get(f"{url}/lookup", params={"topic": topic})
        return len(answer.json()["producers"]) if answer.status_code == 200 else 0

    def delete_channel(self, channel: str) -> None:
        for nsqd in self._nsqds():
            for topic in self._topics:
                answer = web.post(f"{nsqd}/channel/delete", params={"topic": topic, "channel": channel})
                assert answer.status_code in (200, 404), answer.text

    def move_leader(self, topic: str, partition: int) -> NoReturn:
        raise AssertionError("a plain cluster has no leaders")

    leader = move_leader

    def expand(self, topic: str, partitions: int) -> NoReturn:
        raise AssertionError("a plain cluster has no partitions")

    def close(self) -> None:
        for topic in self._topics:
            for nsqd in self._nsqds():
                web.post(f"{nsqd}/topic/delete", params={"topic": topic})
            for url in self.lookupd:
                web.post(f"{url}/topic/delete", params={"topic": topic})


class EmbeddedPlainCluster(EmbeddedNodes, PlainCluster):
    """A plain :class:`DevCluster` in this process."""

    def __init__(self) -> None:
        self._cluster = DevCluster(plain=True, nsqds=NODES, tls=server_context())
        self._cluster.__enter__()
        super().__init__(tuple(self._cluster.lookupd), TlsConfig(ca_file=CA_FILE))


def plain_cluster() -> PlainCluster:
    """Return the real cluster that the environment names, or an embedded one."""
    lookupd = os.environ.get(UPSTREAM_VARIABLE)
    if not lookupd:
        return EmbeddedPlainCluster()
    ca_file = os.environ.get(TLS_VARIABLE)
    return PlainCluster(tuple(lookupd.split(",")), TlsConfig(ca_file=ca_file) if ca_file else None)
