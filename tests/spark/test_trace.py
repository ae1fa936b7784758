"""Trace analytics on logs of both kinds, made up so that each number is known; and its page in a real browser."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.cli.app import app
from nsq_ha.errors import ConfigError
from nsq_ha.spark.pyspark_private import write_file
from nsq_ha.traces.events import events, read_lines, url_of
from nsq_ha.traces.page import html_page
from nsq_ha.traces.queries import gaps, lifecycle, lives_by_day
from nsq_ha.traces.report import ReportOptions, TraceReport, trace_report

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

BEGAN = 1_795_249_886_000_000_000
MS = 1_000_000
ORDERED = ReportOptions(ordered=("flights",), grace_s=1.0)


def number_of(partition: int, sequence: int) -> int:
    return partition << PARTITION_SHIFT | sequence


def client(
    event: str,
    sequence: int,
    ms: float,
    partition: int = 0,
    nsqd: str = "n1:4150",
    *,
    channel: str = "c",
    acknowledged: float | None = None,
) -> str:
    given: dict[str, Any] = {
        "event": event,
        "time_ns": BEGAN + int(ms * MS),
        "topic": "flights",
        "partition": partition,
        "internal_id": number_of(partition, sequence),
        "trace_id": 2**64 - sequence,
        "offset": 40 * sequence,
        "attempt": 1,
        "nsqd": nsqd,
    }
    if event != "publish":
        given["channel"] = channel
    if acknowledged is not None:
        given["acknowledged_ns"] = BEGAN + int(acknowledged * MS)
    return json.dumps(given)


def put(sequence: int, ms: float, partition: int = 1) -> list[str]:
    head = "I1121 08:31:26.489644   14814 tracer.go:54] nsqd.(*LogMsgTracer).TracePub [TRACE]"
    message, at = number_of(partition, sequence), BEGAN + int(ms * MS)
    place = f"{head} topic flights-{partition} trace id {sequence}: message {message}"
    offset = sequence * 34
    return [
        f"{place}( 0) put PUB at offset: {offset}, current count: 1 at time {at}, delayed: 0",
        f"{place} put success from client 127.0.0.1:58306 at offset: {offset}, at time {at + MS}",
    ]


def consume(state: str, sequence: int, ms: float, partition: int = 1, channel: str = "c") -> str:
    return (
        "I1121 08:31:26.492414   14814 tracer.go:64] nsqd.(*LogMsgTracer).TraceSub [TRACE] topic flights "
        f"channel {channel} trace id {sequence}: message {number_of(partition, sequence)} (ts: {BEGAN}, offset: "
        f"{sequence * 34}, pri:1795249946492406233) consume state {state} from client 127.0.0.1:58304(1) at time: "
        f"{BEGAN + int(ms * MS)} cost: 2896947, attempt: 1"
    )


def whole(sequence: int, at: float, partition: int = 0, nsqd: str = "n1:4150") -> list[str]:
    return [
        client("publish", sequence, at, partition, nsqd),
        client("delivery", sequence, at + sequence, partition, nsqd),
        client("finish", sequence, at + sequence + 2, partition, nsqd),
    ]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace")


@pytest.fixture(scope="module")
def healthy(folder: Path) -> Path:
    """A hundred messages a partition, 1 .. 100 ms to their delivery; a new leader of partition 0 in the middle."""
    lines: list[str] = []
    for partition in (0, 1):
        for sequence in range(1, 101):
            node = "n2:4150" if partition == 0 and sequence > 50 else "n1:4150"
            lines += whole(sequence, 200 * sequence, partition, node)
    return write(folder / "trace log [1]{2}.jsonl", lines)


@pytest.fixture(scope="module")
def sick(folder: Path) -> Path:
    """One lost, one repeated, one out of order, one that waits, one bad line, one replay channel, one plain line."""
    lines = [line for sequence in (1, 2, 3) for line in whole(sequence, 100 * sequence)]
    lines += [client("publish", 4, 400), client("delivery", 4, 405)]
    lines += [*whole(5, 500), client("delivery", 5, 900), client("finish", 5, 901)]
    lines += [client("publish", 6, 600), client("publish", 7, 601)]
    lines += [
        client("delivery", 7, 650),
        client("finish", 7, 651),
        client("delivery", 6, 660),
        client("finish", 6, 661),
    ]
    lines += [client("publish", 8, 9000), client("delivery", 8, 9001), client("requeue", 8, 9002)]
    lines += [client("delivery", 1, 700, channel="spark-00aa#ephemeral"), '{"event": "publish", "topic"']
    lines += ["I1121 08:31:26.489644 nothing of interest"]
    return write(folder / "sick.jsonl", lines)


@pytest.fixture(scope="module")
def healthy_report(spark: SparkSession, healthy: Path, folder: Path) -> TraceReport:
    """Its report, which several tests look at: one takes a dozen queries."""
    return trace_report(spark, [healthy], folder / "healthy", ORDERED)


@pytest.fixture(scope="module")
def sick_report(spark: SparkSession, sick: Path, folder: Path) -> TraceReport:
    """The same; its log is named by a pattern, and its folder by a URL."""
    return trace_report(spark, [str(sick.parent / "s*.jsonl")], f"file://{folder}/out/deep", ORDERED)


@pytest.mark.slow
def test_a_healthy_log(spark: SparkSession, healthy_report: TraceReport, folder: Path) -> None:
    report = healthy_report
    assert report.is_ok
    assert report.counts == {"lost": 0, "repeated": 0, "out_of_order": 0}
    assert (report.events, report.bad_lines, report.side) == (600, 0, "client")
    assert [(row["outcome"], row["count"]) for row in report.outcomes] == [("done", 200)]
    by = {(row["partition"], row["stage"]): row for row in report.latency}
    for partition in (0, 1, None):
        wait = by[partition, "publish_to_start"]
        assert [wait[name] for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms")] == [50.0, 95.0, 99.0, 100.0]
        assert by[partition, "start_to_finish"]["max_ms"] == 2.0
    assert [(row["partition"], row["node"]) for row in report.leaders] == [
        (0, "n1:4150"),
        (0, "n2:4150"),
        (1, "n1:4150"),
    ]
    assert report.leaders[1]["ts_ns"] == BEGAN + 51 * 200 * MS
    assert sum(row["messages"] for row in report.series) == 200
    assert sum(row["messages"] for row in report.timeline) == 200
    written = json.loads((folder / "healthy" / "report.json").read_text())
    assert written["counts"] == report.counts
    assert spark.read.parquet(f"{folder}/healthy/lifecycle").count() == 200
    minutes = spark.read.parquet(f"{folder}/healthy/latency").collect()
    assert all(row.minute.second == 0 for row in minutes)
    for stage in ("publish_to_start", "publish_to_finish"):
        assert sum(row.messages for row in minutes if row.stage == stage) == 200
    assert spark.read.parquet(f"{folder}/healthy/anomalies").count() == 0


def test_what_is_wrong_is_found_with_its_ids(sick_report: TraceReport) -> None:
    report = sick_report
    assert not report.is_ok
    found = {(row["kind"], row["message_id"]) for row in report.first}
    assert found == {("lost", 4), ("repeated", 5), ("out_of_order", 6)}
    assert report.counts == {"lost": 1, "repeated": 1, "out_of_order": 1}
    (lost,) = [row for row in report.first if row["kind"] == "lost"]
    assert (lost["trace_id"], lost["ts_ns"]) == (str(2**64 - 4), BEGAN + 400 * MS)
    outcomes = {row["outcome"]: row["count"] for row in report.outcomes}
    assert outcomes == {"done": 6, "lost": 1, "requeued": 1}
    assert report.bad_lines == 1


@pytest.mark.slow
def test_a_leader_changes_when_publishes_are_acknowledged_not_when_they_are_called(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines: list[str] = []
    for sequence in range(1, 21):
        # All are called before the move; every second one is answered only after it, by the new leader.
        node, acknowledged = ("n1:4150", 50 + sequence) if sequence % 2 else ("n2:4150", 300 + sequence)
        lines.append(client("publish", sequence, sequence, 0, node, acknowledged=acknowledged))
    report = trace_report(spark, [write(tmp_path / "moved", lines)])
    assert [(row["node"], row["ts_ns"] - BEGAN) for row in report.leaders] == [
        ("n1:4150", 51 * MS),
        ("n2:4150", 302 * MS),
    ]


def test_lines_that_spark_parses_give_the_same_events_as_texts(spark: SparkSession, tmp_path: Path) -> None:
    odd = [
        '{"event": "publish", "topic"',
        '{"a": 1}',
        "",
        "nothing",
        "[1]",
        '"x"',
        "[TRACE] topic flights-1 something new",
    ]
    odd += ['{"event":"publish","time_ns":5,"internal_id":3,"topic":"t","trace_id":"no number"}']
    odd += ['{"event":"publish","time_ns":"no number","internal_id":3,"topic":"t"}']
    log = write(tmp_path / "odd.jsonl", [*whole(1, 0), *put(2, 1), consume("START", 2, 4), *odd])
    texts = spark.read.text(f"file:{log}").selectExpr("value", f"'{log}' as file")
    parsed, expected = events(read_lines(spark, [log])), events(texts).collect()
    assert sorted(map(str, parsed.collect())) == sorted(map(str, expected))
    assert parsed.count() == len(expected) == 11


def test_messages_of_plain_nsqds_with_equal_ids_are_different(spark: SparkSession, tmp_path: Path) -> None:
    # As in life: 64 bits of which the partition would be above 1023, and equal ones from two nsqds of a host.
    number = 0x18C4_5DE1_3A00_1000
    lines = []
    for at, nsqd in enumerate(("n1:4150", "n2:4150")):
        for event, ms in (("delivery", 5.0), ("finish", 9.0)):
            line = json.loads(client(event, 0, ms + at, nsqd=nsqd))
            lines.append(json.dumps({**line, "internal_id": number, "trace_id": 0, "offset": None}))
    found = events(read_lines(spark, [write(tmp_path / "plain", lines)]))
    lives = lifecycle(found).orderBy("nsqd").collect()
    assert [(row.nsqd, row.partition, row.message_id, row.deliveries, row.outcome) for row in lives] == [
        ("n1:4150", 0, number, 1, "done"),
        ("n2:4150", 0, number, 1, "done"),
    ]
    assert [row.first_start_ns - BEGAN for row in lives] == [5 * MS, 6 * MS]


@pytest.mark.slow
def test_gaps_are_counted_only_where_the_topic_was_looked_at(
    spark: SparkSession, healthy: Path, healthy_report: TraceReport
) -> None:
    rows = spark.createDataFrame(
        [("flights", 0, offset, 40, bytes(16), 7) for offset in (0, 80)],
        "topic string, partition int, offset bigint, raw_size int, message_id binary, trace_id bigint",
    ).selectExpr("*", "timestamp_seconds(0) as timestamp")
    report = trace_report(spark, [healthy], None, ORDERED, topic_gaps=gaps(rows))
    assert (report.counts["gap"], report.is_ok) == (1, False)
    assert "1 gaps in the log" in html_page(report.as_dict())
    assert "gaps in the log" not in html_page(healthy_report.as_dict())


@pytest.mark.slow
def test_the_server_s_own_log(spark: SparkSession, tmp_path: Path) -> None:
    lines = [*put(1, 0), consume("READ_QUEUE", 1, 2), consume("START", 1, 3), consume("FIN", 1, 10)]
    lines += [*put(2, 1), consume("START", 2, 4), consume("TIMEOUT", 2, 5), consume("START", 2, 6)]
    lines += [consume("REQ", 2, 7), "[TRACE] topic flights-1 something new"]
    lines += [consume("START", 10**20, 8)]  # two lines of a damaged file as one
    log = write(tmp_path / "nsqd.log", lines)
    found = events(read_lines(spark, [log]))
    counts = {row.event: row["count"] for row in found.groupBy("event").count().collect()}
    assert counts == {
        "put": 2,
        "publish": 2,
        "other": 1,
        "delivery": 3,
        "finish": 1,
        "timeout": 1,
        "requeue": 1,
        "bad": 2,
    }
    assert {row.partition for row in found.where("event != 'bad'").select("partition").collect()} == {1}
    lives = lifecycle(found.where("event != 'bad'"), grace_s=60.0).orderBy("message_id").collect()
    assert [(row.outcome, row.deliveries, row.timeouts, row.requeues) for row in lives] == [
        ("done", 1, 0, 0),
        ("requeued", 2, 1, 1),
    ]
    assert lives[0].published_ns == BEGAN
    assert lives[0].first_finish_ns - lives[0].first_start_ns == 7 * MS
    report = trace_report(spark, [log], None, ORDERED)
    assert (report.side, report.stall) == ("server", None), "an nsqd's log does not say when the publisher called"


@pytest.mark.slow
def test_lives_by_day_grow_with_the_logs_and_count_each_event_once(spark: SparkSession, tmp_path: Path) -> None:
    logs, table = tmp_path / "logs [1]", tmp_path / "lives"
    logs.mkdir()
    midnight = (86_400_000_000_000 - BEGAN % 86_400_000_000_000) / MS
    first = [*whole(1, 0), client("publish", 2, midnight - 50), client("delivery", 2, midnight - 40)]
    # Its publish is in a log that comes later, so this life begins a day earlier then.
    first += [client("delivery", 3, midnight + 10)]
    late = [client("finish", 2, midnight + 20), client("publish", 3, midnight - 10), "no trace line"]

    def run() -> list[tuple[str, int, str]]:
        query = lives_by_day(spark, logs, table, grace_s=1.0).trigger(availableNow=True).start()
        assert query.awaitTermination(300)
        rows = spark.read.parquet(f"{table}/lives").orderBy("day", "message_id").collect()
        return [(row.day.isoformat(), row.message_id, row.outcome) for row in rows]

    today, tomorrow = "2026-11-21", "2026-11-22"
    write(logs / "1", first)
    assert run() == [(today, 1, "done"), (today, 2, "pending"), (tomorrow, 3, "pending")]
    write(logs / "2", late)
    grown = run()
    assert grown == [(today, 1, "done"), (today, 2, "done"), (today, 3, "pending")]
    assert spark.read.parquet(f"{table}/events").count() == 8
    assert run() == grown


def test_paths_patterns_and_urls(tmp_path: Path) -> None:
    log = write(tmp_path / "trace [1].jsonl", [])
    assert url_of(log) == url_of(str(log)) == f"file:{tmp_path}/trace \\[1\\].jsonl"
    assert url_of(f"{tmp_path}/*.jsonl") == f"file:{tmp_path}/*.jsonl"
    for url in ("s3a://bucket/trace/2026-*/*.jsonl", "hdfs:/logs/{a,b}", "file:/tmp/x"):
        assert url_of(url) == url
    for missing in (f"{tmp_path}/none", tmp_path / "none*"):
        with pytest.raises(FileNotFoundError):
            url_of(missing)


def test_a_report_through_connect_cannot_write_single_files() -> None:
    with pytest.raises(ConfigError, match="cannot write the file s3a://b/report: use a folder"):
        write_file(cast("SparkSession", object()), "s3a://b/report", b"")


@pytest.mark.slow
def test_the_command(sick: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda _: None)  # the session is the other tests'
    arguments = ["trace", "report", str(sick), "--grace", "1", "--ordered", "flights", "--out", str(tmp_path / "out")]
    ended = CliRunner().invoke(app, [*arguments, "--table"])
    assert ended.exit_code == 1, ended.output
    assert "FAILED: 1 lost, 1 repeated, 1 out of order\n" in ended.output
    assert (tmp_path / "out" / "report.html").exists()
    other = CliRunner().invoke(
        app, [*arguments, "--json", "--grace", "3600", "--fail-on", "lost", "--master", "local[2]"]
    )
    assert other.exit_code == 0
    assert json.loads(other.output)["counts"] == {"lost": 0, "repeated": 1, "out_of_order": 1}
    assert CliRunner().invoke(app, [*arguments, "--fail-on", "gap"]).exit_code == 2
    missing = CliRunner().invoke(app, ["trace", "report", f"{tmp_path}/none"])
    assert (missing.exit_code, "there is no file" in missing.output) == (2, True)


@pytest.mark.slow
def test_an_empty_log(spark: SparkSession, tmp_path: Path) -> None:
    report = trace_report(spark, [write(tmp_path / "empty", ["nothing"])], tmp_path / "out")
    assert (report.is_ok, report.events, report.begin_ns) == (False, 0, None)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "hold no trace lines" in page
    assert "FAILED: no trace lines" in page


@pytest.fixture
def browser_page() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("no chromium here")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1100, "height": 1400})
        yield page
        browser.close()


def opened(page: Any, report: dict[str, Any], path: Path, title: str = "") -> list[str]:  # noqa: ANN401
    """Show the page; gives what the browser complained about or wanted to load."""
    path.write_text(html_page(report, title), encoding="utf-8")
    heard: list[str] = []
    page.on("console", lambda message: heard.append(message.text))
    page.on("pageerror", lambda error: heard.append(str(error)))
    page.on("request", lambda request: heard.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(path.as_uri())
    return heard


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_shows_latency_leaders_and_anomalies(
    healthy_report: TraceReport,
    sick_report: TraceReport,
    browser_page: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    assert opened(browser_page, healthy_report.as_dict(), tmp_path / "healthy.html") == []
    assert browser_page.locator("#verdict").inner_text().startswith("ok: 0 lost")
    assert browser_page.locator("#latency path.p50_ms").count() >= 1
    assert browser_page.locator("#timeline g.partition").count() == 2
    (change,) = browser_page.locator("#timeline g.leader.change title").all_text_contents()
    assert change.startswith("n2:4150 leads from 10.")
    for picture in ("#latency", "#timeline"):
        box = browser_page.locator(picture).bounding_box()
        assert box["width"] > 800
        assert box["height"] > 60
    assert_nothing_is_cut_off(browser_page)
    assert browser_page.locator("#timeline g.partition > text").all_text_contents() == ["partition 0", "partition 1"]
    assert browser_page.locator("#latency").get_by_text("time of the publish").is_visible()
    assert browser_page.locator("#timeline").get_by_text("time of the delivery").is_visible()
    assert opened(browser_page, sick_report.as_dict(), tmp_path / "sick.html") == []
    assert browser_page.locator("#verdict").inner_text().startswith("FAILED: 1 lost, 1 repeated, 1 out of order")
    assert browser_page.locator("#timeline circle.anomaly").count() == 3
    assert browser_page.get_by_text(str(2**64 - 4)).is_visible()


def assert_nothing_is_cut_off(page: Any) -> None:  # noqa: ANN401
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = """() => [...document.querySelectorAll('svg text')].filter(text => {
        const inner = text.getBoundingClientRect(), outer = text.ownerSVGElement.getBoundingClientRect();
        return inner.left < outer.left || inner.right > outer.right
            || inner.top < outer.top || inner.bottom > outer.bottom;
    }).map(text => text.textContent)"""
    assert page.evaluate(outside) == []
