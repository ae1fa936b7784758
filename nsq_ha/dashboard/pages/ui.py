"""What several pages share: what they are given, tables, badges and tiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from nsq_ha.admin.reading import FigureRow, Reading, flow_key
from nsq_ha.admin.words import partly
from nsq_ha.base.markup import Child, Html, join, link, path, query, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.actions import ACTIONS, ActionTarget, refusal
from nsq_ha.dashboard.charts import ChartLine, chart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsq_ha.admin import ChannelStats
    from nsq_ha.dashboard.history import ClusterEvent, History, Key

T = TypeVar("T")

OUTAGES: Final = frozenset({"unanswered", "gone", "silent", "leaderless"})
"""What makes figures wrong, and is a band in charts; the timeline has all."""

MAX_ROWS: Final = 500
"""Rows of a table; the filter finds the others."""

PAGE_ROWS: Final = 50
"""Rows of a page of a long table."""


@dataclass(frozen=True, slots=True)
class Board:
    """What a page is made of.

    Attributes:
        history: The readings.
        now: The time, in Unix seconds.
        may_change: The browser has signed in, and changes are allowed.
        arguments: The query of the page.
    """

    history: History
    now: float
    may_change: bool = False
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def reading(self) -> Reading:
        """The newest reading; an empty one before the first."""
        return self.history.latest or Reading(0.0)


class Page(NamedTuple):
    """A page's contents.

    Attributes:
        title: Its title.
        content: What is refreshed.
        status: The HTTP status.
    """

    title: str
    content: Html
    status: int = 200


class Extra(NamedTuple):
    """A page that a program adds to its dashboard.

    Attributes:
        place: The first part of its path.
        title: How the navigation names it.
        make: Makes it.
    """

    place: str
    title: str
    make: Callable[[Board], Page]


class TableColumn(NamedTuple):
    """A column of a table.

    Attributes:
        title: Its heading.
        cell: Returns what it shows of a row.
        is_number: Its cells are aligned right.
        key: What it is sorted by; empty if it cannot be.
        value: Returns the number by which rows are sorted, the largest first. None to sort by name.
    """

    title: str
    cell: Callable[[Any], Child]
    is_number: bool = False
    key: str = ""
    value: Callable[[Any], float | None] | None = None


class Chart(NamedTuple):
    """A chart of the history.

    Attributes:
        name: Its id.
        title: What it shows.
        unit: A key of :data:`nsq_ha.dashboard.charts.UNITS`.
        series: The labels of its lines, and the keys of their series.
    """

    name: str
    title: str
    unit: str
    series: Sequence[tuple[str, Key]]


def number(title: str, cell: Callable[[Any], Child]) -> TableColumn:
    """Return a column of numbers."""
    return TableColumn(title, cell, is_number=True)


def sortable(title: str, write: Callable[[float | None], str], value: Callable[[Any], float | None]) -> TableColumn:
    """Return a column of numbers by which rows can be sorted."""
    return TableColumn(title, lambda row: write(value(row)), is_number=True, key=title, value=value)


def in_order(board: Board, columns: Iterable[TableColumn], rows: list[T], usual: str) -> tuple[str, list[T]]:
    """Return the column by which the page's arguments sort, or the usual one, and the rows in its order."""
    by = {each.key: each.value for each in columns if each.key}
    chosen = wanted if (wanted := board.arguments.get("sort", "")) in by else usual
    value = by[chosen]
    return chosen, rows if value is None else sorted(rows, key=lambda row: -(value(row) or 0.0))


def table(
    name: str,
    columns: Sequence[TableColumn],
    rows: Iterable[Any],
    *,
    empty: str,
    key: Callable[[Any], str] = flow_key,
    sorting: tuple[str, Mapping[str, str]] | None = None,
) -> Html:
    """Return a table that scrolls, or whose rows are cards on a phone.

    Args:
        name: Its id.
        columns: The columns.
        rows: What they show.
        empty: The text if there are no rows.
        key: Returns a text for a row that stays the same in each refresh. By default, the rows are figures.
        sorting: The present key, and the page's arguments; gives headings that sort.
    """
    listed = list(rows)
    if not listed:
        return tag("p", empty, class_="empty", id=name)
    head = [_head(column, sorting) for column in columns]
    body = [tag("tr", [_cell(column, row) for column in columns], data_key=key(row)) for row in listed[:MAX_ROWS]]
    more = f"{len(listed) - MAX_ROWS:,} more rows are not shown." if len(listed) > MAX_ROWS else None
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", head)), tag("tbody", body)),
        tag("p", more, class_="soft") if more else None,
        class_="scroll",
        id=name,
    )


def paged(board: Board, rows: Sequence[Any], *place: str) -> tuple[Sequence[Any], Html | None]:
    """Return the rows of the page that is asked for, and the links to its neighbours; None if all fit on one.

    Args:
        board: Its arguments have the page, counted from 1.
        rows: All rows, in their order.
        *place: The path of the page.
    """
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    text = board.arguments.get("page", "1")
    number = min(pages, max(1, int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1))
    if pages == 1:
        return rows, None
    kept = {name: value for name, value in board.arguments.items() if name != "page"}
    first = (number - 1) * PAGE_ROWS

    def to(page: int, label: str) -> Html | None:
        if not 1 <= page <= pages:
            return None
        return tag("a", label, href=path(*place) + query(**kept, page=page), class_="button")

    shown = f"{first + 1:,}–{min(len(rows), first + PAGE_ROWS):,} of {len(rows):,}"
    links = tag("nav", to(number - 1, "Previous"), tag("span", shown), to(number + 1, "Next"), class_="buttons pages",
                aria_label="Pages of the table")  # fmt: skip
    return rows[first : first + PAGE_ROWS], links


def _head(column: TableColumn, sorting: tuple[str, Mapping[str, str]] | None) -> Html:
    title: Child = column.title
    order = None
    if sorting is not None and column.key:
        kept = {name: value for name, value in sorting[1].items() if name not in ("sort", "page")}
        title = tag("a", title, href=query(**kept, sort=column.key))
        if column.key == sorting[0]:
            order = "descending" if column.is_number else "ascending"
    return tag("th", title, scope="col", class_="n" if column.is_number else None, aria_sort=order)


def _cell(column: TableColumn, row: object) -> Html:
    content = column.cell(row)
    shown = None if content in ("", None) else tag("div", content)
    return tag("td", shown, class_="n" if column.is_number else None, data_label=column.title)


def charts(board: Board, *wanted: Chart, topic: str = "") -> Html:
    """Return charts of the history, with what was wrong then and the leaders that moved.

    Args:
        board: What the page is made of.
        *wanted: The charts.
        topic: Show only what concerns this topic; empty for all.
    """
    history, is_plain = board.history, board.reading.is_plain  # there, each nsqd may have a part of it
    events = history.events_of(topic) if topic else history.events
    marks = [event for event in events if event.kind == "leader" and event.level == "warning"]
    periods = [
        period
        for period in history.periods
        if period.trouble in OUTAGES
        and (not topic or period.subject == "cluster" or period.subject.rpartition("-")[0] == topic or is_plain)
    ]
    draw = partial(chart, times=history.times, periods=periods, marks=marks)
    drawn = [
        draw(name, title, unit=unit, lines=[ChartLine(label, history.series(*key)) for label, key in series])
        for name, title, unit, series in wanted
        if name != "lag" or not is_plain  # nobody knows it there
    ]
    return tag("div", drawn, class_="charts")


def flow(*subject: str, published: Key) -> dict[str, Chart]:
    """Return the charts of what goes through a channel, or through the whole cluster, by their names.

    Args:
        *subject: The beginning of the keys of its series.
        published: The key of the series of what is published.
    """
    done, depth, in_flight, lag = ((*subject, figure) for figure in ("done", "depth", "in_flight", "lag"))
    repeated = [("requeued", (*subject, "requeued")), ("timed out", (*subject, "timed_out"))]
    found = (
        Chart("rate", "Messages per second", "rate", [("published", published), ("finished", done)]),
        Chart("depth", "Waiting messages", "count", [("depth", depth), ("in flight", in_flight)]),
        Chart("lag", "Lag", "seconds", [("lag", lag)]),
        Chart("trouble", "Redeliveries per second", "rate", repeated),
    )
    return {each.name: each for each in found}


def _count(title: str, name: str) -> TableColumn:
    return number(title, lambda row: figures.count(getattr(row.channel, name)))


_FIGURES: Final = {
    each.title: each
    for each in (
        _count("depth", "depth"),
        number("in memory", lambda row: figures.count(row.channel.depth - row.channel.on_disk)),
        _count("on disk", "on_disk"),
        number("lag", lambda row: figures.span(row.lag)),
        number("size", lambda row: figures.size(row.channel.depth_bytes)),
        _count("in flight", "in_flight"),
        _count("deferred", "deferred"),
        _count("requeued", "requeued"),
        _count("timed out", "timed_out"),
        _count("messages", "messages"),
        _count("clients", "clients"),
    )
}
"""The columns of a channel's figures, by their titles; rows are :class:`nsq_ha.admin.reading.FigureRow`."""


def channel_figures(*titles: str) -> list[TableColumn]:
    """Return some columns of a channel's figures."""
    return [_FIGURES[title] for title in titles]


def all_channel_figures(*, is_plain: bool) -> list[TableColumn]:
    """Return the columns of all figures that the servers have of a channel."""
    # A plain nsqd knows neither the size of what waits nor its age, but how much of it a crash would lose.
    own = ("in memory", "on disk") if is_plain else ("lag", "size")
    return channel_figures("depth", *own, *list(_FIGURES)[5:])


def tiles(*facts: tuple[str, Child, str]) -> Html:
    """Return big figures: label, value, and a level (``good``, ``warning``, ``bad`` or empty)."""
    return tag(
        "dl",
        [
            tag("div", tag("dt", label), tag("dd", value), class_=f"tile {level}".rstrip())
            for label, value, level in facts
        ],
        class_="tiles",
    )


def badge(text: str, level: str = "info") -> Html:
    """Return a short mark."""
    return tag("span", text, class_=f"badge {level}")


def section(title: str, *content: Child | Iterable[Child]) -> Html:
    """Return a section with a heading."""
    return tag("section", tag("h2", title), *content)


def problem(text: str, **attributes: str) -> Html | None:
    """Return why something was not done. None without a text."""
    return tag("p", text, class_="banner bad", role="alert", **attributes) if text else None


def soft(*text: Child | Iterable[Child], **attributes: str) -> Html:
    """Return a remark."""
    return tag("p", *text, class_="soft", **attributes)


_COMMAND: Final = re.compile(r"(nsq-ha [^;()]*[^;() ]|--[a-z][a-z-]*)")


def marked(text: str) -> Html:
    """Return a text with its commands and options marked: a click takes a whole one, and no line ends within a word."""
    parts = enumerate(_COMMAND.split(text))
    words = ((n % 2, " ".join(tag("span", word) for word in part.split(" ")) if n % 2 else part) for n, part in parts)
    return join(tag("code", Html(part)) if is_command else part for is_command, part in words)


def stamp(at: float) -> Html:
    """Return a time of day; the script shows it in the browser's time zone."""
    return figures.time_of_day(at, figures.moment(at))


def node_link(address: str) -> Html:
    """Return a link to an nsqd."""
    return link(address, "nodes", address)


def topic_link(name: str) -> Html:
    """Return a link to a topic."""
    return link(name, "topics", name)


def channel_link(topic: str, channel: str) -> Html:
    """Return a link to a channel."""
    return link(channel, "topics", topic, channel)


def crumbs(*steps: tuple[str, Sequence[str]]) -> Html:
    """Return the way to a page: texts and the paths of the pages above."""
    return tag(
        "nav",
        [tag("a", text, href=path(*segments)) for text, segments in steps],
        class_="crumbs",
        aria_label="Way to this page",
    )


def events_list(events: Iterable[ClusterEvent], *, empty: str) -> Html:
    """Return events as a list, as they are given."""
    rows = [
        tag(
            "li",
            stamp(event.at),
            tag("span", event.kind, class_=f"badge {event.level}"),
            tag("b", topic_link(event.topic) if event.topic == event.subject else event.subject),
            tag("span", event.text),
            data_key=f"{event.at:.3f}{event.kind}{event.subject}{event.text}",
        )
        for event in events
    ]
    return tag("ol", rows, class_="events") if rows else tag("p", empty, class_="empty")


def events_section(events: Iterable[ClusterEvent], subject: str = "it") -> Html:
    """Return a section with the latest of some events, the newest first."""
    empty = f"Nothing has happened to {subject} since the dashboard started."
    return section("Events", events_list(islice(events, 20), empty=empty))


def found(text: str, needle: str) -> bool:
    """Return whether a filter lets a text through."""
    return needle.lower() in text.lower()


def buttons(board: Board, names: Iterable[str], target: ActionTarget) -> Html | None:
    """Return a button for each action; one that cannot succeed now is disabled, with the reason."""
    if not board.may_change:
        return None
    found, given = [], query(**target.fields)
    for name in names:
        action, why = ACTIONS[name], refusal(name, target, board.reading)
        if why:
            found.append(tag("span", action.label, class_="button disabled", aria_disabled="true", title=why))
            found.append(tag("small", why, class_="soft"))
        else:
            found.append(tag("a", action.label, href=path("confirm", name) + given, class_="button"))
    return tag("p", found, class_="buttons")


def labelled(label: Child | Iterable[Child], **attributes: str | float | bool | None) -> Html:
    """Return a field of a form with its label; the attributes are those of the input."""
    return tag("label", tag("span", label), tag("input", **attributes))


def text_field(
    given: Mapping[str, str], name: str, label: str, hint: str = "", *, maxlength: int = 200, **more: str | bool
) -> Html:
    """Return a field of a form for a text that a page's arguments may have, and what stands there without one."""
    value, shown = given.get(name, ""), hint or None
    more["autocomplete"] = "off"
    return labelled(label, type="text", name=name, value=value, placeholder=shown, maxlength=maxlength, **more)


def hidden(**fields: str | int) -> Html:
    """Return fields of a form that nobody sees."""
    return join(tag("input", type="hidden", name=name, value=value) for name, value in fields.items())


def search_form(*content: Child | Iterable[Child], action: str, class_: str = "search") -> Html:
    """Return a form that asks for a page; it works without a script."""
    return tag("form", *content, action=action, method="get", class_=class_, role="search")


def filter_form(action: Sequence[str], board: Board, label: str) -> Html:
    """Return a field that filters a table."""
    field = tag("input", type="search", name="q", value=board.arguments.get("q", ""), maxlength=100)
    kept = hidden(**{name: value for name, value in board.arguments.items() if name == "sort"})
    return search_form(
        tag("label", label, " ", field), kept, tag("button", "Filter"), action=path(*action), class_="filter"
    )


def states(channel: ChannelStats) -> Html:
    """Return the badges of a channel."""
    found = [(each, getattr(channel, f"{each}_at")) for each in ("paused", "skipped") if getattr(channel, each)]
    return join(badge(partly(word, count, channel.places), "warning") for word, count in found)


def missing(board: Board, text: str, above: tuple[str, tuple[str, ...]]) -> Page:
    """Return the page for something that the cluster does not have."""
    known = board.history.latest is not None
    note = "It may be new: this page shows it when the nsqds report it." if known else "The cluster was not read yet."
    return Page(
        "Not found" if known else "Reading", join(crumbs(above), tag("p", f"{text}. {note}")), 404 if known else 200
    )


def part_name(row: FigureRow) -> str:
    """Return the partition of a row, or its nsqd on a plain cluster."""
    return row.nsqd or "" if row.partition is None else str(row.partition)
