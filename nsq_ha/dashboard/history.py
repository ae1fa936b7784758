"""Keep the figures, events and problems of the last minutes, in bounded memory.

All series share the positions of one ring, so adding a reading costs one write for each. What is not reported has the
value NaN, which charts leave out. The events between two readings come from :func:`changes`, which is pure.

The invariant: memory is bounded by ``capacity``, ``MAX_SERIES``, ``MAX_EVENTS`` and ``MAX_PERIODS``, whatever the
cluster reports.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from nsq_ha.admin.causes import MISSING, incidents, incomplete, unled
from nsq_ha.admin.incident import OF_CHANNELS, Incident, Trouble
from nsq_ha.admin.reading import Rates, Reading
from nsq_ha.admin.words import partly, some
from nsq_ha.base.grouping import grouped
from nsq_ha.dashboard.figures import span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nsq_ha.admin.memory import TopicPartition


MAX_SERIES: Final = 3000
"""Series that are kept; more topics and channels than that have no charts."""

MAX_EVENTS: Final = 1000
MAX_PERIODS: Final = 400
MAX_ALIKE: Final = 3
"""Events of one reading that may say the same of different things; more are folded into one."""

MAX_TEXT: Final = 400
"""Characters of a text from outside that are kept."""

Key = tuple[str, ...]
"""A series: ``cluster``, ``topic`` or ``channel``, then names, then the figure."""

_OF_CLUSTER: Final = tuple(("cluster", name) for name in ("depth", "in_flight", "lag", "published", *Rates._fields))
"""The series of the whole cluster, which always have a place."""

_TOLD: Final = frozenset({"cut", "lookupd", "leading", "disagree", "unstable"})
"""What only the state of the nsqlookupds shows: while it cannot be read, it is not known whether it is over."""

_NAN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which something was wrong.

    Attributes:
        trouble: What was wrong.
        subject: The node, partition or nsqlookupd; ``cluster`` for the whole.
        why: The reason at its beginning.
        began: When it was noticed, in Unix seconds.
        ended: When it was over. None if it lasts.
        cause: The nsqd whose loss explains it; empty if none does.
    """

    trouble: Trouble
    subject: str
    why: str
    began: float
    ended: float | None = None
    cause: str = ""


class History:
    """The last readings as series, events and periods.

    Args:
        capacity: Number of readings that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: int = max(2, capacity)
        self.latest: Reading | None = None
        self.events: deque[ClusterEvent] = deque(maxlen=MAX_EVENTS)
        self._alike: deque[ClusterEvent] = deque(maxlen=MAX_EVENTS)
        self._closed: deque[Period] = deque(maxlen=MAX_PERIODS)
        self._open: dict[tuple[Trouble, str], Period] = {}
        self._series: dict[Key, array[float]] = {key: array("d", [_NAN]) * self.capacity for key in _OF_CLUSTER}
        self._written: dict[Key, int] = {}
        self._former: Mapping[TopicPartition, str] = {}
        self._times = array("d", [_NAN]) * self.capacity
        self._count = 0

    def add(self, reading: Reading) -> None:
        """Add the newest reading."""
        before, former = self.latest, self._former
        events = [] if before is None else changes(before, reading, former)
        moved = frozenset(each.subject for each in events if each.kind == "leader")
        values: list[tuple[Key, float]] = []
        if reading.is_fresh:
            names = set(reading.names)
            self._former = {each: nsqd for each, nsqd in former.items() if each[0] in names} | dict(reading.leaders)
            is_full = len(self._series) >= MAX_SERIES
            values = [each for each in _values(reading) if not is_full or each[0] in self._series]
        self.latest = reading
        for main, alike in (folded(events), folded(self._follow(reading, moved))):
            self.events.extend(main)
            self._alike.extend(alike)
        self._write(reading, values)

    def tell(self, event: ClusterEvent) -> None:
        """Add an event that no reading shows, such as what an operator did."""
        self.events.append(event)

    def events_of(self, topic: str) -> list[ClusterEvent]:
        """Return the events of a topic, the oldest first, those that are folded elsewhere, too."""
        found = [each for each in (*self._alike, *self.events) if each.topic == topic]
        return sorted(found, key=lambda each: each.at)

    @property
    def count(self) -> int:
        """Number of series."""
        return len(self._series)

    @property
    def times(self) -> list[float]:
        """When the readings were made, the oldest first."""
        return self._in_order(self._times)

    def series(self, *key: str) -> list[float]:
        """Return a series, as long as :attr:`times`; NaN where it was not reported."""
        found = self._series.get(key)
        return [_NAN] * min(self._count, self.capacity) if found is None else self._in_order(found)

    def last(self, *key: str) -> float | None:
        """Return the newest value of a series; None if the newest reading has none."""
        found = self._series.get(key)
        value = _NAN if found is None or not self._count else found[(self._count - 1) % self.capacity]
        return None if math.isnan(value) else value

    @property
    def open(self) -> list[Period]:
        """What is wrong now, the oldest first."""
        return sorted(self._open.values(), key=lambda period: period.began)

    @property
    def periods(self) -> list[Period]:
        """What is and was wrong, the oldest first."""
        return sorted([*self._closed, *self._open.values()], key=lambda period: period.began)

    def _follow(self, reading: Reading, moved: frozenset[str]) -> list[ClusterEvent]:
        """Open and close periods; return the events of that, but of partitions that have ``moved``."""
        found = incidents(reading)
        causes = {partition: each.subject for each in found for partition in each.unled if each.subject != "cluster"}
        now = {
            (each.trouble, each.subject): Period(each.trouble, each.subject, _why(each), each.since or reading.at)
            for each in found
            # A pause is an event of its own.
            if each.trouble not in ("leaderless", "unstable", "stopped") and (each.is_bad or each.trouble != "unread")
        }
        if reading.stable is False and reading.is_fresh:  # also if something else explains it
            known = "a node joins or leaves, or replicas are missing"
            now.setdefault(("unstable", "cluster"), Period("unstable", "cluster", known, reading.at))
        for (topic, number), why in unled(reading).items():
            name = f"{topic}-{number}"
            cause = causes.get((topic, number), "")
            now["leaderless", name] = Period("leaderless", name, why[:MAX_TEXT], reading.at, cause=cause)
        before = dict(self._open)
        events = self._ended(reading, now, moved)
        over = [period for key, period in before.items() if key not in self._open and key[0] in MISSING]
        for key, period in sorted(now.items(), key=lambda each: (each[0][0] == "leaderless", each[0])):
            if key in self._open:
                if period.cause:  # perhaps it was found only now
                    self._open[key] = replace(self._open[key], cause=period.cause)
            elif len(self._open) < MAX_PERIODS:
                same = [each for each in over if _goes_on(each, period)]
                self._open[key] = replace(period, began=min([period.began, *(each.began for each in same)]))
                if not any(each.why == period.why or each.trouble == period.trouble for each in same):
                    events.append(begins(*key, period.why, reading.at))
        return events

    def _ended(
        self, reading: Reading, now: Mapping[tuple[Trouble, str], Period], moved: frozenset[str]
    ) -> list[ClusterEvent]:
        """Close the periods that are over; return the events of that."""
        events, lacking = [], incomplete(reading)
        for key in [key for key in self._open if key not in now]:
            trouble, subject = key
            is_unread = trouble in _TOLD and "cluster" in reading.errors
            is_unread |= trouble in OF_CHANNELS and subject.partition("/")[0] in lacking
            if is_unread or (not reading.is_fresh and trouble != "unanswered"):
                continue  # nobody can tell now
            period = self._open.pop(key)
            self._closed.append(replace(period, ended=reading.at))
            # One that is missing in another way now has not come back.
            is_missing = trouble in MISSING and any((each, subject) in now for each in MISSING)
            is_missing |= trouble == "cut" and any(each == "cut" for each, _ in now)
            is_missing |= trouble in OF_CHANNELS and any((each, subject) in now for each in OF_CHANNELS)
            is_told = trouble == "leaderless" and (subject in moved or subject.rpartition("-")[0] not in reading.names)
            is_told |= trouble in OF_CHANNELS and tuple(subject.split("/")) not in reading.channels
            if not is_missing and not is_told:  # by another event
                event = ends(trouble, subject, period.began, reading.at)
                is_server = trouble in (*MISSING, "lookupd") and subject != "cluster"
                is_lost = is_server and subject not in reading.answering
                text = f"forgotten after {span(reading.at - period.began)}"
                events.append(replace(event, level="info", text=text) if is_lost else event)
        return events

    def _write(self, reading: Reading, values: Iterable[tuple[Key, float]]) -> None:
        position = self._count % self.capacity
        for ring in self._series.values():
            ring[position] = _NAN
        self._times[position] = reading.at
        self._count += 1
        if len(self._series) >= MAX_SERIES:
            self._forget()
        for key, value in values:
            if key not in self._series and len(self._series) < MAX_SERIES:
                self._series[key] = array("d", [_NAN]) * self.capacity
            if key in self._series:
                self._series[key][position] = value
                self._written[key] = self._count

    def _forget(self) -> None:
        """Drop the series that have no value left."""
        gone = {key for key, count in self._written.items() if self._count - count >= self.capacity}
        for key in gone.difference(_OF_CLUSTER):
            del self._series[key], self._written[key]

    def _in_order(self, ring: array[float]) -> list[float]:
        if self._count <= self.capacity:
            return list(ring[: self._count])
        position = self._count % self.capacity
        return [*ring[position:], *ring[:position]]


def _values(reading: Reading) -> Iterator[tuple[Key, float]]:
    """Yield the figures of a reading."""
    lacking = incomplete(reading)
    channels = [row for row in reading.rows if row.channel is not None]
    topics = {topic: rate for (topic, *part), rate in reading.published.items() if part == [None, None]}
    if not lacking:
        yield ("cluster", "depth"), reading.waiting
        yield ("cluster", "in_flight"), sum(row.channel.in_flight for row in channels if row.channel)
        yield ("cluster", "lag"), _NAN if reading.lag is None else reading.lag
    if reading.seconds is not None:
        yield ("cluster", "published"), sum(topics.values())
        for name in Rates._fields:
            yield ("cluster", name), sum(getattr(row.rates, name, 0.0) for row in channels)
    for topic, rate in topics.items():
        yield ("topic", topic, "published"), rate
    for row in channels:
        key = ("channel", row.topic, row.name)
        if row.topic not in lacking:  # a sum that lacks a part would look like progress
            yield (*key, "depth"), row.depth or 0
            yield (*key, "in_flight"), row.channel.in_flight if row.channel else 0
            yield (*key, "lag"), _NAN if row.lag is None else row.lag
        if row.rates is not None:
            for name, value in row.rates._asdict().items():
                yield (*key, name), value


Kind = Literal["leader", "nsqd", "nsqlookupd", "topic", "channel", "cluster", "operator"]
Level = Literal["info", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened.

    Attributes:
        at: When it was noticed, in Unix seconds.
        kind: What it is about.
        level: How much it matters.
        subject: The node, topic, partition or channel.
        text: What happened.
        topic: The topic; empty if it concerns none.
        group: What it says, without its subject, for those that may be many; empty if it stands alone.
    """

    at: float
    kind: Kind
    level: Level
    subject: str
    text: str
    topic: str = ""
    group: str = ""


def folded(events: Iterable[ClusterEvent]) -> tuple[list[ClusterEvent], list[ClusterEvent]]:
    """Return the events, many that say the same as one, and those that this one stands for."""
    groups = grouped(((e.group, "" if e.group else f"{e.kind} {e.subject} {e.text}"), e) for e in events)
    main: list[ClusterEvent] = []
    alike: list[ClusterEvent] = []
    for (group, _), members in groups.items():
        if not group or len(members) <= MAX_ALIKE:
            main += members
            continue
        alike += members
        noun = "partition" if members[0].kind == "leader" else members[0].kind
        text = f"{group}: {some(each.subject for each in members)}"
        main.append(replace(members[0], subject=f"{len(members):,} {noun}s", text=text, topic=""))
    return main, alike


def changes(before: Reading, after: Reading, former: Mapping[TopicPartition, str] | None = None) -> list[ClusterEvent]:
    """Return what happened between two readings, except for problems that begin or end.

    Args:
        before: A reading.
        after: The next one.
        former: Who led each partition last, also those without a leader in ``before``.
    """
    if not after.is_fresh or not (before.is_fresh or before.nodes):  # nothing to compare, as after a failed first poll
        return []
    return [
        *_leaders(before, after, former or {}),
        *_nodes(before, after),
        *_topics(before, after, former or {}),
        *_channels(before, after),
    ]


def _leaders(before: Reading, after: Reading, former: Mapping[TopicPartition, str]) -> Iterator[ClusterEvent]:
    shared = {*before.names} & {*after.names}
    for partition in sorted({*before.leaders, *after.leaders}):
        old, new = before.leaders.get(partition), after.leaders.get(partition)
        topic, number = partition
        # A new or deleted topic is an event of its own.
        if old == new or topic not in shared:
            continue
        subject = f"{topic}-{number}"
        if new is None:
            continue  # a problem that begins
        if old is None and former.get(partition, new) != new:
            group = f"the leader moved from {former[partition]}"
            text = f"{group} to {new}, after a time without one"
            yield ClusterEvent(after.at, "leader", "warning", subject, text, topic, group)
        elif old is None:
            yield ClusterEvent(after.at, "leader", "good", subject, f"led by {new}", topic, f"led by {new}")
        else:
            group = f"the leader moved from {old}"
            yield ClusterEvent(after.at, "leader", "warning", subject, f"{group} to {new}", topic, group)


def _nodes(before: Reading, after: Reading) -> Iterator[ClusterEvent]:
    old, new = before.nodes, after.nodes
    for address in sorted({*old, *new}):
        if address not in old and address not in before.remembered.nsqds:  # what is back is no news twice
            yield ClusterEvent(after.at, "nsqd", "good", address, "the nsqd joined the cluster")
        elif address in old and address in new:  # one that is missing is an incident
            was, now = old[address], new[address]
            if was.started_at and now.started_at and now.started_at > was.started_at:
                yield ClusterEvent(after.at, "nsqd", "warning", address, "the nsqd was restarted")
            if not (was.error or now.error) and was.health != now.health:
                level: Level = "good" if now.health == "OK" else "bad"
                text = f"its health is {now.health or 'unknown'}"[:MAX_TEXT]
                yield ClusterEvent(after.at, "nsqd", level, address, text)
            if was.version and now.version and was.version != now.version:
                text = f"its version changed: {was.version}, {now.version}"[:MAX_TEXT]
                yield ClusterEvent(after.at, "nsqd", "info", address, text)


def _topics(before: Reading, after: Reading, former: Mapping[TopicPartition, str]) -> Iterator[ClusterEvent]:
    if {"topics", "nsqds"} & {*before.errors, *after.errors}:
        return
    old, new = set(before.names), set(after.names)
    for name in sorted(new - old):
        yield ClusterEvent(after.at, "topic", "info", name, "the topic was created", name, "created")
    for name in sorted(old - new):
        yield ClusterEvent(after.at, "topic", "warning", name, "the topic was deleted", name, "deleted")
    known = Counter(topic for topic, _ in former.keys() | before.holders.keys())  # those of nsqds that are gone, too
    for name in sorted(old & new):
        was, now = known[name], len(after.partitions(name))
        if not after.is_plain and 0 < was < now:
            yield ClusterEvent(after.at, "topic", "info", name, f"it has {now} partitions, {was} before", name)


def _channels(before: Reading, after: Reading) -> Iterator[ClusterEvent]:
    if after.is_plain and before.nodes.keys() != after.nodes.keys():  # what only one nsqd has comes and goes with it
        return
    old, new = before.channels, after.channels
    whole = (before.topics.keys() & after.topics.keys()) - _partial(before) - _partial(after)
    for key in sorted({*old, *new}):
        topic, channel = key
        if topic not in whole:
            continue
        subject = f"{topic}/{channel}"
        if key not in old:
            yield ClusterEvent(after.at, "channel", "info", subject, "the channel was created", topic, "created")
        elif key not in new:
            yield ClusterEvent(after.at, "channel", "warning", subject, "the channel was deleted", topic, "deleted")
        else:
            for state in ("paused", "skipped"):
                count, places = getattr(new[key], f"{state}_at"), new[key].places
                if getattr(old[key], f"{state}_at") != count:
                    text = f"the channel is {partly(state, count, places) if count else f'no longer {state}'}"
                    yield ClusterEvent(after.at, "channel", "warning" if count else "good", subject, text, topic)


def _partial(reading: Reading) -> set[str]:
    """Return the topics of which an nsqd that leads a part does not answer: their channels may only seem gone."""
    silent = reading.silent
    if reading.is_plain:
        return set(reading.topics) if silent else set()
    return {topic for (topic, _), nsqd in reading.leaders.items() if nsqd in silent}


_TROUBLES: Mapping[Trouble, tuple[Kind, Level, str]] = {
    "unanswered": ("cluster", "bad", "it answers again after {}"),
    "gone": ("nsqd", "bad", "it is back after {}"),
    "silent": ("nsqd", "bad", "it answers again after {}"),
    "cut": ("nsqd", "bad", "it is back after {}"),
    "ill": ("nsqd", "bad", "it is healthy again after {}"),
    "slow": ("nsqd", "warning", "it is no longer slow, after {}"),
    "behind": ("nsqd", "warning", "it is in sync after {}"),
    "lookupd": ("nsqlookupd", "bad", "it answers again after {}"),
    "leading": ("cluster", "bad", "an nsqlookupd leads again after {}"),
    "disagree": ("nsqlookupd", "warning", "the nsqlookupds agree again after {}"),
    "leaderless": ("leader", "bad", "the partition is served again after {}"),
    "unstable": ("cluster", "warning", "it is stable again after {}"),
    "unread": ("channel", "bad", "it is read again, or empty, after {}"),
    "blocked": ("channel", "bad", "it moves again after {}"),
    "stuck": ("channel", "bad", "it moves again after {}"),
    "failing": ("channel", "bad", "its messages no longer fail, after {}"),
    "lagging": ("channel", "warning", "it no longer falls behind, after {}"),
}
"""The events when a trouble begins and ends: kind, level, and the text at its end."""


def begins(trouble: Trouble, subject: str, why: str, at: float) -> ClusterEvent:
    """Return the event for a problem that began."""
    kind, level, _ = _TROUBLES[trouble]
    return ClusterEvent(at, kind, level, subject, why, _topic_of(kind, subject), why if kind == "leader" else "")


def ends(trouble: Trouble, subject: str, began: float, at: float) -> ClusterEvent:
    """Return the event for a problem that ended."""
    kind, _, text = _TROUBLES[trouble]
    text, group = text.format(span(at - began)), "served again" if kind == "leader" else ""
    return ClusterEvent(at, kind, "good", subject, text, _topic_of(kind, subject), group)


def _topic_of(kind: Kind, subject: str) -> str:
    """Return the topic of the partition or the channel that an event is about."""
    return {"channel": subject.partition("/")[0], "leader": subject.rpartition("-")[0]}.get(kind, "")


def _goes_on(over: Period, period: Period) -> bool:
    """Return whether an nsqd that was missing is so in another way."""
    return period.trouble in MISSING and (over.subject == period.subject or over.trouble == "cut" == period.trouble)


def _why(found: Incident) -> str:
    return f"{found.cause}{f': {found.detail}' if found.detail else ''}"[:MAX_TEXT]
