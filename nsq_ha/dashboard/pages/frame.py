"""The frame of every page: head, navigation, banner and footer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nsq_ha._version import __version__
from nsq_ha.base.markup import Child, Html, join, tag
from nsq_ha.dashboard import figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.dashboard.pages.ui import Board, Page

_PLACES: Final = (
    ("/", "Overview"),
    ("/topics", "Topics"),
    ("/nodes", "Nodes"),
    ("/timeline", "Timeline"),
    ("/messages", "Messages"),
    ("/search", "Search"),
)


def document(
    page: Page,
    *,
    place: str,
    is_live: bool,
    sign: Html | None = None,
    refresh: int = 5,
    more: Sequence[tuple[str, str]] = (),
) -> Html:
    """Return a whole page.

    Args:
        page: Its title and contents.
        place: Its path, which marks the entry of the navigation.
        is_live: The script refreshes it; without scripts, the browser loads it again.
        sign: The form that signs in or out. None if nobody can.
        refresh: Seconds after which a browser without scripts loads it again.
        more: Places that come first in the navigation: paths and texts.
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} · nsq_ha"),
        tag("link", rel="icon", href="/static/icon.svg"),
        tag("link", rel="stylesheet", href="/static/dashboard.css"),
        tag("noscript", tag("meta", http_equiv="refresh", content=refresh)) if is_live else None,
        tag("script", src="/static/dashboard.js", defer=True),
    )
    navigation = tag(
        "nav",
        [
            tag("a", text, href=where, aria_current="page" if _is_at(place, where) else None)
            for where, text in (*more, *_PLACES)
        ],
        aria_label="Pages",
    )
    body = tag(
        "body",
        tag("a", "Skip to the contents", href="#content", class_="skip"),
        tag("header", tag("a", "nsq_ha", href="/", class_="brand"), navigation, sign),
        tag("main", page.content, id="content", tabindex="-1"),
        tag("footer", f"nsq_ha {__version__}", tag("span", id="connection", role="status")),
        data_live=is_live,
        data_base="/",
    )
    return Html("<!doctype html>\n" + tag("html", head, body, lang="en"))


def live(board: Board, page: Page) -> Html:
    """Return what is refreshed: the banner and the page's contents."""
    return join(banner(board), tag("h1", page.title), page.content)


def banner(board: Board) -> Html:
    """Return a warning if the figures are old or parts are missing; else when they were read."""
    reading = board.reading
    if board.history.latest is None:
        return _banner("", "Reading the cluster for the first time …")
    if not reading.is_fresh:
        period = next((p for p in board.history.open if p.trouble == "unanswered"), None)
        since = reading.at if period is None else period.began
        text = f"The cluster has not answered for {figures.span(board.now - since)}: {reading.errors['nsqds']}."
        return _banner("bad", text, " The figures below are older than that.")
    if reading.unanswered:
        return _banner("bad", "No nsqlookupd answers: the figures are those of the nsqds that are known.")
    if reading.errors:
        parts = "; ".join(f"{part}: {why}" for part, why in sorted(reading.errors.items()))
        return _banner("warning", f"Some parts are old or missing. {parts}")
    return _banner("", "Read at ", figures.time_of_day(reading.at), f", in {figures.brief(reading.took)}")


def _banner(level: str, *text: Child) -> Html:
    role = "alert" if level == "bad" else None
    return tag("p", *text, class_=f"banner {level}".rstrip(), role=role, id="banner")


def _is_at(place: str, where: str) -> bool:
    return place == where if where == "/" else place == where or place.startswith(f"{where}/")
