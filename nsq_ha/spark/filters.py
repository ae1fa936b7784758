"""Filters of a query, as a hint what need not be read.

Owns the meaning of a filter for ranges of a partition. Filters are never
consumed: Spark applies each one to the rows as well, so a range may be too
large but never too small.

**Source:** Spark reference 3.2 (which filters arrive).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from nsq_ha.spark.positions import Positions

log: Final = logging.getLogger("nsq_ha.spark")


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What a query can be interested in. None anywhere is no limit.

    Attributes:
        topics: Names.
        partitions: Numbers.
        offset_from: Lowest offset.
        offset_to: Highest offset.
        time_from: Earliest milliseconds since the epoch.
    """

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_from: int | None = None
    offset_to: int | None = None
    time_from: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Self:
        """Return what ``filters`` mean together; one that is not understood means nothing."""
        found = cls()
        for each in filters:
            found = found.with_filter(each)
        return found

    def with_filter(self, each: Filter) -> Self:
        """Return what is left when ``each`` must be true as well."""
        attribute, value = getattr(each, "attribute", None), getattr(each, "value", None)
        changed: dict[str, Any] = {}
        if attribute in (("topic",), ("partition",)) and isinstance(each, EqualTo | In):
            chosen = frozenset(value if isinstance(each, In) and isinstance(value, tuple | list) else (value,))
            name = f"{attribute[0]}s"
            before = getattr(self, name)
            changed[name] = chosen if before is None else before & chosen
        elif attribute == ("offset",) and isinstance(value, int):
            if isinstance(each, EqualTo | GreaterThanOrEqual | GreaterThan):
                changed["offset_from"] = max(self.offset_from or 0, value)
            if isinstance(each, EqualTo | LessThanOrEqual | LessThan):
                changed["offset_to"] = value if self.offset_to is None else min(self.offset_to, value)
        elif attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
            lower = isinstance(each, EqualTo | GreaterThan | GreaterThanOrEqual)
            changed = {"time_from": int(value.timestamp() * 1000)} if lower else {}
        return dataclasses.replace(self, **changed)

    def wants(self, topic: str, partition: int) -> bool:
        """Tell whether a partition can hold anything of interest."""
        return (self.topics is None or topic in self.topics) and (
            self.partitions is None or partition in self.partitions
        )

    def narrow(self, start: int, end: int, place: Positions) -> tuple[int, int]:
        """Return the part of ``[start, end)`` that can hold matching messages, between boundaries.

        A condition that the leader cannot evaluate at once is not pushed down.
        """
        if self.offset_from is not None and self.offset_from > start:
            offset = self.offset_from
            start = end if offset >= end else _told(lambda: place.boundary(offset)) or start
        if self.offset_to is not None and self.offset_to + 1 < end:
            behind = self.offset_to + 1
            end = max(start, _told(lambda: place.boundary(behind)) or end)
        if self.time_from is not None and start < end:
            time_from = self.time_from
            if (found := _told(lambda: place.at_time(time_from))) is not None:
                start = min(max(start, found), end)
        return start, end


def _told(question: Callable[[], int | None]) -> int | None:
    try:
        return question()
    except NsqError as error:
        if not error.retriable:
            raise
        log.info("a filter is not pushed down: %s", error)
        return None
