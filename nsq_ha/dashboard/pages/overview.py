"""The first page: the state of the cluster, its rates, the deepest channels and the latest events."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from nsq_ha.dashboard import figures
from nsq_ha.dashboard.markup import Html, join, link, tag
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page, TableColumn

if TYPE_CHECKING:
    from nsq_ha.admin import TopicStats
    from nsq_ha.admin.reading import FigureRow
    from nsq_ha.dashboard.markup import Child

_RANKS: Final = 10
_CHARTS: Final = ui.flow("cluster", published=("cluster", "published"))
_TITLES: Final = {"depth": "Waiting messages, all channels", "lag": "Longest lag"}


def overview(board: Board) -> Page:
    """Return the first page."""
    events = islice(reversed(board.history.events), 8)
    content = join(
        _tiles(board),
        _wrong(board),
        ui.charts(board, *(each._replace(title=_TITLES.get(name, each.title)) for name, each in _CHARTS.items())),
        ui.section("Channels with the most waiting messages", _channels(board)),
        ui.section("Busiest topics", _topics(board)),
        ui.section(
            "Latest events",
            ui.events_list(events, empty="Nothing has happened since the dashboard started."),
            tag("p", link("The whole timeline", "timeline")),
        ),
    )
    return Page("Overview", content)


def _tiles(board: Board) -> Html:
    reading, history = board.reading, board.history
    silent, nodes = len(reading.silent), len(reading.nodes)
    leaderless = sum(period.trouble == "leaderless" for period in history.open)
    messages = sum(topic.messages for topic in reading.topics.values())
    facts: list[tuple[str, Child, str]] = [
        ("nsqds that answer", f"{nodes - silent} of {nodes}", "bad" if silent else "good" if nodes else "warning"),
        ("cluster", *_state(board)),
        ("topics", figures.count(len(reading.names)), ""),
    ]
    if not reading.is_plain:
        facts.append(("partitions without leader", figures.count(leaderless), "bad" if leaderless else "good"))
    facts += [
        ("published", figures.rate(history.last("cluster", "published")), ""),
        ("waiting", figures.short(history.last("cluster", "depth")), ""),
        ("longest lag", figures.span(history.last("cluster", "lag")), ""),
        ("messages so far", figures.short(messages), ""),
    ]
    return ui.tiles(*facts)


def _state(board: Board) -> tuple[str, str]:
    reading = board.reading
    if not reading.is_fresh:
        return "no answer", "bad"
    if reading.cluster is None:
        return "unknown", "warning"
    if reading.cluster.is_plain:
        return "plain", ""
    stable = reading.cluster.stable
    return (
        ("stable", "good")
        if stable
        else ("no leading nsqlookupd", "bad")
        if stable is None
        else ("unstable", "warning")
    )


def _wrong(board: Board) -> Html | None:
    """Return what is wrong now."""
    periods = board.history.open
    if not periods:
        return None
    rows = [
        tag(
            "li",
            tag("b", period.subject),
            f" {period.why} ",
            tag("span", f"for {figures.span(board.now - period.began)}", class_="soft"),
            data_key=f"{period.trouble}{period.subject}",
        )
        for period in periods[:20]
    ]
    more = len(periods) - 20
    return ui.section("Wrong now", tag("ul", rows, tag("li", f"and {more} more") if more > 0 else None, class_="wrong"))


def _channels(board: Board) -> Html:
    def done(row: FigureRow) -> Child:
        return figures.rate(board.history.last("channel", row.topic, row.name, "done"))

    ranked = sorted(board.reading.rows, key=lambda row: (-(row.depth or 0), row.topic, row.name))
    columns = (
        TableColumn("topic", lambda row: ui.topic_link(row.topic)),
        TableColumn("channel", lambda row: ui.channel_link(row.topic, row.name)),
        *ui.channel_figures("depth", "lag"),
        ui.number("finished", done),
        *ui.channel_figures("clients"),
    )
    rows = [row for row in ranked if row.channel is not None]
    return ui.table(
        "deepest",
        columns,
        rows[:_RANKS],
        key=lambda row: f"{row.topic}/{row.name}",
        empty="There are no channels.",
    )


def _topics(board: Board) -> Html:
    def speed(topic: TopicStats) -> float:
        return board.history.last("topic", topic.topic, "published") or 0.0

    ranked = sorted(board.reading.topics.values(), key=lambda topic: (-speed(topic), -topic.messages, topic.topic))
    columns = (
        TableColumn("topic", lambda topic: ui.topic_link(topic.topic)),
        ui.number("published", lambda topic: figures.rate(speed(topic))),
        ui.number("messages", lambda topic: figures.count(topic.messages)),
        ui.number("channels", lambda topic: len(topic.channels)),
    )
    return ui.table("busiest", columns, ranked[:_RANKS], key=lambda topic: topic.topic, empty="There are no topics.")
