"""The page about traces, from a report in which every text is an attempt to become HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from nsq_ha.spark.trace.page import html_page

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
        "outcomes": [{"side": EVIL, "topic": EVIL, "channel": EVIL, "outcome": EVIL, "count": 1}],
        "latency": [{**place, "side": EVIL, "channel": EVIL, "stage": EVIL, **numbers}],
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
    tags = Tags(html_page(hostile_report(), EVIL, [EVIL], EVIL))
    assert "img" not in tags.names
    assert tags.handlers == []
    shown = "".join(tags.texts)
    assert f"partition {EVIL}" in shown
    assert f"message {EVIL}" in shown
