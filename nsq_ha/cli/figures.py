"""The figures of channels and partitions that ``stat`` and ``top`` show, and how many columns of them fit.

Pure: the statistics and the time come in as arguments.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsq_ha.admin import ChannelStats, ClusterStats, Latency, PartitionStats

Key = tuple[str, str, int | None, str | None]
"""Topic, channel (empty for none), partition, nsqd."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A channel, or a channel of one partition, or a topic without channels.

    Attributes:
        topic: The topic.
        channel: The channel; empty if the topic has none.
        partition: The partition. None for a sum, and at a plain nsqd.
        nsqd: ``host:port`` of the leader, or of the plain nsqd. None for a sum.
        messages: Number of messages ever stored in the topic, or in the partition.
        passed: Number of messages that the channel got and no longer waits for.
        depth: Number of waiting messages. None if there is no channel to wait in.
        in_flight: Number of delivered, unanswered messages.
        deferred: Number of messages that were requeued with a delay.
        requeued: Number of requeues since the nodes started.
        timed_out: Number of timeouts since the nodes started.
        clients: Number of connections that consume.
        state: ``paused``, ``skipped`` or empty.
        lag: For how many seconds the oldest message waits. None if it is unknown.
        latency: From publishing to FIN. None if the nsqds do not measure it.
        in_rate: Messages published a second, since the rows before. None without rows before.
        out_rate: Messages that the channel got rid of a second.
    """

    topic: str
    channel: str
    partition: int | None = None
    nsqd: str | None = None
    messages: int = 0
    passed: int = 0
    depth: int | None = None
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    clients: int = 0
    state: str = ""
    lag: float | None = None
    latency: Latency | None = None
    in_rate: float | None = None
    out_rate: float | None = None

    @property
    def key(self) -> Key:
        """What the row is about; unique."""
        return (self.topic, self.channel, self.partition, self.nsqd)

    @property
    def identity(self) -> Key:
        """The same without the leader of a partition, since it may change."""
        return (self.topic, self.channel, self.partition, self.nsqd if self.partition is None else None)


def rows_of(stats: ClusterStats, now: float, *, by_partition: bool = False, is_plain: bool = False) -> list[Row]:
    """Return the rows for statistics, sorted by topic, partition and channel.

    Args:
        stats: What the nsqds say.
        now: The time in Unix seconds.
        by_partition: One row for each partition of a channel, or each nsqd of a plain one, not for their sum.
        is_plain: The numbers of the partitions mean nothing.
    """
    rows: list[Row] = []
    for topic in stats.topics:
        if by_partition:
            for entry in topic.partitions:
                place = (None if is_plain else entry.partition, entry.nsqd)
                base = Row(topic=topic.topic, channel="", partition=place[0], nsqd=place[1], messages=entry.messages)
                rows += _rows(base, entry.channels, (entry,), now)
        else:
            base = Row(topic=topic.topic, channel="", messages=topic.messages)
            rows += _rows(base, topic.channels, topic.partitions, now)
    return rows


def rows_of_topic(topic: str, channels: Sequence[ChannelStats], now: float) -> list[Row]:
    """Return the rows for the channels of one topic, in their order."""
    return _rows(Row(topic=topic, channel=""), channels, (), now) if channels else []


def with_rates(rows: Iterable[Row], before: Iterable[Row], seconds: float) -> list[Row]:
    """Return rows with rates, by what they were some seconds before."""
    known = {row.identity: row for row in before}
    return [_with_rate(row, known.get(row.identity), seconds) for row in rows]


def _with_rate(row: Row, before: Row | None, seconds: float) -> Row:
    if before is None or seconds <= 0:
        return row
    # The counters of a node begin again when it restarts.
    return dataclasses.replace(
        row,
        in_rate=max(0, row.messages - before.messages) / seconds,
        out_rate=max(0, row.passed - before.passed) / seconds if row.channel else None,
    )


def _rows(base: Row, channels: Sequence[ChannelStats], partitions: Iterable[PartitionStats], now: float) -> list[Row]:
    if not channels:
        # A plain nsqd keeps what it gets for the topic's first channel.
        return [dataclasses.replace(base, depth=sum(entry.unrouted for entry in partitions) or None)]
    return [
        dataclasses.replace(
            base,
            channel=each.name,
            passed=each.messages - each.depth,
            depth=each.depth,
            in_flight=each.in_flight,
            deferred=each.deferred,
            requeued=each.requeued,
            timed_out=each.timed_out,
            clients=each.clients,
            state="skipped" if each.skipped else "paused" if each.paused else "",
            lag=each.lag(now),
            latency=each.latency,
        )
        for each in channels
    ]


def moved(rows: Iterable[Row], before: Iterable[Row]) -> dict[Key, str]:
    """Return the partitions whose leader changed, by the row's identity, with the leader before."""
    known = {row.identity: row.nsqd for row in before if row.partition is not None and row.nsqd is not None}
    return {
        row.identity: known[row.identity]
        for row in rows
        if row.identity in known and row.nsqd not in (None, known[row.identity])
    }


# ---------------------------------------------------------------- columns

_NAME_WIDTH: Final = 20
"""Characters of a name for which there should be room."""


class Column(NamedTuple):
    """A column of figures.

    Attributes:
        name: Its title.
        need: Columns with a larger number are left out first, where there is no room; 0 always stays.
        text: What it shows for a row, such as a :class:`Row`. None shows a dash.
        is_number: It is aligned right.
        is_list: Its words may stand on lines of their own, where there is no room beside each other.
    """

    name: str
    need: int
    text: Callable[[Any], str | None]
    is_number: bool = True
    is_list: bool = False


def number(value: float | None) -> str | None:
    """Return a count, or a rate with a digit if it is small."""
    if value is None:
        return None
    if 0 < value < 10 and value != round(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str | None:
    """Return seconds as people read them, such as ``0``, ``4.2s``, ``3m20s`` or ``2d3h``."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds else "0"
    whole = int(seconds)
    for (large, big), (small, little) in ((("d", 86400), ("h", 3600)), (("h", 3600), ("m", 60)), (("m", 60), ("s", 1))):
        if whole >= big:
            rest = whole % big // little
            return f"{whole // big}{large}{rest}{small}" if rest else f"{whole // big}{large}"
    raise AssertionError(seconds)  # 60 s are a minute


def latencies(found: Latency | None) -> str | None:
    """Return the percentiles of a latency, such as ``50%=3ms 99%=1.2s``."""
    if found is None:
        return None
    return " ".join(
        f"{share * 100:g}%={f'{seconds * 1e3:.0f}ms' if seconds < 1 else duration(seconds)}"
        for share, seconds in found.percentiles
    )


TOPIC: Final = Column("topic", 0, lambda row: row.topic, is_number=False)
CHANNEL: Final = Column("channel", 0, lambda row: row.channel or None, is_number=False)
PARTITION: Final = Column("part", 0, lambda row: None if row.partition is None else str(row.partition))
NSQD: Final = Column("leader", 4, lambda row: row.nsqd, is_number=False)
FIGURES: Final = (
    Column("depth", 0, lambda row: number(row.depth)),
    Column("in flight", 2, lambda row: number(row.in_flight) if row.channel else None),
    Column("lag", 1, lambda row: duration(row.lag)),
    Column("clients", 3, lambda row: number(row.clients) if row.channel else None),
    Column("requeued", 6, lambda row: number(row.requeued) if row.channel else None),
    Column("timed out", 7, lambda row: number(row.timed_out) if row.channel else None),
    Column("deferred", 8, lambda row: number(row.deferred) if row.channel else None),
    Column("messages", 9, lambda row: number(row.messages)),
    Column("latency", 10, lambda row: latencies(row.latency), is_number=False, is_list=True),
    Column("state", 5, lambda row: row.state or None, is_number=False),
)
_RARE: Final[Mapping[str, Callable[[Any], object]]] = {
    "state": lambda row: row.state,
    "latency": lambda row: row.latency,
}
"""Columns that are left out if no row has anything to show."""
RATES: Final = (
    Column("in/s", 1, lambda row: number(row.in_rate)),
    Column("out/s", 1, lambda row: number(row.out_rate)),
)


def columns_of(rows: Sequence[Row], *, by_partition: bool, rates: bool) -> list[Column]:
    """Return the columns that have something to show."""
    places = []
    if by_partition:
        is_plain = all(row.partition is None for row in rows)
        places = [NSQD._replace(name="nsqd", need=0)] if is_plain else [PARTITION, NSQD]
    figures = [each for each in FIGURES if each.name not in _RARE or any(map(_RARE[each.name], rows))]
    return [TOPIC, CHANNEL, *places, *(RATES if rates else ()), *figures]


def natural_width(column: Column, rows: Iterable[Any]) -> int:
    """Return the width in which a column shows everything on one line."""
    return max([len(column.name), *(len(column.text(row) or "-") for row in rows)])


def least_width(column: Column, rows: Iterable[Any]) -> int:
    """Return the width that a column needs; a long name takes several lines, and so does a list."""
    if column.is_list:
        return max([len(column.name), *(len(word) for row in rows for word in (column.text(row) or "-").split())])
    width = natural_width(column, rows)
    return width if column.is_number or column.need else min(width, _NAME_WIDTH)


def fitting(columns: Sequence[Column], rows: Sequence[Any], width: int, gap: int = 3) -> list[Column]:
    """Return the columns that fit, in their order; those that are needed least are left out first.

    A long name takes several lines, rather than the place of figures.
    """
    widths = {column.name: least_width(column, rows) for column in columns}
    left = list(columns)
    for column in sorted(columns, key=lambda each: -each.need):
        if column.need == 0 or sum(widths[each.name] + gap for each in left) - gap <= width:
            break
        left.remove(column)
    return left


def fitted_widths(columns: Sequence[Column], rows: Sequence[Any], width: int, gap: int = 3) -> dict[str, int]:
    """Return the width of each column; long names are cut so that all figures fit."""
    widths = {each.name: max([len(each.name), *(len(each.text(row) or "-") for row in rows)]) for each in columns}
    names = sorted((each.name for each in columns if not (each.is_number or each.need)), key=widths.__getitem__)
    left = width - sum(widths[each.name] + gap for each in columns) + gap + sum(widths[name] for name in names)
    for number_left, name in enumerate(names):
        widths[name] = max(1, min(widths[name], left // (len(names) - number_left)))
        left -= widths[name]
    return widths


SORTS: Final[Mapping[str, Callable[[Row], float]]] = {
    "depth": lambda row: row.depth or 0,
    "lag": lambda row: row.lag or 0.0,
    "in": lambda row: row.in_rate or 0.0,
    "out": lambda row: row.out_rate or 0.0,
    "flight": lambda row: row.in_flight,
    "clients": lambda row: row.clients,
    "requeued": lambda row: row.requeued,
}
"""Figures by which rows can be sorted, largest first. ``name`` is the order without them."""


def in_order(rows: Iterable[Row], by: str, *, reverse: bool = False) -> list[Row]:
    """Return rows sorted by a figure of :data:`SORTS`, largest first, or by ``name``."""
    named = sorted(
        rows, key=lambda row: (row.topic, row.channel, -1 if row.partition is None else row.partition, row.nsqd or "")
    )
    if by != "name":
        named.sort(key=SORTS[by], reverse=not reverse)
    elif reverse:
        named.reverse()
    return named
