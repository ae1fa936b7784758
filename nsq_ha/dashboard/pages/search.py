"""The search for a message: its form, and the life of the messages that were found."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from nsq_ha.base.markup import Child, Html, join, link, tag, visible
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page, TableColumn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsq_ha.dashboard.search import Answer, FoundMessage, TraceStep

_LEVELS: Final = {"finish": "good", "requeue": "warning"}
_FACTS: Final = ("partition", "channel", "attempt", "nsqd", "internal_id")
"""The fields of a line of a trace log that are shown as they are."""

_FIELDS: Final = (
    ("topic", "Topic", ""),
    ("id", "Internal id", "from a receipt or a consumed message"),
    ("trace", "Trace id", "of the publisher"),
    ("partition", "Partition", "with offset or number"),
    ("offset", "Offset", "position in bytes"),
    ("number", "Number", "of the message in its partition"),
)


def search_page(board: Board, answer: Answer | None, problem: str = "") -> Page:
    """Return the search.

    Args:
        board: What the page is made of.
        answer: What was found. None if nothing was searched.
        problem: Why the search failed; empty if it did not.
    """
    options = [tag("option", value=name) for name in board.reading.names[:1000] if name == visible(name)]
    form = ui.search_form(
        [_field(board.arguments, *field) for field in _FIELDS],
        tag("datalist", options, id="topics"),
        tag("button", "Search"),
        action="/search",
    )
    note = ui.soft("Enter a topic and one of: internal id; trace id; partition with offset or number.")
    found = None if answer is None else _answer(board, answer)
    return Page("Search", join(note, form, ui.problem(problem), found), 400 if problem else 200)


def _field(arguments: Mapping[str, str], name: str, label: str, hint: str) -> Html:
    if name == "topic":
        return ui.text_field(arguments, name, label, hint, maxlength=100, required=True, list="topics")
    return ui.text_field(arguments, name, label, hint, maxlength=64, inputmode="numeric")


def _answer(board: Board, answer: Answer) -> Html:
    notes = [ui.soft(ui.marked(note)) for note in answer.notes]
    if not answer.found and not answer.steps:
        return join(tag("p", "Nothing was found.", class_="banner warning", role="status", id="result"), notes)
    return tag("div", [_found(board, each) for each in answer.found], _steps(answer.steps), notes, id="result")


def _found(board: Board, found: FoundMessage) -> Html:
    stored, at = found.message, found.message.timestamp_ns / 1e9
    facts: list[tuple[str, Child]] = [
        ("topic", ui.topic_link(found.topic)),
        ("partition", str(found.partition)),
        ("leader", ui.node_link(found.nsqd) if found.nsqd else figures.NONE),
        ("internal id", str(stored.internal_id)),
        ("trace id", str(stored.trace_id) if stored.trace_id else "none"),
        ("published", join(figures.moment(at), f" ({figures.span(board.now - at)} ago)")),
        ("number", str(stored.number)),
        ("offset", str(stored.offset)),
    ]
    facts_list = tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts], class_="facts")
    columns = (
        TableColumn("channel", lambda fate: ui.channel_link(found.topic, fate.channel)),
        TableColumn("state", lambda fate: ui.badge(fate.state, fate.level)),
        TableColumn("why", lambda fate: fate.text),
    )
    fates = ui.table("life", columns, found.channels, key=lambda fate: fate.channel, empty="The topic has no channel.")
    return ui.section(
        f"Message {stored.internal_id}",
        facts_list,
        tag("h3", "How far each channel is"),
        fates,
        tag("h3", "Headers") if stored.headers else None,
        tag("pre", stored.headers, tabindex="0") if stored.headers else None,
        tag("h3", "Body"),
        tag("pre", stored.body, tabindex="0"),
        tag("p", link("The topic", "topics", found.topic)),
    )


def _steps(steps: Sequence[TraceStep]) -> Html | None:
    if not steps:
        return None
    first = steps[0]["time_ns"]
    columns = (
        TableColumn("time", lambda each: figures.moment(each[1]["time_ns"] / 1e9)),
        TableColumn("after", lambda each: figures.brief((each[1]["time_ns"] - first) / 1e9)),
        TableColumn("what", lambda each: ui.badge(each[1]["event"], _LEVELS.get(each[1]["event"], "info"))),
        *(TableColumn(name.replace("_", " "), functools.partial(_fact, name)) for name in _FACTS),
    )
    life = ui.table("steps", columns, enumerate(steps), key=lambda each: str(each[0]), empty="")
    return ui.section("History from the trace log", life)


def _fact(name: str, step: tuple[int, TraceStep]) -> str:
    found = step[1].get(name)
    return figures.NONE if found in (None, "") else str(found)
