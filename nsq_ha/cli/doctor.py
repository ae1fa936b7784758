"""``nsq-ha doctor``: check a cluster, and say what to do about what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import ssl
import time
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from nsq_ha.admin.bounded import several
from nsq_ha.admin.causes import incidents
from nsq_ha.admin.consuming import STILL, folded, unsettled
from nsq_ha.admin.findings import TOLD, Facts, Finding, findings_of
from nsq_ha.admin.words import counted
from nsq_ha.cli.lookup import agree, ask_all, differing
from nsq_ha.cli.options import SECONDS, TOPIC, cluster_options, json_option
from nsq_ha.cli.output import clean, console, print_json, wants_json
from nsq_ha.cli.reading import own_channel, reading_options, taken_from
from nsq_ha.cli.running import run
from nsq_ha.cli.seen import look, remember
from nsq_ha.engine.http import ask, new_client
from nsq_ha.engine.names import addresses, first_open
from nsq_ha.errors import ConfigError, NsqError, TopicNotFoundError
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.encoding import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import httpx

    from nsq_ha import Consumer, Producer
    from nsq_ha.admin import AdminClient, ClusterStats, TopicDescription
    from nsq_ha.cli.cluster import ClusterAccess
    from nsq_ha.options.keywords import ConsumerOptions
    from nsq_ha.policy.topology import Node

MOST_TOPICS: Final = 50
"""Number of topics that are looked at, if none is named."""

_LIMIT: Final = 2.0
"""Seconds for one question to one server."""
_HELLO: Final = MAGIC + Identify(b"{}").encode()
_ROUND_TRIP: Final = "round trip"
_PEM: Final = re.compile(f"{ssl.PEM_HEADER}.+?{ssl.PEM_FOOTER}", re.DOTALL)
_SEQUENCE: Final = 0x30
_UTC_TIME: Final = 0x17
_OTHER_TOPIC: Final = "name a topic that is for tests, or create the channel that shall get the messages"

_SIGNS: Final[Mapping[str, tuple[str, str]]] = {
    "ok": ("ok", "green"),
    "warning": ("!", "yellow"),
    "failed": ("FAILED", "bold red"),
    "skipped": ("-", "dim"),
}


@click.command(short_help="Check the cluster, and say what to do.")
@click.option("--topic", type=TOPIC, help="Look only at this topic, and send a message through each of its partitions.")
@click.option("--timeout", type=SECONDS, default=20.0, help="Seconds for the round trip.")
@cluster_options
@json_option
def doctor(cluster: ClusterAccess, as_json: bool | None, *, topic: str | None, timeout: float) -> bool:
    """Check the cluster: a list of what works, what does not, and what to do.

    With --topic it publishes a message to each partition, and reads it by a channel of its own, with the security
    settings that are given: name a topic that is for tests, since other channels get the messages, too.

    It leads with what is wrong, one sentence for each cause. Servers that answered within the last day, and do not now,
    count as missing: `node forget` is for those that were removed.

    Exit code 1 if a check failed; a warning is no failure.
    """
    statuses: list[str] = []

    def report(finding: Finding) -> None:
        if finding.text != TOLD:  # one cause counts once
            statuses.append(finding.status)
        print_json(finding._asdict()) if wants_json(as_json) else _print(finding)

    run(_examine(cluster, topic, timeout, report))
    failed, warned = statuses.count("failed"), statuses.count("warning")
    if not wants_json(as_json):
        click.echo(f"\n{failed} failed, {counted(warned, 'warning')}" if failed or warned else "\nall is well")
    return failed > 0


def _print(finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    sign, style = _SIGNS[finding.status]
    text = Text(clean(f"{finding.check}: "), style="bold" if finding.status in ("warning", "failed") else "")
    text.append(clean(finding.text), style="dim" if finding.status == "skipped" else "not bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=6, justify="right")
    table.add_column(overflow="fold")
    table.add_row(Text(sign, style=style), text)
    if finding.remedy:
        table.add_row("", Text(clean(f"-> {finding.remedy}")))
    console().print(table)


async def _examine(
    cluster: ClusterAccess, topic: str | None, timeout: float, report: Callable[[Finding], None]
) -> None:
    admin = cluster.admin()
    try:
        facts = await gather(cluster, admin, topic)
    except ConfigError as error:  # opening an AdminClient compares the nsqlookupds
        report(Finding("agreement of nsqlookupds", "failed", str(error), "remove the addresses of the other cluster"))
        return
    reading = facts.reading
    for each in folded(incidents(reading)):
        text = f"{each.sentence(reading.at)} ({each.detail})" if each.detail else each.sentence(reading.at)
        report(Finding("incident", "failed" if each.is_bad else "warning", text, each.remedy))
    if reading.unanswered or not reading.is_fresh:
        return
    for finding in findings_of(facts):
        report(finding)
    report(certificates(cluster, time.time()))
    if topic is None:
        report(Finding(_ROUND_TRIP, "skipped", "name a topic for it: --topic"))
    else:
        described = facts.reading.details[topic]
        reason = taken_from(described, even_none=False)
        text = f"not tried: {reason}, and this would take them away"
        refused = Finding(_ROUND_TRIP, "warning", text, _OTHER_TOPIC) if reason else None
        report(refused or await round_trip(cluster, described, timeout))


async def gather(cluster: ClusterAccess, admin: AdminClient, topic: str | None) -> Facts:
    """Ask all servers; ``admin`` is not open yet.

    Raises:
        ConfigError: The nsqlookupds are those of two clusters.
        TopicNotFoundError: ``topic`` does not exist.
    """
    async with admin:
        reading, until = await look(cluster, admin, strict=False), time.monotonic() + STILL
        while unsettled(reading) and time.monotonic() <= until:  # whether consumers get on takes some seconds to see
            await asyncio.sleep(_LIMIT)
            reading = await admin.look(reading)
        remember(cluster.lookupd, reading)
        if reading.unanswered or not reading.is_fresh:
            return Facts(reading=reading)
        if topic not in (None, *reading.listed):
            raise TopicNotFoundError.named(topic or "", reading.listed)
        names = [topic] if topic is not None else sorted(reading.listed)
        chosen = names[:MOST_TOPICS]
        described = await several(partial(_described, admin), chosen)
        details = {each.view.topic: each for each in described if each is not None}
    stats = reading.stats
    asked = () if reading.is_plain else chosen
    views = dict(zip(asked, await several(partial(ask_all, cluster, reading.lookupds), asked), strict=True))
    return Facts(
        reading=replace(reading, details=details),
        left_out=len(names) - len(chosen),
        differing={
            name: differing(found)
            for name, found in views.items()
            if not agree([each for each in found if each.error is None])
        },
        unreachable=await unreachable(stats),
        clocks=await clocks(cluster, stats, [each.url for each in reading.lookupds if not each.error]),
    )


async def _described(admin: AdminClient, topic: str) -> TopicDescription | None:
    """Return a description. None if the topic was deleted meanwhile."""
    with contextlib.suppress(TopicNotFoundError):
        return await admin.describe(topic)
    return None


async def unreachable(stats: ClusterStats) -> dict[str, str]:
    """Return why no connection to a node is possible, by its address."""

    async def connect(node: Node) -> str:
        host, port = node.host, node.tcp_port
        try:
            async with asyncio.timeout(_LIMIT):
                reader, writer = await first_open(
                    await addresses(host, port), _LIMIT, lambda each: asyncio.open_connection(each, port)
                )
                with contextlib.closing(writer):
                    writer.write(_HELLO)  # a process that is stopped accepts connections, too
                    return "" if await reader.read(1) else "it closed the connection"
        except TimeoutError:
            return f"no answer within {_LIMIT:.0f} s"
        except OSError as error:
            return error.strerror or str(error)

    nodes = [each.node for each in stats.nodes]
    reasons = await several(connect, nodes)
    return {node.address: reason for node, reason in zip(nodes, reasons, strict=True) if reason}


async def clocks(cluster: ClusterAccess, stats: ClusterStats, lookupds: Iterable[str]) -> dict[str, float]:
    """Return by how many seconds each server's clock is ahead, as far as they say."""
    urls = [*lookupds, *(each.node.http_url for each in stats.nodes if not each.error)]

    async def measured(client: httpx.AsyncClient, url: str) -> float | None:
        before = time.time()
        try:
            at = (await ask(client, "GET", f"{url}/ping", timeout=_LIMIT)).clock
        except NsqError:
            return None
        return None if at is None else ahead(at, before, time.time())

    # Those that were given, too: lookupd_tls needs one with https, which may be away.
    async with new_client([*cluster.lookupd, *urls], cluster.lookupd_tls) as client:
        found = await several(partial(measured, client), urls)
    return {url: seconds for url, seconds in zip(urls, found, strict=True) if seconds is not None}


def ahead(at: float, before: float, after: float) -> float:
    """Return by how many seconds a clock is at least ahead; negative if it is behind.

    Args:
        at: The whole second that it told.
        before: Our time when it was asked.
        after: Our time when its answer was here.
    """
    if at > after:
        return at - after
    return min(0.0, at + 1 - before)


def certificates(cluster: ClusterAccess, now: float) -> Finding:
    """Check whether the files of TLS are valid for the time being."""
    check = "certificates"
    tls = cluster.tls
    if tls is None:
        return Finding(check, "skipped", "connections to nsqds use no TLS")
    ends = [(file, end) for file in filter(None, {tls.ca_file, tls.cert_file}) for end in _ends(file)]
    if over := _before(now, ends):
        return Finding(check, "failed", f"expired: {over}", "renew it")
    if soon := _before(now + 14 * 86400, ends):
        return Finding(check, "warning", f"expires within two weeks: {soon}", "renew it")
    return Finding(check, "ok", "the given files")


def _before(at: float, ends: Iterable[tuple[str, datetime]]) -> str:
    """Return the certificates that are no longer valid at a time; empty if there are none."""
    return "; ".join(sorted(f"{file} ({end:%Y-%m-%d %H:%M:%S} UTC)" for file, end in ends if end.timestamp() < at))


def _ends(file: str) -> Iterator[datetime]:
    """Yield until when each certificate in a file is valid; ``ssl`` shows that of authorities only.

    Raises:
        OSError: The file cannot be read, or is damaged.

    Source: RFC 5280, 4.1.
    """
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(file)  # refuses what is damaged
    for pem in _PEM.findall(Path(file).read_text("ascii", "replace")):
        [(_, certificate)] = _values(ssl.PEM_cert_to_DER_cert(pem))
        (_, signed), *_ = _values(certificate)
        # Besides numbers: the algorithm, the issuer, the validity.
        validity = [content for tag, content in _values(signed) if tag == _SEQUENCE][2]
        _, (tag, end) = _values(validity)
        year = "%y" if tag == _UTC_TIME else "%Y"
        yield datetime.strptime(end.decode(), f"{year}%m%d%H%M%SZ").replace(tzinfo=UTC)


def _values(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the tag and the content of each of some values in DER."""
    while der:
        size, begin = der[1], 2
        if size & 0x80:
            begin += size & 0x7F
            size = int.from_bytes(der[2:begin], "big")
        yield der[0], der[begin : begin + size]
        der = der[begin + size :]


async def round_trip(cluster: ClusterAccess, topic: TopicDescription, timeout: float) -> Finding:
    """Send a message through each partition of a topic, or through a plain topic."""
    name, meta = topic.view.topic, topic.view.meta
    partitions = [None] if topic.view.is_plain else [entry.partition for entry in topic.partitions]
    if meta is not None and meta.disable_channel_auto_create:
        return Finding(_ROUND_TRIP, "skipped", f"channels of {name} must be registered, so there is none to read it by")
    if not partitions:
        text = f"not tried: the nsqlookupds do not agree how many partitions {name} has"
        return Finding(_ROUND_TRIP, "warning", text, "look again in some seconds")
    channel = own_channel("doctor")
    # Each message is wanted, and none is given up, whatever the options of consumers are.
    reading: ConsumerOptions = {
        **reading_options((), None, None),
        "partitions": None,
        "start_from": None,
        "sample_rate": 0,
        "tag": None,
        "ext_filter": None,
        "skip_header": None,
    }
    took: list[float] = []
    try:
        async with asyncio.timeout(timeout), cluster.producer() as producer:
            if topic.view.is_plain and not topic.partitions:
                await _publish(producer, name, None)  # the first message creates the topic
            async with cluster.consumer(name, channel, **reading) as consumer:
                await consumer.wait_subscribed()
                for partition in partitions:
                    began = time.monotonic()
                    await _receive(consumer, await _publish(producer, name, partition))
                    took.append(time.monotonic() - began)
    except TimeoutError:
        text = f"{len(took)} of {len(partitions)} within {timeout:g} s"
        return Finding(
            _ROUND_TRIP, "failed", text, "look at the checks above, and at the log: nsq-ha -v doctor --topic ..."
        )
    except NsqError as error:
        remedy = "for TLS and AUTH: --tls-ca, --cert, --tls-key, --auth-secret-file"
        return Finding(_ROUND_TRIP, "failed", str(error), remedy)
    longest = max(took) * 1000
    return Finding(_ROUND_TRIP, "ok", f"{name}: {len(took)} of {len(took)}, the slowest in {longest:,.0f} ms")


async def _publish(producer: Producer, topic: str, partition: int | None) -> bytes:
    body = f'{{"nsq_ha_doctor":"{secrets.token_hex(8)}"}}'.encode()
    await producer.publish(topic, body, partition=partition)
    return body


async def _receive(consumer: Consumer, body: bytes) -> None:
    async for message in consumer:
        message.finish()
        if message.body == body:
            return
