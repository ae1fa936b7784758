"""How much of what waits a micro-batch takes: by messages, by bytes, and when it is too little.

Owns the division of a limit between partitions, each decided by itself: one whose
leader does not tell the place of its end at the moment is *held*, and stops nobody.
Does not own what becomes of a held one (``stream_planner``).

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
    """What waits in the partitions that have news. Offsets in bytes.

    Attributes:
        options: Of the read.
        places: The searchers; the end of each one's extent is where the micro-batch may end at most.
        starts: Where the micro-batch begins.
        held: Partitions that have no end for now, and why.
    """

    options: ReadOptions
    places: Mapping[Place, Positions]
    starts: Mapping[Place, int]
    held: dict[Place, NsqError] = field(default_factory=dict)

    def is_too_little(self) -> bool:
        """Tell whether fewer messages wait than ``minOffsetsPerTrigger``; what cannot be counted yet counts nothing."""
        least = self.options.min_offsets
        return least is not None and sum(self._rows().values()) < least

    def ends(self) -> dict[Place, int]:
        """Return where the micro-batch ends within the limits, without the partitions that are held."""
        ends = {place: found.extent.end for place, found in self.places.items() if place not in self.held}
        if (rows := self.options.max_offsets) is not None:
            waiting = self._rows()
            parts = {place: share for place, share in shares(rows, waiting).items() if share < waiting[place]}
            ends |= self._each(parts, lambda found, start, share: found.after_rows(start, share))
        if (count := self.options.max_bytes) is not None:
            # Of what the limit of messages left: else the two might leave different partitions out, and so all.
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
