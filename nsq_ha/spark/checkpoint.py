"""The offsets of a stream in Spark's checkpoint: one per partition, and when they were taken.

The JSON is ``{topic: {partition: offset}}`` with partitions as text, and a time under
a name that no topic can have. The time is needed because an offset alone does not
identify its log: messages before it are older than the offset, unless the topic was
re-created. If ``failOnDataLoss=false`` lets a query go back to an earlier offset, the
checkpoint also names the partition; any other step back is an error.

**Source:** Spark reference 1.5, 2.1 ("Offset JSON").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nsq_ha.errors import ConfigError

OffsetJson = dict[str, dict[str, int]]
"""Offsets without their time."""

TopicPartition = tuple[str, int]
"""Topic and partition."""

PLANNED: Final = "@planned"
"""Key of the time, in seconds since 1970; older checkpoints have none."""

RESTARTED: Final = "@restarted"
"""Key of the partitions that go back on purpose, ``{topic: {partition: offset}}``; the step reads no message."""

MARGIN: Final = 60.0
"""Seconds by which the clocks of the driver and the nsqds may differ."""

_NS: Final = 1_000_000_000
_OWN: Final = "@"  # first character of our own names; no topic has it


def to_json(
    places: Mapping[TopicPartition, int], restarted: Mapping[TopicPartition, int] | None = None
) -> dict[str, Any]:
    """Return offsets in the form of the checkpoint, without a time.

    Args:
        places: The offset of each partition.
        restarted: The partitions among them that go back on purpose.
    """
    found: dict[str, Any] = {}
    for (topic, partition), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found | {RESTARTED: to_json(restarted)} if restarted else found


def from_json(offsets_json: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return offsets from the form of the checkpoint, with or without a time.

    Raises:
        ConfigError: It has another form: the checkpoint is from another source.
    """
    found: dict[TopicPartition, int] = {}
    for topic, partitions in undated(offsets_json).items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("?", None)]:
            if not partition.isdigit() or isinstance(offset, bool) or not isinstance(offset, int):
                raise ConfigError(
                    f"the checkpoint is from another source: {topic!r} has {partitions!r}; give this query a new"
                    " checkpointLocation"
                )
            found[topic, int(partition)] = offset
    return found


def restarted_in(offsets_json: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return the partitions that go back to these offsets on purpose; see :data:`RESTARTED`.

    Raises:
        ConfigError: The JSON has another form.
    """
    return from_json(offsets_json.get(RESTARTED) or {})


def planned_at(offsets_json: Mapping[str, Any]) -> int | None:
    """Return when the offsets were taken, in seconds since 1970. None if that is unknown."""
    when = offsets_json.get(PLANNED)
    return when if isinstance(when, int) and not isinstance(when, bool) else None


def undated(offsets_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offsets without their time."""
    return {topic: partitions for topic, partitions in offsets_json.items() if not is_own(topic)}


def is_own(name: str) -> bool:
    """Return whether a name in the checkpoint is ours, and not a topic."""
    return name.startswith(_OWN)


def dated(offsets: Mapping[str, Any], now: float, *known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return offsets with their time.

    Args:
        offsets: The offsets, without a time.
        now: Seconds since 1970, taken after the logs were asked.
        known: Earlier offsets. Equal offsets keep their time: a new time would make
            Spark run an empty micro-batch.
    """
    for earlier in known:
        if (
            earlier is not None
            and undated(earlier) == undated(offsets)
            and restarted_in(offsets).items() <= restarted_in(earlier).items()
        ):
            return dict(earlier)
    return {PLANNED: int(now), **offsets}


def is_of_another_log(written_ns: int, planned: int, ahead: float, margin: float = MARGIN) -> bool:
    """Return whether a message before an offset shows that the offset was taken from another log.

    In the same log, messages before an offset were written before it was taken.

    Args:
        written_ns: When the message was written, by the server's clock, in nanoseconds since 1970.
        planned: When the offset was taken, by the driver's clock, in seconds.
        ahead: Seconds by which the server's clock is now ahead of the driver's.
        margin: Seconds by which the clocks may differ beyond that.
    """
    return written_ns > (planned + margin + max(0.0, ahead)) * _NS
