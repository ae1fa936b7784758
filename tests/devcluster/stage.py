"""A cluster with the topics that the recordings were made on."""

from functools import partial
from typing import Any

import httpx

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.encoding import MAGIC, encode_pub, encode_pub_ext, encode_pub_trace
from tests.devcluster.probes import until
from tests.devcluster.wire import LIMIT, Wire
from tests.support.web import NO_CERTIFICATES

TOPICS: dict[str, dict[str, Any]] = {
    "proto_plain": {"partitions": 2, "replicas": 1},
    "proto_one": {"partitions": 1, "replicas": 2},
    "proto_ext": {"partitions": 1, "replicas": 1, "extended": True},
    "proto_ordered": {"partitions": 2, "replicas": 2, "ordered": True},
    "proto_ordext": {"partitions": 1, "replicas": 1, "ordered": True, "extended": True},
    "proto_ord": {"partitions": 1, "replicas": 2, "ordered": True},
    "proto_mp": {"partitions": 4, "replicas": 2, "multi_part": True},
    "proto_pl2": {"partitions": 1, "replicas": 1},
    "proto_offs2": {"partitions": 1, "replicas": 1},
    "proto_u": {"partitions": 1, "replicas": 1},
    "proto_noauto": {"partitions": 1, "replicas": 1, "disable_channel_auto_create": True},
    "proto_lead": {"partitions": 1, "replicas": 2, "ordered": True},
    "proto_lead2": {"partitions": 1, "replicas": 2},
}


OTHERS: dict[str, dict[str, Any]] = {"proto_a": {"partitions": 1, "replicas": 1}}
"""Topics of stages that name them; other exchanges mean another topic by these names."""


class Stage:
    """The cluster, and what has to be on it before an exchange."""

    def __init__(self, cluster: DevCluster, *topics: str) -> None:
        self.cluster = cluster
        self.http = httpx.Client(timeout=LIMIT, verify=NO_CERTIFICATES, trust_env=False)
        self.default = topics[0] if topics else "proto_plain"
        self.seconds: list[int] = []
        self.wires: list[Wire] = []
        made = {name: (TOPICS | OTHERS)[name] for name in topics or TOPICS}
        for name, options in made.items():
            cluster.create_topic(name, **options, sync_every=0, wait=False)  # as the recorded ones were made
        for name, options in made.items():
            for lookupd in cluster.lookupd:
                until(partial(self.are_writable, options["partitions"], name, lookupd))
        if not topics:
            for partition in (0, 1):
                self.publish("proto_plain", partition, b"hello")
            self.register("proto_noauto", "reg")

    def close(self) -> None:
        self.http.close()
        for wire in self.wires:
            wire.close()

    def writable(self, topic: str, lookupd: str) -> dict[str, Any]:
        answer = self.http.get(f"{lookupd}/lookup", params={"topic": topic, "access": "w"}).json()
        return (answer["data"] or {}).get("partitions") or {}

    def are_writable(self, partitions: int, topic: str, lookupd: str) -> bool:
        return len(self.writable(topic, lookupd)) == partitions

    def address(self, topic: str, partition: int = 0) -> str:
        """TCP address of a partition's leader."""
        leader = self.cluster.leader(topic, partition)
        assert leader is not None
        return self.cluster.nsqds[leader]

    def web(self, topic: str, partition: int = 0) -> str:
        """URL of the HTTP of a partition's leader."""
        leader = self.cluster.leader(topic, partition)
        assert leader is not None
        return self.cluster.http_address(leader)

    def post(self, url: str, **params: str | int) -> None:
        answer = self.http.post(url, params=params)
        assert answer.status_code == 200, answer.text

    def register(self, topic: str, channel: str) -> None:
        """Register a channel at the leading nsqlookupd."""
        self.post(f"{self.cluster.lookupd[0]}/channel/create", topic=topic, channel=channel)

    def make_channel(self, topic: str, partition: int, channel: str, *, ordered: bool) -> None:
        """Make a channel that starts here and now."""
        url = self.web(topic, partition)
        self.post(f"{url}/channel/create", topic=topic, partition=partition, channel=channel)
        if ordered:
            self.post(f"{url}/channel/setorder", topic=topic, partition=partition, channel=channel, order="true")

    def publish(self, topic: str, partition: int, body: bytes, trace_id: int = 0, ext: bytes | None = None) -> bytes:
        """Publish one message, see it acknowledged, and return the answer."""
        if ext is not None:
            data = encode_pub_ext(topic, partition, ext, body)
        elif trace_id:
            data = encode_pub_trace(topic, partition, trace_id, body)
        else:
            data = encode_pub(topic, partition, body)
        with Wire(self.address(topic, partition), MAGIC + data) as wire:
            answer = wire.answer()
        assert answer.startswith(b"OK")
        return answer
