"""``nsq-ha dev``: the embedded cluster in the foreground."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from nsq_ha.checks import DEFAULT_PORT, MAX_PARTITIONS, check_topic
from nsq_ha.cli.options import Number, json_option
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.cli.running import failures, run
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.devcluster import DevCluster


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic to create at the start."""

    name: str
    partitions: int
    ordered: bool


class WantedTopic(click.ParamType[Wanted]):
    """``NAME``, ``NAME:PARTITIONS`` or ``NAME:PARTITIONS:ordered``."""

    name = "name[:partitions[:ordered]]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Wanted:
        """Return the parts, or fail with the reason."""
        if isinstance(value, Wanted):
            return value
        name, *rest = str(value).split(":")
        number = rest[0] if rest else "1"
        kind = rest[1] if len(rest) > 1 else ""
        if len(rest) > 2 or kind not in ("", "ordered") or not (number.isascii() and number.isdigit()):
            self.fail("write NAME, NAME:PARTITIONS or NAME:PARTITIONS:ordered", param, ctx)
        if not 1 <= int(number[:9]) <= MAX_PARTITIONS:
            self.fail(f"partitions are 1..{MAX_PARTITIONS}", param, ctx)
        try:
            return Wanted(check_topic(name), int(number), kind == "ordered")
        except NsqError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.option("--nsqds", type=click.IntRange(1, 32), default=3, show_default=True, help="Number of nsqds.")
@click.option("--nsqlookupds", type=click.IntRange(1, 8), default=2, show_default=True, help="Number of nsqlookupds.")
@click.option("--topic", "topics", type=WantedTopic(), multiple=True, help="Create it at the start. May be repeated.")
@click.option(
    "--time-scale",
    type=Number(0.01, 10),
    default=0.1,
    show_default=True,
    help="Factor on the delays of a real cluster: at 0.1 a new leader is elected after 2.2 s, not after 22 s.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help=f"HTTP port of the first nsqlookupd. Default: {DEFAULT_PORT}, where the other commands look, if it is free.",
)
@json_option
def dev(
    *,
    nsqds: int,
    nsqlookupds: int,
    topics: tuple[Wanted, ...],
    time_scale: float,
    port: int | None,
    as_json: bool | None,
) -> None:
    """Run a cluster in this process, on the loopback interface, until Ctrl-C; it stores nothing on disk."""
    try:
        from nsq_ha.devcluster import ChangeRefusedError, DevCluster
    except ModuleNotFoundError as error:
        raise click.ClickException(f"nsq-ha dev needs {error.name}: pip install 'nsq_ha[cluster,cli]'") from error
    ports = (port,) if port is not None else _usual_port()
    with (
        failures(),
        DevCluster(nsqlookupds=nsqlookupds, nsqds=nsqds, time_scale=time_scale, lookupd_ports=ports) as cluster,
    ):
        for wanted in topics:
            try:
                cluster.create_topic(wanted.name, wanted.partitions, min(3, nsqds), ordered=wanted.ordered)
            except ChangeRefusedError as error:
                raise click.ClickException(f"topic {wanted.name}: {error}") from error
        run(_until_stopped(lambda: _tell(cluster, topics, as_json=wants_json(as_json))), stopped=0)


def _usual_port() -> tuple[int, ...]:
    """Return nsqlookupd's default port if it is free, otherwise an empty tuple."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return ()
    return (DEFAULT_PORT,)


async def _until_stopped(tell: Callable[[], None]) -> int:
    # Print it only here, where signals are handled: the reader may stop us immediately.
    tell()
    await asyncio.Event().wait()
    return 0


def _tell(cluster: DevCluster, topics: tuple[Wanted, ...], *, as_json: bool) -> None:
    nodes = {name: {"tcp": address, "http": cluster.http_address(name)} for name, address in cluster.nsqds.items()}
    if as_json:
        print_json({"lookupd": cluster.lookupd, "nsqds": nodes, "topics": [wanted.name for wanted in topics]})
        return
    rows: list[tuple[str, str | None, str]] = [
        (f"nsqlookupd-{number}", None, url) for number, url in enumerate(cluster.lookupd)
    ]
    rows += [(name, ports["tcp"], ports["http"]) for name, ports in nodes.items()]
    print_table(["node", "TCP", "HTTP"], rows)
    topic = topics[0].name if topics else "orders"
    key = " --key user-42" if topics and topics[0].ordered else ""
    create = "" if topics else f"  nsq-ha topic create {topic} --partitions 2\n"
    click.echo(
        f"In another terminal:\n\n  export NSQ_HA_LOOKUPD={','.join(cluster.lookupd)}\n{create}"
        f"  nsq-ha tail {topic} &\n  echo hello | nsq-ha pub {topic}{key}\n\nCtrl-C stops the cluster."
    )
