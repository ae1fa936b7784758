"""Keep the figures, events and problems of the last minutes, in bounded memory.

All series share the positions of one ring, so adding a reading costs one write for each. What is not reported has the
value NaN, which charts leave out.

The invariant: memory is bounded by ``capacity``, ``MAX_SERIES``, ``MAX_EVENTS`` and ``MAX_PERIODS``, whatever the
cluster reports.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.findings import problems
from nsq_ha.admin.reading import Rates
from nsq_ha.dashboard.changes import begins, changes, ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.admin.findings import Trouble
    from nsq_ha.admin.reading import Place, Reading
    from nsq_ha.dashboard.changes import Event

MAX_SERIES: Final = 3000
"""Series that are kept; more topics and channels than that have no charts."""

MAX_EVENTS: Final = 1000
MAX_PERIODS: Final = 400
MAX_TEXT: Final = 400
"""Characters of a text from outside that are kept."""

Key = tuple[str, ...]
"""A series: ``cluster``, ``topic`` or ``channel``, then names, then the figure."""

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
    """

    trouble: Trouble
    subject: str
    why: str
    began: float
    ended: float | None = None


class History:
    """The last readings as series, events and periods.

    Args:
        capacity: Number of readings that are kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity: int = max(2, capacity)
        self.latest: Reading | None = None
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.gone: dict[str, float] = {}
        self.is_full: bool = False
        self._closed: deque[Period] = deque(maxlen=MAX_PERIODS)
        self._open: dict[tuple[Trouble, str], Period] = {}
        self._series: dict[Key, array[float]] = {}
        self._written: dict[Key, int] = {}
        self._former: dict[Place, str] = {}
        self._times = array("d", [_NAN]) * self.capacity
        self._count = 0

    def add(self, reading: Reading) -> None:
        """Add the newest reading."""
        before, self.latest = self.latest, reading
        if before is not None:
            self.events.extend(changes(before, reading, self._former))
            self._remember_gone(before, reading)
        if reading.is_fresh:
            places = reading.holders.keys() | reading.leaders.keys()
            known = self._former | dict(reading.leaders)
            self._former = {place: nsqd for place, nsqd in known.items() if place in places}
        self._follow(reading)
        self._write(reading)

    def tell(self, event: Event) -> None:
        """Add an event that no reading shows, such as what an operator did."""
        self.events.append(event)

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

    def _remember_gone(self, before: Reading, reading: Reading) -> None:
        if not reading.is_fresh:
            return
        for address in before.nodes.keys() - reading.nodes.keys():
            self.gone[address] = reading.at
        for address in reading.nodes:
            self.gone.pop(address, None)
        while len(self.gone) > MAX_PERIODS:
            del self.gone[next(iter(self.gone))]

    def _follow(self, reading: Reading) -> None:
        """Open and close periods."""
        now = problems(reading)
        for key in [key for key in self._open if key not in now]:
            if not reading.is_fresh and key[0] in ("silent", "leaderless"):
                continue  # nobody can tell now
            period = self._open.pop(key)
            self._closed.append(Period(period.trouble, period.subject, period.why, period.began, reading.at))
            self.events.append(ends(period.trouble, period.subject, period.began, reading.at))
        for (trouble, subject), text in sorted(now.items()):
            if (trouble, subject) in self._open or len(self._open) >= MAX_PERIODS:
                continue
            why = text[:MAX_TEXT]
            self._open[trouble, subject] = Period(trouble, subject, why, reading.at)
            self.events.append(begins(trouble, subject, why, reading.at))

    def _write(self, reading: Reading) -> None:
        position = self._count % self.capacity
        for ring in self._series.values():
            ring[position] = _NAN
        self._times[position] = reading.at
        self._count += 1
        if reading.is_fresh:
            for key, value in _values(reading):
                found = self._ring(key)
                if found is not None:
                    found[position] = value
                    self._written[key] = self._count

    def _ring(self, key: Key) -> array[float] | None:
        found = self._series.get(key)
        if found is not None:
            return found
        if len(self._series) >= MAX_SERIES:
            self._forget()
        if len(self._series) >= MAX_SERIES:
            self.is_full = True
            return None
        return self._series.setdefault(key, array("d", [_NAN]) * self.capacity)

    def _forget(self) -> None:
        """Drop the series that have no value left."""
        for key in [key for key, count in self._written.items() if self._count - count >= self.capacity]:
            del self._series[key], self._written[key]

    def _in_order(self, ring: array[float]) -> list[float]:
        if self._count <= self.capacity:
            return list(ring[: self._count])
        position = self._count % self.capacity
        return [*ring[position:], *ring[:position]]


def _values(reading: Reading) -> Iterator[tuple[Key, float]]:
    """Yield the figures of a reading; those of the whole cluster first, so that they always have a place."""
    channels = [row for row in reading.rows if row.channel is not None]
    topics = {topic: rate for (topic, *part), rate in reading.published.items() if part == [None, None]}
    yield ("cluster", "depth"), sum(row.depth or 0 for row in channels)
    yield ("cluster", "in_flight"), sum(row.channel.in_flight for row in channels if row.channel)
    yield ("cluster", "lag"), max((row.lag for row in channels if row.lag is not None), default=_NAN)
    if reading.seconds is not None:
        yield ("cluster", "published"), sum(topics.values())
        for name in Rates._fields:
            yield ("cluster", name), sum(getattr(row.rates, name, 0.0) for row in channels)
    for topic, rate in topics.items():
        yield ("topic", topic, "published"), rate
    for row in channels:
        key = ("channel", row.topic, row.name)
        yield (*key, "depth"), row.depth or 0
        yield (*key, "in_flight"), row.channel.in_flight if row.channel else 0
        yield (*key, "lag"), _NAN if row.lag is None else row.lag
        if row.rates is not None:
            for name, value in row.rates._asdict().items():
                yield (*key, name), value
