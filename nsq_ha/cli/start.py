"""Where to start: the option ``--from``, and the positions to which a channel is moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from nsq_ha.admin.words import start_of
from nsq_ha.errors import ConfigError
from nsq_ha.options.language import option
from nsq_ha.options.start_from import Start, StartFrom

if TYPE_CHECKING:
    _Command = TypeVar("_Command", bound=Callable[..., Any])

_COUNTED: Final = ("offset:", "count:")
_WORDS: Final = {StartFrom.beginning(): "beginning", StartFrom.end(): "end"}
_FORMS: Final = (
    "beginning, end, a time before now such as -1h, or a time from 1970 to 2262 such as 2026-01-31T09:00 (local) or"
    " 2026-01-31T09:00Z"
)

HELP: Final = (
    "beginning, end, a time before now such as -90s, -1h30m or -2d, or a time such as 2026-01-31T09:00: local time,"
    " unless it ends in Z or an offset such as +02:00."
)


def parse_start(_: click.Context, __: click.Parameter, value: str | None) -> StartFrom | None:
    """Return the start position that the option names."""
    return None if value is None else position(value, time.time(), is_counted=False)


def from_option(default: str) -> Callable[[_Command], _Command]:
    """Return the option.

    Args:
        default: What happens without it, for the help.
    """
    return click.option("--from", "start", callback=parse_start, metavar="WHERE", help=f"{HELP} Default: {default}.")


def described(start: StartFrom) -> str:
    """Return a position as people write it; a time in local time."""
    if start in _WORDS:
        return _WORDS[start]
    if start.kind == "timestamp":
        return datetime.fromtimestamp(start.value, UTC).astimezone().isoformat(" ", "seconds")
    return f"{'offset' if start.kind == 'virtual_queue' else 'count'}:{start.value}"


def position(text: str, now: float, *, is_counted: bool = True) -> StartFrom:
    """Return the position that a text names.

    Args:
        text: The text.
        now: The time in Unix seconds.
        is_counted: It may also be one in a single partition.

    Raises:
        click.BadParameter: It names none.
    """
    if is_counted and text.startswith(_COUNTED):
        try:
            found: StartFrom = option("start", Start).from_text(text, "the position")
            return found
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error
    start = start_of(text, now)
    if start is None:
        raise click.BadParameter(
            f"{text!r} is no position: give {_FORMS}{', offset:BYTES or count:NUMBER' * is_counted}"
        )
    return start
