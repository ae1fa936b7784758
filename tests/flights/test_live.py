"""The demo's live page: what it shows of a run, and how it ends in a browser."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from examples.flights import flights, live
from examples.flights.audit import Audit
from examples.flights.faults import DemoEvent
from examples.flights.job import JobOptions
from examples.flights.live import LivePage
from examples.flights.stage import Demo, DemoOptions
from nsq_ha.dashboard.history import History
from nsq_ha.dashboard.pages.ui import Board
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from examples.flights.flights import Flight

LIMIT = 30.0
BOARD = Board(History(2), 0.0)


async def test_a_run_with_a_stall_and_a_fault() -> None:
    events: list[DemoEvent] = [DemoEvent(-1.0, "created", at=1.0)]
    now = asyncio.get_running_loop().time
    audit = Audit(4)
    watch = LivePage(audit, "flights", {"a:1": "nsqd-0"}, events)
    assert "No receipt has come yet" in watch.page(BOARD).content
    start = now()
    for number, nsqd, waited in ((1, "a:1", 0.1), (2, "b:1", 9.0), (3, "b:1", 7.0)):
        assert audit.publish(start - waited) == number
        audit.acknowledge(number, 0, nsqd, start)
    audit.publish(start - 60.0)
    audit.consume(1, "N1", 0, start)
    audit.consume(3, "N1", 2, start)
    events.append(DemoEvent(1.0, "killed nsqd-0, which led partition 0", "nsqd-0 killed", watch.times[0]))
    watch.sample()
    text = watch.page(BOARD).content
    assert re.findall(r"<text [^>]*>([^<]+)</text>", text) == ["nsqd-0 killed"] * 3
    # The publish that is pending still makes the picture's band longer than that of the two stalls, which are one.
    [band, again] = re.findall(r'<rect [^>]*class="band outage"><title>([^<]+)', text)
    assert band == again
    assert "a partition: publishes waited for 6" in band
    assert "partition 0: publishes waited for 9" in band
    assert re.findall(r'class="band stalled"><title>([^<]+)', text) == ["stalled for 9.0 s"]
    assert "nsqd-0 (a:1)" in text
    assert "partition 0: b:1" in text
    assert tiles(text) | {"lost so far": "1", "out of order": "0", "leader changes": "1"} == tiles(text)
    audit.fail(4, now(), maybe_stored=False)
    watch.end(is_clean=False)
    text = watch.page(BOARD).content
    assert "FAILED: 1 lost, 0 out of order, 1 errors, 1 not acknowledged" in text
    assert tiles(text) | {"lost": "1", "errors": "1", "repeated deliveries": "0"} == tiles(text)


async def test_a_run_that_only_spark_found_wrong_says_so() -> None:
    audit = Audit(1)
    watch = LivePage(audit, "flights", {}, [])
    audit.acknowledge(audit.publish(1.0), 0, "a:1", 2.0)
    audit.consume(1, "N1", 0, 3.0)
    watch.end(is_clean=False, error="Spark read only 0 of 1 acknowledged flights")
    assert ">FAILED: Spark read only 0 of 1 acknowledged flights<" in watch.page(BOARD).content


def tiles(text: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", text))


async def test_a_long_run_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_SAMPLES", 8)
    watch = LivePage(Audit(1), "flights", {}, [])
    for _ in range(100):
        watch.sample()
    assert len(watch.times) == len(watch.samples) <= 8
    assert watch.gap > live.INTERVAL


class Gate:
    """Has the job wait for each fault, so that nothing depends on speed."""

    def __init__(self, total: int) -> None:
        self._happened = {"moved": asyncio.Event(), "killed": asyncio.Event()}
        self._numbers = iter(range(total))

    async def wait(self) -> None:
        """Take the place of the pace: a leader is moved at 30 %, a node is killed at 50 % of 400."""
        number = next(self._numbers)
        if number == 160:
            await self._happened["moved"].wait()
        if number == 240:
            await self._happened["killed"].wait()

    def show(self, event: DemoEvent) -> None:
        """Look at an event of the demo."""
        for word, happened in self._happened.items():
            if event.mark.endswith(word):
                happened.set()


def listening(page: Any) -> list[str]:  # noqa: ANN401
    """Return what the page will complain about."""
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    return heard


@pytest.mark.slow
@pytest.mark.browser
async def test_the_whole_run_in_a_browser(
    browser: Any,  # noqa: ANN401
    rows: list[Flight],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(len(rows))
    monkeypatch.setattr(flights, "read", lambda months: rows)
    monkeypatch.setattr("examples.flights.job.RateLimit.wait", gate.wait)
    page = await browser.new_page()
    page.set_default_timeout(LIMIT * 1000)
    heard, urls = listening(page), list[str]()

    async def opened(url: str) -> None:
        """Return when the page is refreshed by the dashboard: then the job begins."""
        urls.append(url)
        await page.goto(url)
        before = await page.locator("#banner").inner_text()
        await page.wait_for_function("text => document.querySelector('#banner').innerText !== text", arg=before)

    demo = Demo(DemoOptions(spark="none", page=True, job=JobOptions(rate=None)), show=gate.show, opened=opened)
    report = await demo.run()
    assert report.is_clean
    await page.locator("#connection", has_text="The program has ended").wait_for()
    verdict = await page.locator("#verdict").inner_text()
    assert verdict == "ok: 400 flights of 40 aircraft came through, 0 lost, 0 out of order"
    counts = tiles(await page.locator("#content").inner_html())
    assert counts | {"published, of 400": "400", "consumed": "400", "lost": "0", "out of order": "0"} == counts
    assert counts["repeated deliveries"] == str(report.audit.repeated)
    names = await page.locator("#chart-demo-rate .names text").all_text_contents()
    assert names == [event.mark for event in demo.events if event.mark]
    assert [name.split()[-1] for name in names] == ["moved", "killed", "started"]
    assert await page.locator("#leaders .row[data-key]").count() == 4
    assert (heard, urls) == ([], [page.url])
    assert page.url.startswith("http://127.0.0.1:")

    async def is_gone() -> bool:
        try:
            async with httpx.AsyncClient() as client:
                await client.get(page.url)
        except httpx.TransportError:
            return True
        return False

    await eventually(is_gone, LIMIT)
