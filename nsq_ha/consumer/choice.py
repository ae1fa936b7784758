"""Which partitions a consumer reads, and whether its options fit the topic.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError
from nsq_ha.options.config import ConsumerConfig, check_plain

if TYPE_CHECKING:
    from nsq_ha.policy.topology import TopicMeta, TopicView


def has_no_partitions(view: TopicView) -> bool:
    """Return whether the topic is one of plain nsqds."""
    return view.meta is not None and not view.meta.is_partitioned


def is_listed(view: TopicView) -> bool:
    """Return whether the nsqlookupds know a partition of the topic, or an nsqd of a plain cluster that has it."""
    return view.exists and bool(view.leaders if view.is_plain else view.partition_num)


def wanted(config: ConsumerConfig, view: TopicView) -> set[int]:
    """Return the partitions to read; none while the topic is unknown."""
    if config.partitions is not None:
        return set(config.partitions)
    # An nsqd of a plain cluster that nobody lists any more is read while its connection lasts.
    numbers = view.known if has_no_partitions(view) else range(view.partition_num)
    return {*numbers, *view.leaders}


def needed(config: ConsumerConfig, view: TopicView) -> set[int]:
    """Return the partitions that must be subscribed; an nsqd that left a plain cluster may have left for good."""
    return set(view.leaders) if has_no_partitions(view) else wanted(config, view)


def check_numbers(config: ConsumerConfig, view: TopicView) -> None:
    """Raise a ConfigError if an option names partitions that the topic does not have."""
    start = config.start_from
    given = {"partitions": config.partitions or (), "start_from": start if isinstance(start, Mapping) else ()}
    for option, partitions in given.items():
        absent = [p for p in sorted(partitions) if 0 < view.partition_num <= p and p not in view.leaders]
        if absent:
            has, last = f"topic {view.topic!r} has", view.partition_num - 1
            numbers = f"partitions 0..{last}" if last else "only partition 0"
            raise ConfigError(f"{option}: {has} {numbers}, not {', '.join(map(str, absent))}")


def check_meta(config: ConsumerConfig, topic: str, meta: TopicMeta) -> dict[str, str]:
    """Raise a ConfigError if the options do not fit the topic; return warnings of those that have no effect."""
    if not meta.is_partitioned:
        check_plain(config)
    if config.tag is not None and not meta.extend_support:
        raise ConfigError(
            f"topic {topic!r} has no tags, so tag={config.tag!r} would receive every message: remove tag=, or"
            f" create the topic as an extended one"
        )
    if config.ext_filter is not None and not meta.extend_support:
        raise ConfigError(
            f"messages of topic {topic!r} have no headers, so nsqd would ignore ext_filter= and deliver every"
            f" message: remove ext_filter=, or create the topic as an extended one"
        )
    warnings = {}
    if config.skip_header is not None and not meta.extend_support:
        warnings["skip_header"] = (
            "messages of this topic have no headers, so skip_header= skips none of them: remove it, or create the"
            " topic as an extended one"
        )
    if config.ordered is True and not meta.ordered:
        warnings["ordered"] = (
            "the topic is not ordered: ordered=True makes this channel ordered for all its consumers, one message at a"
            " time for each partition, until nsqd's /channel/setorder is called with order=false"
        )
    return warnings
