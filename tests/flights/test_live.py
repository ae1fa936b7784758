"""The demo's live page: what it shows of a run, and how it ends in a browser."""

import asyncio
import re

from examples.flights.audit import Audit
from examples.flights.faults import DemoEvent
from examples.flights.live import LivePage
from nsq_ha.dashboard.history import History
from nsq_ha.dashboard.pages.ui import Board

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
