"""Create, list, pause, skip, empty, move and delete channels of either kind of cluster.

``spread`` brings a change to all partitions and nsqds, ``client`` has the promises that all calls keep.

Source: server protocol 12; youzan/nsq ``nsqdserver/http.go``, upstream ``nsqd/http.go``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nsq_ha.admin.bounded import Bounded
from nsq_ha.admin.nsqd_http import EMPTY_LOG, ChannelAction, NsqdHttp
from nsq_ha.admin.opened import AdminBase
from nsq_ha.admin.spread import Spread
from nsq_ha.errors import ChannelNotFoundError, ConfigError, LookupUnavailableError, ServerError, TopicNotFoundError
from nsq_ha.options.checks import check_channel, check_topic
from nsq_ha.options.language import option
from nsq_ha.options.start_from import Start, StartFrom

if TYPE_CHECKING:
    from nsq_ha.admin.description import ChannelStats, PartitionStats
    from nsq_ha.admin.spread import Absent, Apply
    from nsq_ha.policy.topology import TopicView

    Shows = Callable[[ChannelStats | None, ChannelStats | None], bool]
    """Whether a channel shows a change; takes it now, and before."""

_NOT_REGISTERED: Final = "not registered"
_RECREATED: Final = "still has the channel, or has it again: stop its consumers, which create it"


class ChannelAdmin(AdminBase):
    """The calls that concern channels."""

    async def channels(self, topic: str, *, timeout: float = 5.0) -> tuple[str, ...]:
        """Return the channels of a topic, by name; of a plain one, those that any nsqlookupd lists.

        Raises:
            TopicNotFoundError: The topic does not exist.
            LookupUnavailableError: No nsqlookupd gave a usable answer.
        """
        async with Bounded(f"listing the channels of topic {check_topic(topic)}", timeout, changes=False):
            found = await self._listed(topic)
            if not found:
                await self._leading.existing(topic)
            return found

    async def create_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Create a channel on every partition, or on every nsqd that has a plain topic.

        An existing channel is not changed. A plain nsqd that gets the topic later creates the channel, too. On a topic
        with ``disable_channel_auto_create``, this registers the channel, and the nsqds create it.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChangeIncompleteError: Not every partition has the channel in time; the error names those that lack it.
        """
        await self._create_or_delete("create", topic, channel, timeout)

    async def delete_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Delete a channel with all that it has not delivered, and disconnect its consumers.

        Stop its consumers first: they would create it again, at the end of the topic. The messages of other channels
        stay.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: No partition has the channel, so it may be deleted already.
            ChangeIncompleteError: A partition still has the channel, or has it again.
        """
        await self._create_or_delete("delete", topic, channel, timeout)

    async def _create_or_delete(
        self, action: Literal["create", "delete"], topic: str, channel: str, timeout: float
    ) -> None:
        is_wanted, path = action == "create", f"/channel/{action}"
        async with self._bounded("creating" if is_wanted else "deleting", topic, channel, timeout) as call:
            apply: Apply | None = _does(action, topic, channel)
            if _is_registered(await self._view(topic, call)):
                known, done = ("already registered", "") if is_wanted else ("", _NOT_REGISTERED)
                try:
                    params = {"topic": topic, "channel": channel}
                    await self._leading.change(path, params, call, done=done, known=known)
                except ServerError as error:
                    if is_wanted or _NOT_REGISTERED not in str(error):
                        raise
                    raise ChannelNotFoundError(f"topic {topic!r} has no channel {channel!r}") from error
                apply = None
            spread = Spread(self._leading, topic, channel, call, _named(channel))
            await spread.run(
                apply,
                lambda now, _: (now is not None) is is_wanted,
                absent="wanted" if is_wanted else "fine",
                lookupd_path=path,
                waits_for="does not have the channel yet" if is_wanted else _RECREATED,
            )
            await self._until_listed(topic, channel, call, wanted=is_wanted)

    async def pause_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Stop the delivery of a channel, until :meth:`unpause_channel`; its consumers stay connected.

        Messages that were delivered before can still be finished. The servers keep the state over restarts.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel, or some partitions have not.
            ChangeIncompleteError: Not every partition is paused in time; the error names those that are not.
        """
        await self._change("pause", topic, channel, timeout)

    async def unpause_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Deliver a paused channel's messages again; a channel that is not paused stays as it is.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel.
            ChangeIncompleteError: A partition may still be paused; the error names it.
        """
        await self._change("unpause", topic, channel, timeout)

    async def skip_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Drop all messages of a channel, waiting ones and new ones, until :meth:`unskip_channel`.

        Only the partitioned server can skip.

        Raises:
            ConfigError: The cluster is a plain one.
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel, or some partitions have not.
            ChangeIncompleteError: Not every partition skips in time; the error names those that do not.
        """
        await self._change("skip", topic, channel, timeout)

    async def unskip_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Deliver new messages of a skipped channel again.

        Partitions that do not skip the channel stay as they are: there, the server would drop all waiting messages.

        Raises:
            ConfigError: The cluster is a plain one.
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel.
            ChangeIncompleteError: A partition may still skip; the error names it.
        """
        await self._change("unskip", topic, channel, timeout)

    async def empty_channel(self, topic: str, channel: str, *, timeout: float = 30.0) -> None:
        """Drop all messages of a channel that are not finished, delayed ones, too.

        The partitioned server moves the channel to the end of the messages that it has flushed, so it may still deliver
        those of the last 7 s, and one in each partition that it had read ahead. Messages that arrive during the call
        may be dropped or not.

        Raises:
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel.
            ChangeIncompleteError: A partition may still have the messages; the error names it.
        """
        await self._change("empty", topic, channel, timeout)

    async def set_offset(
        self, topic: str, channel: str, start: StartFrom | Mapping[int, StartFrom], *, timeout: float = 30.0
    ) -> None:
        """Move a channel to another position, for all clients that read it, too: they get the messages from there on.

        Offsets and counts are those of one partition, so give them by partition. The server does not show where a
        channel is: except for ``StartFrom.end()``, this returns as soon as all leaders have confirmed the position;
        they move the channel within milliseconds. A position after the end leaves the channel where it is.

        Args:
            topic: The topic.
            channel: The channel.
            start: The position, or a position by partition; other partitions stay as they are.
            timeout: Seconds for the whole call.

        Raises:
            ConfigError: ``start`` is not a position, or the cluster is a plain one.
            TopicNotFoundError: The topic does not exist.
            ChannelNotFoundError: The topic has no such channel, or some partitions have not.
            NoLeaderError: The topic does not have one of the partitions.
            ChangeIncompleteError: Not every partition confirmed the position in time.
        """
        option("start", Start).check(start)

        async def apply(nsqd: NsqdHttp, partition: int | None) -> None:
            number = partition or 0
            try:
                position = start if isinstance(start, StartFrom) else start[number]
                await nsqd.set_offset(topic, number, channel, position)
            except ServerError as error:
                if EMPTY_LOG not in str(error):  # in an empty partition every channel is at the only position
                    raise

        async with self._bounded("moving", topic, channel, timeout) as call:
            if (await self._view(topic, call)).is_plain:
                raise ConfigError(
                    f"channel {channel!r} of topic {topic!r} cannot be moved: plain nsqd keeps no finished messages;"
                    f" empty_channel drops those that wait"
                )
            chosen = None if isinstance(start, StartFrom) else start
            spread = Spread(self._leading, topic, channel, call, _named(channel), partitions=chosen)
            shows = _is_past_the_end if start == StartFrom.end() else None
            await spread.run(apply, shows, absent="wrong")

    async def _change(self, action: ChannelAction, topic: str, channel: str, timeout: float) -> None:
        doing, shows, absent, needs_partitions = _CHANGES[action]
        async with self._bounded(doing, topic, channel, timeout) as call:
            if needs_partitions and (await self._view(topic, call)).is_plain:
                raise ConfigError(
                    f"channel {channel!r} of topic {topic!r} cannot {action}: plain nsqd has no such state; pause the"
                    f" channel, or empty it"
                )
            spread = Spread(self._leading, topic, channel, call, _named(channel))
            await spread.run(_does(action, topic, channel), shows, absent=absent)

    @staticmethod
    def _bounded(doing: str, topic: str, channel: str, timeout: float) -> Bounded:
        return Bounded(f"{doing} channel {check_channel(channel)} of topic {check_topic(topic)}", timeout)

    async def _view(self, topic: str, call: Bounded) -> TopicView:
        """Return the view of an existing topic, or what the first nsqlookupds of a plain cluster say of any topic."""
        view = await self._leading.view(topic, "r", call)
        if not (view.exists or view.is_plain):  # a plain one is looked for at all nsqlookupds later
            raise TopicNotFoundError(f"topic {topic!r} does not exist")
        return view

    async def _listed(self, topic: str) -> tuple[str, ...]:
        answers = await self._leading.collect(lambda client: client.channels(topic))
        return tuple(sorted({name for names in answers for name in names}))

    async def _until_listed(self, topic: str, channel: str, call: Bounded, *, wanted: bool) -> None:
        """Wait until the nsqlookupds list a channel, or no longer do. By default they hide topics without channel."""

        async def ask() -> str:
            try:
                is_listed = channel in await self._listed(topic)
            except LookupUnavailableError as error:
                return str(error)
            return "" if is_listed is wanted else "it does not list the channel yet" if wanted else _RECREATED

        await call.until("nsqlookupd", ask)


def _named(channel: str) -> Callable[[PartitionStats], ChannelStats | None]:
    return lambda entry: next((known for known in entry.channels if known.name == channel), None)


def _does(action: ChannelAction, topic: str, channel: str) -> Apply:
    async def apply(nsqd: NsqdHttp, partition: int | None) -> None:
        if action != "unskip" or await _skips(nsqd, topic, partition, channel):  # else it would drop what waits
            await nsqd.change_channel(action, topic, partition, channel)

    return apply


async def _skips(nsqd: NsqdHttp, topic: str, partition: int | None, channel: str) -> bool:
    entries = await nsqd.stats(topic, channel=channel)
    own = [entry for entry in entries if (entry.topic, entry.partition) == (topic, partition)]
    return any(found is not None and found.skipped for found in map(_named(channel), own))


def _is_registered(view: TopicView) -> bool:
    """Return whether channels of the topic must be registered at the nsqlookupds."""
    return view.meta is not None and view.meta.disable_channel_auto_create


def _is_past_the_end(now: ChannelStats | None, before: ChannelStats | None) -> bool:
    """Return whether a channel has finished or dropped all messages that it had before."""
    if now is None or before is None:
        return True
    return now.messages - now.depth >= before.messages


class _Change(NamedTuple):
    """A change of a channel that is there.

    Attributes:
        doing: What is done, for errors.
        shows: Whether a place shows it.
        absent: What a place without the channel means.
        needs_partitions: Plain nsqds cannot do it.
    """

    doing: str
    shows: Shows
    absent: Absent = "wrong"
    needs_partitions: bool = False


_CHANGES: Final[Mapping[ChannelAction, _Change]] = {
    "pause": _Change("pausing", lambda now, _: now is not None and now.paused),
    "unpause": _Change("unpausing", lambda now, _: now is None or not now.paused, "fine"),
    "skip": _Change("skipping", lambda now, _: now is not None and now.skipped, needs_partitions=True),
    "unskip": _Change("unskipping", lambda now, _: now is None or not now.skipped, "fine", needs_partitions=True),
    "empty": _Change("emptying", _is_past_the_end, "fine"),
}
