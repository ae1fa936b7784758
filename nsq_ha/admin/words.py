"""Write numbers, spans and lists of names as people read them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import Final

from nsq_ha.errors import ConfigError
from nsq_ha.options.start_from import StartFrom

NONE: Final = "–"
"""Shown where a value is unknown."""

_NAMED: Final = 5
"""Number of things that a text names."""

_AGO: Final = re.compile(r"-(?:[0-9]{1,9}[smhdw])+")
_PART: Final = re.compile(r"([0-9]+)([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_SCALES: Final = ("", "k", "M", "G", "T", "P")

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def some(names: Iterable[str], most: int = _NAMED) -> str:
    """Return the first names or sentences, and how many more there are."""
    listed = list(names)
    between = "; " if any(" " in name for name in listed) else ", "
    rest = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return between.join(listed[:most]) + rest


def per_second(value: float) -> str:
    """Return a rate; a small one by the minute."""
    if value < 1e-3:
        return "none"
    return f"{value * 60:.1f}/min" if value < 1 else f"{value:.1f}/s" if value < 10 else f"{value:,.0f}/s"


def partly(word: str, count: int, places: int) -> str:
    """Return a word, with how many of some places it is true of if that is not all, such as ``paused on 1 of 3``."""
    return f"{word} on {count} of {places}" if 0 < count < places else word


def start_of(text: str, now: float, zone: tzinfo | None = None) -> StartFrom | None:
    """Return where to start for a word, a time before now, or a time. None if the text is none of these.

    Args:
        text: Such as ``beginning``, ``-1h30m``, or a date and time.
        now: The time in Unix seconds.
        zone: That of a time that names none. None for this machine's.
    """
    if text in ("beginning", "oldest"):
        return StartFrom.beginning()
    if text in ("end", "latest"):
        return StartFrom.end()
    try:
        if _AGO.fullmatch(text):
            return StartFrom.timestamp(now - sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text)))
        found = datetime.fromisoformat(text)
        return StartFrom.timestamp((found if found.tzinfo or zone is None else found.replace(tzinfo=zone)).timestamp())
    except (ConfigError, ValueError, OverflowError, OSError):  # before 1970, or no time at all
        return None


def brief(seconds: float | None) -> str:
    """Return a short time, such as a latency: 0.8 ms, 35 ms, 1.2 s."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    value = seconds * 1000
    return f"{seconds:.1f} s" if seconds >= 1 else f"{value:.{1 if value < 10 and value % 1 else 0}f} ms"


def span(seconds: float | None) -> str:
    """Return a length of time: 0 s, 0.4 s, 12 s, 3 min, 2 h 5 min, 4 d 3 h."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    value = max(0.0, seconds)
    if value < 10:
        return f"{value:.1f} s" if value % 1 else f"{value:.0f} s"
    if value < 2 * _MINUTE:
        return f"{value:.0f} s"
    if value < 2 * _HOUR:
        return f"{value / _MINUTE:.0f} min"
    if value < 2 * _DAY:
        hours, rest = divmod(value, _HOUR)
        return f"{hours:.0f} h {rest // _MINUTE:.0f} min"
    days, rest = divmod(value, _DAY)
    return f"{days:.0f} d {rest // _HOUR:.0f} h"


def size(value: float | None) -> str:
    """Return a number of bytes."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.0f} B" if abs(value) < 1024 else f"{scaled(value, 1024.0, ' ')}B"


def scaled(value: float, base: float, gap: str) -> str:
    """Return a number with the letter of its scale."""
    unit = 0
    while abs(value) >= base and unit < len(_SCALES) - 1:
        value /= base
        unit += 1
    digits = 1 if unit and abs(value) < 100 and round(value, 1) != round(value) else 0
    return f"{value:.{digits}f}{gap}{_SCALES[unit]}"
