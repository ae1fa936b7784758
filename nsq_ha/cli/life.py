"""``nsq-ha trace ID``: the life of one message, from trace logs and from the cluster."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from nsq_ha.cli.letters import MessageId
from nsq_ha.cli.options import TOPIC, cluster_options, json_option
from nsq_ha.cli.output import clean, print_json, print_table, wants_json
from nsq_ha.cli.running import failures, run
from nsq_ha.cli.scan import scan
from nsq_ha.cli.start import from_option
from nsq_ha.cli.views import require_topic
from nsq_ha.errors import ConfigError, NsqError
from nsq_ha.identity import partition_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nsq_ha import StartFrom
    from nsq_ha.admin import PartitionDescription, StoredMessage
    from nsq_ha.cli.cluster import Cluster

_EVENTS: Final = frozenset({"publish", "delivery", "finish", "requeue"})


@dataclass(slots=True)
class Life:
    """What is known about one message.

    Attributes:
        topic: Its topic. None if it is unknown.
        internal_id: The server's id. None if it is unknown.
        events: Its lines of trace logs, by time.
        stored: What the log of its partition holds. None if it was not found there.
        channels: Where each channel stands, by name: ``passed`` or ``not passed``.
        note: Why the cluster does not show more. None if it does.
    """

    topic: str | None
    internal_id: int | None
    events: list[dict[str, Any]] = field(default_factory=list)
    stored: StoredMessage | None = None
    channels: dict[str, str] = field(default_factory=dict)
    note: str | None = None

    @property
    def partition(self) -> int | None:
        """The partition that the id contains."""
        return None if self.internal_id is None else partition_of(self.internal_id)


def events_of(paths: Iterable[Path], number: int, topic: str | None, *, by_trace: bool) -> list[dict[str, Any]]:
    """Return the events of one message in trace logs, by time.

    Args:
        paths: The logs, as ``nsq_ha.tracelog`` writes them. Other lines are ignored.
        number: The internal id, or the trace id.
        topic: Only this topic. None for any.
        by_trace: ``number`` is a trace id.
    """
    name = "trace_id" if by_trace else "internal_id"
    text = str(number)
    found = []
    for path in paths:
        for line in _lines(path):
            if text not in line:
                continue
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if not isinstance(entry, dict) or entry.get("event") not in _EVENTS or entry.get(name) != number:
                continue
            if topic in (None, entry.get("topic")) and isinstance(entry.get("time_ns"), int):
                found.append(entry)
    return sorted(found, key=lambda entry: int(entry["time_ns"]))


def _lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace") as stream:
        yield from stream


@click.command("message")
@click.argument("number", metavar="ID", type=MessageId())
@click.option("--trace-id", "by_trace", is_flag=True, help="ID is a trace id, not an internal id.")
@click.option("--topic", type=TOPIC, help="Its topic. Needed to ask the cluster, unless a log names it.")
@click.option(
    "--log",
    "logs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Trace log of the SDK to search. May be repeated.",
)
@click.option("--offline", is_flag=True, help="Only search the logs.")
@from_option("the oldest message; only for a search by trace id, which reads the topic")
@cluster_options
@json_option
def message(
    number: int,
    cluster: Cluster,
    *,
    by_trace: bool,
    topic: str | None,
    logs: tuple[Path, ...],
    offline: bool,
    start: StartFrom | None,
    as_json: bool | None,
) -> None:
    """Show the life of one message: its events in trace logs, where it is stored, and which channels have passed it.

    ID is the internal id that receipts, messages and logs show, decimal or with 0x. With --trace-id it is the
    publisher's; the cluster then has to be searched by reading the topic. Exit code 1 if the message was not found.
    """
    if offline and not logs:
        raise click.UsageError("--offline needs --log")
    with failures():
        events = events_of(logs, number, topic, by_trace=by_trace)
    known = topic or next((str(event["topic"]) for event in events), None)
    if known is None and not logs:
        raise click.UsageError("give --topic, --log, or both")
    ids = [int(event["internal_id"]) for event in events if isinstance(event.get("internal_id"), int)]
    life = Life(known, (ids[0] if ids else None) if by_trace else number, events)
    if known is not None and not offline:
        run(_complete(cluster, known, life, number if by_trace else None, start))
    if wants_json(as_json):
        print_json(_as_dict(life))
    else:
        _print(life)
    if not life.events and life.stored is None:
        raise click.ClickException(_not_found(life, number, by_trace=by_trace))


def _not_found(life: Life, number: int, *, by_trace: bool) -> str:
    kind = "trace id" if by_trace else "id"
    where = "in the logs" if life.topic is None else f"of topic {life.topic!r}"
    return f"no message {where} has the {kind} {number}" + (f": {life.note}" if life.note else "")


async def _complete(cluster: Cluster, topic: str, life: Life, trace_id: int | None, start: StartFrom | None) -> None:
    """Add what the cluster knows. If it cannot be asked, the events of the logs are still worth showing."""
    try:
        await _ask_cluster(cluster, topic, life, trace_id, start)
    except NsqError as error:
        if not life.events:
            raise
        life.note = str(error)


async def _ask_cluster(cluster: Cluster, topic: str, life: Life, trace_id: int | None, start: StartFrom | None) -> None:
    found = await require_topic(cluster, topic)
    if found.meta is None:
        nsqds = {event.get("nsqd") for event in life.events}
        life.note = "a plain cluster keeps no log of messages" + (
            "; plain nsqds may give equal ids, so each nsqd's lines are a message of its own" if len(nsqds) > 1 else ""
        )
        return
    if life.internal_id is None and trace_id is not None:
        async with contextlib.aclosing(scan(cluster, topic, found, start=start)) as messages:
            async for each in messages:
                if each.trace_id == trace_id:
                    life.internal_id = each.internal_id
                    break
        if life.internal_id is None:
            life.note = "the topic does not hold it now" + ("" if start is None else ", or not from that time on")
            return
    if life.internal_id is None:
        return
    async with cluster.admin() as admin:
        try:
            life.stored = await admin.find_message(topic, internal_id=life.internal_id)
        except (ConfigError, NsqError) as error:
            life.note = str(error)
        described = await admin.describe(topic)
    if life.stored is None:
        life.note = life.note or ("the server does not show it: it is not flushed yet, or was cleaned up")
    offset = life.stored.offset if life.stored is not None else _offset(life.events)
    own = next((entry for entry in described.partitions if entry.partition == life.partition), None)
    if own is not None and offset is not None:
        life.channels = _standing(own, offset)


def _offset(events: list[dict[str, Any]]) -> int | None:
    return next((event["offset"] for event in events if isinstance(event.get("offset"), int)), None)


def _standing(partition: PartitionDescription, offset: int) -> dict[str, str]:
    """Return where each channel stands: whether all messages up to the one at ``offset`` are finished."""
    stats = partition.stats
    if stats is None:
        return {}
    return {
        channel.name: "passed" if offset < stats.end_offset - channel.depth_bytes else "not passed"
        for channel in stats.channels
    }


def _as_dict(life: Life) -> dict[str, Any]:
    stored = life.stored
    return {
        "topic": life.topic,
        "partition": life.partition,
        "internal_id": life.internal_id,
        "trace_id": stored.trace_id if stored is not None else next((e.get("trace_id") for e in life.events), None),
        "offset": stored.offset if stored is not None else _offset(life.events),
        "number": stored.number if stored is not None else None,
        "timestamp_ns": stored.timestamp_ns if stored is not None else None,
        "stored": stored is not None,
        "body": stored.body if stored is not None else None,
        "headers": (stored.headers or None) if stored is not None else None,
        "channels": life.channels,
        "events": life.events,
        "note": life.note,
    }


def _print(life: Life) -> None:
    facts = _as_dict(life)
    rows = [
        (name.replace("_", " "), str(facts[name]))
        for name in ("topic", "partition", "trace_id", "offset", "number", "headers")
        if facts[name] is not None
    ]
    if life.stored is not None:
        rows += [("published", _when(life.stored.timestamp_ns)), ("body", life.stored.body)]
    rows += [(f"channel {name}", standing) for name, standing in life.channels.items()]
    title = "message" if life.internal_id is None else f"message {life.internal_id:#x} ({life.internal_id})"
    if rows:
        print_table(["what", "value"], rows, title=title)
    if life.events:
        first = int(life.events[0]["time_ns"])
        print_table(
            ["time", "after ms#", "event", "channel", "attempt#", "nsqd"],
            [
                (
                    _when(int(event["time_ns"])),
                    f"{(int(event['time_ns']) - first) / 1e6:,.3f}",
                    event["event"],
                    event.get("channel"),
                    event.get("attempt"),
                    event.get("nsqd"),
                )
                for event in life.events
            ],
        )
    if life.note:
        click.echo(clean(life.note))


def _when(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone().isoformat(" ", "milliseconds")[:23]
