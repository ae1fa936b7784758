"""The page about traces, from a report in which every text is an attempt to become HTML."""

import re
from html.parser import HTMLParser
from typing import Any

from nsq_ha.traces.page import html_page

EVIL = "</title></text><img src=x onerror=alert(1)>\"'"


def hostile_report() -> dict[str, Any]:
    """Return a report of one message whose names, ids and numbers are all written by somebody else."""
    place = {"topic": EVIL, "partition": EVIL}
    numbers = {"p50_ms": 1.0, "p95_ms": 2.0, "p99_ms": 3.0, "max_ms": 4.0, "messages": 1}
    anomaly = {"kind": EVIL, "side": EVIL, "channel": EVIL, "message_id": EVIL, "trace_id": EVIL, "detail": EVIL}
    return {
        "is_ok": False,
        "side": EVIL,
        "begin_ns": 0,
        "end_ns": 10**9,
        "bucket_ns": 10**8,
        "events": 3,
        "bad_lines": 1,
        "counts": {"lost": 1},
        "series": [{"bucket": 0, **numbers}],
        "timeline": [{**place, "bucket": 0, "messages": 1}, {**place, "topic": "b", "bucket": 0, "messages": 1}],
        "leaders": [{**place, "node": EVIL, "ts_ns": 0}, {**place, "node": EVIL, "ts_ns": 10**8}],
        "first": [{**place, **anomaly, "ts_ns": 10**8}],
        "stall": {**place, "begin_ns": 10**8, "end_ns": 9 * 10**8},
        "outcomes": [{"side": EVIL, "topic": EVIL, "channel": EVIL, "outcome": EVIL, "count": 1}],
        "latency": [
            {**place, "side": side, "topic": topic, "channel": channel, "stage": EVIL, **numbers}
            for side, topic, channel in ((EVIL, EVIL, EVIL), ("client", "b", "c"))
        ],
    }


class Tags(HTMLParser):
    """Collect the names of all elements, and every attribute that would run a script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_no_text_of_a_report_becomes_html() -> None:
    tags = Tags(html_page(hostile_report(), EVIL, [EVIL], EVIL, marks=[(0.5, EVIL)]))
    assert "img" not in tags.names
    assert tags.handlers == []
    shown = "".join(tags.texts)
    assert f"partition {EVIL}" in shown
    assert f"message {EVIL}" in shown


def test_latencies_name_only_the_places_that_differ() -> None:
    report = hostile_report()
    several, one = (html_page(report | {"latency": rows}, "t") for rows in (report["latency"], report["latency"][1:]))
    head = "<th>log</th><th>topic</th><th>channel</th><th class="
    assert head in several
    assert head not in one
    assert '<thead><tr><th class="n">partition</th><th>stage</th>' in one


def test_marks_are_named_the_stall_is_a_figure_and_ids_are_no_numbers() -> None:
    place = {"topic": "orders", "partition": 1000}
    marks = [(0.2, "nsqd-0 killed"), (0.21, "nsqd-1 killed"), (0.99, "nsqd-0 started")]
    report = hostile_report() | {
        "leaders": [{**place, "node": "a:1", "ts_ns": 0}, {**place, "node": "b:1", "ts_ns": 3 * 10**8}],
        "stall": {**place, "begin_ns": 2 * 10**8, "end_ns": 2_400_000_000},
    }
    report["first"][0] |= {**place, "message_id": 123456, "trace_id": 7890}
    shown = html_page(report, marks=marks)
    assert re.findall(r'<text x="[^"]+" y="-\d+" text-anchor="(\w+)">([^<]+)</text>', shown) == 2 * [
        ("start", "nsqd-0 killed"),
        ("start", "nsqd-1 killed"),
        ("start", "partition 1000 → b:1"),
        ("end", "nsqd-0 started"),
    ]
    assert "Longest stall: <b>2.20 s</b>, in which a publish to orders-1000 waited" in shown
    assert shown.count('class="stall"') == 2
    assert '<td class="n">123456</td><td class="n">7890</td>' in shown
    assert "Longest stall" not in html_page(report | {"stall": None})
    many = [(0.5, f"node {number} was killed") for number in range(40)]
    assert html_page(report, marks=many).count("was killed</text>") < 2 * len(many)
