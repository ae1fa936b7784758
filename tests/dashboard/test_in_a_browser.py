"""The dashboard of an embedded cluster, as a browser and as other programs see it."""

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from nsq_ha import OutgoingMessage, Producer, Receipt
from nsq_ha.admin import AdminClient
from nsq_ha.admin.browsing import LogLook
from nsq_ha.dashboard import DashboardOptions, app, changing, serve
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError
from tests.support.waiting import eventually
from tests.support.web import NO_CERTIFICATES

TOKEN = "correct horse battery"
LIMIT = 60.0
ONE_TRY = 3000.0
"""Milliseconds until a key is pressed again."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(time_scale=0.02) as cluster:
        cluster.create_topic("orders", 2, 3, sync_every=1)
        yield cluster


@pytest.fixture
async def url(cluster: DevCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A dashboard with a channel in which messages wait; it answers when a change is over."""
    monkeypatch.setattr(changing, "PATIENCE", LIMIT)
    async with AdminClient(cluster.lookupd) as admin, Producer(lookupd=cluster.lookupd) as producer:
        await admin.create_channel("orders", "billing")
        bodies = (b"one", b"two", b"three", b"four")
        outcomes = await producer.publish_many(
            "orders", [OutgoingMessage(body, partition=number % 2) for number, body in enumerate(bodies)]
        )
        assert all(isinstance(outcome, Receipt) for outcome in outcomes), outcomes
        started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        log = tmp_path / "changes"
        options = DashboardOptions(port=0, interval=0.3, limit=20.0, token=TOKEN, may_change=True, change_log=log)
        serving = asyncio.create_task(serve(admin, options, started=started.set_result))
        try:
            yield await started
        finally:
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


def visitor(url: str) -> httpx.AsyncClient:
    """Return a client without a browser."""
    return httpx.AsyncClient(base_url=url, timeout=LIMIT, verify=NO_CERTIFICATES)


async def until_read(client: httpx.AsyncClient) -> None:
    """Wait until the dashboard knows the channel."""

    async def is_read() -> bool:
        answer = await client.get("/topics/orders/billing")
        return answer.status_code == 200 and "waiting" in answer.text

    await eventually(is_read, LIMIT)


async def signed_in(client: httpx.AsyncClient, url: str) -> str:
    """Sign in; return the key of the session's forms."""
    answer = await client.post("/sign-in", data={"token": TOKEN}, headers={"origin": url.rstrip("/")})
    assert answer.status_code == 303
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    page = (await client.get("/confirm/pause-channel?topic=orders&channel=billing")).text
    return page.partition('name="key" value="')[2].partition('"')[0]


async def test_only_a_person_changes_the_cluster(url: str, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.DEBUG)
    ours = {"origin": url.rstrip("/")}
    fields = {"topic": "orders", "channel": "billing"}
    async with visitor(url) as client:
        await until_read(client)
        elsewhere = await client.get("/", headers={"host": f"evil.example:{urlsplit(url).port}"})
        assert elsewhere.status_code == 421
        assert (await client.post("/act/pause-channel", data=fields, headers=ours)).status_code == 303  # to the sign-in
        refused = await client.post("/sign-in", data={"token": "wrong"}, headers=ours)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)
        foreign = await client.post("/sign-in", data={"token": TOKEN}, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403
        key = await signed_in(client, url)
        meant = fields | {"key": key}
        assert (await client.post("/act/pause-channel", data=fields, headers=ours)).status_code == 403
        assert (await client.post("/act/pause-channel", data=meant, headers={"origin": "null"})).status_code == 403
        assert (await client.post("/act/pause-channel", data=meant)).status_code == 403
        assert (
            await client.post("/act/empty-channel", data=meant | {"typed": "bill"}, headers=ours)
        ).status_code == 400
        assert (await client.post("/act/explode", data=meant, headers=ours)).status_code == 404
        assert (await client.post("/act/unskip-channel", data=meant, headers=ours)).status_code == 409
        assert (await client.get("/act/pause-channel")).status_code == 404
        done = await client.post("/act/pause-channel", data=meant, headers=ours)
        assert (done.status_code, "Paused orders/billing." in done.text) == (200, True)
        assert (await client.post("/act/unpause-channel", data=meant, headers=ours)).status_code == 200
        assert (await client.post("/sign-out", data={"key": key}, headers=ours)).status_code == 303
        assert (await client.post("/act/pause-channel", data=meant, headers=ours)).status_code == 303
        page = await client.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert (await client.get("/static/../app.py")).status_code == 404
        assert (await client.get("/topics/%3Cscript%3E")).status_code == 404
        assert "%3Cscript" not in (await client.get("/topics/%3Cscript%3E")).text
    assert TOKEN not in caplog.text
    changes = [json.loads(line) for line in (tmp_path / "changes").read_text().splitlines()]
    assert [(each["action"], each["channel"], each["failure"]) for each in changes] == [
        ("pause-channel", "billing", ""),
        ("unpause-channel", "billing", ""),
    ]


async def test_a_change_that_the_end_of_the_dashboard_interrupts_is_in_the_change_log(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(AdminClient, "pause_channel", hang)
    monkeypatch.setattr(changing, "PATIENCE", 0.0)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT) as client:
        await until_read(client)
        meant = {"topic": "orders", "channel": "billing", "key": await signed_in(client, url)}
        assert (
            await client.post("/act/pause-channel", data=meant, headers={"origin": url.rstrip("/")})
        ).status_code == 202
    (task,) = (each for each in asyncio.all_tasks() if each.get_name() == "nsq_ha dashboard pause-channel")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (line,) = (tmp_path / "changes").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["action"], entry["failure"].startswith("the dashboard ended. The change may still")) == (
        "pause-channel",
        True,
    )


def test_a_line_of_the_change_log_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    """The entry of the next change went into the same line, and neither could be read."""
    log, nobody = tmp_path / "changes", cast("Any", None)
    log.write_text('{"at": "2026')
    for _ in range(2):  # once at each start
        changing.Changing(nobody, DashboardOptions(may_change=True, change_log=log))
    assert log.read_text() == '{"at": "2026\n'


async def test_a_change_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    options = DashboardOptions(token=TOKEN, may_change=True, change_log=tmp_path)
    async with AdminClient("127.0.0.1:1") as admin:
        with pytest.raises(ConfigError, match=r"change log .* cannot be written: Is a directory"):
            await serve(admin, options)


@pytest.mark.slow
async def test_topics_and_channels_are_created_and_deleted(url: str, cluster: DevCluster) -> None:
    ours = {"origin": url.rstrip("/")}
    async with visitor(url) as client, AdminClient(cluster.lookupd) as admin:
        await until_read(client)
        key = {"key": await signed_in(client, url)}
        assert 'name="topic"' in (await client.get("/confirm/create-topic")).text
        made = await client.post(
            "/act/create-topic",
            data=key | {"topic": "fresh", "partitions": "1", "ordered": "1", "first_channel": "first"},
            headers=ours,
        )
        assert made.status_code in (200, 202), made.text

        async def has(text: str, place: str = "/timeline") -> bool:
            return text in (await client.get(place)).text

        await eventually(lambda: has("an operator created it"), LIMIT)
        await eventually(lambda: has("fresh", "/topics"), LIMIT)
        fields = key | {"topic": "fresh", "channel": "c"}
        assert (await client.post("/act/create-channel", data=fields, headers=ours)).status_code in (200, 202)
        await eventually(lambda: has("/topics/fresh/c", "/topics/fresh"), LIMIT)
        wanted = key | {"topic": "fresh", "extended": "1", "disable_channel_auto_create": "1"}
        asked = await client.post("/act/update-topic", data=wanted, headers=ours)
        assert (asked.status_code, "To confirm, type the name: fresh" in asked.text) == (400, True)
        assert {'value="1" checked', 'value="1" selected'} <= {*re.findall(r'value="1" \w+', asked.text)}
        await client.post("/act/update-topic", data=wanted | {"typed": "fresh"}, headers=ours)
        await eventually(lambda: has("registered channels", "/topics/fresh"), LIMIT)
        assert await admin.channels("fresh") == ()
        await client.post("/act/update-topic", data=wanted | {"disable_channel_auto_create": "0"}, headers=ours)
        await client.post("/act/create-channel", data=fields, headers=ours)
        await eventually(lambda: has("/topics/fresh/c", "/topics/fresh"), LIMIT)
        assert (await client.post("/act/delete-topic", data=key | {"topic": "fresh"}, headers=ours)).status_code == 400
        assert "fresh" in {each.name for each in await admin.topics()}
        typed = key | {"topic": "fresh", "typed": "fresh"}
        assert (await client.post("/act/delete-topic", data=typed, headers=ours)).status_code in (200, 202)
        await eventually(lambda: has("an operator deleted it"), LIMIT)
        assert "fresh" not in {each.name for each in await admin.topics()}


async def test_a_message_is_found_by_its_place(url: str) -> None:
    async with visitor(url) as client:
        await until_read(client)

        async def is_found() -> bool:  # nsqd answers wrongly about messages that it has not written to its files yet
            found = (await client.get("/search?topic=orders&partition=0&number=1")).text
            return "not passed" in found and "How far each channel is" in found

        await eventually(is_found, LIMIT)
        assert (await client.get("/search?topic=orders&id=x")).status_code == 400

        async def is_missed() -> bool:  # a search that takes too long has not looked at all messages
            missed = (await client.get("/search?topic=orders&trace=77")).text
            return "Nothing was found" in missed and "Looked at all" in missed

        await eventually(is_missed, LIMIT)
        absent = (await client.get("/search?topic=absent&trace=77")).text
        assert "topic &#x27;absent&#x27; does not exist" in absent


async def test_stored_messages_are_shown_filtered_and_paged(url: str) -> None:
    async with visitor(url) as client:
        await until_read(client)

        async def is_shown() -> bool:  # nsqd shows messages when it has written them to its files
            page = (await client.get("/messages?topic=orders")).text
            return all(body in page for body in ("one", "two", "three", "four"))

        await eventually(is_shown, LIMIT)
        found = (await client.get("/messages?topic=orders&contains=three&as=hex")).text
        assert ("74 68 72 65 65" in found, "74 77 6f" in found) == (True, False)
        assert 'name="follow" value="1"' in found
        followed = (await client.get("/messages?topic=orders&follow=1")).text
        assert "data-live" in followed
        assert "newer=0%3A" in followed
        newer = (await client.get("/messages?topic=orders&partition=0&newer=0:99")).text
        assert "No message matches" in newer
        for query, text in (
            ("topic=orders&from=never", "From: write latest, oldest"),
            ("topic=orders&from=7", "an offset or a number is a place in one partition"),
            ("topic=orders&partition=x", "partition must be a whole number"),
            ("topic=absent", "absent&#x27; does not exist"),
        ):
            refused = await client.get(f"/messages?{query}")
            assert (refused.status_code, text in refused.text) == (400, True), refused.text
        channels = (await client.get("/topics/orders")).text
        assert "#ephemeral" not in channels


async def followed(client: httpx.AsyncClient, place: str, count: int = 1) -> str:
    """Return what a tab shows after so many refreshes."""
    shown: list[str] = []
    async with client.stream("GET", "/events", params={"page": place}) as answer:
        async for line in answer.aiter_lines():
            if line == "event: page":
                shown.append("")
            elif shown and line:
                shown[-1] += line
            elif len(shown) == count:
                return shown[-1]
    raise AssertionError(shown)


async def test_tabs_that_follow_messages_wait_for_each_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are woken at once: each refresh of the third one said that other searches are running."""
    gate = asyncio.Event()

    async def held(*_: object, **__: object) -> LogLook:
        await gate.wait()
        return LogLook((), 0, {}, {}, ())

    monkeypatch.setattr(app, "browse", held)
    async with httpx.AsyncClient(base_url=url, timeout=LIMIT) as client:
        await until_read(client)
        tabs = [asyncio.create_task(followed(client, "/messages?topic=orders&follow=1")) for _ in range(3)]
        await followed(client, "/", count=3)
        gate.set()
        shown = await asyncio.gather(*tabs)
    assert [("No message matches" in each, "other searches" in each) for each in shown] == [(True, False)] * 3


@pytest.mark.browser
async def test_with_the_keyboard_on_a_phone_in_the_dark(url: str, browser: Any, cluster: DevCluster) -> None:  # noqa: ANN401
    async with visitor(url) as client:
        await until_read(client)
    context = await browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark")
    context.set_default_timeout(LIMIT * 1000)
    page = await context.new_page()
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url) if not request.url.startswith(url) else None)
    await page.goto(url)
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.className") == "skip"
    # Each reading refreshes the page in place.
    before = await page.locator("#banner").inner_text()
    await page.wait_for_function("text => document.querySelector('#banner').innerText !== text", arg=before)
    assert await page.evaluate("document.activeElement.className") == "skip"
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(17, 22, 27)"
    # Charts are read out at the arrow keys.
    chart = page.locator("#chart-depth svg[data-chart]")
    await press(page, chart, "ArrowLeft", page.locator("#chart-depth output", has_text="depth "))
    for place in (
        "",
        "topics",
        "topics/orders",
        "topics/orders/billing",
        "nodes",
        "timeline",
        "search",
        "messages?topic=orders",
    ):
        await page.goto(url + place)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, place
    await empty_with_the_keyboard(page, url)
    # A dead nsqd shows as such, and the page goes on.
    await page.goto(url + "timeline")
    node = next(iter(cluster.nsqds))
    await asyncio.to_thread(cluster.kill, node)
    try:
        # The embedded nsqlookupds forget a dead nsqd soon, perhaps before a poll notices its silence.
        text = re.compile(f"nsqd {cluster.nsqds[node]} (does not answer|gone)")
        await page.locator(".events").get_by_text(text).first.wait_for()
    finally:
        await asyncio.to_thread(cluster.start, node)
    assert heard == []
    await context.close()


async def press(page: Any, element: Any, key: str, shown: Any) -> None:  # noqa: ANN401
    """Press a key at an element until ``shown`` is visible: a refresh may replace the element in between.

    Once the browser asks for another page, the key would reach that one: it is pressed no more.
    """
    timed_out = pytest.importorskip("playwright.async_api").TimeoutError
    leaves: list[str] = []
    page.on("request", lambda request: leaves.append(request.url) if request.is_navigation_request() else None)

    async def works() -> bool:
        if not leaves:
            with contextlib.suppress(timed_out):
                await element.focus(timeout=ONE_TRY)
                await page.keyboard.press(key)
        with contextlib.suppress(timed_out):
            await shown.wait_for(timeout=ONE_TRY)
        visible: bool = await shown.is_visible()
        return visible

    await eventually(works, LIMIT)


async def empty_with_the_keyboard(page: Any, url: str) -> None:  # noqa: ANN401
    """Sign in, and empty the channel, without the pointer."""
    field = page.locator("input:focus")  # autofocus comes a moment after the page
    await page.goto(url + "sign-in")
    await field.wait_for()
    await page.keyboard.type(TOKEN)
    await page.keyboard.press("Enter")
    await page.get_by_text("Sign out").wait_for()
    await page.goto(url + "topics/orders/billing")
    link = page.get_by_role("link", name="Empty")
    await press(page, link, "Enter", page.get_by_text("Messages will be lost for good"))
    await field.wait_for()
    await page.keyboard.type("billing")
    await page.keyboard.press("Enter")
    await page.get_by_text("Emptied orders/billing.").wait_for()
