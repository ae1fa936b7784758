"""What a cluster says of itself: statistics, descriptions of topics, and single messages.

``description`` has the values.

Source: server protocol 12.

A look reads everything at once, for all who show a cluster: a :class:`~nsq_ha.admin.reading.Reading` with what is
missing. It ends within its limit, also if servers are slow; a part that fails is that of the look before, with the
reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import PAUSE, Bounded, several
from nsq_ha.admin.cluster import ClusterAdmin
from nsq_ha.admin.description import ClusterStats, NodeStats, PartitionDescription, TopicDescription
from nsq_ha.admin.memory import TopicPartition
from nsq_ha.admin.nsqd_http import Search, StoredMessage
from nsq_ha.admin.opened import AdminBase
from nsq_ha.admin.reading import Reading, Replicas
from nsq_ha.admin.topics import TopicAdmin
from nsq_ha.base.clock import monotonic
from nsq_ha.base.identity import partition_of
from nsq_ha.errors import ConfigError, NoLeaderError, NsqError, RemoteProtocolError, ServerError
from nsq_ha.options.checks import MAX_INT64, check_channel, check_partition, check_topic, shown
from nsq_ha.policy.topology import Node, TopicView, tcp_address

ANSWERED: Final = 0.9
"""Share of a call's time after which an nsqd that has not answered counts as silent: waiting on would lose the answers
of the others."""


class StatsAdmin(AdminBase):
    """The calls that only read what nsqds say."""

    async def stats(
        self, topic: str | None = None, *, channel: str | None = None, clients: bool = False, timeout: float = 10.0
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
        clock = asyncio.get_running_loop().time

        async def ask(node: Node) -> NodeStats:
            began = clock()
            if began >= until:
                return NodeStats(node, error="it was not asked in time, since others hang")
            try:
                async with asyncio.timeout_at(until):
                    say = partial(self._leading.nsqd(node).node_stats, node, topic, channel=channel)
                    try:
                        found = await say(clients=clients)
                    except RemoteProtocolError:
                        if not clients:
                            raise
                        found = await say()  # they may be too many to list
                    return replace(_only(found, topic, channel), took=clock() - began)
            except (NsqError, TimeoutError) as error:
                took = clock() - began
                text = str(error) or f"nsqd {node.http_url}: no complete answer within {took:.1f} s"
                return NodeStats(node, error=text, took=took, hangs=isinstance(error, TimeoutError))

        return await several(ask, nodes)

    async def view(self, topic: str, *, timeout: float = 5.0) -> TopicView:
        """Return how the nsqlookupds see a topic: its settings, and its leaders; :meth:`describe` has more.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd answered.
        """
        async with Bounded(f"looking up topic {check_topic(topic)}", timeout, changes=False):
            return await self._seen(topic)

    async def _seen(self, topic: str) -> TopicView:
        view = await self._leading.existing(topic)
        if view.is_plain:  # each nsqlookupd may be the only one that lists an nsqd
            view, _ = await self._leading.whole_view(topic)
        return view

    async def describe(self, topic: str, *, clients: bool = False, timeout: float = 5.0) -> TopicDescription:
        """Return settings, leaders, replicas, channels and depths of a topic; of a plain one, nsqds instead of leaders.

        Only the nsqlookupds must answer; for nsqds that do not, ``stats`` is None and ``error`` says why.

        Args:
            topic: The topic.
            clients: Return the connections of each channel, and those that publish, too.
            timeout: Seconds for the whole call.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd answered.
        """
        async with Bounded(f"describing topic {check_topic(topic)}", timeout, changes=False):
            until = asyncio.get_running_loop().time() + ANSWERED * timeout
            readable = await self._seen(topic)
            writable = readable if readable.is_plain else await self._leading.view(topic, "w")
            leaders = tuple(dict.fromkeys(readable.leaders.values()))
            # Each leader once, however many partitions it has: one that hangs must not take the time of the others.
            answers, members = await asyncio.gather(
                self._ask_nsqds(leaders, topic, clients=clients, until=until),
                self._members([] if readable.is_plain else [(leader, topic) for leader in leaders], until),
            )
            in_sync = {(node, number): names for node, _, number, names, _ in members}
            errors = {answer.node: answer.error for answer in answers}
            stats = {(answer.node, entry.partition): entry for answer in answers for entry in answer.partitions}

            def one(number: int) -> PartitionDescription:
                leader, is_writable = readable.leaders.get(number), number in writable.leaders
                if leader is None:
                    return PartitionDescription(number, None, is_writable, replicas=(), stats=None)
                # The number of a plain nsqd is ours: it has one part of each topic, 0.
                said = stats.get((leader, 0 if readable.is_plain else number))
                own = None if said is None else replace(said, partition=number)
                replicas = in_sync.get((leader, number), ())
                return PartitionDescription(number, leader, is_writable, replicas, own, errors[leader])

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

    async def finish_message(
        self, topic: str, channel: str, partition: int, number: int, *, timeout: float = 30.0
    ) -> StoredMessage:
        """Finish a message for a channel: what an operator does if one blocks an ordered partition.

        Args:
            topic: The topic.
            channel: The channel.
            partition: The partition.
            number: The number of the message in the partition; the first one has 1.
            timeout: Seconds for the whole call. It waits until the message is in flight: the server finishes no other.

        Returns:
            The message.

        Raises:
            ConfigError: The message cannot be read, or the cluster is a plain one, which cannot do this.
            NoLeaderError: The partition has no leader now, or does not exist.
            ChangeIncompleteError: It was never in flight: it may be finished, or nobody reads the channel.
        """
        place = f"message {number} of {topic}-{partition}"
        async with Bounded(f"finishing {place} for channel {check_channel(channel)}", timeout) as call:
            found = await self.find_message(topic, partition=partition, number=number, timeout=timeout)
            if found is None:
                raise ConfigError(f"{place} cannot be read: it does not exist, was cleaned up, or is not flushed yet")
            while True:
                leader = (await self._leading.recent(topic)).leaders[partition]
                try:
                    await self._leading.nsqd(leader).finish(topic, partition, channel, found.internal_id)
                except ServerError as error:
                    call.open[place] = f"it is finished already, or no consumer has it (nsqd {leader.address}: {error})"
                else:
                    return found
                await asyncio.sleep(PAUSE)

    async def _members(
        self, places: Iterable[tuple[Node, str]], until: float
    ) -> list[tuple[Node, str, int, tuple[str, ...], tuple[str, ...]]]:
        """Ask nsqds who holds the partitions of a topic, until a time of the loop's clock.

        Returns:
            For each partition the node that says so, topic and number, and the cluster's names of the nodes that are in
            sync, and that are not.
        """

        async def ask(place: tuple[Node, str]) -> list[tuple[int, tuple[str, ...], tuple[str, ...]]]:
            node, topic = place
            try:
                async with asyncio.timeout_at(until):
                    return await self._leading.nsqd(node).members(topic)
            except (NsqError, TimeoutError):
                return []

        asked = list(places)
        answers = await several(ask, asked)
        return [(*place, *each) for place, answer in zip(asked, answers, strict=True) for each in answer]


def _only(found: NodeStats, topic: str | None, channel: str | None) -> NodeStats:
    """Return only the topic and the channel; a server may return more than it was asked for."""
    partitions = [entry for entry in found.partitions if topic in (None, entry.topic)]
    if channel is not None:
        partitions = [
            replace(entry, channels=tuple(known for known in entry.channels if known.name == channel))
            for entry in partitions
        ]
    return replace(found, partitions=tuple(partitions))


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


MAX_ASKED: Final = 50
"""Topics whose replicas are asked for in one look while an nsqd is missing."""


T = TypeVar("T")


class LookAdmin(TopicAdmin, ClusterAdmin, StatsAdmin):
    """The call that reads everything at once."""

    async def look(
        self, before: Reading | None = None, *, topics: Iterable[str] = (), clients: bool = False, timeout: float = 10.0
    ) -> Reading:
        """Return what the nsqlookupds and nsqds say now; :func:`nsq_ha.admin.incidents` says what is wrong.

        Args:
            before: The look before: rates and memory come from it, and what gets no answer now. A reading that was not
                made by a look gives only its memory. None for the first one.
            topics: Topics to describe, too, with their clients.
            clients: Read the connections of each channel, too.
            timeout: Seconds for the whole look.

        Raises:
            LookupUnavailableError: No nsqlookupd answers, and there was no look before.
        """
        clock = asyncio.get_running_loop().time
        self._leading.servers.know(() if before is None else before.remembered.lookupds)
        began, old, errors = clock(), before or Reading(time.time()), dict[str, str]()
        limit = timeout * 0.8

        async def part(name: str, ask: Callable[[], Awaitable[T]], known: T) -> T:
            try:
                async with asyncio.timeout(limit):
                    return await ask()
            except NsqError as error:
                if before is None and name == "nsqds":
                    raise
                errors[name] = str(error)
            except TimeoutError:
                errors[name] = f"no answer within {timeout:g} s"
            return known

        stats, infos, listed, cluster, described = await asyncio.gather(
            part("nsqds", partial(self.stats, clients=clients, timeout=limit), old.stats),
            part("nodes", self.nodes, None),
            part("topics", self.topics, None),
            part("cluster", partial(self.cluster, timeout=timeout), old.cluster),
            asyncio.gather(
                *(
                    part("", partial(self.describe, each, clients=True, timeout=limit), old.details.get(each))
                    for each in topics
                )
            ),
        )
        at = time.time()
        found = Reading(
            at,
            took=clock() - began,
            stats=stats,
            infos=old.infos if infos is None else {info.node.address: info for info in infos},
            listed=old.listed if listed is None else {info.name: info for info in listed},
            cluster=cluster,
            details={each.view.topic: each for each in described if each is not None},
            errors={name: text for name, text in errors.items() if name},  # a description that is old is no part
            earlier=None if old.clock is None else old.kept,
            has_clients=clients,
            clock=monotonic(),
            memory=old.remembered,
        )
        left = max(0.1, timeout - (clock() - began))
        try:
            async with asyncio.timeout(left):
                return await self._with_missing(found, clock() + ANSWERED * left)
        except TimeoutError:
            return found

    async def _with_missing(self, reading: Reading, until: float) -> Reading:
        """Return a reading with what is known, until a time of the loop's clock, of nsqds missing or not in sync."""
        unlisted = [
            each.node
            for address, each in reading.memory.nsqds.items()
            if each.node is not None and (address not in reading.nodes or not reading.is_fresh)
        ]
        asked = self._ask_nsqds(unlisted, clients=reading.has_clients, until=until)
        is_missing = reading.is_fresh and bool(unlisted or reading.silent or reading.stable is False)
        replicas, absent = await asyncio.gather(
            self._replicas(reading, until) if is_missing else asyncio.sleep(0, {}), asked
        )
        if not reading.is_fresh:  # those that are known may answer, though nobody says where they are
            if all(each.error for each in absent):
                return reading
            errors = {part: text for part, text in reading.errors.items() if part != "nsqds"}
            reading = replace(reading, stats=ClusterStats(()), errors=errors)
        return replace(reading, absent={each.node.address: each for each in absent}, replicas=replicas)

    async def _replicas(self, reading: Reading, until: float) -> Mapping[TopicPartition, Replicas]:
        """Ask the leaders who should hold partitions: first of the topics with the fewest copies."""
        if reading.is_plain:
            return {}
        copies: dict[str, int] = {}
        for (topic, _), holders in reading.holders.items():
            alive = sum(each not in reading.silent for each in holders)
            copies[topic] = min(alive, copies.get(topic, alive))
        chosen = sorted(copies, key=lambda topic: (copies[topic], topic))[:MAX_ASKED]
        places = {
            (topic, leader)
            for (topic, _), leader in reading.leaders.items()
            if topic in chosen and leader not in reading.silent
        }
        members = await self._members([(reading.nodes[leader].node, topic) for topic, leader in sorted(places)], until)
        return {
            (topic, number): Replicas(_addresses(in_sync), _addresses(behind))
            for node, topic, number, in_sync, behind in members
            if reading.leaders.get((topic, number)) == node.address
        }


def _addresses(names: Iterable[str]) -> frozenset[str]:
    return frozenset(tcp_address(name) or name for name in names)
