"""The first page: the state of the cluster, its rates, the deepest channels and the latest events."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from nsq_ha.dashboard import figures
from nsq_ha.dashboard.charts import Line, chart
from nsq_ha.dashboard.markup import Html, join, link, tag
from nsq_ha.dashboard.pages.parts import (
    Board,
    Column,
    Page,
    channel_link,
    events_list,
    number,
    section,
    table,
    tiles,
    topic_link,
)

if TYPE_CHECKING:
    from nsq_ha.dashboard.markup import Child

_RANKS: Final = 10


def overview(board: Board) -> Page:
    """Return the first page."""
    history = board.history
    marks = [event for event in history.events if event.kind == "leader" and event.level == "warning"]
    times, periods = history.times, history.periods
    charts = [
        chart(
            "rate",
            "Messages per second",
            times,
            [
                Line("published", history.series("cluster", "published")),
                Line("finished", history.series("cluster", "done")),
            ],
            unit="rate",
            periods=periods,
            marks=marks,
        ),
        chart(
            "depth",
            "Waiting messages, all channels",
            times,
            [
                Line("depth", history.series("cluster", "depth")),
                Line("in flight", history.series("cluster", "in_flight")),
            ],
            periods=periods,
            marks=marks,
        ),
        chart(
            "lag",
            "Longest lag",
            times,
            [Line("lag", history.series("cluster", "lag"))],
            unit="seconds",
            periods=periods,
            marks=marks,
        ),
        chart(
            "trouble",
            "Redeliveries per second",
            times,
            [
                Line("requeued", history.series("cluster", "requeued")),
                Line("timed out", history.series("cluster", "timed_out")),
            ],
            unit="rate",
            periods=periods,
            marks=marks,
        ),
    ]
    content = join(
        _tiles(board),
        _wrong(board),
        tag("div", charts, class_="charts"),
        section("Channels with the most waiting messages", _channels(board)),
        section("Busiest topics", _topics(board)),
        section(
            "Latest events",
            events_list(islice(reversed(history.events), 8), empty="Nothing has happened since the dashboard started."),
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
    return tiles(*facts)


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
    return section("Wrong now", tag("ul", rows, tag("li", f"and {more} more") if more > 0 else None, class_="wrong"))


def _channels(board: Board) -> Html:
    ranked = sorted(board.reading.channels.items(), key=lambda item: (-item[1].depth, item[0]))
    rows = [
        (
            f"{topic}/{name}",
            (
                topic_link(topic),
                channel_link(topic, name),
                figures.count(channel.depth),
                figures.span(channel.lag(board.reading.at)),
                figures.rate(board.history.last("channel", topic, name, "done")),
                figures.count(channel.clients),
            ),
        )
        for (topic, name), channel in ranked[:_RANKS]
    ]
    columns = (
        Column("topic"),
        Column("channel"),
        number("depth"),
        number("lag"),
        number("finished"),
        number("clients"),
    )
    return table("deepest", columns, rows, empty="There are no channels.")


def _topics(board: Board) -> Html:
    history = board.history

    def speed(name: str) -> float:
        return history.last("topic", name, "published") or 0.0

    ranked = sorted(
        board.reading.topics.values(), key=lambda topic: (-speed(topic.topic), -topic.messages, topic.topic)
    )
    rows = [
        (
            topic.topic,
            (
                topic_link(topic.topic),
                figures.rate(speed(topic.topic)),
                figures.count(topic.messages),
                len(topic.channels),
            ),
        )
        for topic in ranked[:_RANKS]
    ]
    columns = (Column("topic"), number("published"), number("messages"), number("channels"))
    return table("busiest", columns, rows, empty="There are no topics.")
