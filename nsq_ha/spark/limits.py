"""How many of the waiting messages a micro-batch takes: by messages, by bytes, and by a minimum.

This module divides a limit between partitions and decides for each one alone: one
whose leader does not know the position of its end yet is *held* and does not stop
the others. ``stream_planner`` decides what to do with it.

**Source:** Spark reference 2.1 ("Limits").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsq_ha.errors import NsqError
from nsq_ha.spark.positions import shares

if TYPE_CHECKING:
    from nsq_ha.spark.checkpoint import Place
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.positions import Positions


@dataclass(slots=True)
class Backlog:
    """The waiting messages of partitions with news. Offsets are in bytes.

    Attributes:
        options: Of the read.
        places: The positions; the micro-batch ends at the end of each extent at the latest.
        starts: The start of the micro-batch.
        held: Partitions without an end for now, and why.
    """

    options: ReadOptions
    places: Mapping[Place, Positions]
    starts: Mapping[Place, int]
    held: dict[Place, NsqError] = field(default_factory=dict)

    def is_too_little(self) -> bool:
        """Return whether fewer messages wait than ``minOffsetsPerTrigger``; uncountable ones do not count."""
        least = self.options.min_offsets
        return least is not None and sum(self._rows().values()) < least

    def ends(self) -> dict[Place, int]:
        """Return the ends of the micro-batch within the limits, without held partitions."""
        ends = {place: found.extent.end for place, found in self.places.items() if place not in self.held}
        if (rows := self.options.max_offsets) is not None:
            waiting = self._rows()
            parts = {place: share for place, share in shares(rows, waiting).items() if share < waiting[place]}
            ends |= self._each(parts, lambda found, start, share: found.after_rows(start, share))
        if (count := self.options.max_bytes) is not None:
            # Apply it to the rest: separately, the two limits might exclude different partitions, and so all.
            sizes = {place: end - self.starts[place] for place, end in ends.items() if place not in self.held}
            parts = {place: share for place, share in shares(count, sizes).items() if share < sizes[place]}
            for place, end in self._each(parts, lambda found, start, share: found.after_bytes(start, share)).items():
                ends[place] = min(ends[place], end)
        return {place: end for place, end in ends.items() if place not in self.held}

    def _rows(self) -> dict[Place, int]:
        everywhere = dict.fromkeys(self.places, 0)
        return self._each(everywhere, lambda found, start, _: found.rows_behind(start))

    def _each(self, parts: Mapping[Place, int], question: Callable[[Positions, int, int], int]) -> dict[Place, int]:
        """Ask for each partition; one without an answer is held."""
        found: dict[Place, int] = {}
        for place, part in parts.items():
            if place in self.held:
                continue
            try:
                found[place] = question(self.places[place], self.starts[place], part)
            except NsqError as error:
                if not error.retriable:
                    raise
                self.held[place] = error
        return found
