"""Rules for names of topics, channels and partitions.

Names become part of command lines unchanged, so a blank or a newline in a name
would start another command: every name must be checked here before it is encoded.

Source: protocol reference 3 ("Other limits"); youzan/nsq ``protocol/names.go``.
"""

from __future__ import annotations

import re
from typing import Final

from nsq_ha.errors import ConfigError

MAX_NAME_LENGTH: Final = 64
"""Maximum length of a topic or channel name in characters, including the suffix."""

MAX_PARTITIONS: Final = 255
"""Maximum number of partitions of a topic; partition numbers are 0..254 in practice."""

MAX_PARTITION_ID: Final = 1023
"""Largest partition number that fits a message id (10 bits)."""

MAX_TAG_BYTES: Final = 100
"""Maximum length of a dispatch tag."""

EPHEMERAL_SUFFIX: Final = "#ephemeral"
"""A channel with this suffix is deleted when its last client leaves."""

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")


def is_valid_name(name: str) -> bool:
    """Return whether ``name`` is legal for a topic or a channel (1..64 characters)."""
    return 1 <= len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def check_topic(topic: object) -> str:
    """Return ``topic`` if it is legal.

    Raises:
        ConfigError: It is not a string of 1..64 of ``[.a-zA-Z0-9_-]``, with an
            optional ``#ephemeral``. Correct the name; nothing was sent.
    """
    return _check("topic", topic)


def check_channel(channel: object) -> str:
    """Return ``channel`` if it is legal.

    Raises:
        ConfigError: As for :func:`check_topic`.
    """
    return _check("channel", channel)


def check_partition(partition: object) -> int:
    """Return ``partition`` if it is a number from 0 to 1023.

    Raises:
        ConfigError: It is not an int (or is a bool) or out of range. The
            upper bound is the width of the partition in a message id; whether
            the topic has that partition is known only after a lookup.
    """
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise ConfigError(f"partition must be an int, not {type(partition).__name__}")
    if not 0 <= partition <= MAX_PARTITION_ID:
        raise ConfigError(f"partition must be 0..{MAX_PARTITION_ID}, not {partition}")
    return partition


def _check(kind: str, name: object) -> str:
    if not isinstance(name, str):
        raise ConfigError(f"{kind} must be a str, not {type(name).__name__}")
    if not is_valid_name(name):
        shown = name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH] + "..."
        raise ConfigError(
            f"{kind} {shown!r} is not legal: 1..{MAX_NAME_LENGTH} characters of [.a-zA-Z0-9_-], "
            f"optionally ending in {EPHEMERAL_SUFFIX}"
        )
    return name
