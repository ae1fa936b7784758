"""The types of the options of ``format("nsq")`` that a type of Python and a range do not describe.

Each function takes a text, and raises a ConfigError with the exact problem, or ValueError if the text is not what the
description of its type says. The options themselves are in the package.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from nsq_ha.errors import ConfigError
from nsq_ha.options import checks
from nsq_ha.options.checks import MAX_INT64, MAX_PARTITION_ID, check_channel, check_topic, shown
from nsq_ha.spark.checkpoint import is_own, partition_of

EARLIEST: Final = -2
"""In JSON offsets: the start of the partition's log."""

LATEST: Final = -1
"""In JSON offsets: the end of the partition's log."""

ByPartition = Mapping[str, Mapping[int, int]]
"""Offset, in bytes of the partition's queue, or time in milliseconds, by topic and partition."""

OffsetBound = Literal["earliest", "latest"] | ByPartition
"""Where a read starts or ends."""

_SPECIAL: Final = {"earliest": EARLIEST, "latest": LATEST}
_FIRST_MS: Final = 10**11
"""1973. Any smaller number is a time in seconds until the year 5138."""
_LAST_MS: Final = 253_402_300_799_999  # the year 9999
_RECENT_MS: Final = 10**11
_SOON_MS: Final = 10**14  # the year 5138
_MAX_PREFIX: Final = 32


# ---------------------------------------------------------------- one value


def regex(text: str) -> str:
    """Check a regular expression."""
    try:
        with warnings.catch_warnings(action="error"):  # later versions of Python will take it for another one
            re.compile(text)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise ConfigError(f"is not a regular expression: {error}") from error
    return text


def topic_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of topics, each once."""
    return tuple(dict.fromkeys(map(check_topic, names)))


def one_topic(text: str) -> str:
    """Check the name of a topic."""
    if "," in text:
        raise ConfigError("has several topics: write to one, or give the DataFrame a column 'topic'")
    return check_topic(text)


def durable_channel(text: str) -> str:
    """Check the name of a channel that is not deleted when its last client leaves."""
    if check_channel(text).endswith(checks.EPHEMERAL_SUFFIX):
        raise ConfigError(f"must be a durable channel, not {text!r}")
    return text


def prefix(text: str) -> str:
    """Check the beginning of a channel's name."""
    if not 1 <= len(text) <= _MAX_PREFIX:
        raise ValueError
    return check_channel(text)


def folder(text: str) -> str:
    """Return the absolute path of a folder, which may be written as a URL."""
    path = text.removeprefix("file://")
    if text and ("://" in path or not path.startswith("/")):
        raise ValueError
    return path


# ---------------------------------------------------------------- JSON by topic


def offsets(*words: str) -> Callable[[str], OffsetBound]:
    """Return a check for ``words``, of ``earliest`` and ``latest``, and for offsets in JSON."""
    allowed = [_SPECIAL[each] for each in words]
    special = " or ".join(f"{_SPECIAL[each]} ({each})" for each in words)

    def offset(value: object) -> int:
        number = _whole(value)
        if not (number in allowed or 0 <= number <= MAX_INT64):
            raise ConfigError(f"must be an offset in bytes from 0, or {special}, not {number}")
        return number

    def read(text: str) -> OffsetBound:
        if text.lower() in words:
            return "earliest" if text.lower() == "earliest" else "latest"
        return _by_partition(text, offset)

    return read


def time_ms(value: object) -> int:
    """Return a time that can be meant as milliseconds, or 0 for the beginning.

    Raises:
        ConfigError: It looks like another unit. Taken as milliseconds, it would read everything, or nothing.
    """
    value = _whole(value)
    if value == 0 or _FIRST_MS <= value <= _LAST_MS:
        return value
    if value < 0:
        raise ConfigError(f"must be milliseconds since the epoch, not {value!r}")
    for unit, meant in (("seconds", value * 1000), ("microseconds", value // 1000), ("nanoseconds", value // 10**6)):
        if _RECENT_MS <= meant < _SOON_MS:
            as_ms = f"is {_date(value)}, and " if value < _FIRST_MS else ""
            raise ConfigError(f"{value} {as_ms}looks like {unit}: give milliseconds, {meant}")
    problem = f"is {_date(value)}, before any message" if value < _FIRST_MS else "is after the year 9999"
    raise ConfigError(f"{value} {problem}: give milliseconds since 1970")


def _date(milliseconds: int) -> str:
    return (datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)).isoformat()  # noqa: DTZ001 - shown without zone


def _by_partition(text: str, check: Callable[[object], int]) -> ByPartition:
    """Return numbers by topic and partition, each through ``check``."""
    found: dict[str, Mapping[int, int]] = {}
    for topic, partitions in _object(text).items():
        if is_own(topic):
            continue  # as in the offsets that the progress of a query shows
        check_topic(topic)
        if not isinstance(partitions, dict):
            raise ConfigError(f"of topic {topic!r} must be an object of partitions, not {type(partitions).__name__}")
        numbers: dict[int, int] = {}
        for partition, number in partitions.items():
            if (place := partition_of(partition)) is None:
                raise ConfigError(
                    f"of topic {topic!r} has partition {shown(partition)}, not a number from 0 to {MAX_PARTITION_ID}"
                )
            try:
                numbers[place] = check(number)
            except ConfigError as error:
                raise ConfigError(f"of {topic}-{partition} {error}") from error
        # Plain dicts: the options are pickled for the tasks.
        found[topic] = numbers
    return found


def times_ms(text: str) -> ByPartition:
    """Return times in milliseconds by topic and partition, given as JSON."""
    return _by_partition(text, time_ms)


def assigned(text: str) -> Mapping[str, tuple[int, ...]]:
    """Return partitions by topic, given as JSON."""
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _object(text).items():
        check_topic(topic)
        if not isinstance(numbers, list) or not numbers:
            raise ConfigError(f"of topic {topic!r} must be a list of partitions, such as [0, 2]")
        for number in numbers:
            if not 0 <= _whole(number) <= MAX_PARTITION_ID:
                raise ConfigError(f"of topic {topic!r} has partition {number!r}, not 0 to {MAX_PARTITION_ID}")
        found[topic] = tuple(sorted(set(numbers)))
    if not found:
        raise ConfigError("has no topic")
    return found


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"must be a whole number, not {value!r}")
    return value


def _object(text: str) -> dict[str, Any]:
    if not text.startswith(("{", "[")):
        raise ValueError
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "too many brackets" if isinstance(error, RecursionError) else error
        raise ConfigError(f"is not JSON: {reason}, in {shown(text)}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"must be a JSON object of topics, not {type(value).__name__}")
    return value


# ---------------------------------------------------------------- types of options

_OFFSETS: Final = Meta(description='JSON such as {"orders": {"0": 0}}')

LookupdUrls = Annotated[tuple[str, ...], checks.lookupd_urls, Meta(description="addresses, separated by commas")]
Nsqds = Annotated[tuple[str, ...], checks.nsqd_addresses, Meta(description="host:port addresses, separated by commas")]
Topics = Annotated[tuple[str, ...], topic_names, Meta(description="topics, separated by commas")]
Topic = Annotated[str, one_topic, Meta(description="a topic")]
Channel = Annotated[str, durable_channel, Meta(description="a durable channel")]
Prefix = Annotated[str, prefix, Meta(description="1 to 32 characters of a channel's name")]
Regex = Annotated[str, regex, Meta(description="a regular expression (Python's)")]
Folder = Annotated[str, folder, Meta(description="an absolute path of a folder that driver and workers share")]
Assigned = Annotated[Mapping[str, tuple[int, ...]], assigned, Meta(description='JSON such as {"orders": [0, 2]}')]
Start = Annotated[OffsetBound, offsets("earliest", "latest"), Meta(description="'earliest' or 'latest'"), _OFFSETS]
End = Annotated[OffsetBound, offsets("latest"), Meta(description="'latest'"), _OFFSETS]
TimeMs = Annotated[int, time_ms, Meta(description="milliseconds since the epoch")]
TimesMs = Annotated[
    ByPartition,
    times_ms,
    Meta(description='JSON such as {"orders": {"0": 1767225600000}}, in milliseconds since the epoch'),
]
