"""``nsq-ha dev``: the embedded cluster in the foreground."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.checks import DEFAULT_PORT, MAX_PARTITIONS, check_topic
from nsq_ha.cli.options import Number, json_option
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.cli.running import failures, run
from nsq_ha.errors import NsqError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.devcluster import DevCluster

NSQD_PORT: Final = 4150
"""TCP port of nsqd; that of its HTTP is one above."""
RETAIN_BYTES: Final = 64 * 1024 * 1024


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


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the first nodes; empty for free ones.

    Attributes:
        lookupd: HTTP port of the first nsqlookupd.
        nsqd: TCP port of the first nsqd.
    """

    lookupd: tuple[int, ...]
    nsqd: tuple[int, ...]


_PORT = click.IntRange(1, 65534)
_BYTES = click.IntRange(1, 2**31 - 1)
_SECONDS = Number(0.001, 2**31)
_FILE = click.Path(exists=True, dir_okay=False)


@click.command()
@click.option("--plain", is_flag=True, help="Imitate upstream's nsqd and nsqlookupd, without partitions.")
@click.option("--nsqds", type=click.IntRange(1, 32), help="Number of nsqds. Default: 3, or 1 with --plain.")
@click.option("--nsqlookupds", type=click.IntRange(1, 8), help="Number of nsqlookupds. Default: 2, or 1 with --plain.")
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
    type=_PORT,
    help=f"HTTP port of the first nsqlookupd. Default: {DEFAULT_PORT}, where the other commands look, if it is free. "
    "With --plain its TCP port is one below.",
)
@click.option(
    "--nsqd-port",
    type=_PORT,
    help=f"TCP port of the first nsqd, whose HTTP port is one above. Default: {NSQD_PORT} with --plain, if it is free.",
)
@click.option(
    "--retain-bytes",
    type=click.IntRange(0),
    default=RETAIN_BYTES,
    show_default=True,
    help="Bytes of messages that a partition keeps after all its channels finished them. --plain keeps none.",
)
@click.option("--max-msg-size", type=_BYTES, help="Bytes of the largest message that the nsqds accept.")
@click.option("--max-body-size", type=_BYTES, help="Bytes of the largest batch that they accept.")
@click.option("--max-msg-timeout", type=_SECONDS, help="Seconds for which a message can stay in flight.")
@click.option("--max-req-timeout", type=_SECONDS, help="Seconds of the longest delay of a requeue.")
@click.option("--max-heartbeat-interval", type=_SECONDS, help="Seconds of the longest heartbeat interval.")
@click.option("--max-rdy-count", type=click.IntRange(1), help="Largest RDY of a connection.")
@click.option("--tls-cert", type=_FILE, help="Certificate of the nsqds, PEM. Clients may then switch to TLS.")
@click.option("--tls-key", type=_FILE, help="Key of the certificate, PEM. Default: in the file of the certificate.")
@click.option("--tls-root-ca-file", type=_FILE, help="CA of the certificates of clients, PEM.")
@click.option(
    "--tls-client-auth-policy",
    type=click.Choice(["require-verify"]),
    help="Refuse clients without TLS and a certificate that the CA has signed.",
)
@json_option
def dev(
    *,
    plain: bool,
    nsqds: int | None,
    nsqlookupds: int | None,
    topics: tuple[Wanted, ...],
    time_scale: float,
    port: int | None,
    nsqd_port: int | None,
    retain_bytes: int,
    tls_cert: str | None,
    tls_key: str | None,
    tls_root_ca_file: str | None,
    tls_client_auth_policy: str | None,
    as_json: bool | None,
    **limits: Any,  # noqa: ANN401 - click has converted them
) -> None:
    """Run a cluster in this process, on the loopback interface, until Ctrl-C; it stores nothing on disk."""
    try:
        from nsq_ha.devcluster import ChangeRefusedError, DevCluster
    except ModuleNotFoundError as error:
        raise click.ClickException(f"nsq-ha dev needs {error.name}: pip install 'nsq_ha[cluster,cli]'") from error
    nodes = nsqds or (1 if plain else 3)
    ports = _ports(port, nsqd_port, plain=plain)
    with (
        failures(),
        DevCluster(
            plain=plain,
            nsqlookupds=nsqlookupds or (1 if plain else 2),
            nsqds=nodes,
            time_scale=time_scale,
            lookupd_ports=ports.lookupd,
            nsqd_ports=ports.nsqd,
            retain_bytes=retain_bytes,
            tls=_tls(tls_cert, tls_key, tls_root_ca_file, tls_client_auth_policy),
            tls_required=tls_client_auth_policy is not None,
            **limits,
        ) as cluster,
    ):
        for wanted in topics:
            try:
                cluster.create_topic(wanted.name, wanted.partitions, min(3, nodes), ordered=wanted.ordered)
            except (ChangeRefusedError, ValueError) as error:
                raise click.ClickException(f"topic {wanted.name}: {error}") from error
        run(_until_stopped(lambda: _tell(cluster, topics, plain=plain, as_json=wants_json(as_json))), stopped=0)


def _ports(lookupd: int | None, nsqd: int | None, *, plain: bool) -> Ports:
    """Return the ports that were asked for, and the usual ones that are free."""
    usual = (DEFAULT_PORT - 1, DEFAULT_PORT) if plain else (DEFAULT_PORT,)
    lookupds = (lookupd,) if lookupd is not None else (DEFAULT_PORT,) if _are_free(usual) else ()
    if nsqd is not None:
        return Ports(lookupds, (nsqd,))
    return Ports(lookupds, (NSQD_PORT,) if plain and _are_free((NSQD_PORT, NSQD_PORT + 1)) else ())


def _are_free(ports: tuple[int, ...]) -> bool:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def _tls(cert: str | None, key: str | None, ca: str | None, policy: str | None) -> ssl.SSLContext | None:
    """Return the context of the nsqds.

    Raises:
        UsageError: There is no certificate, or a file cannot be read.
    """
    if cert is None:
        if (key, ca, policy) != (None, None, None):
            raise click.UsageError("the other options of TLS need --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
        if ca is not None:
            context.load_verify_locations(ca)
        if policy is not None:
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise click.UsageError(f"the files of TLS cannot be used: {error}") from error
    return context


async def _until_stopped(tell: Callable[[], None]) -> int:
    # Print it only here, where signals are handled: the reader may stop us immediately.
    tell()
    await asyncio.Event().wait()
    return 0


def _tell(cluster: DevCluster, topics: tuple[Wanted, ...], *, plain: bool, as_json: bool) -> None:
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
    create = "" if topics or plain else f"  nsq-ha topic create {topic} --partitions 2\n"
    click.echo(
        f"In another terminal:\n\n  export NSQ_HA_LOOKUPD={','.join(cluster.lookupd)}\n{create}"
        f"  nsq-ha tail {topic} &\n  echo hello | nsq-ha pub {topic}{key}\n\nCtrl-C stops the cluster."
    )
