"""``nsq-ha dashboard``: show the cluster in the browser."""

from __future__ import annotations

import dataclasses
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.cli.options import FILE, Number, cluster_options
from nsq_ha.cli.running import run

if TYPE_CHECKING:
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.dashboard import DashboardOptions

TOKEN_VARIABLE: Final = "NSQ_HA_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable


@click.command(short_help="Show the cluster in a browser.")
@click.option("--host", default="127.0.0.1", help="Address to listen on. Others need a token.")
@click.option("--port", type=click.IntRange(0, 65535), default=4171, help="Its port; 0 for a free one.")
@click.option("--interval", type=Number(0.2, 3600), default=2.0, help="Seconds between two looks at the cluster.")
@click.option("--history", type=Number(1, 1440), default=15.0, help="Minutes that charts show.")
@click.option("--admin", "may_change", is_flag=True, help="Let those who sign in change the cluster.")
@click.option(
    "--token-file",
    type=FILE,
    help=f"File with the token to sign in. Default: {TOKEN_VARIABLE}, or a new one, which is printed once.",
)
@click.option(
    "--allow-host", "hosts", multiple=True, metavar="NAME", help="Name by which browsers reach it. May be repeated."
)
@click.option(
    "--trace-log",
    "trace_logs",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Trace log of producers or consumers that a search reads, as soon as there is one. May be repeated.",
)
@click.option(
    "--decode", "decoders", multiple=True, metavar="MODULE:FUNCTION", help="Shows bodies, from bytes. May be repeated."
)
@click.option("--base-path", default="", metavar="PATH", help="Path below which a proxy shows it, such as /nsq.")
@click.option(
    "--change-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to which each change is appended, as a line of JSON.",
)
@cluster_options
def dashboard(cluster: ClusterAccess, *, history: float, token_file: Path | None, **options: Any) -> None:  # noqa: ANN401
    """Show nodes, topics, channels, leader changes and messages in the browser, live, until Ctrl-C.

    It is read-only, and only this machine reaches it. With --admin, those who sign in with the token may change the
    cluster. With --host, others reach it, and must sign in to see anything; the connection is not encrypted.
    """
    try:
        from nsq_ha.dashboard import DashboardOptions
    except ModuleNotFoundError as error:
        raise click.ClickException(f"nsq-ha dashboard needs {error.name}: install nsq_ha[cluster,cli]") from error
    chosen = DashboardOptions(token=_token(token_file), history=history * 60, **options)
    is_new = chosen.token is None and chosen.needs_token
    if is_new:
        chosen = dataclasses.replace(chosen, token=secrets.token_urlsafe(24))
    run(_serve(cluster, chosen, shows_token=is_new), stopped=0)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeError) as error:
        raise click.ClickException(f"the file {file} with the token cannot be read: {error}") from error


async def _serve(cluster: ClusterAccess, options: DashboardOptions, *, shows_token: bool) -> int:
    from nsq_ha.dashboard import serve

    def started(url: str) -> None:
        if shows_token:  # not before all options are known to be right
            click.echo(f"token: {options.token}", err=True)
        click.echo(f"dashboard: {url}")

    async with cluster.admin() as admin:
        await serve(admin, options, started=started)
    return 0
