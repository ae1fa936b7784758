"""Options that several commands share, and their types."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import click

from nsq_ha.checks import DEFAULT_PORT, MAX_PARTITION_ID, check_channel, check_topic, lookupd_urls
from nsq_ha.config import ClientConfig
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.settings import FILE_VARIABLE, settings_from_env

DEFAULT_LOOKUPD: Final = f"http://127.0.0.1:{DEFAULT_PORT}"
LOOKUPD_VARIABLE: Final = "NSQ_HA_LOOKUPD"

_Command = TypeVar("_Command", bound=Callable[..., Any])


def addresses(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return base URLs for addresses that are given separately or with commas."""
    try:
        return lookupd_urls(",".join(values)) if values else ()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def addresses_or_default(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    """Return base URLs for addresses; without any, those of the environment or its file, or the default one."""
    if values:
        return addresses(context, parameter, values)
    try:
        found = settings_from_env(ClientConfig).options.get("lookupd")
    except ConfigError as error:
        raise click.UsageError(str(error), context) from error
    return cast("tuple[str, ...]", found) or (DEFAULT_LOOKUPD,)


class Name(click.ParamType[str]):
    """The name of a topic or channel, checked before any request.

    Args:
        kind: ``topic`` or ``channel``.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind
        self._check = check_topic if kind == "topic" else check_channel

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name unchanged, or fail with the reason."""
        try:
            return self._check(value)
        except NsqError as error:
            self.fail(str(error), param, ctx)


class Number(click.FloatRange):
    """A number within bounds, but not infinity or NaN (which passes every comparison)."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or fail with the reason."""
        number: float = super().convert(value, param, ctx)  # type: ignore[arg-type]  # text is what it converts
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


SECONDS: Final = Number(0, min_open=True)
TOPIC: Final = Name("topic")
CHANNEL: Final = Name("channel")
PARTITION: Final = click.IntRange(0, MAX_PARTITION_ID)

lookupd_option: Callable[[_Command], _Command] = click.option(
    "--lookupd",
    multiple=True,
    metavar="URL",
    callback=addresses_or_default,
    help="HTTP address of an nsqlookupd: host:port or URL. May be repeated, or several with commas. Give all of a"
    " plain (upstream) cluster, since they know only what registered at each. Default:"
    f" {LOOKUPD_VARIABLE}, or lookupd in the TOML file that {FILE_VARIABLE} names, or {DEFAULT_LOOKUPD}.",
)

json_option: Callable[[_Command], _Command] = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="Print JSON lines, or tables. Default: tables on a terminal, JSON lines elsewhere.",
)
