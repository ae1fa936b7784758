"""Write numbers, sizes, times and spans as people read them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Final

from nsq_ha.admin import words
from nsq_ha.base.markup import Html, tag
from nsq_ha.errors import ConfigError

NONE: Final = words.NONE
span: Final = words.span
brief: Final = words.brief
size: Final = words.size


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    return NONE if value is None or not math.isfinite(value) else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Return a number in at most five characters or so: 950, 12.3k, 4M."""
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) < 10 and value != int(value):
        return f"{value:.1f}"
    return words.scaled(value, 1000.0, "")


def rate(value: float | None) -> str:
    """Return a number per second."""
    return NONE if value is None or not math.isfinite(value) else f"{short(value)}/s"


def clock(at: float) -> str:
    """Return the time of day in UTC; the browser's script shows the local one."""
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%H:%M:%S}"


def time_of_day(at: float, title: str | None = None) -> Html:
    """Return :func:`clock` as an element; the script shows it in the browser's time zone."""
    return tag("time", clock(at), data_at=f"{at:.0f}", title=title)


def moment(at: float) -> str:
    """Return the date and time in UTC."""
    return f"{datetime.datetime.fromtimestamp(at, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"


def whole(given: Mapping[str, str], name: str) -> int | None:
    """Return a number of a form; None if the field is empty.

    Raises:
        ConfigError: It is no whole number.
    """
    text = given.get(name, "").strip().replace(",", "").replace("_", "")
    if text and (not (text.isascii() and text.isdigit()) or len(text) > 20):
        raise ConfigError(f"{name} must be a whole number of at most 20 digits")
    return int(text) if text else None


def share(value: float) -> str:
    """Return a share of 1 as percents."""
    return f"{value * 100:g} %"
