"""Create, change and describe topics of either kind of cluster.

Owns the changes that operators make to topics, and waits until the cluster has
applied them. Producers and consumers do not use this module. ``plain`` has the changes
of plain clusters.

The invariant: every call ends within its ``timeout``, and may be repeated.

Source: protocol reference 12; failures reference 2, 3.6, 3.7, 3.8.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self, Unpack

from nsq_ha.admin import plain
from nsq_ha.admin.description import PartitionDescription, TopicDescription
from nsq_ha.admin.leading import PAUSE, Bounded, Leading, unled, until_usable
from nsq_ha.checks import MAX_PARTITIONS, check_channel, check_partition, check_topic, lookupd_urls
from nsq_ha.errors import ClosedError, ConfigError, NoLeaderError, NsqError, ServerError
from nsq_ha.option_types import check_lookupd_tls
from nsq_ha.policy.topology import Node, TopicMeta, tcp_address
from nsq_ha.settings import admin_from_env
from nsq_ha.tls import ssl_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable
    from types import TracebackType

    from nsq_ha.admin.description import PartitionStats
    from nsq_ha.discovery.answers import NodeInfo, TopicInfo
    from nsq_ha.option_types import TlsConfig
    from nsq_ha.options import AdminOptions
    from nsq_ha.policy.topology import TopicView

MAX_REPLICAS: Final = 5
"""Maximum number of replicas of a partition."""

_SETTINGS: Final = {
    "partition_num": "partitions",
    "replica": "replicas",
    "ordered": "ordered",
    "multi_part": "multi_part",
    "extend_support": "extended",
    "disable_channel_auto_create": "disable_channel_auto_create",
}
"""Arguments of :meth:`AdminClient.create_topic` by the names of the settings in a lookup's meta."""


class AdminClient:
    """Administers topics through the nsqlookupds. Use it as an async context manager.

    It works with partitioned and with plain (upstream) clusters, and finds the kind out by their answers. The
    nsqlookupds of a plain cluster are independent: give the addresses of all. A change goes to each of them.

    Every method raises :class:`ConfigError` for wrong arguments, before anything is sent;
    :class:`ServerError` with the server's text if the server refuses; :class:`TransportError` if a
    required nsqd does not answer; and :class:`DiscoveryError` if no nsqlookupd answers, or if
    ``timeout`` (seconds, for the whole call) is over. After a timeout or a cancellation the change may
    still happen: repeat the call, or describe the topic.

    Args:
        lookupd: HTTP address of one nsqlookupd or several. The client discovers the others of a partitioned cluster.
        question_timeout: Seconds for one request to one server.
        lookupd_tls: TLS for ``https://`` addresses. None trusts the system's authorities.

    Raises:
        ConfigError: An address is not legal, or ``lookupd_tls`` cannot be used.
    """

    def __init__(
        self,
        lookupd: str | Iterable[str],
        *,
        question_timeout: float = 2.0,
        lookupd_tls: TlsConfig | ssl.SSLContext | None = None,
    ) -> None:
        self._urls = lookupd_urls(lookupd)
        if not self._urls:
            raise ConfigError("AdminClient needs the address of an nsqlookupd")
        check_lookupd_tls(lookupd_tls, self._urls)
        if lookupd_tls is not None:
            ssl_context(lookupd_tls, "lookupd_tls")
        self._lookupd_tls = lookupd_tls
        self._question_timeout = question_timeout
        self._opened: Leading | None = None

    @classmethod
    def from_env(cls, **overrides: Unpack[AdminOptions]) -> Self:
        """Create a client with the options of ``NSQ_HA_*`` variables and of the TOML file of ``NSQ_HA_CONFIG``.

        They are those that clients have, too: ``lookupd`` and ``lookupd_tls``.

        Args:
            **overrides: Arguments that win over both.

        Raises:
            ConfigError: A name or a value is wrong, or no address is given. The error names the variable, or the key
                and the file.
        """
        return cls(**admin_from_env(overrides))

    async def __aenter__(self) -> Self:
        self._opened = Leading(self._urls, timeout=self._question_timeout, tls=self._lookupd_tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replicas: int = 1,
        *,
        ordered: bool = False,
        multi_part: bool | None = None,
        extended: bool = False,
        retention_days: int | None = None,
        sync_every: int | None = None,
        disable_channel_auto_create: bool = False,
        timeout: float = 150.0,
    ) -> TopicView:
        """Create a topic and wait until it can be used.

        This usually takes 0.3 to 1.5 s, and up to two minutes right after another
        topic was created. Creating a topic again with the same options succeeds.

        A plain cluster gets the topic at every nsqlookupd; nsqds create it at the first publish. There, options
        other than the defaults raise :class:`ConfigError`.

        Args:
            topic: Its name.
            partitions: 1..255.
            replicas: Copies of each partition, 1..5. Failover without a pause in publishing needs 3.
            ordered: For ordered consumers only; several partitions may share a node.
            multi_part: Several partitions may share a node. None allows it if there are too few nodes.
            extended: Messages may have headers.
            retention_days: Days for which messages are kept. None uses the server's default.
            sync_every: Messages after which the disk is synced. None uses the server's default.
            disable_channel_auto_create: Channels must be created with :meth:`create_channel`.
            timeout: Seconds for the whole call.

        Returns:
            A view of the topic in which every partition has a leader. On a plain cluster, a view with the nsqds
            that can be published to.

        Raises:
            ConfigError: A value is out of range, the topic exists with other settings, or an option needs the
                partitioned server.
        """
        check_topic(topic)
        _in_range("partitions", partitions, MAX_PARTITIONS)
        _in_range("replicas", replicas, MAX_REPLICAS)
        options = {
            "partitions": partitions,
            "replicas": replicas,
            "ordered": ordered,
            "multi_part": multi_part,
            "extended": extended,
            "retention_days": retention_days,
            "sync_every": sync_every,
            "disable_channel_auto_create": disable_channel_auto_create,
        }
        async with Bounded(f"creating topic {topic}", timeout) as call:
            if multi_part is None:
                multi_part = not ordered and len(await self.nodes()) < partitions * replicas
            if await self._leading.is_plain(topic, call):
                plain.check_options(options)
                return await plain.create_topic(self._leading, topic, call)
            params = {
                "topic": topic,
                "partition_num": str(partitions),
                "replicator": str(replicas),
                "orderedmulti": _word(ordered),
                "multipart": _word(multi_part),
                "extend": _word(extended),
                "disable_channel_auto_create": _word(disable_channel_auto_create),
            }
            if retention_days is not None:
                params["retention"] = str(retention_days)
            if sync_every is not None:
                params["syncdisk"] = str(sync_every)
            try:
                await self._leading.change("/topic/create", params, call)
            except ServerError as error:
                if "already exist" not in str(error):
                    raise
                wanted = TopicMeta(
                    partition_num=partitions,
                    replica=replicas,
                    extend_support=extended,
                    ordered=ordered,
                    multi_part=multi_part,
                    disable_channel_auto_create=disable_channel_auto_create,
                )
                raise ConfigError(
                    f"topic {topic!r} already exists with other settings: {await self._differences(topic, wanted)}."
                    f" Use another name, give the settings that it has, or delete it first"
                ) from error
            return await until_usable(self._leading, topic, partitions, call)

    async def delete_topic(self, topic: str, *, timeout: float = 30.0) -> None:
        """Delete a topic with all its messages and wait until no nsqlookupd lists it.

        On a plain cluster, stop its producers and consumers first: they would create it again.

        Raises:
            TopicNotFoundError: The topic does not exist.
        """
        async with Bounded(f"deleting topic {check_topic(topic)}", timeout) as call:
            if await self._leading.is_plain(topic, call):
                await plain.delete_topic(self._leading, topic, call)
                return
            await self._leading.change("/topic/delete", {"topic": topic, "partition": "**"}, call, done="key not found")
            while True:
                view = await self._leading.view(topic, "r", call)
                if not view.exists:
                    return
                await asyncio.sleep(PAUSE)

    async def expand(self, topic: str, partitions: int, *, timeout: float = 150.0) -> TopicView:
        """Add partitions to a topic and wait until each one's leader serves it.

        This usually takes up to 5 s. If the cluster skips its check of the new partitions, this call asks for
        another check; it can then take up to two minutes.

        After that, keys go to other partitions. A new partition has no channel until a consumer subscribes;
        on an ordinary topic, that consumer does not get earlier messages of the partition.

        Args:
            topic: The topic.
            partitions: The new total number, 1..255.
            timeout: Seconds for the whole call.

        Returns:
            A view of the topic with the new number.

        Raises:
            ConfigError: The number is out of range, or the cluster is a plain one.
        """
        _in_range("partitions", partitions, MAX_PARTITIONS)
        async with Bounded(f"expanding topic {check_topic(topic)}", timeout) as call:
            if await self._leading.is_plain(topic, call):
                raise plain.no_partitions(topic)
            params = {"topic": topic, "partition_num": str(partitions)}
            await self._leading.change("/topic/partition/expand", params, call)
            # By default nsqlookupd hides a new partition without channel from publishers.
            return await until_usable(self._leading, topic, partitions, call, needs_channels=False)

    async def create_channel(self, topic: str, channel: str, *, timeout: float = 10.0) -> None:
        """Create a channel on every partition, or on every nsqd that has a plain topic.

        An existing channel is not changed. A plain nsqd that gets the topic later creates the channel, too.

        On a topic with ``disable_channel_auto_create``, register the channel at the
        nsqlookupd; the nsqds learn of it some seconds later.

        Raises:
            TopicNotFoundError: The topic does not exist.
            NoLeaderError: A partition has no leader now; other partitions may already have the channel.
        """
        async with Bounded(f"creating channel {check_channel(channel)} of {check_topic(topic)}", timeout) as call:
            view = await self._leading.existing(topic)
            if view.is_plain:
                await plain.create_channel(self._leading, view, channel)
                return
            if view.meta is not None and view.meta.disable_channel_auto_create:
                params = {"topic": topic, "channel": channel}
                await self._leading.change("/channel/create", params, call, known="already registered")
                return
            if not view.complete:
                raise unled(view, view.partition_num)
            made = await asyncio.gather(
                *(
                    self._leading.nsqd(node).create_channel(topic, partition, channel)
                    for partition, node in view.publishable.items()
                ),
                return_exceptions=True,
            )
            for outcome in made:
                if outcome is not None:
                    raise outcome

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

    async def describe(self, topic: str, *, timeout: float = 5.0) -> TopicDescription:
        """Return settings, leaders, replicas, channels and depths of a topic; of a plain one, nsqds instead of leaders.

        Only the nsqlookupds must answer; ``stats`` is None for nsqds that do not.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd answered.
        """
        async with Bounded(f"describing topic {check_topic(topic)}", timeout):
            readable = await self._leading.existing(topic)
            if readable.is_plain:
                return await plain.describe(self._leading, readable)
            writable = await self._leading.view(topic, "w")
            partitions = await asyncio.gather(
                *(self._describe(topic, number, readable, writable) for number in range(readable.partition_num))
            )
            return TopicDescription(readable, tuple(partitions), writable.note)

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, by name; of a plain cluster, those of all nsqlookupds that answer.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        return plain.merge_topics(await self._leading.collect(lambda client: client.topics()))

    async def nodes(self) -> tuple[NodeInfo, ...]:
        """Return the nsqds of the cluster; of a plain one, those that any nsqlookupd lists.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        return plain.merge_nodes(await self._leading.collect(lambda client: client.nodes()))

    async def _differences(self, topic: str, wanted: TopicMeta) -> str:
        """Return the settings in which a topic differs from ``wanted``, as far as the nsqlookupds show them."""
        try:
            meta = (await self._leading.existing(topic)).meta
        except NsqError as error:
            return f"they cannot be compared now ({error})"
        found = (
            []
            if meta is None
            else [
                f"{name} is {present}, not {asked}"
                for field, name in _SETTINGS.items()
                if (present := getattr(meta, field)) != (asked := getattr(wanted, field))
            ]
        )
        return "; ".join(found) or "retention_days or sync_every differs, which nsqlookupd does not show"

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

    @property
    def _leading(self) -> Leading:
        if self._opened is None:
            raise ClosedError("the AdminClient is not open: use it as `async with AdminClient(...)`")
        return self._opened


def _in_range(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} must be 1..{most}, not {value!r}")


def _word(flag: bool) -> str:
    return "true" if flag else "false"
