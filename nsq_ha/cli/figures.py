"""The figures of channels and partitions as ``stat``, ``top`` and ``channel list`` show them: columns, and their order.

Pure: the rows are those of a :class:`~nsq_ha.admin.reading.Reading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsq_ha.admin.words import span
from nsq_ha.cli.output import FigureColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsq_ha.admin import Latency
    from nsq_ha.admin.reading import FigureRow


def number(value: float | None) -> str | None:
    """Return a count, or a rate with a digit if it is small."""
    if value is None:
        return None
    if 0 < value < 10 and value != round(value):
        return f"{value:.1f}"
    return f"{round(value):,}"


def age(at: int, now: float) -> str | None:
    """Return for how long something lasts, in whole seconds. None if it is 0, unknown."""
    return span(int(max(0.0, now - at))) if at else None


def latencies(found: Latency | None) -> str | None:
    """Return the percentiles of a latency, such as ``50%=3ms 99%=1.2s``."""
    if found is None:
        return None
    return " ".join(
        f"{share * 100:g}%={f'{seconds * 1e3:.0f}ms' if seconds < 1 else f'{seconds:.1f}s'}"
        for share, seconds in found.percentiles
    )


def _count(name: str) -> Callable[[FigureRow], str | None]:
    """Return what shows a count of a channel."""
    return lambda row: None if row.channel is None else number(getattr(row.channel, name))


TOPIC: Final = FigureColumn("topic", 0, lambda row: row.topic, is_number=False)
CHANNEL: Final = FigureColumn("channel", 0, lambda row: row.name or None, is_number=False)
PARTITION: Final = FigureColumn("part", 0, lambda row: None if row.partition is None else str(row.partition))
NSQD: Final = FigureColumn("leader", 4, lambda row: row.nsqd, is_number=False)
FIGURES: Final = (
    FigureColumn("depth", 0, lambda row: number(row.depth)),
    FigureColumn("in flight", 2, _count("in_flight")),
    FigureColumn("lag", 1, lambda row: None if row.lag is None else span(row.lag)),
    FigureColumn("clients", 3, _count("clients")),
    FigureColumn("full", 3, lambda row: row.full or None, is_number=False),
    FigureColumn("requeued", 6, _count("requeued")),
    FigureColumn("timed out", 7, _count("timed_out")),
    FigureColumn("deferred", 8, _count("deferred")),
    FigureColumn("messages", 9, lambda row: number(row.messages)),
    FigureColumn("latency", 10, lambda row: latencies(row.latency), is_number=False, is_list=True),
    FigureColumn("state", 1, lambda row: row.state or None, is_number=False),
)
_RARE: Final = ("state", "latency", "full")
"""Columns that are left out if no row has anything to show; each is an attribute of a row."""
RATES: Final = (
    FigureColumn("in/s", 1, lambda row: number(row.in_rate)),
    FigureColumn("out/s", 1, lambda row: number(row.out_rate)),
)


def columns_of(rows: Sequence[FigureRow], *, by_partition: bool, rates: bool) -> list[FigureColumn]:
    """Return the columns that have something to show."""
    places = []
    if by_partition:
        is_plain = all(row.partition is None for row in rows)
        places = [NSQD._replace(name="nsqd", need=0)] if is_plain else [PARTITION, NSQD]
    figures = [each for each in FIGURES if each.name not in _RARE or any(getattr(row, each.name) for row in rows)]
    return [TOPIC, CHANNEL, *places, *(RATES if rates else ()), *figures]


SORTS: Final[Mapping[str, Callable[[FigureRow], float]]] = {
    "depth": lambda row: row.depth or 0,
    "lag": lambda row: row.lag or 0.0,
    "in": lambda row: row.in_rate or 0.0,
    "out": lambda row: row.out_rate or 0.0,
    "flight": lambda row: row.channel.in_flight if row.channel else 0,
    "clients": lambda row: row.channel.clients if row.channel else 0,
    "requeued": lambda row: row.channel.requeued if row.channel else 0,
}
"""Figures by which rows can be sorted, largest first. ``name`` is the order without them."""


def in_order(rows: Iterable[FigureRow], by: str, *, reverse: bool = False) -> list[FigureRow]:
    """Return rows sorted by a figure of :data:`SORTS`, largest first, or by ``name``."""
    named = sorted(
        rows, key=lambda row: (row.topic, row.name, -1 if row.partition is None else row.partition, row.nsqd or "")
    )
    if by != "name":
        named.sort(key=SORTS[by], reverse=not reverse)
    elif reverse:
        named.reverse()
    return named
