"""What a cluster says of itself: descriptions of topics.

``description`` has the values.

Source: protocol reference 13.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import Bounded
from nsq_ha.admin.description import PartitionDescription, TopicDescription
from nsq_ha.admin.opened import Opened
from nsq_ha.checks import check_topic
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from nsq_ha.admin.description import PartitionStats
    from nsq_ha.policy.topology import TopicView


class StatsAdmin(Opened):
    """The calls that only read what nsqds say."""

    async def describe(self, topic: str, *, timeout: float = 5.0) -> TopicDescription:
        """Return settings, leaders, replicas, channels and depths of a topic; of a plain one, nsqds instead of leaders.

        Only the nsqlookupds must answer; ``stats`` is None for nsqds that do not.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd answered.
        """
        async with Bounded(f"describing topic {check_topic(topic)}", timeout, changes=False):
            readable = await self._leading.existing(topic)
            if readable.is_plain:
                return await plain.describe(self._leading, readable)
            writable = await self._leading.view(topic, "w")
            partitions = await asyncio.gather(
                *(self._describe(topic, number, readable, writable) for number in range(readable.partition_num))
            )
            return TopicDescription(readable, tuple(partitions), writable.note)

    async def _describe(
        self, topic: str, partition: int, readable: TopicView, writable: TopicView
    ) -> PartitionDescription:
        leader = readable.leaders.get(partition)
        replicas: tuple[str, ...] = ()
        stats: PartitionStats | None = None
        if leader is not None:
            nsqd = self._leading.nsqd(leader)
            with contextlib.suppress(NsqError):
                replicas = await nsqd.replicas(topic, partition)
            with contextlib.suppress(NsqError):
                found = await nsqd.stats(topic)
                stats = next((entry for entry in found if entry.partition == partition), None)
        return PartitionDescription(
            partition, leader, writable=partition in writable.leaders, replicas=replicas, stats=stats
        )
