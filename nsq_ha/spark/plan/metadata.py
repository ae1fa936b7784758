"""Topic metadata: partitions, their leaders, and the extent of each partition's log.

This module takes snapshots of topics, either complete or of the partitions that answer, and keeps the last ones.
It does not decide what to read (``batch_planner``, ``stream_planner``).

**Source:** Spark design 1.1, 2.1.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, NoLeaderError, NsqError, TopicNotFoundError
from nsq_ha.spark.cluster import ROUTINE

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView
    from nsq_ha.spark.checkpoint import TopicPartition
    from nsq_ha.spark.cluster import Cluster, Extent
    from nsq_ha.spark.options import ReadOptions

log: Final = logging.getLogger("nsq_ha.spark")

PAUSE: Final = 0.2
"""Seconds between two requests while something is missing."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The state of a topic at one time.

    Attributes:
        topic: The topic.
        meta: The topic's number of partitions and its kind.
        leaders: The leader of each partition; only leaders that answered.
        extents: The extents of the logs of the same partitions.
    """

    topic: str
    meta: TopicMeta
    leaders: Mapping[int, Node]
    extents: Mapping[int, Extent]


def topics_of(options: ReadOptions, cluster: Cluster, patience: float = 0.0, max_age: float = 0.0) -> tuple[str, ...]:
    """Return the topics of ``options``: the listed ones, or those that match the pattern now.

    Args:
        options: The options of the read.
        cluster: The cluster.
        patience: Seconds to wait for an nsqlookupd that answers.
        max_age: As for :meth:`nsq_ha.spark.cluster.Cluster.view`.

    Raises:
        LookupUnavailableError: No nsqlookupd lists the topics within ``patience``.
    """
    if options.subscribe_pattern is None:
        return options.topics
    pattern = re.compile(options.subscribe_pattern)
    until = time.monotonic() + patience
    while True:
        try:
            return tuple(topic for topic in cluster.topics(max_age) if pattern.fullmatch(topic))
        except NsqError as error:
            if not error.retriable or time.monotonic() >= until:
                raise
        time.sleep(PAUSE)


def complete_snapshot(
    topic: str, options: ReadOptions, cluster: Cluster, patience: float | None = None
) -> TopicSnapshot:
    """Wait until each partition has a leader whose extent is known.

    Args:
        topic: The topic.
        options: Options of the read: its partitions, its patience.
        cluster: The cluster.
        patience: Seconds to wait; None for the patience of the read, which is longer than an election.

    Raises:
        ConfigError: The options name a partition that the topic does not have.
        TopicNotFoundError: No nsqlookupd knows the topic; raised immediately.
        NoLeaderError: A partition has no leader within ``patience``.
        LookupUnavailableError: No nsqlookupd answers within ``patience``.
    """
    until = time.monotonic() + (options.patience if patience is None else patience)
    max_age = ROUTINE
    while True:
        try:
            view = cluster.view(topic, max_age)
            meta = _checked(view, options)
            wanted = _partitions(topic, meta, options)
            if missing := [number for number in wanted if number not in view.leaders]:
                raise NoLeaderError(f"topic {topic!r}: no leader of partition(s) {missing}{view.cause}")
            leaders = {number: view.leaders[number] for number in wanted}
            return TopicSnapshot(topic, meta, leaders, _extents(topic, leaders, cluster))
        except NsqError as error:
            # Reading and publishing never create a topic, so waiting for a missing one is pointless.
            if not error.retriable or isinstance(error, TopicNotFoundError) or time.monotonic() >= until:
                raise
        max_age = 0.0
        time.sleep(PAUSE)


def available_snapshot(topic: str, options: ReadOptions, cluster: Cluster, max_age: float = 0.0) -> TopicSnapshot:
    """Ask once; leave out each partition that has no leader, or whose leader does not answer.

    Args:
        topic: The topic.
        options: Options of the read: its partitions.
        cluster: The cluster.
        max_age: Seconds for which the known leaders count, unless one of them does not answer or no longer leads.

    Raises:
        NsqError: As :func:`complete_snapshot`, but not for single partitions.
    """
    view = cluster.view(topic, max_age)
    snapshot = _available(view, options, cluster)
    if max_age and any(number not in snapshot.leaders for number in _partitions(topic, snapshot.meta, options)):
        newer = cluster.view(topic)
        if newer != view:
            return _available(newer, options, cluster)
    return snapshot


def _available(view: TopicView, options: ReadOptions, cluster: Cluster) -> TopicSnapshot:
    """Return the partitions whose leaders answer."""
    topic, meta = view.topic, _checked(view, options)
    wanted = [number for number in _partitions(topic, meta, options) if number in view.leaders]
    leaders: dict[int, Node] = {}
    extents: dict[int, Extent] = {}
    for node in dict.fromkeys(view.leaders[number] for number in wanted):
        try:
            known = cluster.extents(topic, node)
        except NsqError as error:
            log.info("topic %r: nsqd %s did not return the extents of its partitions: %s", topic, node.address, error)
            continue
        for number in wanted:
            if view.leaders[number] == node and number in known:
                leaders[number], extents[number] = node, known[number]
    return TopicSnapshot(topic, meta, leaders, extents)


class Snapshots:
    """The last snapshots of all topics of a stream.

    Args:
        options: Options of the read.
        cluster: The cluster.

    Attributes:
        last: The last snapshot of each topic, by its name.
        taken_at: When they were taken, in monotonic seconds.
    """

    def __init__(self, options: ReadOptions, cluster: Cluster) -> None:
        self.last: dict[str, TopicSnapshot] = {}
        self.taken_at: float = 0.0
        self._options = options
        self._cluster = cluster
        self._is_silent = False

    def complete(self) -> list[TopicSnapshot]:
        """Take and return a snapshot of each topic with all its partitions.

        Raises:
            NsqError: As :func:`complete_snapshot`.
        """
        options, cluster = self._options, self._cluster
        topics = topics_of(options, cluster, options.patience)
        return self._keep([complete_snapshot(topic, options, cluster) for topic in topics])

    def recent(self) -> list[TopicSnapshot]:
        """Return snapshots that are not older than ``metadataRefresh``.

        Raises:
            NsqError: No nsqlookupd has answered since the query began, for the patience of the read.
        """
        if time.monotonic() - self.taken_at < self._options.metadata_refresh:
            return list(self.last.values())
        # Without a time for which answers count, those of the nsqlookupds do not count either.
        max_age = ROUTINE if self._options.metadata_refresh else 0.0
        until = time.monotonic() + self._options.patience
        while True:
            try:
                topics = topics_of(self._options, self._cluster, max_age=max_age)
                found = [self._available(topic, max_age) for topic in topics]
                return self._keep([snapshot for snapshot in found if snapshot is not None])
            except NsqError as error:
                if not error.retriable or time.monotonic() >= until:
                    raise
            self._report_silence()
            time.sleep(PAUSE)

    def by_partition(self) -> dict[TopicPartition, tuple[Node, Extent]]:
        """Return leader and extent of each partition in the last snapshots."""
        return by_partition(self.last.values())

    def _keep(self, found: list[TopicSnapshot]) -> list[TopicSnapshot]:
        self.last = {snapshot.topic: snapshot for snapshot in found}
        self.taken_at = time.monotonic()
        self._report_silence()
        return found

    def _available(self, topic: str, max_age: float) -> TopicSnapshot | None:
        options = self._options
        try:
            return available_snapshot(topic, options, self._cluster, max_age)
        except TopicNotFoundError:
            # A deleted topic that was read before is handled with its offsets; it may be one of many.
            if topic in self.last or options.subscribe_pattern is not None or not options.fail_on_data_loss:
                return None
            raise

    def _report_silence(self) -> None:
        """Warn once that no nsqlookupd answers, and log that one answers again."""
        error = self._cluster.silence
        if error is not None and not self._is_silent:
            log.warning("no nsqlookupd answers, going on with the leaders known so far: %s", error)
        elif error is None and self._is_silent:
            log.info("an nsqlookupd answers again")
        self._is_silent = error is not None


def by_partition(snapshots: Iterable[TopicSnapshot]) -> dict[TopicPartition, tuple[Node, Extent]]:
    """Return leader and extent of each partition."""
    return {
        (snapshot.topic, partition): (node, snapshot.extents[partition])
        for snapshot in snapshots
        for partition, node in snapshot.leaders.items()
    }


def _extents(topic: str, leaders: Mapping[int, Node], cluster: Cluster) -> Mapping[int, Extent]:
    found: dict[int, Extent] = {}
    for node in dict.fromkeys(leaders.values()):
        known = cluster.extents(topic, node)
        for partition in (number for number, leader in leaders.items() if leader == node):
            if partition not in known:
                raise NoLeaderError(f"nsqd {node.address} no longer leads {topic}-{partition}")
            found[partition] = known[partition]
    return found


def _partitions(topic: str, meta: TopicMeta, options: ReadOptions) -> Iterable[int]:
    return range(meta.partition_num) if options.assign is None else options.assign[topic]


def _checked(view: TopicView, options: ReadOptions) -> TopicMeta:
    if not view.exists:
        raise TopicNotFoundError(f"option 'topic': {TopicNotFoundError.named(view.topic)}")
    meta = view.meta
    if meta is None:
        raise NoLeaderError(f"topic {view.topic!r}: no nsqlookupd names its number of partitions{view.cause}")
    if meta.disable_channel_auto_create and options.channel is None:
        raise ConfigError(
            f"option 'topic': {view.topic!r} accepts registered channels only, but a read creates its own channels: "
            "register a channel and set option 'channel' to it"
        )
    for name, value in (
        ("startingOffsets", options.starting_offsets),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsets", options.ending_offsets),
        ("endingOffsetsByTimestamp", options.ending_times),
        ("assign", options.assign),
    ):
        named: Iterable[int] = value.get(view.topic, ()) if isinstance(value, Mapping) else ()
        if beyond := [number for number in named if number >= meta.partition_num]:
            raise ConfigError(f"option {name!r}: {view.topic!r} has {meta.partition_num} partitions, not {beyond}")
    return meta
