"""What several pages share: what they are given, tables, badges and tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.reading import Reading
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.markup import Child, Html, link, path, query, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nsq_ha.dashboard.changes import Event
    from nsq_ha.dashboard.history import History

MAX_ROWS: Final = 500
"""Rows of a table; the filter finds the others."""


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


@dataclass(frozen=True, slots=True)
class Page:
    """A page's contents.

    Attributes:
        title: Its title.
        content: What is refreshed.
        status: The HTTP status.
    """

    title: str
    content: Html
    status: int = 200


@dataclass(frozen=True, slots=True)
class Extra:
    """A page that a program adds to its dashboard.

    Attributes:
        place: The first part of its path.
        title: How the navigation names it.
        make: Makes it.
    """

    place: str
    title: str
    make: Callable[[Board], Page]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        key: What it is sorted by; empty if it cannot be.
        is_number: Its cells are aligned right.
    """

    title: str
    key: str = ""
    is_number: bool = False


def number(title: str, key: str = "") -> Column:
    """Return a column of numbers."""
    return Column(title, key, is_number=True)


def table(
    name: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[str, Sequence[Child]]],
    *,
    empty: str,
    sorting: tuple[str, Mapping[str, str]] | None = None,
) -> Html:
    """Return a table that scrolls, or whose rows are cards on a phone.

    Args:
        name: Its id.
        columns: The columns.
        rows: A key that stays the same in each refresh, and the cells.
        empty: The text if there are no rows.
        sorting: The present key, and the page's arguments; gives headings that sort.
    """
    listed = list(rows)
    if not listed:
        return tag("p", empty, class_="empty", id=name)
    head = [
        tag(
            "th",
            _heading(column, sorting),
            scope="col",
            class_="n" if column.is_number else None,
            aria_sort=_sorted(column, sorting),
        )
        for column in columns
    ]
    body = [
        tag(
            "tr",
            [
                tag(
                    "td",
                    None if cell in ("", None) else tag("div", cell),
                    class_="n" if column.is_number else None,
                    data_label=column.title,
                )
                for column, cell in zip(columns, cells, strict=True)
            ],
            data_key=key,
        )
        for key, cells in listed[:MAX_ROWS]
    ]
    more = f"{len(listed) - MAX_ROWS:,} more rows are not shown." if len(listed) > MAX_ROWS else None
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", head)), tag("tbody", body)),
        tag("p", more, class_="soft") if more else None,
        class_="scroll",
        id=name,
    )


def _heading(column: Column, sorting: tuple[str, Mapping[str, str]] | None) -> Child:
    if sorting is None or not column.key:
        return column.title
    kept = {name: value for name, value in sorting[1].items() if name != "sort"}
    return tag("a", column.title, href=query(**kept, sort=column.key))


def _sorted(column: Column, sorting: tuple[str, Mapping[str, str]] | None) -> str | None:
    if sorting is None or not column.key or column.key != sorting[0]:
        return None
    return "descending" if column.is_number else "ascending"


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


def section(title: str, *content: Child | Iterable[Child], name: str = "") -> Html:
    """Return a section with a heading."""
    return tag("section", tag("h2", title), *content, id=name or None)


def stamp(at: float) -> Html:
    """Return a time of day; the script shows it in the browser's time zone."""
    return tag("time", figures.clock(at), data_at=f"{at:.0f}", title=figures.moment(at))


def node_link(address: str) -> Html:
    """Return a link to an nsqd."""
    return link(address, "nodes", address)


def topic_link(name: str) -> Html:
    """Return a link to a topic."""
    return link(name, "topics", name)


def channel_link(topic: str, channel: str, text: str = "") -> Html:
    """Return a link to a channel."""
    return link(text or channel, "topics", topic, channel)


def crumbs(*steps: tuple[str, Sequence[str]]) -> Html:
    """Return the way to a page: texts and the paths of the pages above."""
    return tag(
        "nav",
        [tag("a", text, href=path(*segments)) for text, segments in steps],
        class_="crumbs",
        aria_label="Way to this page",
    )


def events_list(events: Iterable[Event], *, empty: str) -> Html:
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


def found(text: str, needle: str) -> bool:
    """Return whether a filter lets a text through."""
    return needle.lower() in text.lower()


def filter_form(action: Sequence[str], board: Board, label: str) -> Html:
    """Return a field that filters a table; it works without a script."""
    kept = [tag("input", type="hidden", name=n, value=v) for n, v in board.arguments.items() if n == "sort"]
    return tag(
        "form",
        tag(
            "label",
            label,
            " ",
            tag("input", type="search", name="q", value=board.arguments.get("q", ""), maxlength=100),
        ),
        kept,
        tag("button", "Filter"),
        action=path(*action),
        method="get",
        class_="filter",
        role="search",
    )
