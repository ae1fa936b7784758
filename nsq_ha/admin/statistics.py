"""What a cluster says of itself: statistics, descriptions of topics, and single messages.

``description`` has the values.

Source: server protocol 12.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import Bounded
from nsq_ha.admin.description import ClusterStats, NodeStats, PartitionDescription, TopicDescription
from nsq_ha.admin.nsqd_http import Search, StoredMessage
from nsq_ha.admin.opened import AdminBase
from nsq_ha.base.identity import partition_of
from nsq_ha.errors import ConfigError, NoLeaderError, NsqError, RemoteProtocolError
from nsq_ha.options.checks import MAX_INT64, check_channel, check_partition, check_topic, shown
from nsq_ha.policy.topology import Node

_AT_ONCE: Final = 16
"""Number of nsqds that are asked at the same time."""

ANSWERED: Final = 0.9
"""Share of a call's time after which an nsqd that has not answered counts as silent: waiting on would lose the answers
of the others."""


class StatsAdmin(AdminBase):
    """The calls that only read what nsqds say."""

    async def stats(
        self,
        topic: str | None = None,
        *,
        channel: str | None = None,
        clients: bool = False,
        timeout: float = 10.0,
    ) -> ClusterStats:
        """Return the statistics of all nsqds: topics, partitions, channels, and clients if asked for.

        An nsqd that does not answer within ``question_timeout`` is named in :attr:`nsq_ha.admin.ClusterStats.silent`.

        Args:
            topic: Return only this topic. None for all.
            channel: Return only channels of this name. None for all.
            clients: Return the connections of each channel, too; not of an nsqd whose answer would be too long.
            timeout: Seconds for the whole call.

        Raises:
            TopicNotFoundError: ``topic`` does not exist.
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        if topic is not None:
            check_topic(topic)
        if channel is not None:
            check_channel(channel)
        async with Bounded("reading the statistics", timeout, changes=False):
            until = asyncio.get_running_loop().time() + ANSWERED * timeout
            if topic is not None:
                await self._leading.existing(topic)
            nodes = plain.merge_nodes(await self._leading.collect(lambda client: client.nodes()))
            asked = [info.node for info in nodes]
            answers = await self._ask_nsqds(asked, topic, channel=channel, clients=clients, until=until)
            return ClusterStats(tuple(sorted(answers, key=lambda answer: answer.node.address)))

    async def _ask_nsqds(
        self,
        nodes: Iterable[Node],
        topic: str | None = None,
        *,
        channel: str | None = None,
        clients: bool = False,
        until: float,
    ) -> list[NodeStats]:
        """Return what some nsqds say until a time of the loop's clock, in their order."""
        slots = asyncio.Semaphore(_AT_ONCE)
        clock = asyncio.get_running_loop().time

        async def ask(node: Node) -> NodeStats:
            began: float | None = None
            try:
                async with asyncio.timeout_at(until), slots:
                    began = clock()
                    say = partial(self._leading.nsqd(node).node_stats, node, topic, channel=channel)
                    try:
                        found = await say(clients=clients)
                    except RemoteProtocolError:
                        if not clients:
                            raise
                        found = await say()  # they may be too many to list
                    return dataclasses.replace(_only(found, topic, channel), took=clock() - began)
            except (NsqError, TimeoutError) as error:
                if began is None:
                    return NodeStats(node, error="it was not asked in time, since others hang")
                took = clock() - began
                text = str(error) or f"nsqd {node.http_url}: no complete answer within {took:.1f} s"
                return NodeStats(node, error=text, took=took, hangs=isinstance(error, TimeoutError))

        return list(await asyncio.gather(*map(ask, nodes)))

    async def describe(self, topic: str, *, clients: bool = False, timeout: float = 5.0) -> TopicDescription:
        """Return settings, leaders, replicas, channels and depths of a topic; of a plain one, nsqds instead of leaders.

        Only the nsqlookupds must answer; for nsqds that do not, ``stats`` is None and ``error`` says why.

        Args:
            topic: The topic.
            clients: Return the connections of each channel, too.
            timeout: Seconds for the whole call.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd answered.
        """
        async with Bounded(f"describing topic {check_topic(topic)}", timeout, changes=False):
            until = asyncio.get_running_loop().time() + ANSWERED * timeout
            readable = await self._leading.existing(topic)
            if readable.is_plain:  # each nsqlookupd may be the only one that lists an nsqd
                readable, _ = await self._leading.whole_view(topic)
            writable = readable if readable.is_plain else await self._leading.view(topic, "w")
            leaders = tuple(dict.fromkeys(readable.leaders.values()))
            # Each leader once, however many partitions it has: one that hangs must not take the time of the others.
            answers, in_sync = await asyncio.gather(
                self._ask_nsqds(leaders, topic, clients=clients, until=until),
                self._in_sync(() if readable.is_plain else leaders, topic, until),
            )
            errors = {answer.node: answer.error for answer in answers}
            stats = {(answer.node, entry.partition): entry for answer in answers for entry in answer.partitions}

            def one(number: int) -> PartitionDescription:
                leader, is_writable = readable.leaders.get(number), number in writable.leaders
                if leader is None:
                    return PartitionDescription(number, None, is_writable, replicas=(), stats=None)
                # The number of a plain nsqd is ours: it has one part of each topic, 0.
                said = stats.get((leader, 0 if readable.is_plain else number))
                return PartitionDescription(
                    number,
                    leader,
                    is_writable,
                    replicas=in_sync.get((leader, number), ()),
                    stats=None if said is None else dataclasses.replace(said, partition=number),
                    error=errors[leader],
                )

            partitions = map(one, readable.leaders if readable.is_plain else range(readable.partition_num))
            return TopicDescription(readable, tuple(partitions), writable.note)

    async def find_message(
        self,
        topic: str,
        *,
        internal_id: int | None = None,
        partition: int | None = None,
        offset: int | None = None,
        number: int | None = None,
        timeout: float = 10.0,
    ) -> StoredMessage | None:
        """Return one message of the log of a partition, finished or not; the server has no search by trace id.

        Give either ``internal_id``, or ``partition`` with ``offset`` or ``number``. Receipts and consumed messages have
        the id, and with a trace the offset. To read many messages, call it again and again: a leader that was looked
        up is asked for 5 s.

        Args:
            topic: The topic.
            internal_id: The server's id; it contains the partition.
            partition: The partition.
            offset: A position in bytes: finds the first message there or after it.
            number: The number of the message in the partition; the first one has 1.
            timeout: Seconds for the whole call.

        Returns:
            The message. A body or header that is not UTF-8 is damaged. None if the server cannot read it, because it
            is not flushed yet, was cleaned up or does not exist.

        Raises:
            ConfigError: The arguments do not name one message, or the cluster is a plain one.
            TopicNotFoundError: The topic does not exist.
            NoLeaderError: The partition has no leader now, or does not exist.
            TransportError: The leader does not answer.
        """
        check_topic(topic)
        mode, position, partition = _search(internal_id, partition, offset, number)
        async with Bounded(f"searching a message of {topic}-{partition}", timeout, changes=False):
            view = await self._leading.recent(topic)
            if view.is_plain:
                raise ConfigError(f"topic {topic!r} has no log to search: plain nsqd keeps no finished messages")
            leader = view.leaders.get(partition)
            if leader is None:
                self._leading.forget(topic)
                raise NoLeaderError(f"{topic}-{partition} has no leader now, or does not exist{view.cause}")
            try:
                return await self._leading.nsqd(leader).message_get(topic, partition, mode, position)
            except NsqError:
                self._leading.forget(topic)  # the leader may have moved
                raise

    async def _in_sync(
        self, nodes: Iterable[Node], topic: str, until: float
    ) -> Mapping[tuple[Node, int], tuple[str, ...]]:
        """Return the cluster's names of the in-sync nodes, by a node that says so and the partition."""
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(node: Node) -> dict[tuple[Node, int], tuple[str, ...]]:
            try:
                async with asyncio.timeout_at(until), slots:
                    members = await self._leading.nsqd(node).members(topic)
            except (NsqError, TimeoutError):
                return {}
            return {(node, number): in_sync for number, in_sync, _ in members}

        answers = await asyncio.gather(*map(ask, nodes))
        return {place: in_sync for answer in answers for place, in_sync in answer.items()}


def _only(found: NodeStats, topic: str | None, channel: str | None) -> NodeStats:
    """Return only the topic and the channel; a server may return more than it was asked for."""
    partitions = [entry for entry in found.partitions if topic in (None, entry.topic)]
    if channel is not None:
        partitions = [
            dataclasses.replace(entry, channels=tuple(known for known in entry.channels if known.name == channel))
            for entry in partitions
        ]
    return dataclasses.replace(found, partitions=tuple(partitions))


def _search(
    internal_id: int | None, partition: int | None, offset: int | None, number: int | None
) -> tuple[Search, int, int]:
    """Return how and where to search for a message, and in which partition.

    Raises:
        ConfigError: The arguments do not name one message.
    """
    asked: dict[Search, object] = {"id": internal_id, "virtual_offset": offset, "count": number}
    given = [(mode, position) for mode, position in asked.items() if position is not None]
    if len(given) != 1 or (internal_id is None) is (partition is None):
        raise ConfigError("give either internal_id=, or partition= with offset= or number=")
    mode, position = given[0]
    least = 0 if mode == "virtual_offset" else 1
    if isinstance(position, bool) or not isinstance(position, int) or not least <= position <= MAX_INT64:
        raise ConfigError(f"the position of a message must be {least}..{MAX_INT64}, not {shown(position)}")
    if partition is not None:
        return mode, position, check_partition(partition)
    return mode, position, partition_of(position)
