"""What there is to read: topics, their partitions, who leads them, and what each log holds.

Owns one look at a topic, complete or of what answers at the moment. Does not
decide what to read of it (``planner``, ``stream_planner``).

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
"""Seconds between two looks while something is missing."""


@dataclass(frozen=True, slots=True)
class Survey:
    """One look at a topic.

    Attributes:
        topic: The topic.
        meta: Its number of partitions and its kind.
        leaders: By partition; only those that answered.
        extents: What their logs hold, for the same partitions.
    """

    topic: str
    meta: TopicMeta
    leaders: Mapping[int, Node]
    extents: Mapping[int, Extent]


def topics_of(options: ReadOptions, cluster: Cluster, patience: float = 0.0) -> tuple[str, ...]:
    """Return the topics of ``options``: the named ones, or those that match the pattern now.

    Args:
        options: The options of the read.
        cluster: The cluster.
        patience: Seconds to wait for an nsqlookupd that answers.

    Raises:
        LookupUnavailableError: No nsqlookupd lists the topics for so long.
    """
    if options.pattern is None:
        return options.topics
    pattern = re.compile(options.pattern)
    until = time.monotonic() + patience
    while True:
        try:
            return tuple(topic for topic in cluster.topics() if pattern.fullmatch(topic))
        except NsqError as error:
            if not error.retriable or time.monotonic() >= until:
                raise
        time.sleep(PAUSE)


def whole(topic: str, options: ReadOptions, cluster: Cluster, patience: float | None = None) -> Survey:
    """Ask until every partition has a leader whose extent is known.

    Args:
        topic: The topic.
        options: Of the read: its partitions, its patience.
        cluster: The cluster.
        patience: Seconds. None for the read's, which an election fits into.

    Raises:
        ConfigError: The options name what the topic does not have.
        TopicNotFoundError: No nsqlookupd knows the topic; raised at once.
        NoLeaderError: A partition has no leader for so long.
        LookupUnavailableError: No nsqlookupd answers for so long.
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
            return Survey(topic, meta, leaders, _extents(topic, leaders, cluster))
        except NsqError as error:
            # A topic that does not exist is believed at once: reading and publishing never create one.
            if not error.retriable or isinstance(error, TopicNotFoundError) or time.monotonic() >= until:
                raise
        time.sleep(PAUSE)


def glance(topic: str, options: ReadOptions, cluster: Cluster) -> Survey:
    """Look once; a partition without a leader, or whose leader does not answer, is left out.

    Raises:
        NsqError: As :func:`whole`, but not for single partitions.
    """
    view = cluster.view(topic)
    meta = _checked(view, options)
    wanted = [number for number in _partitions(topic, meta, options) if number in view.leaders]
    leaders: dict[int, Node] = {}
    extents: dict[int, Extent] = {}
    for node in dict.fromkeys(view.leaders[number] for number in wanted):
        try:
            told = cluster.extents(topic, node)
        except NsqError as error:
            log.info("%s: nsqd %s does not tell the extents: %s", topic, node.address, error)
            continue
        for number in wanted:
            if view.leaders[number] == node and number in told:
                leaders[number], extents[number] = node, told[number]
    return Survey(topic, meta, leaders, extents)


def _extents(topic: str, leaders: Mapping[int, Node], cluster: Cluster) -> Mapping[int, Extent]:
    found: dict[int, Extent] = {}
    for node in dict.fromkeys(leaders.values()):
        told = cluster.extents(topic, node)
        for partition in (number for number, leader in leaders.items() if leader == node):
            if partition not in told:
                raise NoLeaderError(f"nsqd {node.address} does not lead {topic}-{partition} any more")
            found[partition] = told[partition]
    return found


def _partitions(topic: str, meta: TopicMeta, options: ReadOptions) -> Iterable[int]:
    return range(meta.partition_num) if options.assign is None else options.assign[topic]


def _checked(view: TopicView, options: ReadOptions) -> TopicMeta:
    if not view.exists:
        raise TopicNotFoundError(f"option 'topic': there is no topic {view.topic!r}")
    meta = view.meta
    if meta is None:
        raise NoLeaderError(f"topic {view.topic!r}: the number of partitions is not known {view.note}".rstrip())
    if meta.disable_channel_auto_create and options.channel is None:
        raise ConfigError(
            f"option 'topic': {view.topic!r} takes registered channels only, and a read opens channels of its own: "
            "register one and name it by option 'channel'"
        )
    named: dict[str, Iterable[int]] = {}
    for name, told in (
        ("startingOffsets", options.starting),
        ("startingOffsetsByTimestamp", options.starting_times),
        ("endingOffsets", options.ending),
        ("endingOffsetsByTimestamp", options.ending_times),
        ("assign", options.assign),
    ):
        if isinstance(told, Mapping):
            named[name] = told.get(view.topic, ())
    for name, numbers in named.items():
        if beyond := [number for number in numbers if number >= meta.partition_num]:
            raise ConfigError(f"option {name!r}: {view.topic!r} has {meta.partition_num} partitions, not {beyond}")
    return meta
