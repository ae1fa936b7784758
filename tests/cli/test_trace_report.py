"""``nsq-ha trace report``: what it prints about what Spark found."""

from typing import Any

import pytest

from nsq_ha.cli.trace import print_report
from nsq_ha.traces.report import TraceReport

PLACE: dict[str, Any] = {"side": "server", "topic": "orders", "channel": "billing"}
TIMES = {"p50_ms": 1788.8, "p95_ms": 4309.5, "p99_ms": 4340.4, "max_ms": 4340.8}


def test_the_tables_fit_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages and times used to be broken over lines within a word."""
    monkeypatch.setenv("COLUMNS", "80")
    latency: list[dict[str, Any]] = [
        PLACE | TIMES | {"partition": partition, "stage": stage, "messages": 400}
        for partition in (None, 0)
        for stage in ("publish_to_finish", "start_to_finish")
    ]
    counts = {"lost": 0, "repeated": 0, "out_of_order": 0}
    outcomes = [PLACE | {"outcome": "done", "count": 400}]
    report = TraceReport(
        True, counts, [], outcomes, latency, [], 0, 1, 1, "server", None, [], [], [], events=2000, bad_lines=0
    )
    print_report(report, "out/")
    printed = capsys.readouterr()
    assert " orders   billing   publish to finish   1,789   4,310   4,340   4,341 \n" in printed.out
    assert printed.out.count("start to finish") == 1, "partitions have no rows here"
    assert printed.out.endswith("ok: 0 lost, 0 repeated, 0 out of order\npage: out/report.html\n")
    assert printed.err == "hidden, terminal too narrow: log, messages; --json has all\n"
