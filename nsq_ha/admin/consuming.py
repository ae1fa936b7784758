"""What is wrong with the consumers of channels: one sentence for each channel, the worst first.

An nsqd does not tell how often a message was delivered, nor which ones are in flight. Of an ordered partition, it must
be the first one that is not finished. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.admin.incident import OF_CHANNELS, Incident
from nsq_ha.admin.memory import ChannelFlow
from nsq_ha.admin.words import counted, per_second, some, span
from nsq_ha.base.grouping import grouped

if TYPE_CHECKING:
    from nsq_ha.admin.reading import FigureRow, Reading

STILL: Final = 10.0
"""Seconds without a finished message after which a channel stands still, and after which rates mean something."""

LONG: Final = 60.0
"""Seconds after which that is more than a slow handler or a restart; and for which new messages wait if one lags."""

MANY: Final = 1000
"""Messages that are more than a few."""

_HOUR: Final = 3600.0
_SOME_FAIL: Final = 0.1
"""How many messages fail, for each one that is finished, if that is worth a warning."""

_RARE: Final = 1 / 60
"""Failures a second that are as good as none: a few of long ago, or one alone."""

_SLOW: Final = 0.1
"""Failures a second that are a symptom: messages time out where handlers hang."""

_Parts = Sequence[tuple["FigureRow", ChannelFlow]]


def of_consumers(reading: Reading, lacking: frozenset[str] = frozenset()) -> list[Incident]:
    """Return what is wrong with consumers: kind by kind, the channels with the most messages first.

    Args:
        reading: What a look found.
        lacking: The topics of which a part is missing.
    """
    moving = ((row, flow) for row in reading.parts if row.channel and (flow := reading.flow(row)) is not None)
    parts = grouped(((row.topic, row.name), (row, flow)) for row, flow in moving)
    found = []
    for row in reading.rows:
        if clauses := list(_clauses(reading, row, parts.get((row.topic, row.name), ()), row.topic in lacking)):
            first, *others = clauses
            effects = (*first.effects, *(each.cause.format("it") for each in others))
            remedies = [first.remedy, *(each.remedy for each in others if each.trouble == "stopped")]
            cause, remedy = first.cause.format(first.subject), "; ".join(remedies)
            found.append((row, replace(first, cause=cause, effects=effects, remedy=remedy)))
    found.sort(key=lambda each: (OF_CHANNELS.index(each[1].trouble), -(each[0].depth or 0)))
    return [each for _, each in found]


def folded(found: Iterable[Incident]) -> list[Incident]:
    """Return incidents as people see them: the channels with few messages that nobody reads are one, at the end."""
    kinds = grouped((each.trouble == "unread" and not each.is_bad and len(each.effects) == 1, each) for each in found)
    few, others = kinds.get(True, []), kinds.get(False, [])
    if len(few) < 2:
        return list(found)
    names = some([each.subject for each in few], 3)
    cause = f"nobody reads {len(few)} channels with few messages: {names}"
    remedy = "start their consumers, or delete the channels that nobody needs; to see them all: nsq-ha stat"
    return [*others, Incident(trouble="unread", subject="cluster", cause=cause, remedy=remedy, is_bad=False)]


def unsettled(reading: Reading) -> bool:
    """Return whether another look, a moment later, would tell more of a channel that has consumers and messages."""
    return any(
        flow.at - flow.began < STILL and (flow.since == flow.began or flow.depth > LONG * flow.finishes)
        for row in reading.parts
        if row.channel and row.channel.clients and row.channel.held and (flow := reading.flow(row)) is not None
    )


def _clauses(reading: Reading, row: FigureRow, parts: _Parts, is_part: bool) -> Iterator[Incident]:
    """Yield what is wrong with one channel, the worst first; ``{}`` in a cause stands for its name."""
    channel = row.channel
    if channel is None or not (channel.held or channel.state):
        return
    command = f"{row.topic} {row.name}"
    of = partial(Incident, subject=f"{row.topic}/{row.name}")
    oldest = f", the oldest for {span(row.lag)}" if row.lag else ""
    many = f"{'at least ' * is_part}{counted(channel.depth, 'message')}"
    waits = (f"{many} wait{'s' if channel.depth == 1 else ''}{oldest}",)
    # On a partitioned nsqd, those with a short delay wait, too.
    waiting = [(p, f) for p, f in parts if p.channel and f.depth > (0 if reading.is_plain else p.channel.deferred)]
    still = [(each, flow) for each, flow in waiting if flow.at - flow.since >= STILL]
    unread = [(each, flow) for each, flow in waiting if each.channel and not each.channel.clients]
    is_running = channel.clients > 0 and max(channel.paused_at, channel.skipped_at) < channel.places
    failing = list(_failing(of, row, [flow for _, flow in parts]))
    heads = [(p, f) for p, f in still if p.ordered and p.channel and (p.channel.in_flight or f.returned)]
    if alone := _alone(reading, unread, is_all=not channel.clients):
        places = some([each.nsqd or "" if reading.is_plain else str(each.partition) for each, _ in unread], 3)
        cause = f"nobody reads {{}} at {'nsqd' if reading.is_plain else 'partition'} {places}"
        remedy, is_bad = "its consumers' logs say why they do not connect", True
        if not channel.clients:
            remedy = f"start its consumers; if they are gone for good: nsq-ha channel delete {command}"
            cause, is_bad = "nobody reads {}", channel.depth >= MANY
        yield of(trouble="unread", cause=cause, effects=waits, remedy=remedy, is_bad=is_bad, **alone)
    elif heads and is_running:
        (part, flow), returned = heads[0], sum(flow.returned for _, flow in heads)
        names = some([f"message {flow.done + 1} of {each.topic}-{each.partition}" for each, flow in heads], 3)
        came = (f"{'it' if len(heads) == 1 else 'they'} came back {counted(returned, 'time')}",) if returned else ()
        yield of(
            trouble="blocked",
            cause=f"{names} block{'s' if len(heads) == 1 else ''} {{}}",
            effects=(*waits, *came),
            remedy="have its handler finish it, or drop it: nsq-ha channel finish"
            f" {command} --partition {part.partition} --number {flow.done + 1}",
            is_bad=bool(returned) or _is_long(reading, row, flow),
            **_lasts(heads),
        )
    elif still and is_running and len(still) == len(waiting) and sum(flow.failures for _, flow in parts) < _SLOW:
        held = channel.in_flight
        who, s = counted(channel.clients, "client"), "s" if channel.clients == 1 else ""
        # A partitioned nsqd only tells up to where all is finished, and one message may hold that up.
        does = f"finish{'es' if s else ''} nothing" if reading.is_plain else f"hold{s} {counted(held, 'message')} of it"
        yield of(
            trouble="stuck",
            cause=f"{{}} stands still: {who} {does if held else f'take{s} nothing'}",
            effects=waits,
            remedy="see whether its handlers hang, or its clients pause:"
            f" nsq-ha stat {row.topic} --channel {row.name} --clients",
            is_bad=not held or any(_is_long(reading, row, flow) for _, flow in still),
            **_lasts(still),
        )
    if is_running and not heads:
        yield from failing or _lagging(of, waits, [flow for _, flow in parts])
    if channel.state:
        remedy, cause = f"to resume it: nsq-ha channel resume {command}", f"{{}} is {channel.state}"
        yield of(trouble="stopped", cause=cause, effects=waits if channel.depth else (), remedy=remedy, is_bad=False)


def _alone(reading: Reading, parts: _Parts, *, is_all: bool) -> dict[str, Any]:
    """Return since when nobody reads these, as :func:`_lasts`; empty for no longer than a restart takes."""
    read = max((flow.read for _, flow in parts), default=0.0)
    since = read or min((flow.began for _, flow in parts), default=reading.at)
    lags = [row.lag for row, _ in parts if row.lag is not None]
    # If nobody knows how old they are, their number says it.
    is_many = is_all and not (read or lags) and sum(flow.depth for _, flow in parts) >= MANY
    is_long = reading.at - read >= LONG <= max(lags) if lags else reading.at - since >= LONG
    return {"since": since if reading.at - since >= 1 else None, "is_older": not read} if is_many or is_long else {}


def _is_long(reading: Reading, row: FigureRow, flow: ChannelFlow) -> bool:
    return max(reading.at - flow.since, row.lag or 0.0) >= LONG


def _lasts(parts: _Parts) -> dict[str, Any]:
    """Return since when none of these has moved, and whether that only is when it was first looked at."""
    latest = max((flow for _, flow in parts), key=lambda each: each.since, default=None)
    if latest is None or latest.at - latest.since < 1:
        return {}
    return {"since": latest.since, "is_older": latest.since == latest.began}


def _failing(of: partial[Incident], row: FigureRow, flows: Sequence[ChannelFlow]) -> Iterator[Incident]:
    finishes, failures = sum(each.finishes for each in flows), sum(each.failures for each in flows)
    if row.channel and row.channel.held and failures > max(_RARE, _SOME_FAIL * finishes):
        rates = f"{per_second(failures)} requeued or timed out, {per_second(finishes)} finished"
        remedy = f"its consumers' logs say why; which of them: nsq-ha stat {row.topic} --channel {row.name} --clients"
        cause = f"messages of {{}} fail and come back: {rates}"
        yield of(trouble="failing", cause=cause, remedy=remedy, is_bad=failures > finishes)


def _lagging(of: partial[Incident], waits: tuple[str, ...], flows: Sequence[ChannelFlow]) -> Iterator[Incident]:
    finishes, growth = sum(each.finishes for each in flows), sum(each.growth for each in flows)
    depth, seconds = sum(each.depth for each in flows), max((each.at - each.began for each in flows), default=0.0)
    if not finishes or seconds < STILL or depth < (LONG if growth > 0 else _HOUR) * finishes:
        return
    left = (_HOUR * finishes - depth) / growth if growth > 0 else 0.0
    if growth > 0:
        cause = f"{{}} falls behind: {per_second(finishes + growth)} come, {per_second(finishes)} are finished"
        when = f"in {span(left)} more than an hour" if left > 0 else "and that grows"
    else:
        cause, when = "{} is hours behind", f"it catches up in {span(depth / -growth)}" if growth else "that stays so"
    effects = (f"a new message waits for {span(depth / finishes)}, {when}", *waits)
    remedy = "start more consumers, or raise their max_in_flight and concurrency"
    yield of(trouble="lagging", cause=cause, effects=effects, remedy=remedy, is_bad=growth > 0 and left < _HOUR)
