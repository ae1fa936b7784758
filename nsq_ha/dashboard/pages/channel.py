"""The page of one channel: charts, its state at each partition, its clients, and what an operator may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.dashboard import figures
from nsq_ha.dashboard.charts import Line, chart
from nsq_ha.dashboard.markup import Html, join, path, query, tag
from nsq_ha.dashboard.pages.parts import (
    Board,
    Column,
    Page,
    badge,
    crumbs,
    events_list,
    node_link,
    number,
    section,
    table,
    tiles,
)
from nsq_ha.dashboard.pages.topics import channel_columns, channel_figures, incomplete, latencies, missing, states

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.admin import ChannelStats, ClientStats, PartitionStats
    from nsq_ha.dashboard.markup import Child


def channel_page(board: Board, topic: str, name: str) -> Page:
    """Return the page of a channel."""
    reading, history = board.reading, board.history
    channel = reading.channels.get((topic, name))
    if channel is None:
        return missing(board, f"Topic {topic!r} has no channel {name!r}", (topic, ("topics", topic)))
    places = [
        (entry, found) for entry in reading.topics[topic].partitions for found in entry.channels if found.name == name
    ]
    subject = f"{topic}/{name}"
    events = [event for event in reversed(history.events) if event.subject == subject]
    content = join(
        crumbs(("Topics", ("topics",)), (topic, ("topics", topic))),
        tag("p", states(channel)),
        incomplete(board, topic),
        _buttons(board, topic, channel) if board.may_change else None,
        tiles(
            ("waiting", figures.count(channel.depth), ""),
            ("lag", figures.span(channel.lag(reading.at)), ""),
            ("in flight", figures.count(channel.in_flight), ""),
            ("deferred", figures.count(channel.deferred), ""),
            ("requeued", figures.count(channel.requeued), ""),
            ("timed out", figures.count(channel.timed_out), ""),
            ("clients", figures.count(channel.clients), "" if channel.clients or not channel.depth else "warning"),
        ),
        _charts(board, topic, name),
        section(
            "At the partitions" if not reading.is_plain else "At the nsqds",
            _places(places, reading.at, is_plain=reading.is_plain),
        ),
        latencies([(_place(entry, is_plain=reading.is_plain), found.latency) for entry, found in places]),
        section("Clients", _clients(board, places)),
        section("Events", events_list(events[:20], empty="Nothing has happened to it since the dashboard started.")),
    )
    return Page(subject, content)


def _charts(board: Board, topic: str, name: str) -> Html:
    history = board.history
    marks = [event for event in history.events if event.kind == "leader" and event.topic == topic]
    periods = [
        period
        for period in history.periods
        if period.subject == "cluster"
        or (period.trouble == "leaderless" and period.subject.rpartition("-")[0] == topic)
    ]

    def line(label: str, figure: str) -> Line:
        return Line(label, history.series("channel", topic, name, figure))

    wanted = (
        ("depth", "Waiting messages", "count", [line("depth", "depth"), line("in flight", "in_flight")]),
        ("lag", "Lag", "seconds", [line("lag", "lag")]),
        (
            "speed",
            "Messages per second",
            "rate",
            [Line("published", history.series("topic", topic, "published")), line("finished", "done")],
        ),
        ("trouble", "Redeliveries per second", "rate", [line("requeued", "requeued"), line("timed out", "timed_out")]),
    )
    return tag(
        "div",
        [
            chart(key, title, history.times, lines, unit=unit, periods=periods, marks=marks)
            for key, title, unit, lines in wanted
        ],
        class_="charts",
    )


def _buttons(board: Board, topic: str, channel: ChannelStats) -> Html:
    wanted = ["unpause" if channel.paused else "pause"]
    if not board.reading.is_plain:
        wanted.append("unskip" if channel.skipped else "skip")
    wanted.append("empty")
    words = {"unpause": "Resume", "pause": "Pause", "unskip": "Stop skipping", "skip": "Skip", "empty": "Empty"}
    return tag(
        "p",
        [
            tag(
                "a", words[each], href=path("confirm", each) + query(topic=topic, channel=channel.name), class_="button"
            )
            for each in wanted
        ],
        class_="buttons",
    )


def _place(entry: PartitionStats, *, is_plain: bool) -> str:
    return entry.nsqd if is_plain else str(entry.partition)


def _places(places: Sequence[tuple[PartitionStats, ChannelStats]], now: float, *, is_plain: bool) -> Html:
    columns = (
        *(() if is_plain else (number("partition"),)),
        Column("nsqd"),
        *channel_columns(is_plain=is_plain),
    )
    rows = [
        (
            f"{entry.partition} {entry.nsqd}",
            (
                *(() if is_plain else (str(entry.partition),)),
                join(node_link(entry.nsqd), " ", states(found)),
                *channel_figures(found, now, is_plain=is_plain),
            ),
        )
        for entry, found in places
    ]
    return table("places", columns, rows, empty="No partition has it.")


def _clients(board: Board, places: Sequence[tuple[PartitionStats, ChannelStats]]) -> Html:
    if not board.reading.has_clients:
        return tag("p", "Reading the clients …", class_="empty", id="clients")
    found = [(entry, client) for entry, channel in places for client in channel.connections]
    return clients_table(found, board.reading.at, is_plain=board.reading.is_plain)


def clients_table(found: Sequence[tuple[PartitionStats, ClientStats]], now: float, *, is_plain: bool) -> Html:
    """Return a table of connections, each with the partition that it reads."""
    columns = (
        Column("client"),
        Column("library"),
        Column("connection"),
        Column("nsqd" if is_plain else "partition"),
        number("in flight"),
        number("ready"),
        number("finished"),
        number("requeued"),
        number("messages"),
        number("connected"),
    )
    rows = [
        (
            f"{client.address} {entry.partition}",
            (
                _name(client),
                client.user_agent or figures.NONE,
                join(
                    badge(client.tls_version or "TLS", "good") if client.tls else None,
                    badge(client.compression) if client.compression else None,
                    badge(f"tag {client.tag}") if client.tag else None,
                    badge(f"samples {client.sample_rate} %") if client.sample_rate else None,
                    badge(f"AUTH {client.auth_identity}") if client.auth_identity else None,
                ),
                _place(entry, is_plain=is_plain),
                figures.count(client.in_flight),
                figures.count(client.ready),
                figures.count(client.finished),
                figures.count(client.requeued),
                figures.count(client.messages),
                figures.span(now - client.connected_at if client.connected_at else None),
            ),
        )
        for entry, client in found
    ]
    return table("clients", columns, rows, empty="No client is connected.")


def _name(client: ClientStats) -> Child:
    name = client.hostname or client.client_id
    note = "" if client.client_id in ("", name) else f" ({client.client_id})"
    return tag("span", f"{name}{note}", " ", tag("small", client.address, class_="soft"))
