"""Create, change, list and delete topics of either kind of cluster.

``plain`` has the changes of plain clusters, and ``client`` the promises that all calls keep.

Source: protocol reference 12; failures reference 2, 3.6, 3.7, 3.8.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import Bounded
from nsq_ha.admin.leading import PAUSE, until_usable
from nsq_ha.admin.opened import Opened
from nsq_ha.checks import MAX_PARTITIONS, check_topic
from nsq_ha.errors import ConfigError, NsqError, ServerError
from nsq_ha.policy.topology import TopicMeta

if TYPE_CHECKING:
    from nsq_ha.discovery.answers import TopicInfo
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


class TopicAdmin(Opened):
    """The calls that concern whole topics."""

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
                nodes = plain.merge_nodes(await self._leading.collect(lambda client: client.nodes()))
                multi_part = not ordered and len(nodes) < partitions * replicas
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

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, by name; of a plain cluster, those of all nsqlookupds that answer.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        return plain.merge_topics(await self._leading.collect(lambda client: client.topics()))

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


def _in_range(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} must be 1..{most}, not {value!r}")


def _word(flag: bool) -> str:
    return "true" if flag else "false"
