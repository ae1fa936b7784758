"""Options that several commands share, and their types."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import click

from nsq_ha.cli import INTERRUPTED
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.options import FILE_VARIABLE, LOOKUPD_VARIABLE
from nsq_ha.options.checks import DEFAULT_LOOKUPD, MAX_PARTITION_ID, check_channel, check_topic, lookupd_urls

_Command = TypeVar("_Command", bound=Callable[..., Any])


def addresses(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return base URLs for addresses that are given separately or with commas."""
    try:
        return lookupd_urls(",".join(values)) if values else ()
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


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

# ---------------------------------------------------------------- the cluster

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
FILE_NAME: Final = click.Path(exists=True, dir_okay=False)


_lookupd_option: Callable[[_Command], _Command] = click.option(
    "--lookupd",
    multiple=True,
    metavar="URL",
    callback=addresses,
    help="HTTP address of an nsqlookupd: host:port or URL. May be repeated, or several with commas. Give all of a"
    " plain (upstream) cluster, since they know only what registered at each. Default:"
    f" {LOOKUPD_VARIABLE}, or lookupd in the TOML file that {FILE_VARIABLE} names, or {DEFAULT_LOOKUPD}.",
)

_CERTIFICATES: Final = (
    click.option(
        "--tls-ca",
        type=FILE_NAME,
        help="Connect to nsqds with TLS, and trust the authorities in this PEM file, also for https nsqlookupds.",
    ),
    click.option(
        "--cert",
        "--tls-cert",
        "cert",
        type=FILE_NAME,
        help="Client certificate, PEM. Connect to nsqds with TLS and show it.",
    ),
    # Not --key, which is the key of a message.
    click.option(
        "--tls-key",
        "key_file",
        type=FILE_NAME,
        help="Key of the certificate, PEM. Default: in the file of the certificate.",
    ),
)
_SECRET: Final = click.option(
    "--auth-secret-file", type=FILE_NAME, help="File whose first line is the secret for nsqds that require AUTH."
)


def with_options(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    """Add options and arguments to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command


def cluster_options(command: _Command) -> _Command:
    """Add the options that say which cluster to use, and how; the command gets them as ``cluster``."""

    @functools.wraps(command)
    def call(*arguments: object, lookupd: tuple[str, ...], **options: Any) -> object:  # noqa: ANN401
        from nsq_ha.cli.cluster import ClusterAccess  # loads settings and clients, which the help does not need

        security = {name: options.pop(name) for name in ("tls_ca", "cert", "key_file", "auth_secret_file")}
        try:
            cluster = ClusterAccess.of(lookupd, **security)
        except ConfigError as error:
            raise click.UsageError(str(error), click.get_current_context()) from error
        return command(*arguments, cluster=cluster, **options)

    return with_options(cast("_Command", call), _lookupd_option, *_CERTIFICATES, _SECRET)


# ---------------------------------------------------------------- the output

json_option: Callable[[_Command], _Command] = click.option(
    "--json/--table",
    "as_json",
    default=None,
    help="Print JSON lines, or tables. Default: tables on a terminal, JSON lines elsewhere.",
)


def command_of(
    group: click.Group, *options: Callable[[Any], Any], name: str | None = None, shows: bool = False
) -> Callable[[Callable[..., object]], click.Command]:
    """Return a decorator for a command of a group: with these arguments and options, and those of the cluster.

    Args:
        group: The group.
        *options: Its own arguments and options, in the order of its help.
        name: Its name, if it is not that of the function.
        shows: Whether it shows something, as JSON or as tables.
    """
    shared = (cluster_options, json_option) if shows else (cluster_options,)
    return lambda call: group.command(name)(with_options(call, *options, *shared))


# ---------------------------------------------------------------- destructive commands

yes_option: Callable[[_Command], _Command] = click.option(
    "-y", "--yes", is_flag=True, help="Do not ask for confirmation."
)


def timeout_option(
    seconds: float = 30.0, waits: str = "Seconds to wait until all servers show it."
) -> Callable[[Any], Any]:
    """Return the option ``--timeout`` of a change."""
    return click.option("--timeout", type=SECONDS, default=seconds, help=waits)


def confirm(question: str, *, yes: bool, reason: str = "this cannot be undone") -> None:
    """Ask before something is destroyed.

    Args:
        question: What would be done.
        yes: The user gave ``--yes``.
        reason: Why it asks.

    Raises:
        click.UsageError: Nobody can answer, since standard input is no terminal.
        click.Abort: The answer is no; exit code 1.
        click.exceptions.Exit: The answer is Ctrl-C.
    """
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{reason}: give --yes, since there is no terminal to ask at")
    try:
        click.confirm(question, abort=True, err=True)
    except click.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):  # click makes it a no
            click.echo(err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        raise


IN_FLIGHT: Final = click.IntRange(1)
"""The type of ``--max-in-flight``: not the 0 that pauses. The option ``max_in_flight`` has an upper bound, too."""


def metrics_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--metrics-port`` to a command, which serves the metrics of its clients while it runs."""

    @click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Serve metrics for Prometheus at this port of 127.0.0.1 while it runs. 0 takes a free one, which standard"
        " error names.",
    )
    @functools.wraps(command)
    def with_metrics(*args: Any, metrics_port: int | None, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        if metrics_port is None:
            return command(*args, **options)
        from nsq_ha import prometheus  # loads a server that other commands do not need

        try:
            server = prometheus.serve(metrics_port)
        except ConfigError as error:
            raise click.ClickException(str(error)) from error
        with server:
            click.echo(f"metrics: {server.url}", err=True)
            return command(*args, **options)

    return with_metrics
