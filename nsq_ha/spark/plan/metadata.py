"""Topic metadata: partitions, their leaders, and the extent of each partition's log.

This module takes one snapshot of a topic, either complete or of the partitions that answer.
It does not decide what to read (``batch_planner``, ``stream_planner``).

**Source:** Spark reference 1.1, 2.1.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, NoLeaderError, NsqError, TopicNotFoundError

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView
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


def topics_of(options: ReadOptions, cluster: Cluster, patience: float = 0.0) -> tuple[str, ...]:
    """Return the topics of ``options``: the listed ones, or those that match the pattern now.

    Args:
        options: The options of the read.
        cluster: The cluster.
        patience: Seconds to wait for an nsqlookupd that answers.

    Raises:
        LookupUnavailableError: No nsqlookupd lists the topics within ``patience``.
    """
    if options.subscribe_pattern is None:
        return options.topics
    pattern = re.compile(options.subscribe_pattern)
    until = time.monotonic() + patience
    while True:
        try:
            return tuple(topic for topic in cluster.topics() if pattern.fullmatch(topic))
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
    while True:
        try:
            view = cluster.view(topic)
            meta = _checked(view, options)
            wanted = _partitions(topic, meta, options)
            if missing := [number for number in wanted if number not in view.leaders]:
                raise NoLeaderError(f"topic {topic!r}: no leader of partition(s) {missing} {view.note}".rstrip())
            leaders = {number: view.leaders[number] for number in wanted}
            return TopicSnapshot(topic, meta, leaders, _extents(topic, leaders, cluster))
        except NsqError as error:
            # Reading and publishing never create a topic, so waiting for a missing one is pointless.
            if not error.retriable or isinstance(error, TopicNotFoundError) or time.monotonic() >= until:
                raise
        time.sleep(PAUSE)


def available_snapshot(topic: str, options: ReadOptions, cluster: Cluster) -> TopicSnapshot:
    """Ask once; leave out each partition that has no leader, or whose leader does not answer.

    Raises:
        NsqError: As :func:`complete_snapshot`, but not for single partitions.
    """
    view = cluster.view(topic)
    meta = _checked(view, options)
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
        raise NoLeaderError(f"topic {view.topic!r}: no nsqlookupd names its number of partitions {view.note}".rstrip())
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
