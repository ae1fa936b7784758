"""Driver side: where every partition begins and ends, and the ranges to read.

Owns the plan of one batch. Every offset in it is a message boundary, because
only then can the chain rule check the first and the last message of a range too.

**Source:** Spark reference 1.1, 1.5, 2.1 ("Boundary rule").
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, DataLossError, NsqError
from nsq_ha.spark.options import EARLIEST, LATEST
from nsq_ha.spark.positions import Positions
from nsq_ha.spark.survey import Survey, topics_of, whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.filters import Narrowed
    from nsq_ha.spark.options import Offsets, Place, ReadOptions

log: Final = logging.getLogger("nsq_ha.spark")


@dataclass(frozen=True, slots=True)
class Range:
    """The messages with ``start <= offset < end`` of one partition; what one task reads.

    Attributes:
        topic: The topic.
        partition: The partition.
        start: Offset of the first message, in bytes of the partition's queue.
        end: Offset behind the last message.
        leader: Who led the partition when this was planned; a hint. None when nobody did.
        ordered: The topic takes only ordered subscriptions.
        extended: Its messages carry extension headers.

    Raises:
        ConfigError: It ends before it starts, which would repeat messages.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader: Node | None
    ordered: bool
    extended: bool

    def __post_init__(self) -> None:
        """Reject a range that goes backwards."""
        if not 0 <= self.start <= self.end:
            raise goes_back(f"{self.topic}-{self.partition}", self.start, self.end)

    @property
    def name(self) -> str:
        """The range for error texts and logs."""
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def goes_back(name: str, start: int, end: int, unit: str = "offset") -> ConfigError:
    """Return the error for a plan that ends before it starts."""
    return ConfigError(
        f"{name}: the plan goes back from {unit} {start} to {end}, which would repeat messages; if that is in the "
        "checkpoint, it is of another log or of a faulty version: start with a new checkpoint and a new output"
    )


def plan(options: ReadOptions, cluster: Cluster, narrowed: Narrowed | None = None) -> list[Range]:
    """Return the ranges of a batch read, one a partition unless they are cut; empty ones are left out.

    Args:
        options: The options of the read.
        cluster: The cluster.
        narrowed: What the query's filters leave. None for everything.

    Raises:
        ConfigError: An offset names a partition that is not there, lies inside
            the last message, or the topic forbids channels of our own.
        DataLossError: A range is not in the log (any more) and ``failOnDataLoss`` is true.
        TopicNotFoundError: No nsqlookupd knows a topic.
        NoLeaderError: A partition has no leader for ``fetchTimeout`` times (``fetchRetries`` + 1).
        LookupUnavailableError: No nsqlookupd answers for so long.
        ResponseTimeoutError: A leader does not give the place of a start or an end for so long.
    """
    ranges: list[Range] = []
    places: dict[tuple[str, int], Positions] = {}
    for topic in topics_of(options, cluster, options.patience):
        seen = whole(topic, options, cluster)
        for partition, node in sorted(seen.leaders.items()):
            if narrowed is not None and not narrowed.wants(topic, partition):
                continue
            bounds = Bounds(positions(seen, partition, options, cluster), options)
            start, end = bounds.starting(), bounds.ending()
            if start > end:
                raise ConfigError(
                    f"option {bounds.ending_option!r}: {topic}-{partition} ends at {end}, before its start {start}"
                )
            if narrowed is not None:
                start, end = narrowed.narrow(start, end, bounds.positions)
            if start < end:
                ranges.append(Range(topic, partition, start, end, node, seen.meta.ordered, seen.meta.extend_support))
                places[topic, partition] = bounds.positions
    return divide(ranges, options, places)


def positions(seen: Survey, partition: int, options: ReadOptions, cluster: Cluster) -> Positions:
    """Return the searcher of one partition of a survey."""
    node, extent = seen.leaders[partition], seen.extents[partition]
    return Positions(seen.topic, partition, node, extent, cluster, options.patience, options.channel_prefix)


def divide(ranges: Sequence[Range], options: ReadOptions, places: Mapping[tuple[str, int], Positions]) -> list[Range]:
    """Cut ranges for ``minPartitions`` and ``maxRecordsPerPartition`` at message boundaries.

    If messages of a range cannot be read yet, this waits, as the task would. A
    range whose boundaries are not found in time is not split; its task reports the error.

    Args:
        ranges: What is to be read.
        options: Of the read.
        places: The searchers; a range without one stays whole.
    """
    wanted, total = options.min_partitions or 0, sum(part.end - part.start for part in ranges)
    if (wanted <= len(ranges) and options.max_records is None) or not total:
        return list(ranges)
    found: list[Range] = []
    # One limit for all: fresh messages of one partition are flushed while waiting for another one.
    until = time.monotonic() + options.patience
    for part in ranges:
        place = places.get((part.topic, part.partition))
        pieces = max(1, -(-wanted * (part.end - part.start) // total)) if wanted > len(ranges) else 1
        cuts = [] if place is None else _cuts(place, part, pieces, options.max_records, until)
        bounds = [part.start, *cuts, part.end]
        found += [dataclasses.replace(part, start=low, end=high) for low, high in itertools.pairwise(bounds)]
    return found


def _cuts(place: Positions, part: Range, pieces: int, rows: int | None, until: float) -> list[int]:
    try:
        return place.patiently(lambda there: there.cuts(part.start, part.end, pieces, rows), until)
    except NsqError as error:
        if not error.retriable:
            raise
        log.warning("%s is not split: %s", place.name, error)
        return []


@dataclass(frozen=True, slots=True)
class Bounds:
    """Start and end of one partition's range; both wait as long as the read is patient, and raise as :func:`plan`."""

    positions: Positions
    options: ReadOptions

    def starting(self) -> int:
        """Return the first offset, a boundary."""
        extent = self.positions.extent
        if self.options.starting_times is not None:
            return self._at_time(self.options.starting_times, extent.start)
        if self._is(self.options.starting, "latest", LATEST):
            return extent.end
        told = self._told(self.options.starting, EARLIEST)
        return extent.start if told is None else self._inside("startingOffsets", told, extent.start)

    def ending(self) -> int:
        """Return the offset behind the last message, a boundary."""
        extent = self.positions.extent
        if self.options.ending_times is not None:
            return self._at_time(self.options.ending_times, extent.end)
        told = self._told(self.options.ending, LATEST)
        if told is None:
            return extent.end
        return self._inside("endingOffsets", told, extent.start if told < extent.start else extent.end)

    @property
    def ending_option(self) -> str:
        """The option that set the end."""
        return "endingOffsets" if self.options.ending_times is None else "endingTimestamp"

    def _at_time(self, times: int | Offsets, otherwise: int) -> int:
        """Return where the time begins; where none is told ``otherwise``, where all is older the log's end."""
        place = self.positions
        told = times if isinstance(times, int) else times.get(place.topic, {}).get(place.partition)
        if told is None:
            return otherwise
        found = place.patiently(lambda there: there.at_time(told))
        return place.extent.end if found is None else found

    def _is(self, place: Place, word: str, special: int) -> bool:
        if isinstance(place, str):
            return place == word
        return place.get(self.positions.topic, {}).get(self.positions.partition) == special

    def _told(self, place: Place, special: int) -> int | None:
        """Return the offset that the user names. None for the log's own bound."""
        if isinstance(place, str):
            return None
        told = place.get(self.positions.topic, {}).get(self.positions.partition, special)
        return None if told == special else told

    def _inside(self, option: str, offset: int, otherwise: int) -> int:
        """Return the boundary at or behind ``offset``; ``otherwise`` when it is not in the log and that is allowed."""
        extent = self.positions.extent
        if extent.start <= offset <= extent.end:
            found = self.positions.patiently(lambda there: there.boundary(offset))
            if found is None:
                raise ConfigError(
                    f"option {option!r}: no message of {self.positions.name} begins at or behind offset {offset}, "
                    f"though the log ends at {extent.end}"
                )
            return found
        # A log that ends before the offset was deleted and re-created, or lost its tail: never "no data".
        name = self.positions.name
        said = f"option {option!r}: offset {offset} of {name} is not in the log [{extent.start}, {extent.end})"
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{said}: choose another offset, or set failOnDataLoss=false to read what is left")
        log.warning("%s; taking %d, %d bytes away", said, otherwise, abs(otherwise - offset))
        return otherwise
