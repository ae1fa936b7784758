"""Parse the values of the options of ``format("nsq")``, by kind.

A kind describes its values once, for errors and for the documentation. The options
themselves are in ``option_table``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

from nsq_ha.checks import (
    EPHEMERAL_SUFFIX,
    MAX_INT64,
    MAX_PARTITION_ID,
    MAX_SECRET_BYTES,
    check_channel,
    check_topic,
    lookupd_urls,
    nsqd_addresses,
    text_of,
)
from nsq_ha.errors import ConfigError
from nsq_ha.option_types import Compression
from nsq_ha.spark.checkpoint import is_own

EARLIEST: Final = -2
"""In JSON offsets: the start of the partition's log."""

LATEST: Final = -1
"""In JSON offsets: the end of the partition's log."""

ByPartition = Mapping[str, Mapping[int, int]]
"""Offset, in bytes of the partition's queue, or time in milliseconds, by topic and partition."""

OffsetBound = Literal["earliest", "latest"] | ByPartition
"""Where a read starts or ends."""

T = TypeVar("T")

_SPECIAL: Final = {"earliest": EARLIEST, "latest": LATEST}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SECONDS: Final = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"(\d{1,19})\s*(b|k|kb|m|mb|g|gb)?")
_BYTES: Final = {None: 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_SHOWN: Final = 80  # characters of a wrong value
_FIRST_MS: Final = 10**11
"""1973. Any smaller number is a time in seconds until the year 5138."""
_LAST_MS: Final = 253_402_300_799_999  # the year 9999
_RECENT_MS: Final = 10**11
_SOON_MS: Final = 10**14  # the year 5138
_MAX_PREFIX: Final = 32


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of values.

    Attributes:
        values: The allowed values, as a noun phrase.
        read: Returns the value of a text. Raises ConfigError with the exact problem, or
            ValueError if the text is not one of ``values``.
    """

    values: str
    read: Callable[[str], T]

    def parse(self, name: str, text: str) -> T:
        """Return the value of a text.

        Raises:
            ConfigError: The value is wrong; the message begins with the option's name.
        """
        try:
            return self.read(text)
        except ConfigError as error:
            raise wrong(name, error) from error
        except ValueError as error:
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
            where = f" ({error})" if isinstance(error, json.JSONDecodeError) and text.startswith(("{", "[")) else ""
            raise wrong(name, f"must be {self.values}, not {shown!r}{where}") from error


def wrong(name: str, problem: object) -> ConfigError:
    """Return an error about an option; its message begins with the name."""
    return ConfigError(f"option {name!r}: {problem}")


# ---------------------------------------------------------------- one value


def word(*allowed: str) -> Kind[str]:
    """Return the kind that allows these words, in any case."""

    def read(text: str) -> str:
        return allowed[[each.lower() for each in allowed].index(text.lower())]

    return Kind(", ".join(allowed[:-1]) + f" or {allowed[-1]}", read)


def duration(least: float = 0.05, most: float = 600.0) -> Kind[float]:
    """Return the kind of times such as ``5s``, ``500ms`` or ``2``, in seconds."""

    def read(text: str) -> float:
        found = _TIME.fullmatch(text.lower())
        seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
        return _within(seconds, least, most)

    return Kind(f"a time from {least:g}s to {most:g}s, such as 5s or 500ms", read)


def count(least: int = 0, most: int = MAX_INT64) -> Kind[int]:
    """Return the kind of whole numbers."""

    def read(text: str) -> int:
        return _within(int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1, least, most)

    return Kind(f"a whole number from {least}" + ("" if most == MAX_INT64 else f" to {most}"), read)


def size(least: int = 1, most: int = MAX_INT64) -> Kind[int]:
    """Return the kind of sizes such as ``1000000``, ``512k`` or ``64m``, in bytes."""

    def read(text: str) -> int:
        found = _SIZE.fullmatch(text.lower())
        return _within(int(found[1]) * _BYTES[found[2]] if found else -1, least, most)

    limit = "" if most == MAX_INT64 else f" to {_short(most)}"
    return Kind(f"a size in bytes from {_short(least)}{limit}, such as 1000000, 512k or 64m", read)


def _within(value: T, least: T, most: T) -> T:
    if not least <= value <= most:  # type: ignore[operator]  # only numbers come here
        raise ValueError
    return value


def _short(value: int) -> str:
    for letter in "gmk":
        if value and value % _BYTES[letter] == 0:
            return f"{value // _BYTES[letter]}{letter}"
    return str(value)


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"is not a regular expression: {error}") from error
    return text


def _lookupd(text: str) -> tuple[str, ...]:
    if not text:
        raise ConfigError("is missing: set the address of an nsqlookupd, such as 127.0.0.1:4161")
    return lookupd_urls(text)


def _topics(text: str) -> tuple[str, ...]:
    if not text:
        raise ConfigError("is missing: set the topic to read, or several separated by commas")
    return tuple(dict.fromkeys(check_topic(topic.strip()) for topic in text.split(",")))


def _one_topic(text: str) -> str:
    if "," in text:
        raise ConfigError("has several topics: write to one, or give the DataFrame a column 'topic'")
    return check_topic(text)


def _durable_channel(text: str) -> str:
    if check_channel(text).endswith(EPHEMERAL_SUFFIX):
        raise ConfigError(f"must be a durable channel, not {text!r}")
    return text


def _prefix(text: str) -> str:
    if not 1 <= len(text) <= _MAX_PREFIX:
        raise ValueError
    return check_channel(text)


def _folder(text: str) -> str:
    path = text.removeprefix("file://")
    if text and ("://" in path or not path.startswith("/")):
        raise ValueError
    return path


def _secret(text: str) -> str:
    """Return the secret; errors must not show it."""
    try:
        checked: str = text_of(MAX_SECRET_BYTES, "leave it out for servers that do not ask for AUTH")("it", text)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("it ")) from None
    return checked


TEXT: Final = Kind("text", str)
SECRET: Final = Kind(f"text of at most {MAX_SECRET_BYTES} bytes", _secret)
COMPRESSION: Final = Kind("none, snappy or deflate", lambda text: Compression(text.lower()))
FLAG: Final = Kind("true or false", lambda text: word("true", "false").read(text) == "true")
REGEX: Final = Kind("a regular expression (Python's)", _regex)
LOOKUPD: Final = Kind("addresses, separated by commas", _lookupd)
NSQD: Final = Kind("host:port addresses, separated by commas", lambda text: nsqd_addresses(text) if text else ())
TOPICS: Final = Kind("topics, separated by commas", _topics)
TOPIC: Final = Kind("a topic", check_topic)
ONE_TOPIC: Final = Kind("a topic", _one_topic)
DURABLE_CHANNEL: Final = Kind("a durable channel", _durable_channel)
CHANNEL_PREFIX: Final = Kind(f"1 to {_MAX_PREFIX} characters of a channel's name", _prefix)
FOLDER: Final = Kind("an absolute path of a folder that driver and workers share", _folder)
TIME_MS: Final = Kind("milliseconds since the epoch", lambda text: _time_ms(count().read(text)))


# ---------------------------------------------------------------- JSON by topic


def offsets(*words: str) -> Kind[OffsetBound]:
    """Return the kind of ``words``, of ``earliest`` and ``latest``, and of offsets in JSON."""
    allowed = [_SPECIAL[each] for each in words]
    special = " or ".join(f"{_SPECIAL[each]} ({each})" for each in words)

    def offset(value: int) -> int:
        if not (value in allowed or 0 <= value <= MAX_INT64):
            raise ConfigError(f"must be an offset in bytes from 0, or {special}, not {value!r}")
        return value

    def read(text: str) -> OffsetBound:
        if text.lower() in words:
            return "earliest" if text.lower() == "earliest" else "latest"
        return _by_partition(text, offset)

    return Kind(f'{" or ".join(map(repr, words))} or JSON such as {{"orders": {{"0": 0}}}}', read)


def _time_ms(value: int) -> int:
    """Return a time that can be meant as milliseconds, or 0 for the beginning.

    Raises:
        ConfigError: It looks like another unit. Taken as milliseconds, it would read everything, or nothing.
    """
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


def _by_partition(text: str, check: Callable[[int], int]) -> ByPartition:
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
            if not (partition.isascii() and partition.isdigit() and int(partition[:5]) <= MAX_PARTITION_ID):
                raise ConfigError(
                    f"of topic {topic!r} has partition {partition!r}, not a number from 0 to {MAX_PARTITION_ID}"
                )
            try:
                numbers[int(partition)] = check(_whole(number))
            except ConfigError as error:
                raise ConfigError(f"of {topic}-{partition} {error}") from error
        # Plain dicts: the options are pickled for the tasks.
        found[topic] = numbers
    return found


def _assigned(text: str) -> Mapping[str, tuple[int, ...]]:
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
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("too many brackets") from error
    if not isinstance(value, dict):
        raise ConfigError(f"must be a JSON object of topics, not {type(value).__name__}")
    return value


TIMES_MS: Final = Kind(
    'JSON such as {"orders": {"0": 1767225600000}}, in milliseconds since the epoch',
    lambda text: _by_partition(text, _time_ms),
)
PARTITIONS: Final = Kind('JSON such as {"orders": [0, 2]}', _assigned)
