"""Nodes and leaders of a cluster, and its state.

``client`` has the promises that all calls keep.

Source: server protocol 11; server failures 3.7.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import PAUSE, Bounded, several
from nsq_ha.admin.opened import AdminBase
from nsq_ha.admin.words import some
from nsq_ha.engine.answers import NodeInfo
from nsq_ha.engine.body import decode_json
from nsq_ha.engine.http import ask
from nsq_ha.errors import (
    ConfigError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    TopicNotFoundError,
    TransportError,
)
from nsq_ha.options.checks import check_partition, check_topic, shown
from nsq_ha.policy.topology import Node, tcp_address

_MOVED: Final = "not the topic leader"
"""Part of the refusal to move a leader that has moved already."""


@dataclass(frozen=True, slots=True)
class LookupdState:
    """One nsqlookupd.

    Attributes:
        url: Base URL of its HTTP.
        leads: It leads the cluster; False on a plain one, where none leads.
        error: Why it gave no usable answer; empty if it did.
        nsqds: ``host:port`` of the nsqds that it lists, sorted.
    """

    url: str
    leads: bool
    error: str
    nsqds: tuple[str, ...] = ()


class NodeLoad(msgspec.Struct, frozen=True):
    """The load of an nsqd, as the leading nsqlookupd estimates it. Compare it with that of the others.

    Attributes:
        host: Its address.
        tcp_port: The port of its TCP.
        leading: The load of the partitions that it leads.
        total: The load of all partitions that it holds.
    """

    host: str = msgspec.field(default="", name="broadcast_address")
    tcp_port: int = 0
    leading: float = msgspec.field(default=0.0, name="leader_load_factor")
    total: float = msgspec.field(default=0.0, name="node_load_factor")

    @property
    def nsqd(self) -> str:
        """``host:port`` of its TCP."""
        return Node(self.host, self.tcp_port, 0).address


class _Stability(msgspec.Struct):
    stable: bool
    node_stat_list: list[NodeLoad] | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The nsqlookupds of a cluster, and what the leading one says.

    Attributes:
        is_plain: It is a plain cluster.
        stable: All partitions have their replicas, and no node joins or leaves; topics can be expanded and leaders
            moved. None on a plain cluster, or if no leading nsqlookupd answers.
        lookupds: The configured nsqlookupds, and those that they list.
        loads: Of each nsqd, by address; empty on a plain cluster.
    """

    is_plain: bool
    stable: bool | None
    lookupds: tuple[LookupdState, ...]
    loads: tuple[NodeLoad, ...]


class ClusterAdmin(AdminBase):
    """The calls that concern nodes."""

    async def cluster(self, *, timeout: float = 10.0) -> ClusterState:
        """Return the state of the nsqlookupds, and whether the cluster is stable.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
            ConfigError: The nsqlookupds belong to several clusters.
        """
        leading = self._leading
        async with Bounded("reading the state of the cluster", timeout, changes=False):
            # At the same time: a server that hangs delays both, and a look at the whole cluster has little time.
            found, _ = await asyncio.gather(self._lookupds(leading.servers.urls), leading.servers.refresh_lists())
            leading.servers.check()
            found |= await self._lookupds(url for url in leading.servers.urls if url not in found)
            leader = leading.servers.leader
            lookupds = [dataclasses.replace(found[url], leads=url == leader) for url in leading.servers.urls]
            if all(each.error for each in lookupds):
                causes = tuple((each.url, each.error) for each in lookupds)
                raise LookupUnavailableError("no nsqlookupd gave a usable answer", causes)
            state = None if leader is None or found[leader].error else await self._state(leader)
            loads = [] if state is None else state.node_stat_list or []
            return ClusterState(
                is_plain=not leading.servers.has_lists,
                stable=None if state is None else state.stable,
                lookupds=tuple(lookupds),
                loads=tuple(sorted(loads, key=lambda load: load.nsqd)),
            )

    async def _lookupds(self, urls: Iterable[str]) -> dict[str, LookupdState]:
        return {each.url: each for each in await asyncio.gather(*map(self._lookupd, urls))}

    async def _lookupd(self, url: str) -> LookupdState:
        try:
            infos = await self._leading.lookupd(url).nodes()
        except LookupUnavailableError as error:
            return LookupdState(url, leads=False, error="; ".join(text for _, text in error.causes))
        return LookupdState(url, leads=False, error="", nsqds=tuple(sorted(info.node.address for info in infos)))

    async def _state(self, leader: str) -> _Stability | None:
        """Return what the leading nsqlookupd says. None if it does not answer, or leads no longer."""
        try:
            body = await ask(self._leading.http, "GET", f"{leader}/cluster/stats", timeout=self._leading.timeout)
            return decode_json(body.data, _Stability) if body.status == 200 else None
        except (TransportError, RemoteProtocolError):
            return None

    async def tombstone_node(self, topic: str, nsqd: str, *, delete: bool = False, timeout: float = 30.0) -> None:
        """Hide an nsqd from those who look a topic up, at every nsqlookupd; wait until all list it so.

        On a plain cluster new consumers do not find it, for nsqlookupd's ``-tombstone-lifetime`` (by default 45 s). On
        a partitioned one publishers do not, until :meth:`restore_node` or until nsqlookupd restarts; consumers do.

        Args:
            topic: The topic.
            nsqd: ``host:port`` of its TCP.
            delete: Then delete the topic with its messages at this nsqd, as nsqadmin does. Only on a plain cluster;
                producers that publish there create it again.
            timeout: Seconds for the whole call.

        Raises:
            ConfigError: The cluster has no such nsqd, or ``delete`` on a partitioned cluster.
            TopicNotFoundError: The nsqd does not have the topic, or leads none of its partitions.
            ChangeIncompleteError: Not every server confirmed it in time; the error names those that did not.
        """
        async with Bounded(f"tombstoning nsqd {nsqd} for topic {check_topic(topic)}", timeout) as call:
            node = await self._node_with(topic, nsqd)
            if delete and not node.is_plain:
                raise ConfigError(f"topic {topic!r} cannot be deleted at one nsqd: remove delete=")
            await self._mark(topic, node, call, restore=False)
            if delete:
                await call.until(f"nsqd {node.address}", partial(self._deleted, topic, node))

    async def restore_node(self, topic: str, nsqd: str, *, timeout: float = 30.0) -> None:
        """Show an nsqd again to those who look a topic up: take :meth:`tombstone_node` back.

        Args:
            topic: The topic.
            nsqd: ``host:port`` of its TCP.
            timeout: Seconds for the whole call.

        Raises:
            ConfigError: The cluster has no such nsqd, or is a plain one.
            TopicNotFoundError: The nsqd leads no partition of the topic.
            ChangeIncompleteError: Not every nsqlookupd confirmed it in time; the error names those that did not.
        """
        async with Bounded(f"restoring nsqd {nsqd} for topic {check_topic(topic)}", timeout) as call:
            node = await self._node_with(topic, nsqd)
            if node.is_plain:
                raise ConfigError(
                    f"nsqd {nsqd} cannot be restored: plain nsqlookupds forget a tombstone after -tombstone-lifetime"
                )
            await self._mark(topic, node, call, restore=True)

    async def remove_node(self, nsqd: str, *, timeout: float = 3600.0) -> None:
        """Have the cluster copy all that an nsqd holds to others; return when it holds nothing, and can be stopped.

        The others must be enough: a topic that is neither ordered nor has ``multi_part`` needs an nsqd for each replica
        of each partition. A new leading nsqlookupd knows nothing of it, and is asked, too, while this waits.

        Args:
            nsqd: ``host:port`` of its TCP.
            timeout: Seconds for the whole call. Copying goes on after that.

        Raises:
            ConfigError: The cluster has no such nsqd, or is a plain one.
            ChangeIncompleteError: The nsqd still holds something, or does not answer.
        """
        async with Bounded(f"removing nsqd {nsqd}", timeout) as call:
            node = (await self._info(nsqd)).node
            if node.is_plain:
                raise ConfigError(
                    f"nsqd {nsqd} is of a plain cluster, which copies nothing: stop it when its channels are empty"
                )
            name = await self._name_of(node)

            async def held() -> str:
                try:
                    places = [(info.node, topic) for info in await self.nodes() for topic in info.partitions]
                    members = await several(lambda place: self._leading.nsqd(place[0]).members(place[1]), places)
                except NsqError as error:
                    return str(error)
                # It goes on to report what was taken from it itself; those that lead know.
                parts = ((topic, part) for (_, topic), found in zip(places, members, strict=True) for part in found)
                left = {f"{topic}-{number}" for topic, (number, *names) in parts if any(name in each for each in names)}
                if left:
                    await self._leading.change("/cluster/node/remove", {"remove_node": name}, call)
                return f"it still is a replica of {some(sorted(left), 3)}" if left else ""

            await call.until(f"nsqd {nsqd}", held, growth=1.5)

    async def begin_upgrade(self, *, timeout: float = 30.0) -> None:
        """Keep the cluster from copying replicas to other nsqds, while its nsqds restart one after the other.

        The cluster is unstable until :meth:`end_upgrade`, or until another nsqlookupd leads.

        Raises:
            ConfigError: The cluster is a plain one.
        """
        await self._upgrade("begin", timeout)

    async def end_upgrade(self, *, timeout: float = 30.0) -> None:
        """Let the cluster replace missing replicas again.

        Raises:
            ConfigError: The cluster is a plain one.
        """
        await self._upgrade("done", timeout)

    async def _upgrade(self, step: str, timeout: float) -> None:
        async with Bounded("changing the state of an upgrade", timeout) as call:
            if (await self.cluster()).is_plain:
                raise ConfigError("a plain cluster knows no upgrades: restart its nsqds one after the other")
            await self._leading.change(f"/cluster/upgrade/{step}", {}, call)

    async def _node_with(self, topic: str, nsqd: str) -> Node:
        found = await self._info(nsqd)
        if topic not in found.topics:
            raise TopicNotFoundError(f"nsqd {nsqd} does not have topic {topic!r}, or leads none of its partitions")
        return found.node

    async def _info(self, nsqd: str) -> NodeInfo:
        if not isinstance(nsqd, str):
            raise ConfigError(f"nsqd must be the host:port of an nsqd, not {shown(nsqd)}")
        await self._leading.servers.refresh_lists()
        infos = {info.node.address: info for info in await self.nodes()}
        if nsqd not in infos:
            raise ConfigError(f"the cluster has no nsqd {nsqd}; it has {', '.join(sorted(infos)) or 'none'}")
        return infos[nsqd]

    async def _mark(self, topic: str, node: Node, call: Bounded, *, restore: bool) -> None:
        """Set or clear the tombstone at every nsqlookupd that lists the nsqd for the topic."""
        # nsqlookupd compares the text: it writes an IPv6 address without brackets.
        params = {"topic": topic, "node": f"{node.host}:{node.http_port}"} | ({"restore": "true"} if restore else {})

        async def mark(url: str) -> str:
            [(_, text)] = await self._leading.tell([url], "/topic/tombstone", params)
            if text:
                return text
            try:
                infos = await self._leading.lookupd(url).nodes()
            except LookupUnavailableError as error:
                return str(error)
            listed = next((info for info in infos if info.node == node and topic in info.topics), None)
            is_shown = listed is None or (topic in listed.tombstoned) is not restore
            return "" if is_shown else "it does not show the change yet"

        urls = self._leading.servers.urls
        await asyncio.gather(*(call.until(f"nsqlookupd {url}", partial(mark, url)) for url in urls))

    async def _deleted(self, topic: str, node: Node) -> str:
        """Delete a topic at a plain nsqd. Return why the nsqd still has it; empty if it has not."""
        outcome = await plain.delete_at(self._leading, node, topic)
        if isinstance(outcome, NsqError):
            return str(outcome)
        is_back = any(info.node == node and topic in info.topics for info in await self.nodes())
        return "it has the topic again: stop the producers that publish to it" if is_back else ""

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
        accepted: Node | None = None  # the leader when the cluster accepted a move
        async with Bounded(f"moving the leader of {check_topic(topic)}-{partition}", timeout) as call:
            while True:
                view = await self._leading.existing(topic)
                if view.is_plain:
                    raise ConfigError(
                        f"topic {topic!r} has no leader to move: plain nsqd has no partitions, and each nsqd keeps"
                        " messages of its own"
                    )
                old = view.leaders.get(partition)
                if old is None:
                    call.last = NoLeaderError(f"{topic}-{partition} has no leader to move")
                    if 0 < view.partition_num <= partition:
                        raise call.last
                    await asyncio.sleep(PAUSE)
                    continue
                if accepted not in (None, old):  # the cluster showed it late
                    return old
                params = {
                    "topic": topic,
                    "partition": str(partition),
                    "move_leader": "true",
                    "move_from": old.distributed_id,
                    "move_to": await self._destination(topic, partition, old, to),
                }
                path, known = "/topic/partition/move", _MOVED if accepted else ""
                await self._leading.change(path, params, call, done=_MOVED, known=known, timeout=timeout)
                accepted = old
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
        return named if named is not None else await self._name_of((await self._info(to)).node)

    async def _name_of(self, node: Node) -> str:
        """Return the cluster's name of a node, which those know that hold a partition with it."""
        nsqd = self._leading.nsqd(node)
        for topic in sorted({entry.topic for entry in await nsqd.stats()}):
            for _, *replicas in await nsqd.members(topic):
                for name in (each for names in replicas for each in names):
                    if tcp_address(name) == node.address:
                        return name
        raise ConfigError(f"nsqd {node.address} holds no partition, so its cluster name (ip:rpc:tcp:id) is unknown")
