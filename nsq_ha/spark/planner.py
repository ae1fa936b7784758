"""Driver side: where every partition begins and ends, and the ranges to read.

Owns the plan of one batch. Every offset in it is a message boundary, because
only then can the chain rule check the first and the last message of a range too.

**Source:** Spark reference 1.1, 1.5, 2.1 ("Boundary rule").
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, DataLossError, NoLeaderError, NsqError, TopicNotFoundError
from nsq_ha.spark.options import EARLIEST, LATEST

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.policy.topology import Node, TopicMeta, TopicView
    from nsq_ha.spark.cluster import Cluster, Extent
    from nsq_ha.spark.options import Place, ReadOptions

log: Final = logging.getLogger("nsq_ha.spark")

_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Range:
    """The messages with ``start <= offset < end`` of one partition; what one task reads.

    Attributes:
        topic: The topic.
        partition: The partition.
        start: Offset of the first message, in bytes of the partition's queue.
        end: Offset behind the last message.
        leader: Who led the partition when this was planned; a hint.
        ordered: The topic takes only ordered subscriptions.
        extended: Its messages carry extension headers.
    """

    topic: str
    partition: int
    start: int
    end: int
    leader: Node
    ordered: bool
    extended: bool

    @property
    def name(self) -> str:
        """The range for error texts and logs."""
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def plan(options: ReadOptions, cluster: Cluster) -> list[Range]:
    """Return the ranges of a batch read, one a partition; empty ones are left out.

    Raises:
        ConfigError: An offset names a partition that is not there, lies inside
            the last message, or the topic forbids channels of our own.
        DataLossError: A range is not in the log (any more) and ``failOnDataLoss`` is true.
        TopicNotFoundError: No nsqlookupd knows a topic.
        NoLeaderError: A partition has no leader for ``fetchTimeout`` seconds.
        LookupUnavailableError: No nsqlookupd answers for so long.
    """
    ranges: list[Range] = []
    for topic in options.topics:
        view, extents = _survey(topic, cluster, options.fetch_timeout)
        meta = _checked_meta(view, options)
        for partition, node in sorted(view.leaders.items()):
            bounds = _Bounds(topic, partition, node, extents[partition], options, cluster)
            start, end = bounds.starting(), bounds.ending()
            if start > end:
                raise ConfigError(
                    f"option 'endingOffsets': {topic}-{partition} ends at {end}, before its start {start}"
                )
            if start < end:
                ranges.append(Range(topic, partition, start, end, node, meta.ordered, meta.extend_support))
    return ranges


def _survey(topic: str, cluster: Cluster, limit: float) -> tuple[TopicView, Mapping[int, Extent]]:
    """Ask until every partition has a leader and that leader has told its extent."""
    until = time.monotonic() + limit
    while True:
        try:
            view = cluster.view(topic)
            return view, _extents(view, cluster)
        except NsqError as error:
            # A topic that does not exist is believed at once: reading and publishing never create one.
            if not error.retriable or isinstance(error, TopicNotFoundError) or time.monotonic() >= until:
                raise
        time.sleep(_PAUSE)


def _extents(view: TopicView, cluster: Cluster) -> Mapping[int, Extent]:
    if not view.exists:
        raise TopicNotFoundError(f"option 'topic': there is no topic {view.topic!r}")
    if not view.complete:
        missing = [number for number in range(view.partition_num) if number not in view.leaders]
        raise NoLeaderError(f"topic {view.topic!r}: no leader of partition(s) {missing or 'any'} {view.note}".rstrip())
    found: dict[int, Extent] = {}
    for node in dict.fromkeys(view.leaders.values()):
        told = cluster.extents(view.topic, node)
        for partition in (number for number, leader in view.leaders.items() if leader == node):
            if partition not in told:
                raise NoLeaderError(f"nsqd {node.address} does not lead {view.topic}-{partition} any more")
            found[partition] = told[partition]
    return found


def _checked_meta(view: TopicView, options: ReadOptions) -> TopicMeta:
    meta = view.meta
    if meta is None:
        raise NoLeaderError(f"topic {view.topic!r}: the number of partitions is not known")
    if meta.disable_channel_auto_create:
        raise ConfigError(
            f"option 'topic': {view.topic!r} takes registered channels only, and a read opens channels of its own"
        )
    for name, place in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        told = place.get(view.topic, {}) if not isinstance(place, str) else {}
        if beyond := [partition for partition in told if partition >= meta.partition_num]:
            raise ConfigError(f"option {name!r}: {view.topic!r} has {meta.partition_num} partitions, not {beyond}")
    return meta


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Start and end of one partition's range; both may wait for ``fetchTimeout``, and raise as :func:`plan` says."""

    topic: str
    partition: int
    node: Node
    extent: Extent
    options: ReadOptions
    cluster: Cluster

    def starting(self) -> int:
        told = self._told(self.options.starting, EARLIEST)
        return self.extent.start if told is None else self._inside("startingOffsets", told, self.extent.start)

    def ending(self) -> int:
        told = self._told(self.options.ending, LATEST)
        if told is None:
            return self.extent.end
        return self._inside("endingOffsets", told, self.extent.start if told < self.extent.start else self.extent.end)

    def _told(self, place: Place, special: int) -> int | None:
        """Return the offset that the user names. None for the log's own bound."""
        told = special if isinstance(place, str) else place.get(self.topic, {}).get(self.partition, special)
        return None if told == special else told

    def _inside(self, option: str, offset: int, otherwise: int) -> int:
        """Return the boundary at or behind ``offset``; ``otherwise`` when it is not in the log and that is allowed."""
        first, last = self.extent.start, self.extent.end
        if first <= offset <= last:
            return self._rounded(option, offset)
        # A log that ends before the offset was deleted and made anew, or lost its tail: never "no data".
        said = f"option {option!r}: offset {offset} of {self._name} is not in the log [{first}, {last})"
        if self.options.fail_on_data_loss:
            raise DataLossError(f"{said}: choose another offset, or set failOnDataLoss=false to read what is left")
        log.warning("%s; taking %d, %d bytes away", said, otherwise, abs(otherwise - offset))
        return otherwise

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition}"

    def _rounded(self, option: str, offset: int) -> int:
        """Return the first message boundary at or behind ``offset``."""
        if offset in (self.extent.start, self.extent.end):
            return offset
        until = time.monotonic() + self.options.fetch_timeout
        while True:
            try:
                return self.cluster.boundary(self.topic, self.partition, self.node, offset)
            except NsqError as error:
                # What is written and not committed yet is not found: that passes within moments.
                if time.monotonic() >= until:
                    raise ConfigError(
                        f"option {option!r}: no message of {self._name} begins at or behind offset {offset}, "
                        f"though the log ends at {self.extent.end}: {error}"
                    ) from error
            time.sleep(_PAUSE)
