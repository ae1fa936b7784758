"""Stored messages of a partitioned topic: a form that says which, and what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import partial
from types import MappingProxyType
from typing import Final, cast

from nsq_ha.admin.browsing import (
    FORMS,
    Browsed,
    Form,
    LogLook,
    LogPlace,
    LogStart,
    MessageFilter,
    check_start,
    decoded,
    going_on,
)
from nsq_ha.admin.words import start_of
from nsq_ha.base.markup import Html, join, path, query, tag
from nsq_ha.dashboard import figures
from nsq_ha.dashboard.pages import ui
from nsq_ha.dashboard.pages.ui import Board, Page
from nsq_ha.errors import ConfigError
from nsq_ha.options.start_from import StartFrom

COUNT: Final = 20
"""Messages of a page."""

_NO_PLUGINS: Final[Mapping[str, Callable[[str], str]]] = MappingProxyType({})
MAX_BODY: Final = 20_000
"""Characters of a body that are shown."""
_FIRST: Final = 160
_DIGITS: Final = re.compile(r"[0-9]{1,18}")

_FIELDS: Final = (
    ("contains", "Body contains", ""),
    ("header", "Header", "name or name=value"),
    ("tag", "Tag", ""),
    ("trace", "Trace id", ""),
    ("partition", "Partition", "all"),
    ("key", "Key", "its partition by murmur3"),
)


def wanted_of(given: Mapping[str, str]) -> MessageFilter:
    """Return which messages a form asks for.

    Raises:
        ConfigError: The header has no name, or the trace id is none.
    """
    trace = figures.whole(given, "trace")
    return MessageFilter(
        given.get("contains", "")[:200], given.get("header", "")[:200], given.get("tag", "")[:100], trace
    )


def partitions_of(given: Mapping[str, str]) -> tuple[int, ...]:
    """Return the partition that a form asks for; none for all.

    Raises:
        ConfigError: It is no number.
    """
    number = figures.whole(given, "partition")
    return () if number is None else (number,)


def place_of(given: Mapping[str, str], now: float) -> LogStart:
    """Return where a form begins.

    Args:
        given: The query of the page.
        now: The time in Unix seconds.

    Raises:
        ConfigError: It is no place.
    """
    for name in ("older", "newer"):
        if name in given and (place := going_on(f"{name}:{given[name]}")) is not None:
            return place
    text = given.get("from", "").strip()
    found = StartFrom.offset(int(text)) if _DIGITS.fullmatch(text) else start_of(text or "latest", now, UTC)
    if found is None:
        raise ConfigError(
            "From: write latest, oldest, a time before now such as -15m, a time in UTC such as 2026-01-31 09:00, or an"
            " offset"
        )
    check_start(found, partitions_of(given))
    return found


def messages_page(
    board: Board, look: LogLook | None, problem: str = "", plugins: Mapping[str, Callable[[str], str]] = _NO_PLUGINS
) -> Page:
    """Return the page.

    Args:
        board: What the page is made of.
        look: What was found. None if nothing was asked for.
        problem: Why the look failed; empty if it did not.
        plugins: What shows bodies besides :data:`~nsq_ha.admin.browsing.FORMS`, by name.
    """
    forms = (*FORMS, *plugins)
    chosen = _form_of(board.arguments, forms)
    show = plugins.get(chosen) or partial(decoded, form=cast("Form", chosen))
    found = None if look is None else _found(board, look, show)
    return Page(
        "Messages", join(_form(board, forms), ui.problem(problem, id="problem"), found), 400 if problem else 200
    )


def _form(board: Board, forms: Sequence[str]) -> Html:
    given = board.arguments
    more = [ui.text_field(given, *field) for field in _FIELDS]
    chosen = _form_of(given, forms)
    options = [tag("option", each, selected=each == chosen) for each in forms]
    more.append(tag("label", tag("span", "Show bodies as"), tag("select", options, name="as")))
    follow = tag("input", type="checkbox", name="follow", value="1", checked=bool(given.get("follow")))
    is_open = any(given.get(name) for name, *_ in _FIELDS)
    return ui.search_form(
        ui.text_field(given, "topic", "Topic", required=True, maxlength=100),
        ui.text_field(given, "from", "From", "latest, oldest, -15m, a time or an offset", maxlength=40),
        tag("label", follow, " Follow the latest"),
        tag("button", "Show"),
        # On a phone, fields that are seldom used would fill a screen.
        tag("details", tag("summary", "Filter"), tag("div", more, class_="search"), open=is_open),
        action="/messages",
    )


def _form_of(given: Mapping[str, str], forms: Sequence[str]) -> str:
    return next((each for each in forms if each == given.get("as")), "json")


def _found(board: Board, look: LogLook, show: Callable[[str], str]) -> Html:
    given = board.arguments
    rows = [_message(each, show) for each in reversed(look.messages)]
    notes = [tag("p", each, class_="banner warning") for each in look.notes]
    said = (
        f"{figures.count(len(look.messages))} shown, the newest first; {figures.count(look.read)} were read for that."
    )
    none = (
        f"No message matches yet: {look.left:,} were not looked at, so go on." if look.left else "No message matches."
    )
    return join(
        notes,
        ui.soft(said, role="status", id="result"),
        tag("div", rows, class_="messages", id="messages") if rows else tag("p", none, class_="empty"),
        tag("p", _more(given, look, "older", "Older"), " ", _more(given, look, "newer", "Newer"), class_="buttons"),
    )


def _more(given: Mapping[str, str], look: LogLook, name: str, label: str) -> Html | None:
    """Return the link to the messages before or after these. None if there are none."""
    numbers = look.older if name == "older" else look.newer
    if not numbers:
        return None
    kept = {key: value for key, value in given.items() if key not in ("older", "newer", "from", "follow")}
    _, _, place = str(LogPlace(numbers)).partition(":")
    return tag("a", label, href=path("messages") + query(**kept, **{name: place}), class_="button")


def _message(each: Browsed, show: Callable[[str], str]) -> Html:
    stored = each.message
    body = show(stored.body[:MAX_BODY])[: 4 * MAX_BODY]
    first = " ".join(stored.body[:_FIRST].split())
    cut = len(stored.body) > MAX_BODY
    label, headers = each.tag, each.headers
    facts = f"number {stored.number}, offset {stored.offset}, id {stored.internal_id}"
    trace = f", trace id {stored.trace_id}" if stored.trace_id else ""
    at, damaged = stored.timestamp_ns / 1e9, ui.badge("not UTF-8", "warning") if each.is_damaged else None
    key = f"{each.partition}:{stored.number}"
    summary = (ui.stamp(at), " ", ui.badge(key), " ", damaged, tag("span", first, class_="first"))
    return tag(
        "details",
        tag("summary", summary),
        ui.soft(figures.moment(at), f", {facts}{trace}"),
        tag("p", "Tag ", tag("b", label)) if label else None,
        tag("pre", json.dumps(headers, ensure_ascii=False)[:MAX_BODY], tabindex="0") if headers else None,
        tag("pre", body, tabindex="0"),
        ui.soft(f"Only the first {MAX_BODY:,} characters are shown.") if cut else None,
        data_key=key,
    )
