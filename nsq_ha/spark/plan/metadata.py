"""Topic metadata: partitions, their leaders, and the extent of each partition's log.

This module takes snapshots of topics, either complete or of the partitions that answer, and keeps the last ones.
It does not decide what to read (``batch_planner``, ``stream_planner``).

**Source:** Spark design 1.1, 2.1.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, NoLeaderError, NsqError, TopicNotFoundError
from nsq_ha.spark import logger
from nsq_ha.spark.cluster import ROUTINE, BlockingCluster
from nsq_ha.spark.plan.boundaries import NotReadableError, PartitionLog, retried

if TYPE_CHECKING:
    from nsq_ha.policy.topology import TopicMeta, TopicView
    from nsq_ha.spark.checkpoint import TopicPartition
    from nsq_ha.spark.cluster import Extent
    from nsq_ha.spark.options import ReadOptions


MANY: Final = 8
"""Number of topics from which on the statistics of all topics cost less than those of each."""


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The state of a topic at one time.

    Attributes:
        topic: The topic.
        meta: The topic's number of partitions and its kind.
        logs: The partitions that are read; only those whose leader answered.
        is_complete: Whether these are all that are read.
    """

    topic: str
    meta: TopicMeta
    logs: Mapping[int, PartitionLog]
    is_complete: bool


def topics_of(
    options: ReadOptions, cluster: BlockingCluster, patience: float = 0.0, max_age: float = 0.0
) -> tuple[str, ...]:
    """Return the topics of ``options``: the listed ones, or those that match the pattern now.

    Args:
        options: The options of the read.
        cluster: The cluster.
        patience: Seconds to wait for an nsqlookupd that answers.
        max_age: As for :meth:`nsq_ha.spark.cluster.BlockingCluster.view`.

    Raises:
        LookupUnavailableError: No nsqlookupd lists the topics within ``patience``.
    """
    if options.subscribe_pattern is None:
        return options.topics
    names = retried(lambda: cluster.topics(max_age), time.monotonic() + patience)
    return tuple(topic for topic in names if re.fullmatch(options.subscribe_pattern, topic))


def complete_snapshot(
    topic: str, options: ReadOptions, cluster: BlockingCluster, patience: float | None = None
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
    ages = iter((ROUTINE,))

    def ask() -> TopicSnapshot:
        written = _written(cluster.view(topic, next(ages, 0.0)), options, cluster, is_complete=True)
        return _committed([written], options, cluster, is_complete=True)[0]

    # Reading and publishing never create a topic, so waiting for a missing one is pointless.
    return retried(ask, until, final=TopicNotFoundError)


def available_snapshot(
    topic: str, options: ReadOptions, cluster: BlockingCluster, max_age: float = 0.0
) -> TopicSnapshot:
    """Ask once; leave out each partition that has no leader, or whose leader does not answer.

    Args:
        topic: The topic.
        options: Options of the read: its partitions.
        cluster: The cluster.
        max_age: Seconds for which the known leaders count, unless one of them does not answer or no longer leads.

    Raises:
        NsqError: As :func:`complete_snapshot`, but not for single partitions.
    """
    return _committed([_available(topic, options, cluster, max_age)], options, cluster)[0]


def _available(topic: str, options: ReadOptions, cluster: BlockingCluster, max_age: float) -> TopicSnapshot:
    view = cluster.view(topic, max_age)
    snapshot = _written(view, options, cluster)
    if max_age and not snapshot.is_complete and (newer := cluster.view(topic)) != view:
        return _written(newer, options, cluster)
    return snapshot


def _written(
    view: TopicView, options: ReadOptions, cluster: BlockingCluster, *, is_complete: bool = False
) -> TopicSnapshot:
    """Return the partitions whose leaders answer, committed or not; raise if ``is_complete`` and one does not."""
    topic, meta = view.topic, _checked(view, options)
    wanted: Iterable[int] = range(meta.partition_num) if options.assign is None else options.assign[topic]
    leaders = {number: view.leaders[number] for number in wanted if number in view.leaders}
    missing = [number for number in wanted if number not in leaders]
    if is_complete and missing:
        raise NoLeaderError(f"topic {topic!r}: no leader of partition(s) {missing}{view.cause}")
    logs: dict[int, PartitionLog] = {}
    for node in dict.fromkeys(leaders.values()):
        try:
            extents = cluster.extents(topic, node)
        except NsqError as error:
            if is_complete:
                raise
            logger.info("topic %r: nsqd %s did not say what its partitions hold: %s", topic, node.address, error)
            continue
        seen_at = time.monotonic()
        for number in (number for number, leader in leaders.items() if leader == node):
            if number in extents:
                extent, prefix = extents[number], options.channel_prefix
                logs[number] = PartitionLog(topic, number, node, extent, cluster, options.patience, prefix, seen_at)
            elif is_complete:
                raise NoLeaderError(f"nsqd {node.address} no longer leads {topic}-{number}")
            else:
                logger.info("%s-%d: nsqd %s no longer leads it", topic, number, node.address)
    return TopicSnapshot(topic, meta, logs, is_complete=not missing and len(logs) == len(leaders))


def _committed(
    snapshots: Sequence[TopicSnapshot], options: ReadOptions, cluster: BlockingCluster, *, is_complete: bool = False
) -> list[TopicSnapshot]:
    """Return the logs as far as they are committed: a plan that ended later might end inside a message."""
    written = {each.place: (each.node, each.extent) for snapshot in snapshots for each in snapshot.logs.values()}
    ends = cluster.committed(written, options.channel, options.channel_prefix)
    return [_cut(snapshot, ends, is_complete=is_complete) for snapshot in snapshots]


def _cut(
    snapshot: TopicSnapshot, ends: Mapping[TopicPartition, Extent | NsqError], *, is_complete: bool
) -> TopicSnapshot:
    logs: dict[int, PartitionLog] = {}
    for number, log in snapshot.logs.items():
        extent = ends[log.place]
        if isinstance(extent, NsqError):
            if is_complete or not extent.retriable:
                raise extent
            logger.info("%s: it is not known what its leader has committed: %s", log.name, extent)
        elif is_complete and extent.end < log.extent.end:
            raise NotReadableError(f"nsqd {log.node.address} has not committed all that {log.name} holds")
        else:
            logs[number] = replace(log, extent=extent)
    return replace(snapshot, logs=logs, is_complete=snapshot.is_complete and len(logs) == len(snapshot.logs))


class Snapshots:
    """The last snapshots of all topics of a stream.

    Args:
        options: Options of the read.
        cluster: The cluster.

    Attributes:
        last: The last snapshot of each topic, by its name.
    """

    def __init__(self, options: ReadOptions, cluster: BlockingCluster) -> None:
        self.last: dict[str, TopicSnapshot] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._taken_at = 0.0
        self._denied: set[str] = set()
        self._options = options
        self._cluster = cluster

    def complete(self) -> Mapping[str, TopicSnapshot]:
        """Take and return a snapshot of each topic with all its partitions.

        Raises:
            NsqError: As :func:`complete_snapshot`.
        """
        options, cluster = self._options, self._cluster
        topics = topics_of(options, cluster, options.patience)
        return self._keep([complete_snapshot(topic, options, cluster) for topic in topics])

    def recent(self, places: Mapping[TopicPartition, int]) -> Mapping[str, TopicSnapshot]:
        """Return snapshots that are not older than ``metadataRefresh``.

        Args:
            places: Up to where the query has read each partition. Their topics are looked up though no list has them:
                an nsqlookupd that has just started lists nothing.

        Raises:
            NsqError: No nsqlookupd has answered since the query began, for the patience of the read.
        """
        options = self._options
        reads = {place: offset for place, offset in places.items() if options.reads(*place)}
        self._ends = reads | self._ends
        read = {topic for topic, _ in reads} - self._denied
        if time.monotonic() - self._taken_at < options.metadata_refresh and read <= self.last.keys():
            return self.last
        # Without a time for which answers count, those of the nsqlookupds do not count either.
        max_age = ROUTINE if options.metadata_refresh else 0.0

        def ask() -> Mapping[str, TopicSnapshot]:
            listed = topics_of(options, self._cluster, max_age=max_age)
            topics = dict.fromkeys((*listed, *sorted(read)))
            with self._cluster.one_look() if len(topics) >= MANY else contextlib.nullcontext():
                # Statistics show which leaders have gone, so of many topics some are looked up at a time.
                ages = {topic: max_age * (1 + number // MANY) for number, topic in enumerate(topics)}
                found = [each for topic, age in ages.items() if (each := self._available(topic, age)) is not None]
            return self._keep(_committed(found, options, self._cluster))

        return retried(ask, time.monotonic() + options.patience)

    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """Return the partitions of the last snapshots."""
        return {each.place: each for snapshot in self.last.values() for each in snapshot.logs.values()}

    def ends(self) -> dict[TopicPartition, int]:
        """Return the last known end of each partition's log; where none is known, up to where the query has read."""

        def is_there(topic: str, number: int) -> bool:
            snapshot = self.last.get(topic)
            return topic not in self._denied if snapshot is None else number < snapshot.meta.partition_num

        return {place: end for place, end in self._ends.items() if is_there(*place)}

    def _keep(self, found: Iterable[TopicSnapshot]) -> Mapping[str, TopicSnapshot]:
        self.last = {snapshot.topic: snapshot for snapshot in found}
        self._ends |= {place: each.extent.end for place, each in self.logs().items()}
        self._taken_at = time.monotonic()
        return self.last

    def _available(self, topic: str, max_age: float) -> TopicSnapshot | None:
        options = self._options
        try:
            return _available(topic, options, self._cluster, max_age)
        except TopicNotFoundError:
            self._denied.add(topic)
            # A deleted topic that was read before is handled with its offsets; it may be one of many.
            if topic in self.last or options.subscribe_pattern is not None or not options.fail_on_data_loss:
                return None
            raise


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
    for name, value in options.by_partition.items():
        if beyond := [number for number in value.get(view.topic, ()) if number >= meta.partition_num]:
            raise ConfigError(f"option {name!r}: {view.topic!r} has {meta.partition_num} partitions, not {beyond}")
    return meta
