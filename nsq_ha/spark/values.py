"""Texts of options to values, each refused by the name of its option.

Owns what a number, a time, a size or a JSON of offsets looks like in
``.option(...)``. Does not know which options there are (``options``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeVar

from nsq_ha.addresses import lookupd_urls
from nsq_ha.errors import ConfigError
from nsq_ha.names import MAX_PARTITION_ID, check_topic
from nsq_ha.option_checks import MAX_INT64
from nsq_ha.spark.checkpoint import is_own

EARLIEST: Final = -2
"""In a JSON of offsets: where the partition's log begins."""

LATEST: Final = -1
"""In a JSON of offsets: where it ends."""

ByPartition = Mapping[str, Mapping[int, int]]
"""Offset, in bytes of the partition's queue, or time in milliseconds, by topic and partition."""

OffsetBound = Literal["earliest", "latest"] | ByPartition
"""Where a read starts or ends."""

Texts = Mapping[str, str]
"""What the user gave, by the proper spelling of each name."""

FAIL: Final = "fail"
DROP: Final = "drop"
DEAD_LETTER: Final = "deadLetter"
WAYS: Final = (FAIL, DROP, DEAD_LETTER)
"""Values of the option ``onBadRow``."""

T = TypeVar("T")

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SECONDS: Final = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"(\d+)\s*(b|k|kb|m|mb|g|gb)?")
_BYTES: Final = {None: 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}
_SHOWN: Final = 80  # characters of a wrong value
_MAX_MS: Final = MAX_INT64 // 1_000_000


def wrong(name: str, said: object) -> ConfigError:
    """Return the error about an option; its message begins with the name."""
    return ConfigError(f"option {name!r}: {said}")


def lookupd(given: Texts) -> tuple[str, ...]:
    """Return the base URLs of ``lookupd``.

    Raises:
        ConfigError: It is missing, or no address. As all functions here do.
    """
    if not given.get("lookupd"):
        raise wrong("lookupd", "is missing: the address of an nsqlookupd, such as 127.0.0.1:4161")
    return checked("lookupd", lookupd_urls, given["lookupd"])


def checked(name: str, check: Callable[[Any], T], value: object) -> T:
    """Return ``check(value)``; its ConfigError gets the option's name."""
    try:
        return check(value)
    except ConfigError as error:
        raise wrong(name, error) from error


def topics(name: str, text: str) -> tuple[str, ...]:
    """Return topics that commas separate, each once."""
    return tuple(dict.fromkeys(checked(name, check_topic, topic.strip()) for topic in text.split(",")))


def flag(given: Texts, name: str, *, default: bool) -> bool:
    """Return ``true`` or ``false``."""
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise wrong(name, f"is {given[name]!r}: true or false")
    return text == "true"


def word(given: Texts, name: str, allowed: tuple[str, ...], default: str) -> str:
    """Return one of some words, in its own case."""
    text = given.get(name, default)
    for known in allowed:
        if text.lower() == known.lower():
            return known
    raise wrong(name, f"is {text!r}: {', '.join(allowed)}")


def duration(given: Texts, name: str, default: T, least: float = 0.05, most: float = 600.0) -> float | T:
    """Return seconds of a text such as ``5s``, ``500ms`` or ``2``."""
    text = given.get(name)
    if text is None:
        return default
    found = _TIME.fullmatch(text.lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not least <= seconds <= most:
        raise wrong(name, f"is {text!r}: a time from {least:g}s to {most:g}s, such as 5s or 500ms")
    return seconds


def count(given: Texts, name: str, default: T, least: int = 0, most: int = 999_999) -> int | T:
    """Return a whole number."""
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise wrong(name, f"is {text!r}: a whole number from {least} to {most}")
    return int(text)


def size(given: Texts, name: str, default: T, least: int = 1, most: int = MAX_INT64) -> int | T:
    """Return bytes of a text such as ``1000000``, ``512k`` or ``64m``."""
    text = given.get(name)
    if text is None:
        return default
    found = _SIZE.fullmatch(text.lower())
    number = int(found[1]) * _BYTES[found[2]] if found and len(found[1]) < 20 else -1
    if not least <= number <= most:
        raise wrong(name, f"is {text!r}: bytes from {least} to {most}, such as 1000000, 512k or 64m")
    return number


def place(given: Texts, name: str, words: tuple[str, ...], specials: tuple[int, ...], default: str) -> OffsetBound:
    """Return one of ``words``, or offsets from JSON.

    Args:
        given: The user's options.
        name: Of the option.
        words: Allowed of ``earliest`` and ``latest``.
        specials: Allowed of :data:`EARLIEST` and :data:`LATEST` as an offset.
        default: One of ``words``.
    """
    text = given.get(name, default)
    if text.lower() in words:
        return "earliest" if text.lower() == "earliest" else "latest"
    if text.lower() in ("earliest", "latest"):
        raise wrong(name, f"is {words[0]!r} or JSON, not {text!r}: a batch read would have no rows")
    hint = f'{" or ".join(map(repr, words))} or JSON such as {{"orders": {{"0": 0}}}}'
    lowest = f", or {' or '.join(map(str, specials))}"

    def offset(told: object) -> int:
        if isinstance(told, bool) or not isinstance(told, int) or not (told in specials or 0 <= told <= MAX_INT64):
            raise ConfigError(f"is {told!r}: an offset in bytes from 0 up{lowest}")
        return told

    return by_partition(name, text, hint, offset)


def milliseconds(given: Texts, name: str) -> int | None:
    """Return a time in milliseconds since the epoch. None when it is not given."""
    return count(given, name, None, 0, _MAX_MS)


def times(given: Texts, name: str) -> ByPartition | None:
    """Return times in milliseconds since the epoch by topic and partition. None when not given."""
    text = given.get(name)
    if text is None:
        return None

    def time(told: object) -> int:
        if isinstance(told, bool) or not isinstance(told, int) or not 0 <= told <= _MAX_MS:
            raise ConfigError(f"is {told!r}: milliseconds since the epoch")
        return told

    return by_partition(name, text, 'JSON such as {"orders": {"0": 1767225600000}}', time)


def assigned(given: Texts) -> Mapping[str, tuple[int, ...]] | None:
    """Return the partitions of ``assign`` by topic. None when it is not given."""
    text = given.get("assign")
    if text is None:
        return None
    told = _object("assign", text, 'JSON such as {"orders": [0, 2]}')
    found: dict[str, tuple[int, ...]] = {}
    for topic, numbers in told.items():
        checked("assign", check_topic, topic)
        if not isinstance(numbers, list) or not numbers:
            raise wrong("assign", f"of topic {topic!r} must be a list of partitions, as in [0, 2]")
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_PARTITION_ID:
                raise wrong("assign", f"of topic {topic!r} names partition {number!r}: 0..{MAX_PARTITION_ID}")
        found[topic] = tuple(sorted(set(numbers)))
    if not found:
        raise wrong("assign", "names no topic")
    return found


def by_partition(name: str, text: str, hint: str, check: Callable[[object], int]) -> ByPartition:
    """Return numbers by topic and partition, each through ``check``."""
    found: dict[str, Mapping[int, int]] = {}
    for topic, told in _object(name, text, hint).items():
        if is_own(topic):
            # Offsets as the progress of a query shows them.
            continue
        checked(name, check_topic, topic)
        if not isinstance(told, dict):
            raise wrong(name, f"of topic {topic!r} must be an object of partitions, not {type(told).__name__}")
        numbers: dict[int, int] = {}
        for partition, number in told.items():
            if not (partition.isascii() and partition.isdigit() and int(partition[:5]) <= MAX_PARTITION_ID):
                raise wrong(name, f"of topic {topic!r} names partition {partition!r}: a number 0..{MAX_PARTITION_ID}")
            try:
                numbers[int(partition)] = check(number)
            except ConfigError as error:
                raise wrong(name, f"of {topic}-{partition} {error}") from error
        # Plain dicts: the options are pickled for the tasks.
        found[topic] = numbers
    return found


def _object(name: str, text: str, hint: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        where = f" ({error})" if text.startswith(("{", "[")) else ""
        raise wrong(name, f"is {shown!r}, it must be {hint}{where}") from error
    if not isinstance(told, dict):
        raise wrong(name, f"JSON must be an object of topics, not {type(told).__name__}")
    return told
