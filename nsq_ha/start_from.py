"""Where a channel starts to read, in the words of the wire."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Self

from nsq_ha.errors import ConfigError
from nsq_ha.option_checks import MAX_INT64, MAX_SECONDS, is_number


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Where a channel starts to read, as the fifth word of ``SUB_ADVANCED`` or the body of ``setoffset``.

    Make one with a class method. The server applies it only when this client is
    the channel's only one.

    A message that nsqd has already queued for delivery may still come first, on
    an ordered topic too, and again in its place. With ``syncdisk`` above 1 nsqd
    counts a message only when it is flushed, up to 6 seconds after it was
    acknowledged; the end is then the end of the flushed messages.

    Source: protocol reference 5, "Start positions".
    """

    kind: Literal["timestamp", "virtual_queue", "msgcount", "special"]
    value: int

    def __post_init__(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: The kind is unknown, or the value negative or more than the server can read.
        """
        if self.kind not in ("timestamp", "virtual_queue", "msgcount", "special"):
            raise ConfigError(f"start position {self.kind!r} is unknown: use a class method of StartFrom")
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            raise ConfigError(f"start position {self.kind} must be an int, not {self.value!r}")
        if self.kind == "special" and self.value != -1:
            raise ConfigError("the only special start position is the end (-1)")
        if self.kind != "special" and self.value < 0:
            raise ConfigError(f"start position {self.kind} must be 0 or more, not {self.value}")
        most = MAX_SECONDS if self.kind == "timestamp" else MAX_INT64
        if self.value > most:
            raise ConfigError(f"start position {self.kind} must be {most} at most")

    @classmethod
    def beginning(cls) -> Self:
        """Start at the oldest message that is kept."""
        return cls("virtual_queue", 0)

    @classmethod
    def end(cls) -> Self:
        """Start behind the newest message."""
        return cls("special", -1)

    @classmethod
    def timestamp(cls, when: float | datetime) -> Self:
        """Start at the first message not older than ``when`` (Unix seconds or an aware datetime), by whole seconds."""
        if isinstance(when, datetime):
            if when.tzinfo is None:
                raise ConfigError("a start time needs a time zone: use datetime.now(timezone.utc) or alike")
            when = when.timestamp()
        if not is_number(when) or not -math.inf < when < math.inf:  # an int may be larger than any float
            raise ConfigError(f"a start time must be Unix seconds or a datetime, not {when!r}")
        return cls("timestamp", int(when))

    @classmethod
    def offset(cls, offset: int) -> Self:
        """Start at a byte offset of the partition's queue; inside a message means the next one."""
        return cls("virtual_queue", offset)

    @classmethod
    def count(cls, number: int) -> Self:
        """Start at the n-th message of the partition, counted from 1."""
        return cls("msgcount", number)

    def __str__(self) -> str:
        """The wire form, ``type:value``."""
        return f"{self.kind}:{self.value}"
