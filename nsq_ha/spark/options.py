"""Options of ``format("nsq")``: their names, meanings and checks.

Owns the words that a user writes into ``.option(...)``; Kafka's where the
meaning is the same. Does not own what is on the servers: whether a partition
exists or an offset is still kept is the planner's to say.

The invariant: everything is checked on the driver, before any task starts, and
an error names the option.

**Source:** Spark reference 5.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from nsq_ha.config import lookupd_urls
from nsq_ha.errors import ConfigError
from nsq_ha.names import MAX_PARTITION_ID, check_topic

log: Final = logging.getLogger("nsq_ha.spark")

EARLIEST: Final = -2
"""In a JSON of offsets: where the partition's log begins."""

LATEST: Final = -1
"""In a JSON of offsets: where it ends."""

Offsets = Mapping[str, Mapping[int, int]]
"""Offset by topic and partition, in bytes of the partition's queue."""

Place = Literal["earliest", "latest"] | Offsets
"""Where a read starts or ends."""

KNOWN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "lookupd": "addresses of nsqlookupds, comma separated",
        "topic": "topics, comma separated",
        "subscribe": "the same under Kafka's name",
        "startingOffsets": 'earliest, or JSON as in {"orders": {"0": 0}}; -2 is earliest',
        "endingOffsets": "latest, or JSON; -1 is latest",
        "fetchTimeout": "without progress for so long a task opens its channel anew; 5s, 500ms",
        "fetchRetries": "how often in a row",
        "failOnDataLoss": "true fails when messages of the range are gone, false reads what is left",
        "includeHeaders": "true adds the column headers",
    }
)
"""Every option with its meaning."""

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min)?")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "min": 60.0}
_SPELLING: Final = {name.lower(): name for name in KNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read, checked.

    Attributes:
        lookupd: Base URLs of nsqlookupds.
        topics: What to read.
        starting: Where to start; a partition that is not named begins at its earliest.
        ending: Where to end; a partition that is not named ends at its latest.
        fetch_timeout: Seconds without progress after which a task opens another channel.
        fetch_retries: How often in a row it does that before it fails.
        fail_on_data_loss: Whether missing messages are an error.
        include_headers: Whether there is a column of extension headers.
    """

    lookupd: tuple[str, ...]
    topics: tuple[str, ...]
    starting: Place = "earliest"
    ending: Place = "latest"
    fetch_timeout: float = 5.0
    fetch_retries: int = 10
    fail_on_data_loss: bool = True
    include_headers: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """Read the options of a Spark user; names in any case, values as text.

        An unknown name is warned about on the logger ``nsq_ha.spark`` and
        ignored, since Spark passes options of its own through here.

        Raises:
            ConfigError: A value is wrong or a needed one is missing; the
                message begins with the option's name.
        """
        given: dict[str, str] = {}
        for name, value in options.items():
            known = _SPELLING.get(name.lower())
            if known is None:
                near = difflib.get_close_matches(name.lower(), _SPELLING, n=1)
                hint = f"; did you mean {_SPELLING[near[0]]!r}?" if near else ""
                log.warning("option %r of format 'nsq' is unknown and ignored%s", name, hint)
            else:
                given[known] = value.strip()
        topics = _topics(given)
        return cls(
            lookupd=_lookupd(given),
            topics=topics,
            starting=_place(given, "startingOffsets", "earliest", EARLIEST, topics),
            ending=_place(given, "endingOffsets", "latest", LATEST, topics),
            fetch_timeout=_time(given, "fetchTimeout", 5.0),
            fetch_retries=_count(given, "fetchRetries", 10),
            fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
            include_headers=_flag(given, "includeHeaders", default=False),
        )


def _wrong(name: str, said: object) -> ConfigError:
    return ConfigError(f"option {name!r}: {said}")


def _lookupd(given: Mapping[str, str]) -> tuple[str, ...]:
    if not given.get("lookupd"):
        raise _wrong("lookupd", "is missing: the address of an nsqlookupd, such as 127.0.0.1:4161")
    try:
        return lookupd_urls(given["lookupd"])
    except ConfigError as error:
        raise _wrong("lookupd", error) from error


def _topics(given: Mapping[str, str]) -> tuple[str, ...]:
    name = "topic" if "topic" in given else "subscribe"
    if "topic" in given and given.get("subscribe", given["topic"]) != given["topic"]:
        raise _wrong("subscribe", "means the same as 'topic', and they differ")
    if not given.get(name):
        raise _wrong("topic", "is missing: the topic to read, or several separated by commas")
    try:
        return tuple(dict.fromkeys(check_topic(topic.strip()) for topic in given[name].split(",")))
    except ConfigError as error:
        raise _wrong(name, error) from error


def _place(
    given: Mapping[str, str], name: str, word: Literal["earliest", "latest"], special: int, topics: tuple[str, ...]
) -> Place:
    text = given.get(name, word)
    if text.lower() == word:
        return word
    if text.lower() in ("earliest", "latest"):
        raise _wrong(name, f"is {word!r} or JSON, not {text!r}: a batch read would have no rows")
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(name, f'is {word!r} or JSON such as {{"{topics[0]}": {{"0": 0}}}}: {error}') from error
    if not isinstance(told, dict):
        raise _wrong(name, f"JSON must be an object of topics, not {type(told).__name__}")
    for topic in told:
        if topic not in topics:
            raise _wrong(name, f"names topic {topic!r}, which is not read ({', '.join(topics)})")
    # Plain dicts: the options are pickled for the tasks.
    return {topic: _partitions(name, topic, part, special) for topic, part in told.items()}


def _partitions(name: str, topic: str, told: object, special: int) -> Mapping[int, int]:
    if not isinstance(told, dict):
        raise _wrong(name, f"of topic {topic!r} must be an object of partitions, not {type(told).__name__}")
    offsets: dict[int, int] = {}
    for partition, offset in told.items():
        if not (partition.isascii() and partition.isdigit() and int(partition) <= MAX_PARTITION_ID):
            raise _wrong(name, f"of topic {topic!r} names partition {partition!r}: a number 0..{MAX_PARTITION_ID}")
        if isinstance(offset, bool) or not isinstance(offset, int) or not (offset == special or 0 <= offset < 2**63):
            raise _wrong(name, f"of {topic}-{partition} is {offset!r}: an offset in bytes from 0 up, or {special}")
        offsets[int(partition)] = offset
    return offsets


def _time(given: Mapping[str, str], name: str, default: float) -> float:
    text = given.get(name)
    if text is None:
        return default
    found = _TIME.fullmatch(text.lower())
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not 0.05 <= seconds <= 600.0:
        raise _wrong(name, f"is {text!r}: a time from 50ms to 10m, such as 5s")
    return seconds


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise _wrong(name, f"is {text!r}: a whole number from 0 to 999999")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise _wrong(name, f"is {given[name]!r}: true or false")
    return text == "true"
