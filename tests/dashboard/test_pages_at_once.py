"""What rendering takes of the event loop and of memory, however many tabs and addresses there are."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.admin.browsing import LogLook
from nsq_ha.dashboard import app as module
from nsq_ha.dashboard.app import Dashboard, DashboardOptions
from nsq_ha.dashboard.pages import messages
from nsq_ha.dashboard.search import Answer
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from nsq_ha.dashboard.pages.ui import Page

LIMIT = 20.0
TABS = 20


@pytest.mark.parametrize(("most", "is_kept"), [(2**20, True), (2**14, False)])
def test_pages_are_kept_up_to_a_size(monkeypatch: pytest.MonkeyPatch, *, most: int, is_kept: bool) -> None:
    """Each query is an address of its own: 200 pages of 3.7 MiB were kept."""
    monkeypatch.setattr(module, "MAX_KEPT", most)
    dashboard = Dashboard(AdminClient("127.0.0.1:1"), DashboardOptions())
    first = dashboard.render("/", may_change=False)
    for number in range(50):
        dashboard.render(f"/?x={number}", may_change=False)
    assert (dashboard.render("/", may_change=False) is first) == is_kept


async def test_tabs_are_rendered_one_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them wake at the same reading: 100 took 1.2 s of the event loop."""
    turn, rendered, sent = 0, list[int](), list[bytes]()
    loop = asyncio.get_running_loop()
    render = Dashboard.render

    def count() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(count)

    def recorded(dashboard: Dashboard, place: str, *, may_change: bool) -> Page:
        rendered.append(turn)
        return render(dashboard, place, may_change=may_change)

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:  # noqa: ANN401 - as ASGI has it
        sent.append(message.get("body", b""))

    monkeypatch.setattr(Dashboard, "render", recorded)
    async with AdminClient("127.0.0.1:1") as admin:
        dashboard = Dashboard(admin, DashboardOptions())
        app = dashboard.app()
        scope = {"type": "http", "method": "GET", "path": "/events", "headers": [(b"host", b"localhost")]}
        tabs = [
            asyncio.ensure_future(app({**scope, "query_string": b"page=%%2F%%3Fx=%d" % number}, receive, send))
            for number in range(TABS)
        ]
        try:
            await eventually(lambda: sum(b"retry" in each for each in sent) == TABS, LIMIT)
            loop.call_soon(count)
            await dashboard.poller.once()
            await eventually(lambda: sum(b"event: page" in each for each in sent) == TABS, LIMIT)
        finally:
            for tab in tabs:
                tab.cancel()
            await asyncio.gather(*tabs, return_exceptions=True)
    assert len(set(rendered)) == len(rendered) == TABS


@pytest.mark.parametrize("path", ["/messages?topic=a", "/search?topic=a&trace=7"])
async def test_what_publishers_sent_is_shown_by_a_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of 20 bodies in hexadecimal took 248 ms of the event loop."""
    threads: list[int] = []

    async def browse(*_: object, **__: object) -> LogLook:
        return LogLook((), 0, {}, {}, ())

    async def search(*_: object, **__: object) -> Answer:
        return Answer((), (), ())

    for name, of in (("messages_page", messages), ("search_page", module)):
        make = getattr(of, name)

        def recorded(*arguments: Any, make: Any = make) -> Any:  # noqa: ANN401 - those of the page
            threads.append(threading.get_ident())
            return make(*arguments)

        monkeypatch.setattr(of, name, recorded)
    monkeypatch.setattr(module, "browse", browse)
    monkeypatch.setattr(module, "search", search)
    async with AdminClient("127.0.0.1:1") as admin:
        app = Dashboard(admin, DashboardOptions()).app()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as browser:
            assert (await browser.get(path)).status_code == 200
    assert len(threads) == 1
    assert threads != [threading.get_ident()]
