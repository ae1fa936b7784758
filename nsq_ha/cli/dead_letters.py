"""``nsq-ha dead-letters``: list, show and replay what consumers gave up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from nsq_ha import StartFrom
from nsq_ha.admin.words import counted
from nsq_ha.base.identity import is_upstream_id
from nsq_ha.cli.lookup import describe_topic, require_topic
from nsq_ha.cli.options import CHANNEL, SECONDS, TOPIC, command_of, confirm, metrics_option, yes_option
from nsq_ha.cli.output import clean, explained, print_json, print_table, wants_json, warn
from nsq_ha.cli.reading import (
    check_channel_of,
    check_read,
    depth_of,
    expanded,
    losses_reported,
    reading_options,
    scan,
    until_quiet,
)
from nsq_ha.cli.running import Progress, run
from nsq_ha.cli.start import from_option
from nsq_ha.cli.tail import letter_as_dict
from nsq_ha.dead_letters import DeadLetter, replay
from nsq_ha.errors import ConfigError, DeadLetterError, NsqError, PublishError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha import Message, Producer
    from nsq_ha.cli.cluster import ClusterAccess

_Kept = TypeVar("_Kept")

CHANNEL_OF_REPLAYS: Final = "nsq-ha-replay"
_PREVIEW: Final = 60
_IN_FLIGHT: Final = 1000


class Which(NamedTuple):
    """Which dead letters are meant.

    Attributes:
        ids: Their ids in the dead-letter topic, see :func:`id_of`; empty for all.
        origin: Only those from this topic. None for any.
        by: Only those that this channel gave up. None for any.
        error: Only those with this type of error, with or without its module. None for any.
    """

    ids: frozenset[str] = frozenset()
    origin: str | None = None
    by: str | None = None
    error: str | None = None

    def has(self, message: Message, letter: DeadLetter) -> bool:
        """Return whether a dead letter is one of them."""
        found = letter.provenance
        kind = found.error_type or ""
        return (
            (not self.ids or id_of(message) in self.ids)
            and self.origin in (None, found.topic)
            and self.by in (None, found.channel)
            and self.error in (None, kind, kind.rpartition(".")[2])
        )


ALL: Final = Which()


class Sorting(contextlib.AbstractContextManager["Sorting"]):
    """Picks the dead letters that are meant; says once, at the end of its block, how many messages are none.

    Args:
        topic: The topic that they come from.
        which: Which are meant.
    """

    def __init__(self, topic: str, which: Which) -> None:
        self._topic = topic
        self._which = which
        self._others = 0
        self._first = ""

    def __exit__(self, *_: object) -> None:
        if self._others:
            what = counted(self._others, "message")
            warn(f"left out {what} of {self._topic}, such as this: {self._first}")

    async def letter_of(self, message: Message) -> DeadLetter | None:
        """Return the dead letter in a message. None if there is none, or another one is meant."""
        try:
            found = DeadLetter.of(await expanded(message))
        except DeadLetterError as error:
            self._others += 1
            self._first = self._first or str(error)
            return None
        return found if self._which.has(message, found) else None


class MessageId(click.ParamType[int]):
    """A message's internal id, decimal or hexadecimal with 0x."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or fail with the reason."""
        try:
            number = int(str(value), 0)
        except ValueError:
            number = -1
        if not 0 <= number < 2**64:
            self.fail(f"write an id such as 1125899906842625 or 0x4000000000001, not {value!r}", param, ctx)
        return number


class LetterId(MessageId):
    """The id of a message of either kind of cluster, as :func:`id_of` writes it."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # type: ignore[override]
        """Return it as :func:`id_of` does, or fail with the reason."""
        nsqd, slash, number = str(value).rpartition("/")
        return f"{nsqd}{slash}{super().convert(number, param, ctx):#x}"


def id_of(message: Message) -> str:
    """Return what names a message on the command line; a plain nsqd's ids are unique only together with its address."""
    return (f"{message.nsqd}/" if is_upstream_id(message.id) else "") + f"{message.internal_id:#x}"


_ID: Final = LetterId()
_FILTERS: Final = (
    click.option("--origin", type=TOPIC, help="Only dead letters of this topic."),
    click.option("--given-up-by", "by", type=CHANNEL, help="Only those that this channel gave up."),
    click.option("--error", metavar="TYPE", help="Only those with this type of error, such as ValueError."),
)
_channel_option: Final = click.option(
    "--channel",
    type=CHANNEL,
    help="Channel of TOPIC to look into. Only for a plain (upstream) cluster, which needs it.",
)


@click.group("dead-letters", short_help="List, show and replay dead letters.")
def dead_letters() -> None:
    """Look at dead letters, and publish them to their topics again."""


_command: Final = functools.partial(command_of, dead_letters, click.argument("topic", type=TOPIC))


@_command(*_FILTERS, from_option("the oldest"), _channel_option, name="list", shows=True)
def list_letters(
    topic: str,
    cluster: ClusterAccess,
    *,
    start: StartFrom | None,
    channel: str | None,
    as_json: bool | None,
    **filters: str | None,
) -> None:
    """List the dead letters that TOPIC holds, those that were replayed, too.

    It takes none away: they are read through a channel of its own. A plain (upstream) cluster holds messages only in
    channels: those of --channel are read, and go back.
    """
    is_json = wants_json(as_json)
    keep: Callable[[Message, DeadLetter], Any] = _print if is_json else _row
    rows = run(_found(cluster, topic, Which(frozenset(), **filters), start, channel, keep=keep))
    if not is_json:
        print_table(
            ["id", "given up", "from", "channel", "attempts#", "why", "body"],
            rows,
            title=f"{topic}: {len(rows):,} dead letters",
        )


def _print(message: Message, letter: DeadLetter) -> None:
    print_json(letter_as_dict(message, letter))


def _row(message: Message, letter: DeadLetter) -> tuple[object, ...]:
    origin = letter.provenance
    text = letter.body.decode("utf-8", "backslashreplace")
    return (
        id_of(message),
        origin.given_up_at.astimezone().strftime("%Y-%m-%d %H:%M:%S"),
        origin.topic if origin.partition is None else f"{origin.topic}-{origin.partition}",
        origin.channel,
        origin.attempts,
        origin.error_type or origin.reason,
        text if len(text) <= _PREVIEW else text[:_PREVIEW] + "…",
    )


@_command(click.argument("ids", type=_ID, nargs=-1, required=True), _channel_option, name="show", shows=True)
def show_letters(
    topic: str, ids: tuple[str, ...], cluster: ClusterAccess, *, channel: str | None, as_json: bool | None
) -> None:
    """Show all of some dead letters: body, headers, where they come from and why they were given up.

    IDS are those that `dead-letters list` shows. Exit code 1 if one is not there.
    """
    unread = set[int]()
    rows = run(_found(cluster, topic, Which(frozenset(ids)), None, channel, keep=lambda *each: each, unread=unread))
    for message, letter in rows:
        entry = letter_as_dict(message, letter)
        if wants_json(as_json):
            print_json(entry)
            continue
        origin = entry.pop("dead_letter")
        fields = [*origin.items(), ("headers", entry["headers"]), ("tag", entry["tag"])]
        print_table(["field", "value"], [(name, str(value)) for name, value in fields], title=id_of(message))
        click.echo(clean(letter.body.decode("utf-8", "backslashreplace")))
    _check_all_found(topic, ids, {id_of(message) for message, _ in rows}, unread)


def _check_all_found(topic: str, ids: tuple[str, ...], found: set[str], unread: set[int]) -> None:
    missing = set(ids) - found
    if missing:
        names = ", ".join(sorted(missing))
        part = "what could be read of " if unread else ""
        raise click.ClickException(
            f"{part}topic {topic!r} holds no dead letter {names}: see `nsq-ha dead-letters list`"
        )


async def _found(
    cluster: ClusterAccess,
    topic: str,
    which: Which,
    start: StartFrom | None,
    channel: str | None,
    *,
    keep: Callable[[Message, DeadLetter], _Kept],
    unread: set[int] | None = None,
) -> list[_Kept]:
    """Return what ``keep`` makes of each; a topic may hold more than fit into memory whole."""
    found = await require_topic(cluster, topic)
    _check_ids(which, is_plain=found.meta is None)
    rows = []
    wanted = set(which.ids)
    scanned = scan(cluster, topic, found, set() if unread is None else unread, channel=channel, start=start)
    async with contextlib.aclosing(scanned) as messages:
        with Sorting(topic, which) as sorting:
            async for message in messages:
                if (letter := await sorting.letter_of(message)) is not None:
                    rows.append(keep(message, letter))
                    wanted.discard(id_of(message))
                    if which.ids and not wanted:
                        break
    return rows


def _check_ids(which: Which, *, is_plain: bool) -> None:
    if any(("/" in one) is not is_plain for one in which.ids):
        how = "HOST:PORT/ID, since each plain nsqd gives ids of its own" if is_plain else "the id alone"
        raise click.UsageError(f"write {how}, as `nsq-ha dead-letters list` shows it")


# ---------------------------------------------------------------- replay


@_command(
    click.argument("ids", type=_ID, nargs=-1),
    *_FILTERS,
    click.option("--all", "is_all", is_flag=True, help="Replay all that --channel has not replayed yet."),
    click.option(
        "--channel",
        type=CHANNEL,
        help=f"With --all: the channel that remembers what was replayed. Default: {CHANNEL_OF_REPLAYS}. On a plain"
        " (upstream) cluster: the channel that holds the dead letters.",
    ),
    click.option("--to", "target", type=TOPIC, help="Publish to this topic instead of the one they come from."),
    click.option("--dry-run", is_flag=True, help="Only print what would be replayed."),
    click.option("--timeout", type=SECONDS, help="Seconds for each publish. Default: the option publish_timeout, 30."),
    yes_option,
    name="replay",
)
@metrics_option
def replay_letters(
    topic: str,
    ids: tuple[str, ...],
    cluster: ClusterAccess,
    *,
    is_all: bool,
    channel: str | None,
    target: str | None,
    dry_run: bool,
    timeout: float | None,
    yes: bool,
    **filters: str | None,
) -> bool:
    """Publish dead letters to the topics that they come from, with their bodies, headers, tags and trace ids.

    Name them by the IDS that `dead-letters list` shows, or by --origin, --given-up-by and --error; running the command
    again replays them again. Or give --all: each is then finished in a channel after its publish was acknowledged, so
    running the command again replays only new ones.

    Exit code 1 if one was not replayed, or not all could be read. The report says if it may be stored nevertheless.
    """
    which = Which(frozenset(ids), **filters)
    if is_all is not (which == ALL):
        raise click.UsageError("give IDS, a filter such as --error, or --all" + (", not both" if is_all else ""))
    if not dry_run:
        confirm(f"Publish {'all' if is_all else 'these'} dead letters of {topic} again?", yes=yes)
    replayer = Replayer(cluster.producer(timeout), target, dry_run=dry_run)
    try:
        run(_replay(cluster, topic, which, replayer, channel))
    except BaseException:  # interrupted, too
        if replayer.seen:
            click.echo(replayer.summary(), err=True)
        raise
    click.echo(replayer.summary(), err=True)
    if ids:
        _check_all_found(topic, ids, replayer.seen, replayer.unread)
    return bool(replayer.failed or replayer.unread)


class Replayer:
    """Replays dead letters one after the other, so that those of a partition keep their order.

    Args:
        producer: Publishes them.
        target: Where to publish. None for the topics that they come from.
        dry_run: Only print them.

    Attributes:
        producer: As given.
        dry_run: As given.
        done: Number of replayed ones.
        failed: Number of those that were not acknowledged.
        uncertain: Number of failed ones that may be stored.
        seen: The ids of the messages that were tried.
        unread: The partitions that were not read to their end.
        is_interrupted: The last one was interrupted, and may be stored.
    """

    def __init__(self, producer: Producer, target: str | None, *, dry_run: bool) -> None:
        self.producer: Producer = producer
        self.done: int = 0
        self.failed: int = 0
        self.uncertain: int = 0
        self.seen: set[str] = set()
        self.unread: set[int] = set()
        self.is_interrupted: bool = False
        self._target = target
        self.dry_run: bool = dry_run

    async def replay(self, message: Message, letter: DeadLetter) -> bool:
        """Replay one, and return whether it was acknowledged."""
        self.seen.add(id_of(message))
        topic = self._target or letter.provenance.topic
        if self.dry_run:
            click.echo(f"{id_of(message)} to {clean(topic)}")
            self.done += 1
            return False
        try:
            await replay(self.producer, letter, topic=self._target)
        except asyncio.CancelledError:
            self.is_interrupted = True
            raise
        except NsqError as error:
            self.failed += 1
            self.uncertain += isinstance(error, PublishError) and error.maybe_stored
            click.echo(f"{id_of(message)}: {explained(error)}", err=True)
            return False
        self.done += 1
        return True

    def summary(self) -> str:
        """Return a readable summary."""
        parts = [f"{'would replay' if self.dry_run else 'replayed'} {self.done:,} dead letters"]
        if self.failed:
            parts.append(f"{self.failed:,} failed, {self.uncertain:,} of them may be stored")
        if self.is_interrupted:
            parts.append("one more was interrupted, and may be stored")
        return "; ".join(parts)


async def _replay(cluster: ClusterAccess, topic: str, which: Which, replayer: Replayer, channel: str | None) -> None:
    found = await require_topic(cluster, topic)
    _check_ids(which, is_plain=found.meta is None)
    if replayer.dry_run or not (which == ALL or found.meta is None):
        # All are read first: while they wait for publishes, nsqd would take back those of the scan.
        read = await _found(cluster, topic, which, None, channel, keep=lambda each, _: each, unread=replayer.unread)
        is_rest = which == ALL and found.meta is not None
        passed = await _passed(cluster, topic, channel or CHANNEL_OF_REPLAYS) if is_rest else {}
        async with replayer.producer:
            with Progress("replayed", len(read)) as progress:
                for message in read:
                    if (message.offset or 0) >= passed.get(message.partition, 0):
                        await replayer.replay(message, DeadLetter.of(message))
                    progress.advance()
        return
    if found.meta is None and channel is None:
        raise ConfigError(f"give --channel: a plain cluster keeps the messages of {topic!r} only in its channels")
    await _replay_channel(cluster, topic, which, replayer, channel or CHANNEL_OF_REPLAYS)


async def _passed(cluster: ClusterAccess, topic: str, channel: str) -> dict[int, int]:
    """Return up to which offset a channel has finished each partition, as far as its position says."""
    return {
        entry.partition: entry.stats.end_offset - each.depth_bytes
        for entry in (await describe_topic(cluster, topic)).partitions
        if entry.stats is not None
        for each in entry.stats.channels
        if each.name == channel
    }


async def _replay_channel(cluster: ClusterAccess, topic: str, which: Which, replayer: Replayer, channel: str) -> None:
    """Replay the dead letters of a channel, and finish them there; the others go back to it."""
    described, listed = await describe_topic(cluster, topic), await cluster.ask(lambda admin: admin.channels(topic))
    # An nsqlookupd that has just started lists no channels yet; moving one back would replay its letters again.
    is_new, is_plain = channel not in {*listed, *described.channels}, described.view.is_plain
    if is_plain:
        for entry in described.partitions:
            if not entry.error:  # one that does not answer is reported when it cannot be read
                check_channel_of(entry, topic, channel)
    kind = "nsqds" if is_plain else "partitions"
    reading = reading_options((), StartFrom.beginning() if is_new and not is_plain else None, _IN_FLIGHT)
    reading["auto_touch"] = True
    left = 0
    async with (
        replayer.producer,
        cluster.consumer(topic, channel, **reading) as consumer,
        losses_reported(consumer, kind),
    ):
        total = await depth_of(cluster, topic, channel)
        with Sorting(topic, which) as sorting, Progress("replayed", total) as progress:
            # Statistics may not show yet that a new channel was moved to the beginning.
            async for message in until_quiet(consumer, None if is_new else total):
                left += 1
                letter = await sorting.letter_of(message)
                # What is left unanswered goes back to the channel when the consumer closes.
                if letter is not None and await replayer.replay(message, letter):
                    message.finish()
                    left -= 1
                    progress.advance()
        # An ordered partition delivers one message at a time.
        meta = described.view.meta
        if left >= (1 if meta is not None and meta.ordered else _IN_FLIGHT):
            warn(f"{left:,} messages that were not replayed stay in the channel, and hold back the rest")
            replayer.unread.update(entry.partition for entry in described.partitions)
        await check_read(consumer, kind)
