"""The first page: the state of the cluster, its rates, the first channels and the latest events."""

from __future__ import annotations

from itertools import islice
from typing import Final

from nsq_ha.admin.causes import at_least, expected, incidents, unled
from nsq_ha.admin.consuming import folded
from nsq_ha.admin.incident import OF_CHANNELS, Incident
from nsq_ha.base.markup import Child, Html, join, link, path, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page, TableColumn

_RANKS: Final = 10
_MOST_WRONG: Final = 10
_CHARTS: Final = ui.flow("cluster", published=("cluster", "published"))
_TITLES: Final = {"depth": "Waiting messages, all channels", "lag": "Longest lag"}


def overview(board: Board) -> Page:
    """Return the first page."""
    events = islice(reversed(board.history.events), 8)
    content = join(
        wrong(board),
        _tiles(board),
        ui.charts(board, *(each._replace(title=_TITLES.get(name, each.title)) for name, each in _CHARTS.items())),
        ui.section("The first channels", _channels(board)),
        ui.section(
            "Latest events",
            ui.events_list(events, empty="Nothing has happened since the dashboard started."),
            tag("p", link("The whole timeline", "timeline")),
        ),
    )
    return Page("Overview", tag("div", content, class_="overview"))


def _tiles(board: Board) -> Html:
    reading = board.reading
    answering, nodes = expected(reading)
    leaderless = len(unled(reading))
    least = at_least(reading)
    part = "warning" if least else ""
    level = "bad" if answering < nodes else "good" if nodes else "warning"
    unknown = (figures.NONE, "")  # nobody was asked
    facts: list[tuple[str, Child, str]] = [
        ("nsqds that answer", *((f"{answering} of {nodes}", level) if reading.is_fresh else unknown)),
        ("cluster", *state_of(board)),
        ("topics", figures.count(len(reading.names)), ""),
    ]
    if not reading.is_plain:
        without = (figures.count(leaderless), "bad" if leaderless else "good")
        facts.append(("partitions without leader", *(without if reading.is_fresh else unknown)))
        facts.append(("longest lag", least + figures.span(reading.lag), part))
    facts += [
        ("published", least + figures.rate(board.history.last("cluster", "published")), part),
        ("waiting", least + figures.short(reading.waiting), part),
        ("messages so far", least + figures.short(sum(each.messages for each in reading.topics.values())), part),
    ]
    return ui.tiles(*facts)


def state_of(board: Board) -> tuple[str, str]:
    """Return the state of the cluster, and how good it is."""
    reading = board.reading
    if not reading.is_fresh:
        return "no answer", "bad"
    if reading.cluster is not None and reading.cluster.is_plain:
        return "plain", ""
    if reading.cluster is None or "cluster" in reading.errors:  # what was is no longer known
        return "unknown", "warning"
    of = {True: ("stable", "good"), False: ("unstable", "warning"), None: ("leaderless", "bad")}
    return of[reading.cluster.stable]


def wrong(board: Board) -> Html | None:
    """Return what is wrong now: a sentence for each cause, the worst first."""
    found = folded(incidents(board.reading))
    if not found:
        return None
    rows = [
        tag(
            "li",
            tag("b", _cause(each)),
            each.lasts(board.now),
            tag("span", "; ".join(each.effects), class_="effects") if each.effects else None,
            tag(
                "small",
                join(f"{each.detail}. " if each.detail else None, "To do: ", ui.marked(each.remedy)),
                class_="soft",
            ),
            class_=each.level,
            data_key=f"{each.trouble}{each.subject}",
        )
        for each in found[:_MOST_WRONG]
    ]
    more = len(found) - _MOST_WRONG
    return tag(
        "section",
        tag("h2", "Current problems"),
        tag("ul", rows, tag("li", f"and {more} more") if more > 0 else None, class_="incidents"),
        id="incidents",
    )


def _cause(found: Incident) -> Child:
    is_channel = found.trouble in OF_CHANNELS and found.subject != "cluster"
    return tag("a", found.cause, href=path("topics", *found.subject.split("/"))) if is_channel else found.cause


def _channels(board: Board) -> Html:
    columns = [
        TableColumn("topic", lambda row: ui.topic_link(row.topic)),
        TableColumn("channel", lambda row: ui.channel_link(row.topic, row.name)),
        ui.sortable("depth", figures.count, lambda row: row.depth),
        ui.sortable("lag", figures.span, lambda row: row.lag),
        ui.sortable("deferred", figures.count, lambda row: row.channel.deferred),
        ui.sortable("finished", figures.rate, lambda row: row.out_rate),
        ui.sortable("requeued", figures.count, lambda row: row.channel.requeued),
        ui.sortable("timed out", figures.count, lambda row: row.channel.timed_out),
        *ui.channel_figures("clients"),
    ]
    rows = [row for row in board.reading.rows if row.channel is not None]
    chosen, rows = ui.in_order(board, columns, rows, "depth")
    sorting = (chosen, board.arguments)
    empty = "No nsqd that answers has a channel." if board.reading.silent else "There are no channels."
    return ui.table("deepest", columns, rows[:_RANKS], empty=empty, sorting=sorting)
