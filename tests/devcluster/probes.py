"""What the faults' tests look at: lookups, and publishes that are answered or not."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.encoding import MAGIC
from tests.devcluster.wire import Wire, connect, message_id, pub
from tests.support.web import NO_CERTIFICATES

SCALE = 0.05
"""Of the real cluster's pace: the election after a kill takes 1.1 s."""

LIMIT = 30.0
NOT_LEADER = b"E_FAILED_ON_NOT_LEADER "
NOT_WRITABLE = b"E_FAILED_ON_NOT_WRITABLE "


def until(condition: Callable[[], Any], limit: float = LIMIT) -> Any:  # noqa: ANN401 - whatever the condition gives
    """Wait for something true, and return it."""
    end = time.monotonic() + limit
    pause, seconds = threading.Event(), 0.005
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come true"
        pause.wait(seconds)  # so that the cluster, in this process, has its turn
        seconds = min(1.2 * seconds, 0.03)
    return found


class Probe:
    """Looks at one topic of a cluster from outside."""

    def __init__(self, cluster: DevCluster, topic: str) -> None:
        self.cluster = cluster
        self.topic = topic
        self.http = httpx.Client(
            timeout=LIMIT,
            verify=NO_CERTIFICATES,
            trust_env=False,
            headers={"Accept": "application/vnd.nsq; version=1.0"},
        )

    def lookup(self, access: str, lookupd: int = 0) -> dict[int, str]:
        """Partition to name of its node, as an nsqlookupd says."""
        params = {"topic": self.topic, "access": access}
        answer = self.http.get(self.cluster.lookupd[lookupd] + "/lookup", params=params)
        names = {address: name for name, address in self.cluster.nsqds.items()}
        found = answer.json().get("partitions") or {}
        return {int(number): names[f"{peer['broadcast_address']}:{peer['tcp_port']}"] for number, peer in found.items()}

    def partition_num(self, lookupd: int = 0) -> int:
        params = {"topic": self.topic, "metainfo": "true"}
        answer = self.http.get(self.cluster.lookupd[lookupd] + "/lookup", params=params)
        return int(answer.json()["meta"]["partition_num"])

    def wire(self, node: str | None, *commands: bytes) -> Wire:
        assert node is not None
        return connect(self.cluster.nsqds[node], *commands)

    def publish(self, node: str | None, body: bytes, partition: int = 0) -> bytes:
        """Publish one message to a node and return the answer."""
        with self.wire(node, pub(self.topic, body, partition)) as wire:
            return wire.answer()

    def leader(self, partition: int = 0) -> str:
        leader = self.cluster.leader(self.topic, partition)
        assert leader is not None
        return leader

    def stored(self, partition: int = 0) -> list[bytes]:
        """All bodies of a partition, read from its beginning once they can be read."""
        leader = until(lambda: self.lookup("w").get(partition))
        url = self.cluster.http_address(leader)
        stats = self.http.get(url + "/stats", params={"format": "json", "topic": self.topic, "partition": partition})
        count = stats.json()["topics"][0]["message_count"]
        return [until(partial(self._row, url, partition, number)) for number in range(1, count + 1)]

    def _row(self, url: str, partition: int, number: int) -> bytes | None:
        """The body of a row; None when nsqd says something else than was asked, as it does of fresh rows."""
        params = {"topic": self.topic, "partition": str(partition), "search_mode": "count", "search_pos": str(number)}
        answer = self.http.get(url + "/message/get", params=params)
        if answer.status_code != 200 or answer.json()["queue_cnt_index"] != number:
            return None
        body: str = answer.json()["body"]
        return body.encode()

    def successor(self, former: str, partition: int = 0) -> str:
        """Wait until the nsqlookupd names another writable leader, and return it."""
        return str(until(lambda: self.lookup("w").get(partition, former) != former and self.lookup("w").get(partition)))

    def is_whole(self) -> bool:
        """Whether every nsqlookupd names every partition as writable."""
        return all(
            len(self.lookup("w", number)) == self.partition_num(number) for number in range(len(self.cluster.lookupd))
        )


@contextmanager
def probe(
    partitions: int = 1, replicas: int = 3, *, ordered: bool = True, seed: int = 1, nsqds: int = 3, scale: float = SCALE
) -> Iterator[Probe]:
    """A cluster with one topic."""
    with DevCluster(time_scale=scale, seed=seed, nsqds=nsqds) as cluster:
        cluster.create_topic("orders", partitions, replicas, ordered=ordered)
        watching = Probe(cluster, "orders")
        try:
            yield watching
        finally:
            watching.http.close()


@contextmanager
def topic_of(request: pytest.FixtureRequest, cluster: DevCluster, replicas: int) -> Iterator[Probe]:
    """Create a topic of one partition for one test, and delete it afterwards."""
    topic = f"t_{abs(hash(request.node.name))}"
    cluster.create_topic(topic, 1, replicas)
    seen = Probe(cluster, topic)
    try:
        yield seen
    finally:
        seen.http.close()
        cluster.delete_topic(topic)


def consumer(
    seen: Probe,
    channel: str = "billing",
    *,
    ready: int = 1,
    word: str = "SUB_ORDERED",
    partition: int = 0,
    replicated: bool = True,
) -> Wire:
    """A subscribed connection, whose channel the replicas know if ``replicated``."""
    leader = seen.leader(partition)
    wire = seen.wire(leader, f"{word} {seen.topic} {channel} {partition}\n".encode())
    assert wire.answer() == b"OK"
    if replicated:
        asked = {"topic": seen.topic, "partition": str(partition), "channel": channel}
        answer = seen.http.post(seen.cluster.http_address(leader) + "/channel/unpause", params=asked)
        assert answer.status_code == 200
    wire.send(f"RDY {ready}\n".encode())
    return wire


def finish(wire: Wire, data: bytes) -> None:
    wire.send(b"FIN " + message_id(data) + b"\n")


__all__ = [
    "LIMIT",
    "MAGIC",
    "NOT_LEADER",
    "NOT_WRITABLE",
    "SCALE",
    "Probe",
    "consumer",
    "finish",
    "probe",
    "topic_of",
    "until",
]
