"""Compare two readings of a cluster: what happened between them.

Pure: readings in, events out. ``history`` keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nsq_ha.dashboard.figures import span

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nsq_ha.admin.findings import Trouble
    from nsq_ha.admin.reading import Place, Reading

Kind = Literal["leader", "nsqd", "nsqlookupd", "topic", "channel", "cluster", "operator"]
Level = Literal["info", "good", "warning", "bad"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        at: When it was noticed, in Unix seconds.
        kind: What it is about.
        level: How much it matters.
        subject: The node, topic, partition or channel.
        text: What happened.
        topic: The topic; empty if it concerns none.
    """

    at: float
    kind: Kind
    level: Level
    subject: str
    text: str
    topic: str = ""


def changes(before: Reading, after: Reading, former: Mapping[Place, str] | None = None) -> list[Event]:
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
        *_topics(before, after),
        *_channels(before, after),
    ]


def _leaders(before: Reading, after: Reading, former: Mapping[Place, str]) -> Iterator[Event]:
    for place in sorted({*before.leaders, *after.leaders}):
        old, new = before.leaders.get(place), after.leaders.get(place)
        topic, partition = place
        # A new or deleted topic is an event of its own.
        if old == new or topic not in before.names or topic not in after.names:
            continue
        subject = f"{topic}-{partition}"
        if new is None:
            yield Event(after.at, "leader", "bad", subject, f"no nsqd leads it any more; {old} led it", topic)
        elif old is None and former.get(place, new) != new:
            text = f"the leader moved from {former[place]} to {new}, after a time without one"
            yield Event(after.at, "leader", "warning", subject, text, topic)
        elif old is None:
            yield Event(after.at, "leader", "good", subject, f"{new} leads it", topic)
        else:
            yield Event(after.at, "leader", "warning", subject, f"the leader moved from {old} to {new}", topic)


def _nodes(before: Reading, after: Reading) -> Iterator[Event]:
    old, new = before.nodes, after.nodes
    for address in sorted({*old, *new}):
        if address not in old:
            yield Event(after.at, "nsqd", "good", address, "the nsqd joined the cluster")
        elif address not in new:
            yield Event(after.at, "nsqd", "bad", address, "the nsqlookupds list the nsqd no longer")
        else:
            was, now = old[address], new[address]
            if was.started_at and now.started_at and now.started_at > was.started_at:
                yield Event(after.at, "nsqd", "warning", address, "the nsqd was restarted")
            if not (was.error or now.error) and was.health != now.health:
                level: Level = "good" if now.health == "OK" else "bad"
                yield Event(after.at, "nsqd", level, address, f"its health is {now.health or 'unknown'}")
            if was.version and now.version and was.version != now.version:
                yield Event(after.at, "nsqd", "info", address, f"its version changed: {was.version}, {now.version}")


def _topics(before: Reading, after: Reading) -> Iterator[Event]:
    if {"topics", "nsqds"} & {*before.errors, *after.errors}:
        return
    old, new = set(before.names), set(after.names)
    for name in sorted(new - old):
        yield Event(after.at, "topic", "info", name, "the topic was created", name)
    for name in sorted(old - new):
        yield Event(after.at, "topic", "warning", name, "the topic was deleted", name)
    for name in sorted(old & new):
        was, now = len(before.partitions(name)), len(after.partitions(name))
        if not after.is_plain and 0 < was < now:
            yield Event(after.at, "topic", "info", name, f"it has {now} partitions, {was} before", name)


def _channels(before: Reading, after: Reading) -> Iterator[Event]:
    old, new = before.channels, after.channels
    whole = {name for name in after.topics if _answers(before, name) and _answers(after, name)}
    for key in sorted({*old, *new}):
        topic, channel = key
        if topic not in whole or topic not in before.topics:
            continue
        subject = f"{topic}/{channel}"
        if key not in old:
            yield Event(after.at, "channel", "info", subject, "the channel was created", topic)
        elif key not in new:
            yield Event(after.at, "channel", "warning", subject, "the channel was deleted", topic)
        else:
            for state in ("paused", "skipped"):
                was, now = getattr(old[key], state), getattr(new[key], state)
                if was != now:
                    text = f"the channel is {state}" if now else f"the channel is no longer {state}"
                    yield Event(after.at, "channel", "warning" if now else "good", subject, text, topic)


def _answers(reading: Reading, topic: str) -> bool:
    """Return whether every nsqd that leads a part of the topic answers; otherwise channels may only seem gone."""
    silent = reading.silent
    if reading.is_plain:
        return not silent
    return all(nsqd not in silent for (name, _), nsqd in reading.leaders.items() if name == topic)


_TROUBLES: Mapping[Trouble, tuple[Kind, Level, str, str]] = {
    "unstable": ("cluster", "warning", "the cluster is unstable: {}", "the cluster is stable again after {}"),
    "unanswered": ("cluster", "bad", "the cluster does not answer: {}", "the cluster answers again after {}"),
    "silent": ("nsqd", "bad", "the nsqd does not answer: {}", "the nsqd answers again, or is gone, after {}"),
    "leaderless": ("leader", "bad", "nobody serves the partition: {}", "the partition is served again after {}"),
    "lookupd": (
        "nsqlookupd",
        "bad",
        "the nsqlookupd does not answer: {}",
        "the nsqlookupd answers again, or is gone, after {}",
    ),
}
"""The events when a trouble begins and ends: kind, level, and the two texts."""


def begins(trouble: Trouble, subject: str, why: str, at: float) -> Event:
    """Return the event for a problem that began."""
    kind, level, text, _ = _TROUBLES[trouble]
    return Event(at, kind, level, subject, text.format(why), _topic_of(trouble, subject))


def ends(trouble: Trouble, subject: str, began: float, at: float) -> Event:
    """Return the event for a problem that ended."""
    kind, _, _, text = _TROUBLES[trouble]
    return Event(at, kind, "good", subject, text.format(span(at - began)), _topic_of(trouble, subject))


def _topic_of(trouble: Trouble, subject: str) -> str:
    return subject.rpartition("-")[0] if trouble == "leaderless" else ""
