"""Random faults under a running publisher: what was acknowledged stays, in order, on every replica."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from nsq_ha.devcluster import ChangeRefusedError, DevCluster
from tests.devcluster.probes import Probe, probe, until
from tests.devcluster.wire import Closed, Wire, pub
from tests.support.inside import coordinator_of, in_cluster

SECONDS = 3.0
SCALE = 0.02
PAUSE = 0.002
"""Seconds between two publishes, in which the cluster, in this process, has its turn."""
REFUSED_AT_ONCE = 0.1
"""A refusal within this is given before the message was written: half of the wait for a replica at this scale."""


class Publisher:
    """Publishes numbers one after the other, each once, and notes what became of it."""

    def __init__(self, seen: Probe) -> None:
        self.seen = seen
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self._wire: Wire | None = None
        self._next = 0

    def run(self, until_time: float) -> None:
        pause = threading.Event()
        while time.monotonic() < until_time:
            wire = self._connected()
            if wire is not None:
                self._publish(wire)
            pause.wait(PAUSE)
        self._drop()

    def _connected(self) -> Wire | None:
        if self._wire is None:
            leader = self.seen.lookup("w").get(0)
            try:
                self._wire = self.seen.wire(leader) if leader else None
            except OSError:
                return None
        return self._wire

    def _publish(self, wire: Wire) -> None:
        number, self._next = self._next, self._next + 1
        began = time.monotonic()
        try:
            wire.send(pub("orders", b"%d" % number))
            answer = wire.answer(1.0)
        except (Closed, OSError):
            self._drop()
            return
        if answer == b"OK":
            self.acknowledged.append(number)
            return
        if time.monotonic() - began < REFUSED_AT_ONCE:
            self.refused.append(number)
        self._drop()

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.close()
            self._wire = None


def faults(cluster: DevCluster, dice: random.Random) -> list[Callable[[str], object]]:
    def move(_node: str) -> None:
        try:
            cluster.move_leader("orders")
        except (ChangeRefusedError, TimeoutError):
            return

    return [cluster.kill, cluster.stop, cluster.freeze, cluster.cut, move]


def trouble(cluster: DevCluster, seed: int, end: float) -> None:
    """Break one node after the other, each mended before the next."""
    dice = random.Random(seed)
    pause = threading.Event()
    while time.monotonic() < end:
        node = dice.choice([cluster.leader("orders") or "nsqd-0", *cluster.nsqds])
        dice.choice(faults(cluster, dice))(node)
        pause.wait(dice.uniform(0.05, 0.8))
        cluster.thaw(node)
        cluster.start(node)
        pause.wait(dice.uniform(0.05, 0.3))


def bodies(cluster: DevCluster) -> list[list[int]]:
    """Committed messages of every replica."""

    def read() -> list[list[int]]:
        replicas = [node.replicas["orders", 0].log for node in coordinator_of(cluster).nsqds]
        return [[int(record.body) for record in log.records[: log.committed]] for log in replicas]

    return in_cluster(cluster, read)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_or_reordered_whatever_happens(seed: int) -> None:
    with probe(scale=SCALE, seed=seed) as seen:
        end = time.monotonic() + SECONDS
        publisher = Publisher(seen)
        breaking = threading.Thread(target=trouble, args=(seen.cluster, seed, end))
        breaking.start()
        publisher.run(end)
        breaking.join()
        until(seen.is_whole)
        until(lambda: len(seen.http.get(stats_url(seen)).json()["topic_coord_stats"][0]["isr_stats"]) == 3)
        stored = bodies(seen.cluster)
        assert stored[0] == stored[1] == stored[2]
        assert stored[0] == sorted(set(stored[0]))
        assert set(publisher.acknowledged) <= set(stored[0])
        assert not set(publisher.refused) & set(stored[0])
        assert len(publisher.acknowledged) > 100


def stats_url(seen: Probe) -> str:
    return seen.cluster.http_address(seen.leader()) + "/coordinator/stats"
