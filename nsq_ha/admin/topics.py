"""Create, change, list and delete topics of either kind of cluster.

``plain`` has the changes of plain clusters, and ``client`` the promises that all calls keep.

Source: server protocol 11; server failures 2, 3.6, 3.7, 3.8.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

from nsq_ha.admin import plain
from nsq_ha.admin.bounded import PAUSE, Bounded
from nsq_ha.admin.description import PartitionStats
from nsq_ha.admin.leading import until_usable
from nsq_ha.admin.nsqd_http import TopicAction
from nsq_ha.admin.opened import AdminBase
from nsq_ha.admin.spread import Spread
from nsq_ha.engine.answers import TopicInfo
from nsq_ha.engine.new_partitions import NewPartitions
from nsq_ha.errors import ConfigError, NsqError, ServerError, TopicNotFoundError
from nsq_ha.options.checks import MAX_PARTITIONS, check_topic, shown
from nsq_ha.policy.topology import TopicMeta, TopicView

_logger = logging.getLogger("nsq_ha.admin")

MAX_REPLICAS: Final = 5
"""Maximum number of replicas of a partition."""
USUAL_REPLICAS: Final = 3
"""Number of replicas that lets writes continue after the loss of a node."""

_Shows = Callable[[PartitionStats | None, PartitionStats | None], bool]

_OF_PLAIN: Final[Mapping[TopicAction, tuple[str, _Shows | None]]] = {
    "pause": ("pausing", lambda now, _: now is None or now.paused),
    "unpause": ("unpausing", lambda now, _: now is None or not now.paused),
    "empty": ("emptying", None),
}
"""The changes of plain topics: what is done, and whether an nsqd shows it by what it says now and said before."""


class _Setting(NamedTuple):
    """A setting.

    Attributes:
        wire: Its name in a request.
        meta: Its name in a lookup's meta; empty if nsqlookupd does not show it.
        default: Its default, the only value on a plain cluster.
        lacks: What plain nsqd does instead.
        least: The smallest number that the server accepts.
        most: The largest one.
    """

    wire: str
    meta: str
    default: object
    lacks: str
    least: int = 0
    most: int = 0


_NO_AUTO: Final = "disable_channel_auto_create"
_SETTINGS: Final[Mapping[str, _Setting]] = {
    "partitions": _Setting("partition_num", "partition_num", 1, "has no partitions", 1, MAX_PARTITIONS),
    "replicas": _Setting("replicator", "replica", 1, "keeps one copy of each message", 1, MAX_REPLICAS),
    "ordered": _Setting("orderedmulti", "ordered", False, "keeps no order"),
    "extended": _Setting("extend", "extend_support", False, "has no headers"),
    "multi_part": _Setting("multipart", "multi_part", None, "has no partitions"),
    "retention_days": _Setting("retention", "", None, "keeps no finished messages", 0, 60),
    "sync_every": _Setting("syncdisk", "", None, "has it as an option of its own, -sync-every", 0, 4000),
    _NO_AUTO: _Setting(_NO_AUTO, _NO_AUTO, False, "creates every channel that a consumer names"),
}
"""The settings of a topic, by the arguments of :meth:`AdminClient.create_topic`."""


class TopicAdmin(AdminBase):
    """The calls that concern whole topics."""

    async def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replicas: int | None = None,
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
        topic was created. Creating a topic again with the same options succeeds. If it differs only in what nsqlookupd
        does not show, or in what None stands for, it keeps its settings, and a warning is logged.

        A plain cluster gets the topic at every nsqlookupd; nsqds create it at the first publish. There, options
        other than the defaults raise :class:`ConfigError`.

        Args:
            topic: Its name.
            partitions: 1..255.
            replicas: Copies of each partition, 1..5. None takes 3, which fail-over without a pause in publishing
                needs, or the number of nsqds if there are fewer.
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
        _in_range("partitions", partitions)
        if replicas is not None:
            _in_range("replicas", replicas)
        options: dict[str, object] = {
            "partitions": partitions,
            "replicas": replicas,
            "ordered": bool(ordered),
            "multi_part": multi_part,
            "extended": bool(extended),
            "retention_days": retention_days,
            "sync_every": sync_every,
            "disable_channel_auto_create": bool(disable_channel_auto_create),
        }
        async with Bounded(f"creating topic {topic}", timeout) as call:
            if await self._leading.is_plain(topic, call):
                _check_plain(options | {"replicas": replicas or 1})
                for refused in await plain.tell_lookupds(self._leading, "/topic/create", {"topic": topic}):
                    raise refused
                return await self._leading.view(topic, "w", call)
            chosen: dict[str, object] = {}
            if multi_part is None or replicas is None:
                nodes = len(await self._leading.nodes(call))
                copies = replicas or max(1, min(USUAL_REPLICAS, nodes))
                chosen = {"replicas": copies, "multi_part": not ordered and nodes < partitions * copies}
            wanted = {name: chosen.get(name) if value is None else value for name, value in options.items()}
            try:
                await self._leading.change("/topic/create", {"topic": topic, **_params(wanted)}, call)
            except ServerError as error:
                if "already exist" not in str(error):
                    raise
                if differences := await self._differences(topic, options):
                    raise ConfigError(
                        f"topic {topic!r} already exists with other settings: {differences}."
                        f" Use another name, give the settings that it has, or delete it first"
                    ) from error
                _logger.warning(
                    "topic %s already exists and keeps its settings: they differ in defaults that depend on the cluster"
                    " (replicas, multi_part) or in what nsqlookupd does not show (retention_days, sync_every)",
                    topic,
                )
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
                if not (await self._leading.view(topic, "r", call)).exists:
                    return
                await asyncio.sleep(PAUSE)

    async def expand(self, topic: str, partitions: int, *, timeout: float = 150.0) -> TopicView:
        """Add partitions to a topic and wait until each one's leader serves it.

        This usually takes up to 5 s. If the cluster skips its check of the new partitions, this call asks for
        another check; it can then take up to two minutes.

        After that, keys go to other partitions. The new partitions get the channels of the others, without ephemeral
        ones. If an nsqd's HTTP does not allow that, this logs a warning; then consumers create them when they
        subscribe, and do not get what was published there before.

        Args:
            topic: The topic.
            partitions: The new total number, 1..255.
            timeout: Seconds for the whole call.

        Returns:
            A view of the topic with the new number.

        Raises:
            ConfigError: The number is out of range, or the cluster is a plain one.
        """
        _in_range("partitions", partitions)
        async with Bounded(f"expanding topic {check_topic(topic)}", timeout) as call:
            if await self._leading.is_plain(topic, call):
                raise ConfigError(
                    f"topic {topic!r} cannot get partitions: plain nsqd has none. To use another nsqd for it, create"
                    f" the topic there (POST /topic/create?topic={topic} at its HTTP port)"
                )
            before = await self._leading.view(topic, "r", call)
            params = {"topic": topic, "partition_num": str(partitions)}
            await self._leading.change("/topic/partition/expand", params, call)
            # By default nsqlookupd hides a new partition without channel from publishers.
            view = await until_usable(self._leading, topic, partitions, call, needs_channels=False)
            if view.channels and view.meta is not None and view.meta.disable_channel_auto_create:
                await self._register_again(topic, call)
            first, servers, nsqd = before.partition_num or partitions, self._leading.servers, self._leading.nsqd
            new_partitions = NewPartitions(
                topic, servers, first=first, request=lambda node, *what: nsqd(node).request(*what)
            )
            try:
                while (error := await new_partitions.complete(view)) is not None:
                    call.last = error
                    await asyncio.sleep(PAUSE)
            finally:
                await new_partitions.aclose()
            return view

    async def _register_again(self, topic: str, call: Bounded) -> None:
        """Have the server register the topic's channels for its new partitions, too.

        It does not when it adds partitions, and refuses to register a channel again. But each registration covers all
        channels and all partitions.

        Source: youzan/nsq ``consistence/nsqlookup_coord_api.go`` (UpdateRegisteredChannel).
        """
        params = {"topic": topic, "channel": f"expanded-{secrets.token_hex(8)}"}
        await self._leading.change("/channel/create", params, call, known="already registered")
        await self._leading.change("/channel/delete", params, call, done="not registered")

    async def update_topic(
        self,
        topic: str,
        *,
        replicas: int | None = None,
        retention_days: int | None = None,
        sync_every: int | None = None,
        extended: Literal[True] | None = None,
        disable_channel_auto_create: bool | None = None,
        timeout: float = 60.0,
    ) -> TopicView:
        """Change settings of a topic; what is not given stays. Wait until the nsqlookupds and the leaders show it.

        The cluster adds and removes replicas after that, which may take minutes: a description lists those in sync.
        nsqlookupd does not show ``retention_days`` and ``sync_every``; for these, this returns as soon as it has
        confirmed them.

        Args:
            topic: The topic.
            replicas: Copies of each partition, 1..5.
            retention_days: Days for which messages are kept; 0 uses the server's default.
            sync_every: Messages after which the disk is synced; 0 uses the server's default.
            extended: Let messages have headers. It cannot be taken back.
            disable_channel_auto_create: Channels must be created with :meth:`create_channel`. The server deletes all
                channels that exist, since none of them is registered.
            timeout: Seconds for the whole call.

        Returns:
            A view of the topic with the new settings.

        Raises:
            ConfigError: A value is out of range, nothing is to be changed, or the cluster is a plain one.
            TopicNotFoundError: The topic does not exist.
        """
        check_topic(topic)
        if extended not in (None, True):
            raise ConfigError("extended must be True: headers of a topic cannot be taken back")
        numbers = {"replicas": replicas, "retention_days": retention_days, "sync_every": sync_every}
        for name, number in numbers.items():
            if number is not None:
                _in_range(name, number)
        wanted = numbers | {"extended": extended, "disable_channel_auto_create": disable_channel_auto_create}
        params = _params(wanted)
        if not params:
            raise ConfigError(f"give a setting of topic {topic!r} to change")
        if extended:
            params["upgradeext"] = params.pop(_SETTINGS["extended"].wire)
        async with Bounded(f"updating topic {topic}", timeout) as call:
            if await self._leading.is_plain(topic, call):
                raise ConfigError(f"topic {topic!r} has no settings: they need the partitioned server")
            await self._leading.change("/topic/meta/update", {"topic": topic, **params}, call)
            while True:
                view = await self._leading.view(topic, "r", call)
                if not view.exists:
                    raise TopicNotFoundError(f"topic {topic!r} does not exist")
                behind = [
                    name
                    for name, present in settings_of(view.meta).items()
                    if wanted.get(name, present) not in (None, present)
                ]
                if not behind and (not extended or await self._leading.is_shown(view, "extended")):
                    return view
                call.last = NsqError(
                    f"the nsqlookupds do not show the new {', '.join(behind)}"
                    if behind
                    else "a leader does not show the new setting, or does not answer"
                )
                await asyncio.sleep(PAUSE)

    async def pause_topic(self, topic: str, *, timeout: float = 30.0) -> None:
        """Hold the messages of a plain topic back from its channels, until :meth:`unpause_topic`.

        Channels still deliver what they have. Publishing goes on.

        Raises:
            ConfigError: The cluster is a partitioned one; pause the channels there.
            TopicNotFoundError: The topic does not exist, or no nsqd has it.
            ChangeIncompleteError: Not every nsqd paused it in time; the error names those that did not.
        """
        await self._change_plain("pause", topic, timeout)

    async def unpause_topic(self, topic: str, *, timeout: float = 30.0) -> None:
        """Let the messages of a paused plain topic go to its channels.

        Raises:
            ConfigError: The cluster is a partitioned one.
            TopicNotFoundError: The topic does not exist, or no nsqd has it.
            ChangeIncompleteError: It may still be paused at an nsqd; the error names it.
        """
        await self._change_plain("unpause", topic, timeout)

    async def empty_topic(self, topic: str, *, timeout: float = 30.0) -> None:
        """Drop the messages of a plain topic that are in no channel yet, since it is paused or has no channel.

        Raises:
            ConfigError: The cluster is a partitioned one; empty the channels there.
            TopicNotFoundError: The topic does not exist, or no nsqd has it.
            ChangeIncompleteError: An nsqd did not confirm it in time; the error names it.
        """
        await self._change_plain("empty", topic, timeout)

    async def _change_plain(self, action: TopicAction, topic: str, timeout: float) -> None:
        doing, shows = _OF_PLAIN[action]
        async with Bounded(f"{doing} topic {check_topic(topic)}", timeout) as call:
            if not (await self._leading.view(topic, "r", call)).is_plain:
                await self._leading.existing(topic)
                raise ConfigError(f"topic {topic!r} cannot {action}: on the partitioned server, {action} its channels")
            spread = Spread(self._leading, topic, None, call, lambda entry: entry)
            await spread.run(lambda nsqd, _: nsqd.change_topic(action, topic), shows, absent="fine")

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Return all topics, by name; of a plain cluster, those of all nsqlookupds that answer.

        Raises:
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        lists = await self._leading.collect(lambda client: client.topics())
        found = {info.name: info for listed in lists for info in listed}
        return tuple(found[name] for name in sorted(found))

    async def _differences(self, topic: str, asked: Mapping[str, object]) -> str:
        """Return in which of the settings that were asked for a topic differs; empty if the nsqlookupds show none."""
        try:
            meta = (await self._leading.existing(topic)).meta
        except NsqError as error:
            return f"they cannot be compared now ({error})"
        if meta is None:
            return "they cannot be compared now (nsqlookupd shows none)"
        return "; ".join(
            f"{name} is {present}, not {asked[name]}"
            for name, present in settings_of(meta).items()
            if asked[name] not in (None, present)
        )


def _params(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the query for the settings that are given."""
    given = ((_SETTINGS[name].wire, value) for name, value in settings.items() if value is not None)
    return {wire: str(value).lower() for wire, value in given}


def settings_of(meta: TopicMeta | None) -> dict[str, Any]:
    """Return the settings that nsqlookupd shows; None for those that it does not."""
    return {name: getattr(meta, setting.meta, None) for name, setting in _SETTINGS.items() if setting.meta}


def _check_plain(options: Mapping[str, object]) -> None:
    """Reject options of a new topic that need the partitioned server."""
    for name, value in options.items():
        if value != _SETTINGS[name].default:
            raise ConfigError(
                f"remove {name}=: it needs the partitioned server, and plain nsqd {_SETTINGS[name].lacks}"
            )


def _in_range(name: str, value: object) -> None:
    least, most = _SETTINGS[name][-2:]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ConfigError(f"{name} must be {least}..{most}, not {shown(value)}")
