"""Make sure that a partition has the channels of the topic's other partitions before anything is stored there.

``policy.growth`` says which channels are missing. This module asks the servers, and creates the channels over nsqd's
HTTP. Producers and consumers call it before they use a partition for the first time, ``admin`` when it has added
partitions.

Asking costs a healthy topic one small request to an nsqlookupd for each partition, or one to each leader if there are
many partitions. It runs while the client connects. Topics with one partition or without lasting channels cost nothing.

The invariant: whatever the servers do, a check holds up its caller for a limited time, once, and fails no call.

Source: server failures 3.8; server protocol 12.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from nsq_ha.base.tasks import Tasks
from nsq_ha.base.unexpected import without_frames
from nsq_ha.engine.body import decode_json
from nsq_ha.engine.http import ask
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.errors import (
    ConnectError,
    NoLeaderError,
    NsqError,
    RemoteProtocolError,
    TransportError,
    few,
    server_error,
)
from nsq_ha.events import ChannelsMissing
from nsq_ha.options.checks import is_valid_name
from nsq_ha.policy.growth import LedPartition, is_new, lacking, lasting
from nsq_ha.policy.lookup_pace import LOOKUPS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from nsq_ha.engine.servers import Servers
    from nsq_ha.policy.topology import Node, TopicView

PATIENCE: Final = 3.0
"""Seconds that a publish or a subscription waits for a check, and the check for one answer of an nsqd: the leader
informs its replicas of a new channel, which takes 0.2 s if it is busy with hundreds. Then it goes on. Only a partition
that lacks channels can need as much."""

LEADS_WITHIN: Final = 60.0
"""Seconds from the first check for which an nsqd may not lead a partition that nsqlookupd says it leads. The real
cluster takes up to that after an expansion."""

_FEW: Final = LOOKUPS_AT_ONCE
"""Up to so many partitions, each is looked up at an nsqlookupd: 2 to 3 ms of our CPU each, over a connection that is
open, and it works where nsqd's HTTP cannot be reached. More partitions than that have fewer leaders."""

_AT_ONCE: Final = LOOKUPS_AT_ONCE
"""Requests to nsqds at the same time. More take longer on the real server: 254 channels 6.3 s with 8, 12 s with 64."""

_PARTITION: Final = re.compile(r"[0-9]{1,4}", re.ASCII)

log: logging.Logger = logging.getLogger("nsq_ha.discovery")


class _HeldChannel(msgspec.Struct, gc=False):
    channel_name: str
    paused: bool = False


class _HeldPartition(msgspec.Struct, gc=False):
    topic_name: str
    topic_partition: str = ""
    is_leader: bool = False
    message_count: int = 0
    channels: list[_HeldChannel] | None = None


class _Stats(msgspec.Struct):
    topics: list[_HeldPartition] | None = None


_Held = Mapping[int, LedPartition] | NsqError
"""What a node has of a topic, or why it gave no answer."""


class Check(NamedTuple):
    """The check of one partition.

    Attributes:
        first_at: When it was first checked.
        began_at: When this check began.
        task: Ends with the check. Returns why it must be repeated, None if it need not be.
    """

    first_at: float
    began_at: float
    task: asyncio.Task[NoLeaderError | None]


class NewPartitions:
    """Gives new partitions of a topic the channels of the others, for one client.

    Args:
        topic: The topic.
        servers: The nsqlookupds.
        observer: The client's.
        channel: The consumer's channel, which it creates itself. None for others.
        first: Number of partitions that are not new. None for those that the first check finds.
        request: Sends a request to an nsqd: takes the node, the method, the path and the query, and returns the
            content. None uses plain HTTP.
    """

    def __init__(
        self,
        topic: str,
        servers: Servers,
        observer: Observer = SILENT,
        *,
        channel: str | None = None,
        first: int | None = None,
        request: Callable[[Node, str, str, dict[str, str]], Awaitable[bytes]] | None = None,
    ) -> None:
        self._topic = topic
        self._servers = servers
        self._observer = observer
        self._channel = channel
        self._now = asyncio.get_running_loop().time
        self._first = first
        self._request = request or self._over_http
        self._tasks = Tasks(log)
        self._settled: set[int] = set()
        self._checks: dict[int, Check] = {}
        self._asked: dict[Node, tuple[float, asyncio.Task[_Held]]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._has_warned = False

    def check(self, partition: int, node: Node, view: TopicView) -> Check | None:
        """Begin to give ``partition`` the channels that it lacks, if it is new.

        Args:
            partition: The partition.
            node: Its leader, according to ``view``.
            view: The latest view of the topic.

        Returns:
            What :meth:`passed` waits for. None if there is nothing to do.
        """
        if self._first is None:
            self._first = view.partition_num
        if partition in self._settled:
            return None
        if not self._wanted(view) or max(view.partition_num, len(view.leaders)) < 2:
            self._settled.add(partition)
            return None
        before, now = self._checks.get(partition), self._now()
        if before is not None and not before.task.done():
            return before
        first_at = now if before is None else before.first_at
        work = self._run(first_at, partition, node, view)
        check = Check(first_at, now, self._tasks.start(work, f"channels of {self._topic}-{partition}"))
        self._checks[partition] = check
        return check

    async def complete(self, view: TopicView) -> NsqError | None:
        """Check all partitions of a view; return why this must be repeated. None if it need not be."""
        checks = [self.check(partition, node, view) for partition, node in view.publishable.items()]
        errors = await asyncio.gather(*(check.task for check in checks if check is not None))
        return next((error for error in errors if error is not None), None)

    async def passed(self, check: Check) -> NoLeaderError | None:
        """Wait for a check, but only until :data:`PATIENCE` seconds after its beginning.

        Returns:
            None to go on. If the node does not lead the partition yet, look up the leader again, and repeat the check.
        """
        await asyncio.wait({check.task}, timeout=max(0.0, check.began_at + PATIENCE - self._now()))
        return check.task.result() if check.task.done() and not check.task.cancelled() else None

    async def held(self, node: Node, *, is_fresh: bool = False) -> Mapping[int, LedPartition]:
        """Return what a node has of the topic, for the partitions that it leads; those who ask meanwhile share it.

        Args:
            node: The node.
            is_fresh: Do not use an answer that came before; else one of the last :data:`PATIENCE` seconds will do.

        Raises:
            NsqError: The node did not answer.
        """
        began_at, task = self._asked.get(node, (0.0, None))
        if task is None or (task.done() and (is_fresh or self._now() - began_at >= PATIENCE)):
            task = self._tasks.start(self._ask_held(node), f"channels {node.address}")
            self._asked[node] = self._now(), task
        await asyncio.wait({task})
        found = ConnectError("the request was cancelled") if task.cancelled() else task.result()
        if isinstance(found, NsqError):
            raise TransportError(str(found))
        return found

    async def create(self, partition: int, node: Node, channel: str, *, ordered: bool, paused: bool = False) -> None:
        """Create a channel at the end of a partition; do nothing if it exists.

        Args:
            partition: The partition.
            node: Its leader.
            channel: The channel.
            ordered: Deliver in order, and :meth:`report` the channel.
            paused: Deliver nothing until an operator unpauses the channel.

        Raises:
            NsqError: The node refused it, or did not answer.
        """
        await self._change("create", partition, node, channel)
        if ordered:
            await self._change("setorder", partition, node, channel)
        if ordered or paused:
            await self.report(partition, node, channel, paused=paused)

    async def report(self, partition: int, node: Node, channel: str, *, paused: bool = False) -> None:
        """Have the leader make an ordered channel known to the replicas.

        It does so by itself only when the channel's position or state is set, or its first message is finished. If the
        partition gets another leader before, the channel is gone: the next subscription creates it at the end, and the
        messages in between are never delivered. So this sets the channel's state.

        Args:
            partition: The partition.
            node: Its leader.
            channel: The channel.
            paused: Its state.

        Raises:
            NsqError: The node refused it, or did not answer.
        """
        await self._change("pause" if paused else "unpause", partition, node, channel)

    def forget(self) -> None:
        """Forget everything, the outcome of running checks, too: the topic was deleted."""
        self.cancel()
        self._first = None
        self._settled.clear()
        self._checks.clear()
        self._asked.clear()

    def cancel(self) -> None:
        """End all checks soon."""
        self._tasks.cancel()

    async def aclose(self) -> None:
        """End all checks."""
        await self._tasks.close()

    async def _run(self, first_at: float, partition: int, node: Node, view: TopicView) -> NoLeaderError | None:
        try:
            await self._complete(first_at, partition, node, view)
        except NoLeaderError as error:
            return without_frames(error)
        self._settled.add(partition)
        return None

    async def _complete(self, first_at: float, partition: int, node: Node, view: TopicView) -> None:
        """Create the channels that a partition lacks.

        Raises:
            NoLeaderError: The node does not lead it yet.
        """
        listed = self._wanted(view)
        there = await self._servers.channels(self._topic, partition) if view.partition_num <= _FEW else None
        if there is not None and listed <= there:
            return
        try:
            here = (await self.held(node, is_fresh=True)).get(partition)
        except NsqError as error:
            if there is None:
                there = await self._servers.channels(self._topic, partition)
            self._warn(partition, listed - (there or frozenset()), error, is_certain=there is not None)
            return
        if here is None:
            self._warn(partition, listed, self._not_yet(first_at, partition, node), is_certain=False)
        elif not listed <= here.paused.keys() and is_new(partition, here, self._first or 0):
            await self._copy(first_at, partition, node, await self._missing(partition, here, view), view)

    async def _missing(self, partition: int, here: LedPartition, view: TopicView) -> Mapping[str, bool]:
        """Return the channels that the leaders of the other partitions have, and whether they are paused."""
        is_whole, others = len(view.leaders) >= view.partition_num, list[LedPartition]()
        for leader in dict.fromkeys(node for number, node in view.leaders.items() if number != partition):
            try:
                held = await self.held(leader, is_fresh=True)
            except NsqError:
                is_whole = False
            else:
                others += [each for number, each in held.items() if number != partition]
        if not is_whole:
            others.append(LedPartition(1, dict.fromkeys(view.channels, False)))
        return {name: paused for name, paused in lacking(here, others).items() if name != self._channel}

    async def _copy(
        self, first_at: float, partition: int, node: Node, missing: Mapping[str, bool], view: TopicView
    ) -> None:
        ordered = view.meta is not None and view.meta.ordered
        created: list[str] = []
        try:
            for name, paused in missing.items():
                await self.create(partition, node, name, ordered=ordered, paused=paused)
                created.append(name)
        except NsqError as error:
            reason = self._not_yet(first_at, partition, node) if error.stale_leader else error
            self._warn(partition, missing.keys() - set(created), reason, is_certain=True)
        if created:
            log.info(
                "%s-%d gets the channels of the other partitions: %s",
                self._topic,
                partition,
                few(", ", created),
                extra={"topic": self._topic, "partition": partition},
            )

    def _wanted(self, view: TopicView) -> frozenset[str]:
        """Return the channels that each partition should have, as far as the nsqlookupds list them."""
        return lasting(name for name in view.channels if name != self._channel)

    def _not_yet(self, first_at: float, partition: int, node: Node) -> NoLeaderError:
        """Return the error for a node that does not lead a partition for too long.

        Raises:
            NoLeaderError: It may lead it soon.
        """
        error = NoLeaderError(f"nsqd {node.address} does not lead {self._topic}-{partition} yet")
        if self._now() - first_at < LEADS_WITHIN:
            raise error
        return error

    def _warn(self, partition: int, missing: Collection[str], reason: NsqError, *, is_certain: bool) -> None:
        if not missing:
            return
        names = tuple(sorted(missing))
        self._observer.event(
            ChannelsMissing(
                topic=self._topic, channel=self._channel, partition=partition, missing=names, reason=str(reason)
            )
        )
        if self._has_warned:
            return
        self._has_warned = True
        log.warning(
            "%s-%d %s channels of the topic's other partitions, which cannot be created (%s): %s. They do not get what"
            " is published there before their consumers subscribe. This is said once for all partitions",
            self._topic,
            partition,
            "lacks" if is_certain else "may lack",
            reason,
            few(", ", names),
            extra={"topic": self._topic, "partition": partition},
        )

    async def _change(self, action: str, partition: int, node: Node, channel: str) -> None:
        params = {"topic": self._topic, "partition": str(partition), "channel": channel}
        if action == "setorder":
            params["order"] = "true"
        await self._ask("POST", node, f"/channel/{action}", params)

    async def _ask_held(self, node: Node) -> _Held:
        params = {"topic": self._topic, "format": "json", "leaderOnly": "true", "needClients": "false"}
        try:
            stats = decode_json(await self._ask("GET", node, "/stats", params), _Stats)
        except NsqError as error:
            return without_frames(error)
        return {
            int(entry.topic_partition): LedPartition(
                entry.message_count,
                {each.channel_name: each.paused for each in entry.channels or () if is_valid_name(each.channel_name)},
            )
            for entry in stats.topics or ()
            if entry.topic_name == self._topic and entry.is_leader and _PARTITION.fullmatch(entry.topic_partition)
        }

    async def _ask(self, method: str, node: Node, path: str, params: dict[str, str]) -> bytes:
        if not node.http_port:
            raise ConnectError(f"nsqlookupd names no HTTP port of nsqd {node.address}")
        async with self._slots:
            return await self._request(node, method, path, params)

    async def _over_http(self, node: Node, method: str, path: str, params: dict[str, str]) -> bytes:
        url = node.http_url + path
        try:
            body = await ask(self._servers.http, method, url, timeout=PATIENCE, params=params)
        except (TransportError, RemoteProtocolError) as error:
            raise type(error)(f"nsqd {node.http_url}: {error}") from error
        if body.status != 200:
            raise server_error((body.message or f"HTTP status {body.status}").encode())
        return body.data
