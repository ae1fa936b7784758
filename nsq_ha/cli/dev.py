"""``nsq-ha dev``: the embedded cluster in the foreground."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import socket
import ssl
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from nsq_ha.cli.options import FILE_NAME, Number, json_option
from nsq_ha.cli.output import print_json, print_table, wants_json
from nsq_ha.cli.running import failures, run
from nsq_ha.errors import NsqError
from nsq_ha.options.checks import DEFAULT_PORT, MAX_PARTITIONS, check_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsq_ha.devcluster import DevCluster

NSQD_PORT: Final = 4150
"""TCP port of nsqd; that of its HTTP is one above."""
RETAIN_BYTES: Final = 64 * 1024 * 1024
"""Bytes of messages that a partition keeps after all its channels finished them."""


class Wanted(NamedTuple):
    """A topic to create at the start."""

    name: str
    partitions: int = 1
    ordered: bool = False
    extended: bool = False


_WANTED: Final = re.compile(r"([^:]*)(?::([0-9]+)((?::ordered|:extended)*))?")


_OF_LETTERS: Final = ("archive", "clerk", "count", "office", "post", "print", "read", "scan", "send", "stamp")
EXAMPLES: Final = (
    (Wanted("orders", 4), ("billing",), ()),
    (Wanted("events", 4), (), ()),
    (Wanted("notes", 2, extended=True), (), ()),
    (Wanted("letters"), _OF_LETTERS, (b"1", b"2", b"3", b"4", b"5")),
    (
        Wanted("bills"),
        ("billing", "desk", "ledger", "office"),
        (b'{"number": 7, "amount": 9.5}', b'{"number": "8", "amount": 1.0}'),
    ),
    (Wanted("transfers"), ("ledger",), (b"broken",)),
    (Wanted("failed", extended=True), (), ()),
)
"""What the programs of the documentation need: topics, their channels, and messages that wait in each of these."""


class WantedTopic(click.ParamType[Wanted]):
    """``NAME``, ``NAME:PARTITIONS``, and behind it ``:ordered``, ``:extended`` or both."""

    name = "name[:partitions[:ordered][:extended]]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Wanted:
        """Return the parts, or fail with the reason."""
        if isinstance(value, Wanted):
            return value
        found = _WANTED.fullmatch(str(value))
        kinds = [] if found is None else (found[3] or "").split(":")[1:]
        if found is None or len(set(kinds)) < len(kinds):
            text = "write NAME, NAME:PARTITIONS, NAME:PARTITIONS:ordered, NAME:PARTITIONS:extended or"
            self.fail(f"{text} NAME:PARTITIONS:ordered:extended", param, ctx)
        name, number = found[1], found[2] or "1"
        if not 1 <= int(number[:9]) <= MAX_PARTITIONS:
            self.fail(f"partitions are 1..{MAX_PARTITIONS}", param, ctx)
        try:
            return Wanted(check_topic(name), int(number), ordered="ordered" in kinds, extended="extended" in kinds)
        except NsqError as error:
            self.fail(str(error), param, ctx)


_PORT = click.IntRange(1, 65534)


@click.command(short_help="Run a cluster on this machine.")
@click.option("--plain", is_flag=True, help="Imitate upstream's nsqd and nsqlookupd, without partitions.")
@click.option("--nsqds", type=click.IntRange(1, 32), help="Number of nsqds. Default: 3, or 1 with --plain.")
@click.option("--nsqlookupds", type=click.IntRange(1, 8), help="Number of nsqlookupds. Default: 2, or 1 with --plain.")
@click.option("--topic", "topics", type=WantedTopic(), multiple=True, help="Create it at the start. May be repeated.")
@click.option("--examples", is_flag=True, help="Create the topics and messages that the documentation's programs use.")
@click.option(
    "--time-scale",
    type=Number(0.01, 10),
    default=0.1,
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
@click.option("--tls-cert", type=FILE_NAME, help="Certificate of the nsqds, PEM. Clients may then switch to TLS.")
@click.option("--tls-key", type=FILE_NAME, help="Key of the certificate, PEM. Default: in the file of the certificate.")
@json_option
def dev(
    *,
    plain: bool,
    nsqds: int | None,
    nsqlookupds: int | None,
    topics: tuple[Wanted, ...],
    examples: bool,
    port: int | None,
    nsqd_port: int | None,
    tls_cert: str | None,
    tls_key: str | None,
    as_json: bool | None,
    **options: Any,  # noqa: ANN401 - those of DevCluster with the same names
) -> None:
    """Run a cluster in this process, on the loopback interface, until Ctrl-C; it stores nothing on disk."""
    try:
        from nsq_ha.devcluster import ChangeRefusedError, DevCluster
    except ModuleNotFoundError as error:
        raise click.ClickException(f"nsq-ha dev needs {error.name}: install nsq_ha[cluster,cli]") from error
    if examples and topics:
        raise click.UsageError("give --examples or --topic, not both")
    lookupd_ports, nsqd_ports = ports_of(port, nsqd_port, plain=plain)
    cluster = DevCluster(
        plain=plain,
        nsqlookupds=nsqlookupds or (1 if plain else 2),
        nsqds=nsqds or (1 if plain else 3),
        lookupd_ports=lookupd_ports,
        nsqd_ports=nsqd_ports,
        tls=nsqd_tls(tls_cert, tls_key),
        retain_bytes=RETAIN_BYTES,
        **options,
    )
    with failures(), _started(cluster):
        for wanted in topics:
            kind = {"ordered": wanted.ordered, "extended": wanted.extended}
            try:
                # As ``topic create`` would, which may follow: without ``syncdisk``, which is 0.
                cluster.create_topic(wanted.name, wanted.partitions, sync_every=0, **kind)
            except (ChangeRefusedError, ValueError) as error:
                raise click.ClickException(f"topic {wanted.name}: {error}") from error
        if examples:
            topics = make_examples(cluster, plain=plain)
        is_moved = not lookupd_ports
        run(_until_stopped(lambda: _tell(cluster, topics, as_json=as_json, plain=plain, is_moved=is_moved)), stopped=0)


def make_examples(cluster: DevCluster, *, plain: bool) -> tuple[Wanted, ...]:
    """Create what the programs of the documentation need, and return its topics.

    Raises:
        NsqError: A channel could not be created, or a message not published.
    """
    from nsq_ha.sync import AdminClient, Producer

    with AdminClient(cluster.lookupd) as admin, Producer(lookupd=cluster.lookupd) as producer:
        for wanted, channels, bodies in EXAMPLES:
            partitions, extended = (1, False) if plain else (wanted.partitions, wanted.extended)
            cluster.create_topic(wanted.name, partitions, extended=extended, sync_every=0)
            for channel in channels:
                admin.create_channel(wanted.name, channel)
            for body in bodies:
                producer.publish(wanted.name, body)
    return tuple(wanted for wanted, *_ in EXAMPLES)


def ports_of(lookupd: int | None, nsqd: int | None, *, plain: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the HTTP port of the first nsqlookupd and the TCP port of the first nsqd; nothing for free ones."""
    usual = (DEFAULT_PORT - 1, DEFAULT_PORT) if plain else (DEFAULT_PORT,)
    lookupds = (lookupd,) if lookupd is not None else (DEFAULT_PORT,) if are_free(usual) else ()
    if nsqd is not None:
        return lookupds, (nsqd,)
    return lookupds, (NSQD_PORT,) if plain and are_free((NSQD_PORT, NSQD_PORT + 1)) else ()


@contextlib.contextmanager
def _started(cluster: DevCluster) -> Iterator[None]:
    """Start the cluster, and stop it in the end.

    Raises:
        ClickException: A port is taken.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(cluster)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            advice = "give --port or --nsqd-port another number, or leave it out to use a free port"
            raise click.ClickException(f"{error.strerror}: {advice}") from error
        yield


def are_free(ports: tuple[int, ...]) -> bool:
    """Return whether nobody listens at some ports of the loopback."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def nsqd_tls(cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """Return the context of the nsqds.

    Raises:
        UsageError: There is no certificate, or a file cannot be read.
    """
    if cert is None:
        if key is not None:
            raise click.UsageError("--tls-key needs --tls-cert")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except OSError as error:
        raise click.UsageError(f"the files of TLS cannot be used: {error}") from error
    return context


async def _until_stopped(tell: Callable[[], None]) -> int:
    # Print it only here, where signals are handled: the reader may stop us immediately.
    tell()
    await asyncio.Event().wait()
    return 0


def _tell(
    cluster: DevCluster, topics: tuple[Wanted, ...], *, as_json: bool | None, plain: bool, is_moved: bool
) -> None:
    """Print the addresses, and commands to try; another program may have the usual port."""
    nodes = {name: {"tcp": address, "http": cluster.http_address(name)} for name, address in cluster.nsqds.items()}
    export = f"export NSQ_HA_LOOKUPD={','.join(cluster.lookupd)}"
    moved = (
        f"Port {DEFAULT_PORT} is in use, maybe by another cluster, so this one has other ports: without the line"
        " export ..., the commands find the other one.\n"
    )
    if wants_json(as_json):
        print_json({"lookupd": cluster.lookupd, "nsqds": nodes, "topics": [wanted.name for wanted in topics]})
        if as_json is None:  # its output goes into a file or a pipe
            click.echo(f"{moved * is_moved}In another terminal: {export}", err=True)
        return
    rows: list[tuple[str, str | None, str]] = [
        (f"nsqlookupd-{number}", None, url) for number, url in enumerate(cluster.lookupd)
    ]
    rows += [(name, ports["tcp"], ports["http"]) for name, ports in nodes.items()]
    print_table(["node", "TCP", "HTTP"], rows)
    if is_moved:
        click.echo(moved)
    topic = topics[0].name if topics else "orders"
    key = " --key user-42" if topics and topics[0].ordered else ""
    create = "" if topics or plain else f"  nsq-ha topic create {topic} --partitions 2\n"
    tail = "--channel hello --consume" if plain else "--from -1m"  # a paste publishes before it is subscribed
    click.echo(
        f"In another terminal:\n\n  {export}\n{create}"
        f"  nsq-ha tail {topic} {tail} &\n  echo hello | nsq-ha pub {topic}{key}\n\nCtrl-C stops the cluster."
    )
