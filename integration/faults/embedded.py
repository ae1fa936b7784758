"""The embedded cluster in the place of a real one: the same scenarios, at a tenth of the time."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from integration.faults.cluster import Cluster, NotReadyError
from integration.faults.pace import Pace
from integration.faults.plain import Plain
from integration.faults.probes import Probes
from integration.faults.waiting import lasts
from nsq_ha import Backoff
from nsq_ha.devcluster import DevCluster
from nsq_ha.devcluster.control.placement import ClusterPartition
from tests.support.inside import begin_to_stop, coordinator_of, nsqd_of, watched_sockets

TIME_SCALE: Final = 0.1
"""The least that keeps the order of events."""

NODES: Final = 4
LOOK: Final = 0.01

PACE: Final = Pace(
    cluster=TIME_SCALE,
    least=2.0,
    patience=10.0,
    rate=100.0,
    keys=16,
    limit=12.0,
    heartbeat=1.0,
    close=2.0,
    # Half of a real cluster's outage is over before the shortest interval of lookups is. The longest is 3 s.
    clients={"lookup_interval": 0.25},
    consumers={
        "requeue_backoff": Backoff(initial=0.2, maximum=1.0, jitter=0.1),
        "handler_backoff": Backoff(initial=0.2, maximum=1.0, jitter=0.1),
    },
)


class Embedded(Cluster):
    """Controls of a :class:`~nsq_ha.devcluster.DevCluster`; what it says about itself it says by HTTP, as a real one.

    Args:
        cluster: A running one.
    """

    pace = PACE

    def __init__(self, cluster: DevCluster) -> None:
        super().__init__(tuple(cluster.lookupd), (), 0)
        self.cluster = cluster

    def nsqd(self, tcp_port: int) -> str:
        """Return the name of the nsqd at ``tcp_port``."""
        return next(name for name, address in self.cluster.nsqds.items() if address.endswith(f":{tcp_port}"))

    def nsqlookupd(self, url: str) -> str:
        """Return the name of the nsqlookupd at ``url``."""
        return self.cluster.lookupds[self.lookupds.index(url)]

    def name_of(self, tcp_port: int) -> str:
        """Return the cluster's own name of an nsqd."""
        return nsqd_of(self.cluster, self.nsqd(tcp_port)).distributed_id

    async def kill(self, name: str, sig: str) -> None:
        """Do to a node what the signal would."""
        controls: dict[str, Callable[[str], None]] = {
            "SIGKILL": self.cluster.kill,
            "SIGTERM": self._terminate,
            "SIGSTOP": self.cluster.freeze,
            "SIGCONT": self.cluster.thaw,
        }
        await asyncio.to_thread(controls[sig], name)

    def _terminate(self, name: str) -> None:
        begin_to_stop(self.cluster, name)

    async def start(self, name: str) -> None:
        """Start a node; nothing happens when it runs."""
        await asyncio.to_thread(self.cluster.start, name)

    async def start_all(self) -> None:
        """Wake and start all nodes."""
        for name in (*self.cluster.lookupds, *self.cluster.nsqds):
            await self.kill(name, "SIGCONT")
            await self.start(name)

    async def create_topic(self, topic: str, partitions: int, replicas: int, *, is_ordered: bool) -> None:
        """Create a topic, several partitions of which may share a node."""
        await asyncio.to_thread(
            self.cluster.create_topic, topic, partitions, replicas, ordered=is_ordered, multi_part=True
        )

    def probes(self, say: Callable[[str], None]) -> Probes:
        """Return what looks from inside whether a partition could take a publish."""
        return Looks(say, self)

    def sockets(self) -> int:
        """Count the sockets that the running loop watches: the others of this process may be the cluster's."""
        return watched_sockets()


class EmbeddedPlain(Plain, Embedded):
    """The same for a plain one."""


class Looks(Probes):
    """Looks at the partitions' leaders, in the cluster's own loop, so that nothing else holds it up."""

    def __init__(self, say: Callable[[str], None], cluster: Embedded) -> None:
        super().__init__(say, cluster.nsqd)
        self._of = cluster.cluster
        self._looking: Any = None

    async def start(self, topics: dict[str, int], ports: Iterable[int]) -> None:
        """Look at every partition of ``topics``."""
        del ports
        self.taken = {(topic, partition): [] for topic, number in topics.items() for partition in range(number)}
        background = self._of._background
        if background is None:
            raise NotReadyError("the cluster does not run")
        self._looking = asyncio.run_coroutine_threadsafe(self._look(), background.loop)

    async def stop(self) -> None:
        """Stop."""
        if self._looking is not None:
            self._looking.cancel()

    @property
    def have_ended(self) -> bool:
        """Whether nobody looks any more."""
        return self._looking is None or self._looking.done()

    async def _look(self) -> None:
        while True:
            for (name, number), times in self.taken.items():
                partition = coordinator_of(self._of).placement.partition(name, number)
                if partition is not None and self._takes(partition):
                    times.append(time.monotonic())
            await lasts(LOOK)  # the rhythm of the looks

    def _takes(self, partition: ClusterPartition) -> bool:
        leader = partition.led
        return leader is not None and leader.refusal is None and not leader.stalled and not leader.node.exiting
