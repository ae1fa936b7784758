"""Find messages, and say what became of them, as far as the cluster and the trace logs know.

The server finds a message by its internal id or by its place in a partition, not by a trace id. A trace id is looked up
in the trace logs that the dashboard was given, and in the latest messages of each partition.

The invariant: a search ends within its limit, whatever the servers do, and reads a bounded part of each log.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from nsq_ha.admin.browsing import MessageFilter, browse
from nsq_ha.admin.trace_lines import trace_lines
from nsq_ha.base.identity import partition_of
from nsq_ha.base.threads import in_thread
from nsq_ha.dashboard.figures import whole
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.options.checks import check_topic

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from pathlib import Path

    from nsq_ha.admin import AdminClient, StoredMessage
    from nsq_ha.admin.reading import Reading

LIMIT: Final = 8.0
"""Seconds for a whole search."""

TraceStep = dict[str, Any]
"""A line of a trace log about a message, as :mod:`nsq_ha.admin.trace_lines` returns it."""

MAX_LOG_BYTES: Final = 64 * 1024 * 1024
"""The end of each trace log that is read."""

MAX_STEPS: Final = 500
MAX_FOUND: Final = 20
"""Messages that are shown: publishers may give any number one trace id."""

MAX_TEXT: Final = 20_000
"""Characters that are shown of a body, and of headers."""


class Query(NamedTuple):
    """What to search for: an internal id, a trace id, or a place in a partition."""

    topic: str
    internal_id: int | None = None
    trace_id: int | None = None
    partition: int | None = None
    offset: int | None = None
    number: int | None = None


class Fate(NamedTuple):
    """What a channel did with a message, by its position.

    Attributes:
        channel: The channel.
        state: ``passed``, ``not passed`` or ``not read``.
        level: How it is shown.
        text: What that means.
    """

    channel: str
    state: str
    level: Literal["good", "warning", "info"]
    text: str


class FoundMessage(NamedTuple):
    """A message that the cluster still has."""

    topic: str
    partition: int
    nsqd: str
    message: StoredMessage
    channels: tuple[Fate, ...]


class Answer(NamedTuple):
    """What a search found.

    Attributes:
        found: Stored messages.
        steps: Lines of trace logs, the oldest first.
        notes: Where it looked, and what it could not see.
    """

    found: tuple[FoundMessage, ...]
    steps: tuple[TraceStep, ...]
    notes: tuple[str, ...]


def query_of(arguments: Mapping[str, str]) -> Query | None:
    """Return what a form asks for; None if it is empty.

    Raises:
        ConfigError: It does not name one message.
    """
    names = ("id", "trace", "partition", "offset", "number")
    numbers = {name: found for name in names if (found := whole(arguments, name)) is not None}
    if not numbers:
        return None
    topic = check_topic(arguments.get("topic", "").strip())
    place = {"offset", "number"} & numbers.keys()
    ways = ("id" in numbers) + ("trace" in numbers) + bool("partition" in numbers or place)
    if ways != 1 or len(place) > 1 or bool(place) is not ("partition" in numbers):
        raise ConfigError("give one of: the internal id; the trace id; the partition with the offset or the number")
    return Query(topic, *map(numbers.get, names))


async def search(
    admin: AdminClient, reading: Reading, query: Query, trace_logs: Sequence[Path], *, limit: float = LIMIT
) -> Answer:
    """Search for a message.

    Args:
        admin: Asks the cluster.
        reading: Its newest state.
        query: What to search for.
        trace_logs: Files with lines of :mod:`nsq_ha.tracelog`.
        limit: Seconds after which what was found so far is returned.
    """
    found: list[FoundMessage] = []
    notes: list[str] = []
    steps: tuple[TraceStep, ...] = ()
    try:
        async with asyncio.timeout(limit):
            if trace_logs:
                steps = await in_thread(partial(steps_of, trace_logs, query))
            if reading.is_plain:
                notes.append(
                    "Plain nsqds keep no finished messages and search none: only trace logs show a message's life."
                )
            else:
                async for partition, stored in _hunt(admin, query, steps, notes, limit=limit * 0.9):
                    found.append(_found(reading, query.topic, partition, stored))
            if trace_logs and found and not steps:
                wanted = Query(query.topic, internal_id=found[0].message.internal_id)
                steps = await in_thread(partial(steps_of, trace_logs, wanted))
    except TimeoutError:
        notes.append(f"The search ended at its limit of {limit:g} s.")
    except NsqError as error:
        notes.append(f"The cluster gave no answer: {error}")
    if len(found) == MAX_FOUND:
        notes.append(f"Only the first {MAX_FOUND} messages are shown.")
    nsqds = {step.get("nsqd") for step in steps}
    if reading.is_plain and len(nsqds) > 1:
        notes.append(
            f"These lines are of {len(nsqds)} nsqds. Plain nsqds may give equal ids: each nsqd's lines are a message of"
            " its own."
        )
    notes.append(
        f"Read the last {MAX_LOG_BYTES // 2**20} MB of {len(trace_logs)} trace log(s)."
        if trace_logs
        else "No trace log is read: start the dashboard with --trace-log FILE to see deliveries, requeues and finishes."
    )
    return Answer(tuple(found), steps, tuple(notes))


async def _hunt(
    admin: AdminClient, query: Query, steps: Sequence[TraceStep], notes: list[str], *, limit: float
) -> AsyncIterator[tuple[int | None, StoredMessage]]:
    """Search in the logs of the partitions; the lines of trace logs name messages with the trace id."""
    topic, trace_id = query.topic, query.trace_id
    if trace_id is None:
        partition = query.partition
        stored = await admin.find_message(
            topic, internal_id=query.internal_id, partition=partition, offset=query.offset, number=query.number
        )
        if stored is None:
            notes.append("The leader cannot read it: it is not flushed yet, was cleaned up, or does not exist.")
        else:
            yield partition, stored
        return
    named = tuple(dict.fromkeys(number for step in steps if (number := step.get("internal_id"))))
    is_found = False
    for internal_id in named[:MAX_FOUND]:
        if (stored := await admin.find_message(topic, internal_id=internal_id)) is not None:
            is_found = True
            yield None, stored
    if is_found:
        return
    wanted = MessageFilter(trace_id=trace_id)
    look = await browse(admin, topic, count=1, wanted=wanted, limit=limit, most_body=MAX_TEXT)
    for each in look.messages[:MAX_FOUND]:
        yield each
    why = "the latest of each partition first, since the server has no search by trace id"
    notes.append(f"Looked at {look.read:,} messages, {why}." if look.left else f"Looked at all {look.read:,} messages.")
    notes += [f"{note}." for note in look.notes]
    if look.left and not look.messages:
        notes.append(
            f"To search all messages, run: nsq-ha trace {trace_id} --trace-id --topic {topic}"
            " (add --from -1h for those of the last hour)"
        )


def _found(reading: Reading, topic: str, partition: int | None, stored: StoredMessage) -> FoundMessage:
    number = partition_of(stored.internal_id) if partition is None else partition
    leader = reading.leaders.get((topic, number), "")
    kept = replace(stored, body=stored.body[:MAX_TEXT], headers=stored.headers[:MAX_TEXT])
    return FoundMessage(topic, number, leader, kept, fates(reading, topic, number, stored.number))


def fates(reading: Reading, topic: str, partition: int, number: int) -> tuple[Fate, ...]:
    """Return what each channel did with a message of a partitioned topic, by its number.

    A channel confirms in order: if it waits for one message, later ones that are finished count as not passed.
    """
    stats = reading.topics.get(topic)
    entry = next((each for each in (stats.partitions if stats else ()) if each.partition == partition), None)
    outcomes = []
    for channel in entry.channels if entry else ():
        confirmed = channel.messages - channel.depth
        if number <= confirmed:
            fate = Fate(channel.name, "passed", "good", "finished, or dropped by a skip, an empty or a new position")
        elif number > channel.messages:
            fate = Fate(channel.name, "not read", "info", "the leader has not flushed it to its log yet")
        else:
            waits = f"still waiting, in flight, or finished out of turn; {number - confirmed - 1:,} before it are"
            text = f"{'paused: ' if channel.paused else ''}{waits} not passed either"
            fate = Fate(channel.name, "not passed", "warning", text)
        outcomes.append(fate)
    return tuple(outcomes)


def steps_of(files: Iterable[Path], query: Query) -> tuple[TraceStep, ...]:
    """Return the lines of trace logs about a message, the oldest first. Files that cannot be read are left out."""
    key = "internal_id" if query.trace_id is None else "trace_id"
    if (wanted := getattr(query, key)) is None:
        return ()
    steps: list[TraceStep] = []
    for file in files:
        with contextlib.suppress(OSError):
            lines = trace_lines(file, key, wanted, query.topic, most_bytes=MAX_LOG_BYTES)
            steps += islice(lines, MAX_STEPS - len(steps))
    return tuple(sorted(steps, key=itemgetter("time_ns")))
