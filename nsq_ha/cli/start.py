"""The option ``--from``: where to start reading."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from nsq_ha import StartFrom
from nsq_ha.checks import MAX_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    _Command = TypeVar("_Command", bound=Callable[..., Any])

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_AGO: Final = re.compile(r"-(?:\d{1,9}[smhdw])+")
_PART: Final = re.compile(r"(\d+)([smhdw])")

HELP: Final = (
    "beginning, end, a time before now such as -90s, -1h30m or -2d, or a time such as 2026-01-31T09:00: local time,"
    " unless it ends in Z or an offset such as +02:00."
)


def seconds_ago(text: str) -> int | None:
    """Return how many seconds before now a text such as ``-1h30m`` means. None if it is not of this form."""
    if not _AGO.fullmatch(text):
        return None
    return sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def start_of(value: str, now: float) -> StartFrom | None:
    """Return the start position for a word, a time before now, or a time. None if it is none of these.

    Args:
        value: The text.
        now: The time in Unix seconds.
    """
    named = {"beginning": StartFrom.beginning(), "end": StartFrom.end()}
    if value in named:
        return named[value]
    ago = seconds_ago(value)
    try:
        seconds = datetime.fromisoformat(value).timestamp() if ago is None else now - ago
    except (ValueError, OverflowError, OSError):  # in UTC it is in the year 0 or 10000
        return None
    return StartFrom.timestamp(seconds) if 0 <= seconds <= MAX_SECONDS else None


def parse_start(_: click.Context, __: click.Parameter, value: str | None) -> StartFrom | None:
    """Return the start position that the option names."""
    if value is None:
        return None
    found = start_of(value, time.time())
    if found is None:
        raise click.BadParameter(
            "give beginning, end, a time before now such as -1h, or a time from 1970 to 2262 such as 2026-01-31T09:00"
            " (local) or 2026-01-31T09:00Z"
        )
    return found


def from_option(default: str) -> Callable[[_Command], _Command]:
    """Return the option.

    Args:
        default: What happens without it, for the help.
    """
    return click.option("--from", "start", callback=parse_start, metavar="WHERE", help=f"{HELP} Default: {default}.")
