"""The offsets of a stream in Spark's checkpoint: one per partition, and what identifies their logs.

The JSON is ``{topic: {partition: offset}}`` with partitions as text, and our own entries
under names that no topic can have. They are needed because an offset alone does not
identify its log. ``@marks`` has one message of each log, its offset and the time of its
publish in nanoseconds; a re-created topic has another message there, or none. ``@planned``
is when the offsets were taken: messages before an offset are older, unless the topic was
re-created. It serves where the marked message is deleted. If ``failOnDataLoss=false``
lets a query go back to an earlier offset, the checkpoint also names the partition; any
other step back is an error.

**Source:** Spark design 1.5, 2.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_INT64, MAX_PARTITION_ID, shown

OffsetJson = dict[str, dict[str, int]]
"""Offsets alone."""

TopicPartition = tuple[str, int]
"""Topic and partition."""

PLANNED: Final = "@planned"
"""Key of the time, in seconds since 1970; older checkpoints have none."""

RESTARTED: Final = "@restarted"
"""Key of the partitions that go back on purpose, ``{topic: {partition: offset}}``; the step reads no message."""

OLD: Final = "@old"
"""Key of the partitions of a report of the logs' ends that have no leader, with the last known end."""

MARKS: Final = "@marks"
"""Key of one message of each log, ``{topic: {partition: [offset, time]}}``; older checkpoints have none."""

MARGIN: Final = 60.0
"""Seconds by which the clocks of the driver and the nsqds may differ."""

_NS: Final = 1_000_000_000
_DIGITS: Final = 10  # of a number of a partition, more than any has
_OWN: Final = "@"  # first character of our own names; no topic has it
_DAMAGED: Final = "the checkpoint is damaged or from another source"
_REMEDY: Final = (
    "restore the checkpointLocation of this query, or give it a new one, with startingOffsets where it must continue"
)


class Mark(NamedTuple):
    """A message of a log, by which the log is known again: in a re-created topic another message is there, or none.

    Attributes:
        offset: Where it begins.
        written_ns: When it was published, by the server's clock, in nanoseconds since 1970.
    """

    offset: int
    written_ns: int


class Origin(NamedTuple):
    """What shows whether the log of an offset in the checkpoint is still the same.

    Attributes:
        planned: When the offsets were taken, in seconds since 1970. None if that is unknown.
        marks: A message of each log; none for partitions that had no readable message.
    """

    planned: int | None = None
    marks: Mapping[TopicPartition, Mark] = MappingProxyType({})

    @classmethod
    def of(cls, offsets_json: Mapping[str, Any]) -> Self:
        """Return the origin of a checkpoint's offsets; older checkpoints have only the time, or nothing.

        Raises:
            ConfigError: The JSON has another form.
        """
        when = offsets_json.get(PLANNED)
        if when is not None and not _is_offset(when):
            raise _damaged(PLANNED, when)
        found = _by_place(offsets_json.get(MARKS, {}), _is_mark, MARKS)
        return cls(when, {place: Mark(*mark) for place, mark in found.items()})


def to_json(
    places: Mapping[TopicPartition, int], special: Mapping[TopicPartition, int] | None = None, name: str = RESTARTED
) -> dict[str, Any]:
    """Return offsets in the form of the checkpoint, without their origin.

    Args:
        places: The offset of each partition.
        special: The partitions among them to list under ``name``.
        name: :data:`RESTARTED` or :data:`OLD`.
    """
    found = _by_topic(places)
    return found | {name: _by_topic(special)} if special else found


def from_json(offsets_json: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return offsets from the form of the checkpoint, with or without a time.

    Raises:
        ConfigError: It has another form: the checkpoint is damaged, or from another source.
    """
    if not isinstance(offsets_json, Mapping):
        raise _damaged("offsets", offsets_json)
    return _by_place(undated(offsets_json), _is_offset)


def special_in(offsets_json: Mapping[str, Any], name: str = RESTARTED) -> dict[TopicPartition, int]:
    """Return the partitions that are listed under ``name``: those that go back on purpose, or :data:`OLD`.

    Raises:
        ConfigError: The JSON has another form.
    """
    return _by_place(offsets_json.get(name, {}), _is_offset, name)


def undated(offsets_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return the offsets alone."""
    return {topic: partitions for topic, partitions in offsets_json.items() if not is_own(topic)}


def is_own(name: str) -> bool:
    """Return whether a name in the checkpoint is ours, and not a topic."""
    return name.startswith(_OWN)


def dated(
    offsets: Mapping[str, Any],
    now: float,
    *known: Mapping[str, Any] | None,
    marks: Mapping[TopicPartition, Mark] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return offsets with their origin.

    Args:
        offsets: The offsets, without a time.
        now: Seconds since 1970, taken after the logs were asked.
        known: Earlier offsets. Equal offsets keep their origin: a new one would make
            Spark run an empty micro-batch. A step back to another log is never equal.
        marks: Messages of their logs.
    """
    restarted = special_in(offsets)
    for earlier in known:
        if (
            earlier is not None
            and undated(earlier) == undated(offsets)
            and restarted.items() <= special_in(earlier).items()
            and all(Origin.of(earlier).marks.get(place) == marks.get(place) for place in restarted)
        ):
            return dict(earlier)
    own: dict[str, Any] = {PLANNED: int(now)}
    if marks:
        own[MARKS] = _by_topic({place: list(mark) for place, mark in marks.items()})
    return {**own, **offsets}


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


def partition_of(text: str) -> int | None:
    """Return the partition that a key of JSON names. None if it names none."""
    is_number = text.isascii() and text.isdigit() and len(text) < _DIGITS
    return int(text) if is_number and int(text) <= MAX_PARTITION_ID else None


def _by_topic(places: Mapping[TopicPartition, object]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (topic, partition), value in sorted(places.items()):
        found.setdefault(topic, {})[str(partition)] = value
    return found


def _by_place(saved: object, is_value: Callable[[object], bool], name: str | None = None) -> dict[TopicPartition, Any]:
    """Return values by topic and partition, each one checked; ``name`` is where they are in the checkpoint."""
    found: dict[TopicPartition, Any] = {}
    for topic, partitions in saved.items() if isinstance(saved, Mapping) else [(name or "", None)]:
        for partition, value in partitions.items() if isinstance(partitions, Mapping) else [("", None)]:
            number = partition_of(partition)
            if number is None or not is_value(value):
                raise _damaged(name or topic, saved if name else partitions)
            found[topic, number] = value
    return found


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_INT64


def _is_mark(value: object) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_offset, value))


def _damaged(name: str, value: object) -> ConfigError:
    return ConfigError(f"{_DAMAGED}: it has {shown(name)}: {shown(value)}; {_REMEDY}")
