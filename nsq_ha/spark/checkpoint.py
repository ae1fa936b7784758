"""What a stream leaves in Spark's checkpoint: an offset a partition, and when they were taken.

Owns the form of that JSON, ``{topic: {partition: offset}}`` with partitions as text
since JSON makes them so, beside a time under a name that no topic can have. The
time is there because an offset alone does not tell whose log it is of: what is
before it was written before it was taken, and in the log of a topic that was made
anew it was not.

**Source:** Spark reference 1.5, 2.1 ("Offset JSON").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nsq_ha.errors import ConfigError

Offsets = dict[str, dict[str, int]]
"""Offsets without their time."""

Place = tuple[str, int]
"""Topic and partition."""

PLANNED: Final = "@planned"
"""Where the time is, in seconds since 1970; older checkpoints have none."""

MARGIN: Final = 60.0
"""Seconds that the clocks of the driver and of the nsqds may differ."""

_NS: Final = 1_000_000_000


def to_json(places: Mapping[Place, int]) -> Offsets:
    """Return offsets in the form of the checkpoint, without a time."""
    found: Offsets = {}
    for (topic, partition), offset in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(told: Mapping[str, Any]) -> dict[Place, int]:
    """Return offsets from the form of the checkpoint, with or without a time.

    Raises:
        ConfigError: It is not of that form: the checkpoint is of another source.
    """
    found: dict[Place, int] = {}
    for topic, partitions in undated(told).items():
        for partition, offset in partitions.items() if isinstance(partitions, dict) else [("?", None)]:
            if not partition.isdigit() or isinstance(offset, bool) or not isinstance(offset, int):
                raise ConfigError(f"the checkpoint is of another source: {topic!r} has {partitions!r}")
            found[topic, int(partition)] = offset
    return found


def planned_at(told: Mapping[str, Any]) -> int | None:
    """Return when the offsets were taken, in seconds since 1970. None when that is not told."""
    when = told.get(PLANNED)
    return when if isinstance(when, int) and not isinstance(when, bool) else None


def undated(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offsets alone."""
    return {topic: partitions for topic, partitions in told.items() if topic != PLANNED}


def dated(offsets: Mapping[str, Any], now: float, *known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return offsets with their time.

    Args:
        offsets: The offsets, without a time.
        now: Seconds since 1970; no earlier than the logs were asked.
        known: What was told before. The same offsets keep the time they had: to
            Spark another time would be news, and so a micro-batch with nothing in it.
    """
    for told in known:
        if told is not None and undated(told) == offsets:
            return dict(told)
    return {PLANNED: int(now), **offsets}


def is_of_another_log(written_ns: int, planned: int, ahead: float) -> bool:
    """Tell whether a message before an offset shows that the offset was taken of another log.

    What a log holds before an offset was written before the offset was taken.

    Args:
        written_ns: When the message was written, by the server's clock, in nanoseconds since 1970.
        planned: When the offset was taken, by the driver's clock, in seconds.
        ahead: Seconds that the server's clock is ahead of the driver's now.
    """
    return written_ns > (planned + MARGIN + max(0.0, ahead)) * _NS
