"""The nsqds and nsqlookupds of the cluster, and the page of one nsqd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.base.markup import Child, Html, join, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.actions import ActionTarget, possible
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.channel import clients
from nsq_ha.dashboard.pages.overview import state_of, wrong
from nsq_ha.dashboard.pages.ui import Board, Page, TableColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsq_ha.admin import LookupdState, PartitionStats
    from nsq_ha.admin.reading import FigureRow, NsqdView


def nodes(board: Board) -> Page:
    """Return the nsqds and nsqlookupds."""
    return Page(
        "Nodes", join(wrong(board), ui.section("nsqds", _nsqds(board)), ui.section("nsqlookupds", _lookupds(board)))
    )


def _nsqds(board: Board) -> Html:
    reading = board.reading
    loads = {load.nsqd: load.total for load in reading.cluster.loads} if reading.cluster else {}

    def load(nsqd: NsqdView) -> str:
        return f"{loads[nsqd.address]:.1f}" if nsqd.address in loads else figures.NONE

    columns = [
        TableColumn("nsqd", lambda nsqd: ui.node_link(nsqd.address)),
        TableColumn("state", _state),
        TableColumn("hostname", lambda nsqd: nsqd.listed.hostname if nsqd.listed else figures.NONE),
        ui.number("HTTP port", lambda nsqd: str(nsqd.said.node.http_port)),
        TableColumn("version", lambda nsqd: nsqd.version or figures.NONE),
        ui.number("up", lambda nsqd: _up(nsqd, reading.at)),
        ui.number("topics", lambda nsqd: figures.NONE if nsqd.is_gone else figures.count(len(nsqd.topics))),
    ]
    if not reading.is_plain:
        columns += [
            ui.number("leads", lambda nsqd: figures.count(_held(nsqd.leads))),
            ui.number("follows", lambda nsqd: figures.count(None if nsqd.said.error else _held(nsqd.follows))),
            ui.number("load", load),
            ui.number("disk", lambda nsqd: figures.size(None if nsqd.said.error else nsqd.size)),
        ]
    columns.append(ui.number("clients", lambda nsqd: figures.count(None if nsqd.said.error else nsqd.clients)))
    nsqds, empty = reading.nsqds.values(), "The nsqlookupds list no nsqd."
    return ui.table("nsqds", columns, nsqds, key=lambda nsqd: nsqd.address, empty=empty)


def _held(partitions: Mapping[str, Sequence[int]]) -> int:
    return sum(map(len, partitions.values()))


def _up(nsqd: NsqdView, now: float) -> str:
    return figures.span(now - nsqd.said.started_at if nsqd.said.started_at else None)


def _state(nsqd: NsqdView) -> Child:
    if why := nsqd.said.error or "no nsqlookupd lists it" * nsqd.is_cut:
        return tag("span", ui.badge(nsqd.health, "bad"), " ", tag("small", why))
    return ui.badge(nsqd.health[:200], "good" if nsqd.health == "OK" else "warning")


def _lookupds(board: Board) -> Html:
    cluster = board.reading.cluster
    if cluster is None:
        return tag("p", board.reading.errors.get("cluster", "Reading …"), class_="empty")

    def state(lookupd: LookupdState) -> Child:
        bad = join(ui.badge("silent", "bad"), " ", tag("small", lookupd.error))
        return bad if lookupd.error else ui.badge("OK", "good")

    columns = (
        TableColumn("nsqlookupd", lambda lookupd: lookupd.url),
        TableColumn("state", state),
        TableColumn(
            "role", lambda lookupd: "" if cluster.is_plain or lookupd.error else "leads" if lookupd.leads else "follows"
        ),
    )
    listed = board.reading.lookupds
    lookupds = ui.table("lookupds", columns, listed, key=lambda lookupd: lookupd.url, empty="There is none.")
    note = " Leaders cannot be moved now." if cluster.stable is False else ""
    state_now = tag("p", f"The cluster is {state_of(board)[0]}.{note}")
    upgrade = ui.buttons(board, possible(board.reading, "begin-upgrade", "end-upgrade"), ActionTarget())
    return join(None if "cluster" in board.reading.errors else state_now, upgrade, lookupds)


def node_page(board: Board, address: str) -> Page:
    """Return the page of an nsqd."""
    reading = board.reading
    nsqd = reading.nsqds.get(address)
    if nsqd is None:
        return ui.missing(board, f"The cluster lists no nsqd {address!r} now", ("Nodes", ("nodes",)))
    entries, parts = nsqd.said.partitions, [row for row in reading.parts if row.nsqd == address]
    events = [event for event in reversed(board.history.events) if event.subject == address or address in event.text]
    content = join(
        ui.crumbs(("Nodes", ("nodes",))),
        tag("p", _state(nsqd)),
        ui.buttons(board, possible(reading, "remove-node"), ActionTarget(nsqd=address)),
        ui.tiles(
            ("version", nsqd.said.version or figures.NONE, ""),
            ("up", _up(nsqd, reading.at), ""),
            *([] if reading.is_plain else [("leads partitions", figures.count(_held(nsqd.leads)), "")]),
            ("messages", figures.short(None if nsqd.said.error else sum(entry.messages for entry in entries)), ""),
            ("clients", figures.count(None if nsqd.said.error else nsqd.clients), ""),
        ),
        tag("p", "Tombstoned here: ", ", ".join(nsqd.tombstoned), class_="banner warning") if nsqd.tombstoned else None,
        ui.section("What it holds", _partitions(board, entries)),
        ui.section("Channels", _channels(parts)),
        ui.section("Clients", clients(board, parts)),
        ui.events_section(events),
    )
    return Page(address, content)


def _partitions(board: Board, entries: Sequence[PartitionStats]) -> Html:
    columns = [TableColumn("topic", lambda entry: ui.topic_link(entry.topic))]
    if not board.reading.is_plain:
        columns += [
            ui.number("partition", lambda entry: str(entry.partition)),
            TableColumn("role", lambda entry: "leader" if entry.is_leader else "follower"),
            ui.number("size", lambda entry: figures.size(entry.size)),
        ]
    columns += [
        ui.number("messages", lambda entry: figures.count(entry.messages)),
        ui.number("channels", lambda entry: figures.count(len(entry.channels))),
    ]
    if board.may_change:
        names = possible(board.reading, "tombstone-node", "restore-node")
        columns.append(TableColumn("change", lambda e: ui.buttons(board, names, ActionTarget(e.topic, nsqd=e.nsqd))))
    empty = "It holds nothing, or does not answer."
    rows, links = ui.paged(board, entries, "nodes", entries[0].nsqd) if entries else (entries, None)
    return join(
        ui.table("held", columns, rows, key=lambda entry: f"{entry.topic}-{entry.partition}", empty=empty), links
    )


def _channels(parts: Sequence[FigureRow]) -> Html:
    columns = (
        TableColumn("topic", lambda row: ui.topic_link(row.topic)),
        TableColumn("channel", lambda row: join(ui.channel_link(row.topic, row.name), " ", ui.states(row.channel))),
        *ui.channel_figures("depth", "lag", "in flight", "deferred", "requeued", "timed out", "clients"),
    )
    rows = sorted((row for row in parts if row.channel is not None), key=lambda row: -(row.depth or 0))
    return ui.table("channels", columns, rows, empty="It leads no partition with a channel.")
