"""The page of one channel: charts, its state at each partition, its clients, and what an operator may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsq_ha.admin.reading import connections_of, flow_key
from nsq_ha.admin.words import some
from nsq_ha.base.markup import Child, Html, join, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.actions import ActionTarget, possible
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.topics import incomplete, latencies, spread
from nsq_ha.dashboard.pages.ui import Board, Page, TableColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsq_ha.admin import ClientStats
    from nsq_ha.admin.reading import FigureRow


def channel_page(board: Board, topic: str, name: str) -> Page:
    """Return the page of a channel."""
    reading, history = board.reading, board.history
    channel = reading.channels.get((topic, name))
    if channel is None:
        return ui.missing(board, f"Topic {topic!r} has no channel {name!r}", (topic, ("topics", topic)))
    states = (f"{'un' * channel.paused}pause-channel", f"{'un' * channel.skipped}skip-channel")
    parts = [row for row in reading.parts if (row.topic, row.name) == (topic, name)]
    subject, missing = f"{topic}/{name}", incomplete(board, topic)
    least = "" if missing is None else "≥ "
    flow = ui.flow("channel", topic, name, published=("topic", topic, "published"))
    events = [event for event in reversed(history.events) if event.subject == subject]
    content = join(
        ui.crumbs(("Topics", ("topics",)), (topic, ("topics", topic))),
        tag("p", ui.states(channel)),
        missing,
        ui.buttons(
            board,
            possible(reading, *states, "empty-channel", "set-offset", "delete-channel"),
            ActionTarget(topic, name),
        ),
        ui.tiles(
            ("waiting", least + figures.count(channel.depth), ""),
            ("lag", figures.span(None if reading.is_plain else channel.lag(reading.at)), ""),
            ("in flight", least + figures.count(channel.in_flight), ""),
            ("deferred", least + figures.count(channel.deferred), ""),
            ("requeued", figures.count(channel.requeued), ""),
            ("timed out", figures.count(channel.timed_out), ""),
            ("clients", figures.count(channel.clients), "" if channel.clients or not channel.depth else "warning"),
        ),
        ui.charts(board, *(flow[each] for each in ("depth", "lag", "rate", "trouble")), topic=topic),
        ui.section("At the partitions" if not reading.is_plain else "At the nsqds", _parts(board, parts)),
        latencies([(ui.part_name(row), row.latency) for row in parts]),
        spread(reading.topics.get(topic), name),
        ui.section("Clients", clients(board, parts)),
        ui.events_section(events),
    )
    return Page(subject, content)


def _parts(board: Board, rows: Sequence[FigureRow]) -> Html:
    is_plain = board.reading.is_plain

    def finish(row: FigureRow) -> Html | None:
        first = {} if row.channel is None else {"number": row.channel.messages - row.channel.depth + 1}
        target = ActionTarget(row.topic, row.name, row.partition, given=first)
        return ui.buttons(board, ["finish-message"], target) if row.depth else None

    columns = [
        *(() if is_plain else (ui.number("partition", lambda row: str(row.partition)),)),
        TableColumn("nsqd", lambda row: join(ui.node_link(row.nsqd), " ", ui.states(row.channel))),
        *ui.all_channel_figures(is_plain=is_plain),
    ]
    if board.may_change and not is_plain:
        columns.append(TableColumn("change", finish))
    return ui.table("places", columns, rows, empty="No partition has it.")


def clients(board: Board, rows: Iterable[FigureRow]) -> Html:
    """Return a table of the connections to channels in some parts."""
    if not board.reading.has_clients:
        return tag("p", "Reading the clients …", class_="empty", id="clients")
    now = board.reading.at
    columns = (
        TableColumn("client", lambda each: _name(each[1])),
        TableColumn("library", lambda each: each[1].user_agent or figures.NONE),
        TableColumn("connection", lambda each: join(map(ui.badge, each[1].agreed))),
        TableColumn("nsqd" if board.reading.is_plain else "partition", lambda each: ui.part_name(each[0])),
        ui.number("in flight", lambda each: figures.count(each[1].in_flight)),
        ui.number("ready", lambda each: figures.count(each[1].ready)),
        TableColumn("takes", lambda each: _takes(*each)),
        ui.number("finished", lambda each: figures.count(each[1].finished)),
        ui.number("requeued", lambda each: figures.count(each[1].requeued)),
        ui.number("messages", lambda each: figures.count(each[1].messages)),
        ui.number("connected", lambda each: figures.span(now - each[1].connected_at if each[1].connected_at else None)),
    )
    found, unlisted = connections_of(rows)
    empty = "No client is listed." if unlisted else "No client is connected."
    listed = ui.table("clients", columns, found, empty=empty, key=lambda each: f"{each[1].address} {flow_key(each[0])}")
    note = tag("p", f"There are too many clients to list at {some(unlisted)}.", class_="banner warning")
    return join(note if unlisted else None, listed)


def _takes(row: FigureRow, client: ClientStats) -> Html | None:
    """Say that a client takes no more though messages wait. Why, only the client knows."""
    if not row.depth or client.in_flight < client.ready:
        return None
    why = "its max_rate or max_in_flight, or slow handlers" if client.ready else "a pause, max_rate, or not its turn"
    return tag(
        "span", "no more" if client.ready else "none", class_="badge warning", title=f"nsqd cannot say why: {why}"
    )


def _name(client: ClientStats) -> Child:
    name = client.hostname or client.client_id
    note = "" if client.client_id in ("", name) else f" ({client.client_id})"
    return tag("span", f"{name}{note}", " ", tag("small", client.address, class_="soft"))
