"""Names of topics, channels and partitions: the rules, in one place.

Owns what makes a name legal on the wire. A name goes into a command line as it
stands, so a blank or a newline in it would start another command: nothing may
encode a name that did not pass here.

Source: protocol reference 3 ("Other limits"); youzan/nsq ``protocol/names.go``.
"""

from __future__ import annotations

import re
from typing import Final

from nsq_ha.errors import ConfigError

MAX_NAME_LENGTH: Final = 64
"""Longest topic or channel name in characters, suffix included."""

MAX_PARTITIONS: Final = 255
"""Most partitions that a topic may have; partition numbers are 0..254 in practice."""

MAX_PARTITION_ID: Final = 1023
"""Largest partition number that fits a message id (10 bits)."""

MAX_TAG_BYTES: Final = 100
"""Maximum length of a dispatch tag."""

EPHEMERAL_SUFFIX: Final = "#ephemeral"
"""A channel with this suffix goes when its last client leaves."""

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(?:#ephemeral)?")


def is_valid_name(name: str) -> bool:
    """Tell whether ``name`` is legal for a topic or a channel (1..64 characters)."""
    return 1 <= len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def check_topic(topic: object) -> str:
    """Return ``topic`` unchanged when it is legal.

    Raises:
        ConfigError: It is not a string of 1..64 of ``[.a-zA-Z0-9_-]``, with an
            optional ``#ephemeral``. Correct the name; nothing was sent.
    """
    return _check("topic", topic)


def check_channel(channel: object) -> str:
    """Return ``channel`` unchanged when it is legal.

    Raises:
        ConfigError: As for :func:`check_topic`.
    """
    return _check("channel", channel)


def check_partition(partition: object) -> int:
    """Return ``partition`` unchanged when it is a number from 0 to 1023.

    Raises:
        ConfigError: It is not an int (a bool is none) or out of range. The
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
