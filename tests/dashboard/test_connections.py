"""What visitors may not do: guess the token, or fill the log."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.types import Message

from nsq_ha.admin import AdminClient
from nsq_ha.dashboard import DashboardOptions, serve
from nsq_ha.dashboard.app import Dashboard
from nsq_ha.dashboard.guard import FREE_TRIES, MAX_TRIERS, TRY_SECONDS, WrongTokens
from tests.support.web import NO_CERTIFICATES

TOKEN = "correct horse battery"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Serve a dashboard of a cluster that does not answer."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with AdminClient("127.0.0.1:1") as admin:
        options = DashboardOptions(port=0, token=TOKEN)
        serving = asyncio.create_task(serve(admin, options, started=started.set_result))
        yield await started
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def test_wrong_tokens_are_slowed() -> None:
    now = 100.0
    tokens = WrongTokens(lambda: now)
    for _ in range(FREE_TRIES):
        assert tokens.wait("a") == 0
        tokens.wrong("a")
    assert (tokens.wait("a"), tokens.wait("b")) == (TRY_SECONDS, 0)
    now += TRY_SECONDS
    assert tokens.wait("a") == 0
    tokens.wrong("a")
    assert tokens.wait("a") == TRY_SECONDS
    now += FREE_TRIES * TRY_SECONDS
    tokens.wrong("a")
    assert tokens.wait("a") == 0
    for number in range(MAX_TRIERS):
        tokens.wrong(str(number))
    assert len(tokens) == MAX_TRIERS


async def test_guesses_are_refused(url: str) -> None:
    async with httpx.AsyncClient(verify=NO_CERTIFICATES, headers={"origin": url.rstrip("/")}) as client:

        async def sign_in(token: str) -> httpx.Response:
            return await client.post(url + "sign-in", data={"token": token})

        assert [(await sign_in("wrong")).status_code for _ in range(FREE_TRIES)] == [403] * FREE_TRIES
        refused = await sign_in(TOKEN)
    assert refused.status_code == 429
    assert "Too many wrong tokens came from your address: wait 10 s." in refused.text


async def test_a_form_whose_sender_leaves_is_no_error() -> None:
    """Anybody could fill the log: each was an error with a traceback."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": "/sign-out", "query_string": b"", "headers": headers}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with AdminClient("127.0.0.1:1") as admin:
        await Dashboard(admin, DashboardOptions(token=TOKEN)).app()(scope, receive, send)
    assert sent[0]["status"] == 400


async def test_metrics_need_the_token_if_others_reach_the_dashboard() -> None:
    app = Dashboard(AdminClient("127.0.0.1:1"), DashboardOptions(host="0.0.0.0", token=TOKEN)).app()  # noqa: S104
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        found = [await client.get("/metrics", headers=each) for each in ({}, {"authorization": f"Bearer {TOKEN}"})]
    assert [each.status_code for each in found] == [403, 200]
    assert found[1].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_links_and_refusals_are_below_the_path_of_a_proxy() -> None:
    """Of 12 links, none worked."""
    options = DashboardOptions(token=TOKEN, may_change=True, base_path="nsq/")
    app = Dashboard(AdminClient("127.0.0.1:1"), options).app()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for place in ("/nsq", ""):  # a proxy may remove the path, or not
            page = await client.get(f"{place}/topics")
            links = re.findall(r'(?:href|src|action|data-base)="(/[^"]*)"', page.text)
            assert (page.status_code, len(links) > 9, {link[:5] for link in links}) == (200, True, {"/nsq/"})
            assert (await client.get(f"{place}/confirm/pause")).headers["location"] == "/nsq/sign-in"
            assert (await client.get(f"{place}/static/dashboard.js")).status_code == 200
            assert (await client.get(f"{place}/topics/nsq%2Fx")).status_code == 200
