"""Positions at which a channel can start."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self

from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import MAX_INT64, MAX_SECONDS, check_partition, is_number, is_whole, shown
from nsq_ha.options.language import FromText

_WORDS: Final = {
    "timestamp": "a start time",
    "virtual_queue": "a start offset",
    "msgcount": "a start count",
    "special": "the end",
}
"""Names of the wire's kinds in error texts."""


@dataclass(frozen=True, slots=True)
class StartFrom:
    """The position at which a channel starts. Create one with a class method.

    It moves the channel for all its consumers, also for those that are reading: they get the messages from there on,
    including some that they have finished. If nsqd refuses plain HTTP, the subscription sends the position; then the
    server ignores it if the channel has another client.

    A message that nsqd has already queued for delivery is still delivered first,
    even on an ordered topic, and again in its place; a consumer drops that copy if
    it arrives on the same connection. With ``syncdisk`` above 1, nsqd counts a
    message only after it was flushed, up to 6 seconds after it was acknowledged;
    then the end is the end of the flushed messages.

    Source: server protocol 5.2; youzan/nsq nsqdserver/http.go (doSetChannelOffset).
    """

    kind: Literal["timestamp", "virtual_queue", "msgcount", "special"]
    value: int

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: The kind is unknown, or the value is negative or larger than the server can read.
        """
        if self.kind not in _WORDS:
            raise ConfigError(f"unknown start position {shown(self.kind)}: use a class method of StartFrom")
        word = _WORDS[self.kind]
        if not is_whole(self.value):
            raise ConfigError(f"{word} must be an int, not {shown(self.value)}")
        if self.kind == "special":
            if self.value != -1:
                raise ConfigError("use StartFrom.end() for the end of a partition")
            return
        most = MAX_SECONDS if self.kind == "timestamp" else MAX_INT64
        if not 0 <= self.value <= most:
            raise ConfigError(f"{word} must be 0..{most}, not {shown(self.value)}")

    @classmethod
    def beginning(cls) -> Self:
        """Start at the oldest kept message."""
        return cls("virtual_queue", 0)

    @classmethod
    def end(cls) -> Self:
        """Start after the newest message."""
        return cls("special", -1)

    @classmethod
    def timestamp(cls, when: float | datetime) -> Self:
        """Start at the first message not older than ``when`` (Unix seconds or an aware datetime), by whole seconds."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ConfigError("a start time needs a time zone, as in datetime(2026, 1, 31, tzinfo=timezone.utc)")
            when = when.timestamp()
        if not is_number(when) or not -math.inf < when < math.inf:  # an int may be larger than any float
            raise ConfigError(f"a start time must be Unix seconds or a datetime, not {shown(when)}")
        return cls("timestamp", int(when))

    @classmethod
    def offset(cls, offset: int) -> Self:
        """Start at a byte offset of the partition's queue, as in :attr:`nsq_ha.Message.offset`.

        An offset inside a message means the next message. An offset after the newest message means the end, without
        an error from the server. The offset of a message that is no longer kept means the oldest kept message.
        """
        return cls("virtual_queue", offset)

    @classmethod
    def count(cls, number: int) -> Self:
        """Start at the ``number``-th message of the partition; the first one has the number 1.

        So ``count(n)`` skips ``n - 1`` messages, and ``count(0)`` means the same as ``count(1)``. Messages that are no
        longer kept count, too: the number of such a message means the oldest kept message. A number after the newest
        message means the end, without an error from the server.
        """
        return cls("msgcount", number)

    def __str__(self) -> str:
        """The wire form, ``type:value``."""
        return f"{self.kind}:{self.value}"


def start_at(position: object) -> StartFrom:
    """Return the start position that a text or a datetime names.

    Args:
        position: ``beginning``, ``end``, ``offset:<bytes>``, ``count:<number>``, or a time with its zone.

    Raises:
        ConfigError: It is none of these; the text continues the name of the option.
    """
    if isinstance(position, str):
        kind, _, number = position.strip().partition(":")
        if kind in _PLAIN_WORDS and not number:
            return _PLAIN_WORDS[kind]()
        if kind in _COUNTED_WORDS and re.fullmatch(_DIGITS, number):
            return _COUNTED_WORDS[kind](int(number))
        with contextlib.suppress(ValueError):
            position = datetime.fromisoformat(position.strip())
    if isinstance(position, datetime):
        return StartFrom.timestamp(position)
    raise ConfigError(
        f"must be beginning, end, offset:<bytes>, count:<number>, or a time with its zone such as 2026-01-31T09:00Z,"
        f" not {shown(position)}"
    )


_PLAIN_WORDS: Final[Mapping[str, Callable[[], StartFrom]]] = {"beginning": StartFrom.beginning, "end": StartFrom.end}
_COUNTED_WORDS: Final[Mapping[str, Callable[[int], StartFrom]]] = {"offset": StartFrom.offset, "count": StartFrom.count}
_DIGITS: Final = r"[0-9]{1,100}"


def _start_of(position: Any) -> object:  # noqa: ANN401 - what a file may hold
    """Return the start position that a text or a datetime names, or those of partitions."""
    if isinstance(position, str) and "=" in position:
        position = dict(item.partition("=")[::2] for item in position.split(","))
    if not isinstance(position, dict):
        return start_at(position)
    return {int(key) if re.fullmatch(_DIGITS, key.strip()) else key: start_at(at) for key, at in position.items()}


def _checked(start: object) -> object:
    if isinstance(start, Mapping):
        if not start:
            raise ConfigError("must name at least one partition; None starts at the channel's position")
        for partition, entry in start.items():
            check_partition(partition)
            if not isinstance(entry, StartFrom):
                raise ConfigError(f"must map each partition to a StartFrom, not {shown(entry)}")
    elif not isinstance(start, StartFrom):
        one = "a StartFrom, such as StartFrom.beginning()"
        raise ConfigError(f"must be {one}, or a mapping of partitions to StartFrom, not {shown(start)}")
    return start


Start = Annotated[StartFrom | Mapping[int, StartFrom], FromText(_start_of), _checked]
"""A start position, or positions by partition."""


def check_read(start: object, partitions: Iterable[int] | None) -> None:
    """Check that start positions by partition name only ``partitions``; None means all.

    Raises:
        ConfigError: They name others, which would be ignored.
    """
    unread = [] if partitions is None or not isinstance(start, Mapping) else sorted(set(start) - set(partitions))
    if unread:
        numbers = ", ".join(map(str, unread))
        raise ConfigError(f"start_from names partitions that this consumer does not read ({numbers}): see partitions=")
