"""Nodes and leaders of a cluster.

``client`` has the promises that all calls keep.

Source: protocol reference 12; failures reference 3.7.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import Bounded
from nsq_ha.admin.leading import PAUSE
from nsq_ha.admin.opened import Opened
from nsq_ha.checks import check_partition, check_topic
from nsq_ha.errors import ConfigError, NoLeaderError
from nsq_ha.policy.topology import tcp_address

if TYPE_CHECKING:
    from nsq_ha.discovery.answers import NodeInfo
    from nsq_ha.policy.topology import Node


class ClusterAdmin(Opened):
    """The calls that concern nodes."""

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the nsqds of the cluster; of a plain one, those that any nsqlookupd lists.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        return plain.merge_nodes(await self._leading.collect(lambda client: client.nodes()))

    async def move_leader(self, topic: str, partition: int, to: str | None = None, *, timeout: float = 60.0) -> Node:
        """Move the leadership of a partition and wait until another node leads.

        The cluster refuses this for minutes after a node joined or left (``the cluster is unstable``); the call
        repeats it until ``timeout`` is over.

        Args:
            topic: The topic.
            partition: The partition.
            to: ``host:port`` (TCP) or the cluster's name of the node. None for another
                replica. A node that has no replica copies the data first.
            timeout: Seconds for the whole call.

        Returns:
            The new leader; the server may choose a replica other than ``to``.

        Raises:
            ConfigError: ``to`` cannot be used, or the cluster is a plain one.
        """
        check_partition(partition)
        async with Bounded(f"moving the leader of {check_topic(topic)}-{partition}", timeout) as call:
            while True:
                view = await self._leading.existing(topic)
                if view.is_plain:
                    raise plain.no_leaders(topic)
                old = view.leaders.get(partition)
                if old is None:
                    call.last = NoLeaderError(f"{topic}-{partition} has no leader to move")
                    if 0 < view.partition_num <= partition:
                        raise call.last
                    await asyncio.sleep(PAUSE)
                    continue
                params = {
                    "topic": topic,
                    "partition": str(partition),
                    "move_leader": "true",
                    "move_from": old.distributed_id,
                    "move_to": await self._destination(topic, partition, old, to),
                }
                await self._leading.change(
                    "/topic/partition/move", params, call, done="not the topic leader", timeout=timeout
                )
                for _ in range(10):
                    new = (await self._leading.view(topic, "r", call)).leaders.get(partition)
                    if new not in (None, old):
                        return new
                    await asyncio.sleep(PAUSE)

    async def _destination(self, topic: str, partition: int, leader: Node, to: str | None) -> str:
        """Return the cluster's name of the node to move to."""
        replicas = await self._leading.nsqd(leader).replicas(topic, partition)
        others = [name for name in replicas if name != leader.distributed_id]
        if to is None:
            if not others:
                raise ConfigError(
                    f"{topic}-{partition} has no other replica in sync: give to=, the node to move the leader to"
                )
            return others[0]
        if tcp_address(to):
            return to
        named = next((name for name in replicas if tcp_address(name) == to), None)
        return named if named is not None else await self._name_of(to)

    async def _name_of(self, address: str) -> str:
        """Return the cluster's name of a node; only lookups of a topic that it leads contain the name."""
        found = next((info for info in await self.nodes() if info.node.address == address), None)
        if found is None:
            raise ConfigError(f"the cluster has no nsqd {address}")
        for topic in found.partitions:
            for node in (await self._leading.view(topic, "r")).leaders.values():
                if node.address == address and node.distributed_id:
                    return node.distributed_id
        raise ConfigError(
            f"the nsqd {address} leads no partition, so its cluster name is unknown: give to= as ip:rpc:tcp:id"
        )
