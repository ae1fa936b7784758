"""Make one change of a channel or topic everywhere: at the leader of each partition, or at each nsqd of a plain topic.

Repeats what fails for a reason that may pass (a leader moves, a node does not answer), and waits until the statistics
of all nsqds show the change. ``channels`` and ``topics`` have the changes, ``bounded`` the time limit and its error.

The invariant: a change goes to every target that can be reached, even if another one fails; then the error names the
targets that do not show it. So a repeated call completes it.

Source: server protocol 12; youzan/nsq and upstream ``internal/clusterinfo/data.go``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

from nsq_ha.admin.bounded import PAUSE, several
from nsq_ha.admin.leading import Leading
from nsq_ha.admin.nsqd_http import NO_CHANNEL, NsqdHttp
from nsq_ha.base.grouping import grouped
from nsq_ha.errors import (
    AuthError,
    BadNameError,
    ChannelNotFoundError,
    InvalidCommandError,
    NoLeaderError,
    NsqError,
    ServerError,
    SubscribeRefusedError,
    TlsRequiredError,
    TopicNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nsq_ha.admin.bounded import Bounded
    from nsq_ha.admin.description import PartitionStats
    from nsq_ha.policy.topology import Node, TopicView

    Apply = Callable[[NsqdHttp, int | None], Awaitable[None]]
    """Makes the change at one nsqd, in a partition; None on a plain nsqd."""

T = TypeVar("T")

Absent = Literal["wanted", "fine", "wrong"]
"""What a target without the channel or topic means: the change creates it, nothing is to be done, or it is an error."""

_LASTING: Final = (AuthError, BadNameError, InvalidCommandError, SubscribeRefusedError, TlsRequiredError)
"""Refusals that a later attempt would get, too."""


_ABSENT: Final = (NO_CHANNEL, "TOPIC_NOT_FOUND")
_NSQD: Final = "nsqd "
_UNKNOWN: Final = object()


class _Target(NamedTuple):
    """Where a channel is.

    Attributes:
        name: The partition, or the nsqd of a plain topic, for errors.
        partition: The partition. None on a plain nsqd.
        node: The leader, or the nsqd.
    """

    name: str
    partition: int | None
    node: Node


def targets_of(view: TopicView) -> tuple[_Target, ...]:
    """Return the targets of a topic, without partitions that have no leader now."""
    if view.is_plain:
        return tuple(_Target(_NSQD + node.address, None, node) for node in view.leaders.values())
    return tuple(_Target(f"partition {number}", number, node) for number, node in sorted(view.publishable.items()))


class Spread(Generic[T]):
    """One change at all its targets.

    Args:
        leading: The cluster.
        topic: The topic.
        channel: The channel. None if the topic is changed.
        call: The time limit; it gets the targets that do not show the change yet.
        pick: Returns what is changed from what an nsqd says of a partition. None if the partition does not have it.
        partitions: Change only these. None changes all. Plain nsqds have none.
    """

    def __init__(
        self,
        leading: Leading,
        topic: str,
        channel: str | None,
        call: Bounded,
        pick: Callable[[PartitionStats], T | None],
        *,
        partitions: Iterable[int] | None = None,
    ) -> None:
        self._leading = leading
        self._topic = topic
        self._channel = channel
        self._call = call
        self._pick = pick
        self._only = None if partitions is None else frozenset(partitions)
        self._applied: dict[str, str] = {}  # the nsqd that confirmed the change, by target
        self._before: dict[str, T | None] = {}
        self._absent: set[str] = set()
        self._is_known = False  # by an nsqlookupd of a plain cluster
        self._refused: list[ServerError] = []
        self._failing: set[str] = set()  # the targets that failed in this round, or do not show the change

    async def run(
        self,
        apply: Apply | None,
        shows: Callable[[T | None, T | None], bool] | None,
        *,
        absent: Absent,
        lookupd_path: str = "",
        waits_for: str = "does not show the change yet",
    ) -> None:
        """Make the change, and wait until every target shows it.

        Args:
            apply: Makes it at one target. None only waits.
            shows: Whether a target shows it: takes what is changed, now and before. None if no statistics show it.
            absent: What a target without the channel or topic means. Unless it is wanted, one target must have it.
            lookupd_path: The route for this change of the nsqlookupds of a plain cluster. Empty if they have none.
            waits_for: What an nsqd does that does not show the change, for the error.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: No target has the channel; or one has not, and that is wrong.
            NoLeaderError: The topic does not have one of the chosen partitions.
            ServerError: A server refuses for good.
        """
        while True:
            view, targets = await self._targets()
            pending = [target for target in targets if target.name not in self._call.done]
            for target in pending:
                self._call.open.setdefault(target.name, f"nsqd {target.node.address} has not answered yet")
            if view.is_plain and lookupd_path:
                await self._tell_lookupds(lookupd_path)
            if apply is not None:
                unknown = [target for target in pending if shows is not None and target.name not in self._before]
                self._before |= {target.name: found for target, found in await self._stats(unknown)}
                await self._each(pending, lambda target: self._apply(target, apply, absent))
            await self._confirm(pending, shows, waits_for)
            if self._refused:
                raise self._refused[0]
            if not self._failing:
                if absent != "wanted":
                    self._check_channel(targets, is_needed=absent == "wrong")
                return
            await asyncio.sleep(PAUSE)

    async def _targets(self) -> tuple[TopicView, tuple[_Target, ...]]:
        """Return the targets that have a leader; record the others as open."""
        view = await self._view()
        targets = targets_of(view)
        if view.is_plain:
            listed = {target.name for target in targets}
            for name in [name for name in self._call.open if name.startswith(_NSQD) and name not in listed]:
                del self._call.open[name]
            return view, targets
        wanted = range(view.partition_num or 1) if self._only is None else sorted(self._only)
        unknown = [number for number in wanted if number >= view.partition_num > 0]
        if unknown:
            raise NoLeaderError(
                f"topic {self._topic!r} has {view.partition_num} partition(s), and none with number {unknown[0]}"
            )
        led = {target.partition for target in targets}
        for name in (f"partition {number}" for number in wanted if number not in led):
            if name not in self._call.done:
                self._fail(name, f"it has no leader now{view.cause}")
        return view, tuple(target for target in targets if target.partition in wanted)

    async def _view(self) -> TopicView:
        """Return the view; wait while a silent nsqlookupd of a plain cluster may know the topic.

        Raises:
            TopicNotFoundError: The topic does not exist.
        """
        while True:
            self._failing.clear()
            view = await self._leading.view(self._topic, "r", self._call)
            if view.is_plain:
                view, silent = await self._leading.whole_view(self._topic)
                for url in self._leading.servers.urls:
                    self._call.open.pop(f"nsqlookupd {url}", None)
                for url, reason in silent.items():
                    self._fail(f"nsqlookupd {url}", reason)
            if view.exists:
                return view
            if not self._failing:
                raise TopicNotFoundError(f"topic {self._topic!r} does not exist")
            await asyncio.sleep(PAUSE)

    async def _tell_lookupds(self, path: str) -> None:
        """Send the change to every nsqlookupd of a plain cluster that has not confirmed it."""
        params = {"topic": self._topic} | ({} if self._channel is None else {"channel": self._channel})
        urls = [url for url in self._leading.servers.urls if f"nsqlookupd {url}" not in self._call.done]
        for url, text in await self._leading.tell(urls, path, params):
            if text and not any(word in text for word in _ABSENT):
                self._fail(f"nsqlookupd {url}", text)
            else:
                self._finish(f"nsqlookupd {url}")
                self._is_known = self._is_known or not text

    async def _each(self, targets: Iterable[_Target], act: Callable[[_Target], Awaitable[None]]) -> None:
        async def limited(target: _Target) -> None:
            try:
                await act(target)
            except _LASTING as error:
                self._refused.append(self._located(error, target))
            except NsqError as error:
                self._fail(target.name, _reason(error, target.node))

        await several(limited, targets)

    async def _apply(self, target: _Target, apply: Apply, absent: Absent) -> None:
        name = target.name
        if self._applied.get(name) == target.node.address or name in self._failing:
            return
        if absent != "wanted" and self._before.get(name, _UNKNOWN) is None:
            self._leave(name)
            return
        try:
            await apply(self._leading.nsqd(target.node), target.partition)
        except ServerError as error:
            if not any(text in str(error) for text in _ABSENT):
                raise
            if absent == "fine" and self._before.get(name) is not None:
                self._finish(name)  # an earlier request, whose answer was lost, has deleted it
            else:
                self._leave(name)
        else:
            self._applied[name] = target.node.address

    def _leave(self, name: str) -> None:
        """Record that a target does not have the channel."""
        self._absent.add(name)
        self._finish(name)

    def _fail(self, name: str, reason: str) -> None:
        self._failing.add(name)
        self._call.open[name] = reason

    def _finish(self, name: str) -> None:
        self._call.done.add(name)
        self._call.open.pop(name, None)

    async def _confirm(
        self, targets: Iterable[_Target], shows: Callable[[T | None, T | None], bool] | None, waits_for: str
    ) -> None:
        """Record which of these targets show the change."""
        waiting = [target for target in targets if target.name not in self._failing | self._call.done]
        if shows is None:
            for target in waiting:
                self._finish(target.name)
            return
        for target, now in await self._stats(waiting):
            if shows(now, self._before.get(target.name)):
                self._finish(target.name)
            else:
                self._fail(target.name, f"nsqd {target.node.address} {waits_for}")

    async def _stats(self, targets: Iterable[_Target]) -> list[tuple[_Target, T | None]]:
        """Return what is changed at these targets; record those whose nsqd does not answer as open."""
        by_node = grouped((target.node, target) for target in targets)
        found: list[tuple[_Target, T | None]] = []

        async def ask(first: _Target) -> None:
            asked = by_node[first.node]
            try:
                entries = await self._leading.nsqd(first.node).stats(self._topic, channel=self._channel)
            except NsqError as error:
                for target in asked:
                    self._fail(target.name, _reason(error, target.node))
                raise
            for target in asked:
                own = [e for e in entries if e.topic == self._topic and e.partition == (target.partition or 0)]
                picked = self._pick(own[0]) if own else None
                if picked is None and target.partition is not None and not (own and own[0].is_leader):
                    # It may not know the channel.
                    self._fail(target.name, f"nsqd {target.node.address} does not lead it")
                else:
                    found.append((target, picked))

        await self._each([asked[0] for asked in by_node.values()], ask)
        return found

    def _check_channel(self, targets: Iterable[_Target], *, is_needed: bool) -> None:
        absent = sorted(self._absent)
        if not self._is_known and all(target.name in self._absent for target in targets):
            if self._channel is None:
                raise TopicNotFoundError(f"no nsqd has topic {self._topic!r}")
            raise ChannelNotFoundError(f"topic {self._topic!r} has no channel {self._channel!r}")
        if absent and is_needed:
            raise ChannelNotFoundError(
                f"topic {self._topic!r} has no channel {self._channel!r} in {', '.join(absent)}, so it was changed only"
                f" elsewhere: create it with create_channel, and repeat the call"
            )

    def _located(self, error: ServerError, target: _Target) -> ServerError:
        where = f"({self._call.what}: {target.name} at nsqd {target.node.address})"
        return type(error)(error.code, f"{error.detail} {where}".strip())


def _reason(error: NsqError, node: Node) -> str:
    return f"nsqd {node.address}: {error}" if isinstance(error, ServerError) else str(error)  # others name it
