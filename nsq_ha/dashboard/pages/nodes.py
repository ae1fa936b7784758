"""The nsqds and nsqlookupds of the cluster, and the page of one nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.dashboard import figures
from nsq_ha.dashboard.markup import Html, join, tag
from nsq_ha.dashboard.pages.channel import clients_table
from nsq_ha.dashboard.pages.parts import (
    Board,
    Column,
    Page,
    badge,
    channel_link,
    crumbs,
    events_list,
    node_link,
    number,
    section,
    stamp,
    table,
    tiles,
    topic_link,
)
from nsq_ha.dashboard.pages.topics import missing, states

if TYPE_CHECKING:
    from nsq_ha.admin import NodeStats
    from nsq_ha.dashboard.markup import Child


def nodes(board: Board) -> Page:
    """Return the nsqds and nsqlookupds."""
    return Page("Nodes", join(section("nsqds", _nsqds(board)), section("nsqlookupds", _lookupds(board))))


def _nsqds(board: Board) -> Html:
    reading = board.reading
    loads = {load.nsqd: load for load in reading.cluster.loads} if reading.cluster else {}
    columns = [
        Column("nsqd"),
        Column("state"),
        Column("hostname"),
        number("TCP port"),
        number("HTTP port"),
        Column("version"),
        number("up"),
        number("topics"),
        *([] if reading.is_plain else [number("leads"), number("follows"), number("load")]),
        number("clients"),
    ]
    rows: list[tuple[str, list[Child]]] = []
    for address, node in sorted(reading.nodes.items()):
        info = reading.infos.get(address)
        leads = sum(nsqd == address for nsqd in reading.leaders.values())
        topics = {entry.topic for entry in node.partitions} | set(info.topics if info else ())
        load = loads.get(address)
        cells: list[Child] = [
            node_link(address),
            _state(node),
            info.hostname if info else figures.NONE,
            str(node.node.tcp_port),
            str(node.node.http_port),
            node.version or (info.version if info else "") or figures.NONE,
            figures.span(reading.at - node.started_at if node.started_at else None),
            figures.count(len(topics)),
        ]
        if not reading.is_plain:
            follows = sum(not entry.is_leader for entry in node.partitions)
            cells += [
                figures.count(leads),
                figures.NONE if node.error else figures.count(follows),
                figures.NONE if load is None else f"{load.total:.1f}",
            ]
        clients = sum(channel.clients for entry in node.partitions for channel in entry.channels)
        cells.append(figures.NONE if node.error else figures.count(clients))
        rows.append((address, cells))
    gone = [
        tag("li", tag("b", address), " has not been listed since ", stamp(at), data_key=address)
        for address, at in board.history.gone.items()
    ]
    return join(
        table("nsqds", columns, rows, empty="The nsqlookupds list no nsqd."),
        tag("ul", gone, class_="wrong") if gone else None,
    )


def _state(node: NodeStats) -> Child:
    if node.error:
        return tag("span", badge("silent", "bad"), " ", tag("small", node.error))
    if node.health == "OK":
        return badge("OK", "good")
    return badge(node.health[:200] or "unknown", "warning")


def _lookupds(board: Board) -> Html:
    cluster = board.reading.cluster
    if cluster is None:
        return tag("p", board.reading.errors.get("cluster", "Reading …"), class_="empty")
    rows: list[tuple[str, list[Child]]] = [
        (
            lookupd.url,
            [
                lookupd.url,
                join(badge("silent", "bad"), " ", tag("small", lookupd.error))
                if lookupd.error
                else badge("OK", "good"),
                "" if cluster.is_plain else "leads" if lookupd.leads else "follows",
            ],
        )
        for lookupd in cluster.lookupds
    ]
    kind = (
        "A plain cluster: its nsqlookupds are independent."
        if cluster.is_plain
        else "The cluster is stable."
        if cluster.stable
        else "The cluster is unstable: replicas are missing, or a node joins or leaves. Leaders cannot be moved now."
        if cluster.stable is False
        else "No leading nsqlookupd answers."
    )
    columns = (Column("nsqlookupd"), Column("state"), Column("role"))
    return join(tag("p", kind), table("lookupds", columns, rows, empty="There is none."))


def node_page(board: Board, address: str) -> Page:
    """Return the page of an nsqd."""
    reading = board.reading
    node = reading.nodes.get(address)
    if node is None:
        return missing(board, f"The cluster lists no nsqd {address!r} now", ("Nodes", ("nodes",)))
    info = reading.infos.get(address)
    leads = sum(nsqd == address for nsqd in reading.leaders.values())
    events = [event for event in reversed(board.history.events) if event.subject == address or address in event.text]
    hidden = sorted(info.tombstoned) if info else []
    content = join(
        crumbs(("Nodes", ("nodes",))),
        tag("p", _state(node)),
        tiles(
            ("version", node.version or figures.NONE, ""),
            ("up", figures.span(reading.at - node.started_at if node.started_at else None), ""),
            *([] if reading.is_plain else [("leads partitions", figures.count(leads), "")]),
            ("messages", figures.short(sum(e.messages for e in node.partitions)), ""),
            ("clients", figures.count(sum(c.clients for e in node.partitions for c in e.channels)), ""),
        ),
        tag("p", "Tombstoned here: ", ", ".join(hidden), class_="banner warning") if hidden else None,
        section("What it holds", _held(board, node)),
        section("Channels", _channels(node, reading.at)),
        section("Clients", _clients(board, node)),
        section("Events", events_list(events[:20], empty="Nothing has happened to it since the dashboard started.")),
    )
    return Page(address, content)


def _held(board: Board, node: NodeStats) -> Html:
    is_plain = board.reading.is_plain
    columns = (
        Column("topic"),
        *(() if is_plain else (number("partition"), Column("role"), number("first offset"), number("end offset"))),
        number("messages"),
        number("channels"),
    )
    rows = [
        (
            f"{entry.topic}-{entry.partition}",
            (
                topic_link(entry.topic),
                *(
                    ()
                    if is_plain
                    else (
                        str(entry.partition),
                        "leader" if entry.is_leader else "follower",
                        str(entry.begin_offset),
                        str(entry.end_offset),
                    )
                ),
                figures.count(entry.messages),
                figures.count(len(entry.channels)),
            ),
        )
        for entry in node.partitions
    ]
    return table("held", columns, rows, empty="It holds nothing, or does not answer.")


def _channels(node: NodeStats, now: float) -> Html:
    columns = (
        Column("topic"),
        Column("channel"),
        number("depth"),
        number("lag"),
        number("in flight"),
        number("deferred"),
        number("requeued"),
        number("timed out"),
        number("clients"),
    )
    led = [(entry, channel) for entry in node.partitions if entry.is_leader for channel in entry.channels]
    rows = [
        (
            f"{entry.topic}-{entry.partition}/{channel.name}",
            (
                topic_link(entry.topic),
                join(channel_link(entry.topic, channel.name), " ", states(channel)),
                figures.count(channel.depth),
                figures.span(channel.lag(now)),
                figures.count(channel.in_flight),
                figures.count(channel.deferred),
                figures.count(channel.requeued),
                figures.count(channel.timed_out),
                figures.count(channel.clients),
            ),
        )
        for entry, channel in sorted(led, key=lambda pair: -pair[1].depth)
    ]
    return table("channels", columns, rows, empty="It leads no partition with a channel.")


def _clients(board: Board, node: NodeStats) -> Html:
    if not board.reading.has_clients:
        return tag("p", "Reading the clients …", class_="empty", id="clients")
    found = [(entry, each) for entry in node.partitions for channel in entry.channels for each in channel.connections]
    return clients_table(found, board.reading.at, is_plain=board.reading.is_plain)
