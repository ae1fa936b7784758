"""How far a query is behind, from reports of its progress as Spark makes them."""

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent, StreamingQueryProgress

from nsq_ha.spark import lag as lag_module
from nsq_ha.spark.lag import LagListener, PartitionLag, StreamLag, lag_of

OLD = {"@old": {"orders": {"0": 600}}}
START = {"@planned": 100, "orders": {"0": 0, "1": 1000}}
END = {"@planned": 110, "orders": {"0": 600, "1": 1400}}
LATEST = {"orders": {"0": 600, "1": 3400}}


def source(start: object = START, end: object = END, latest: object = LATEST, rows: int = 10) -> dict[str, Any]:
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    texts = {name: None if offset is None else json.dumps(offset) for name, offset in offsets.items()}
    return {"description": "PythonMicroBatchStream@28231755", **texts, "numInputRows": rows}


def progress(*sources: dict[str, Any], name: str | None = "delays") -> dict[str, Any]:
    return {
        "id": "8c57e1ec",
        "runId": "7",
        "name": name,
        "timestamp": "2013-01-01T10:15:00.000Z",
        "batchId": 3,
        "numInputRows": 999,
        "sources": list(sources),
    }


def found(*sources: dict[str, Any]) -> StreamLag:
    lag = lag_of(progress(*sources))
    assert lag is not None
    return lag


def test_bytes_and_rows_that_are_left() -> None:
    lag = found(source())
    assert lag.partitions == (PartitionLag("orders", 0, 600, 600), PartitionLag("orders", 1, 1400, 3400))
    assert [each.behind_bytes for each in lag.partitions] == [0, 2000]
    assert (lag.behind_bytes, lag.row_bytes, lag.behind_rows, lag.rows) == (2000, 100.0, 20, 10)
    assert (lag.query_name, lag.query_id, lag.batch_id) == ("delays", "8c57e1ec", 3)
    assert str(lag) == "query delays batch 3: 2,000 bytes behind, about 20 messages (orders-1 2,000)"
    assert lag.source_name == "nsq[orders]"


def test_a_query_that_has_caught_up() -> None:
    lag = found(source(END, END, {"orders": {"0": 600, "1": 1400}}, rows=0))
    assert (lag.behind_bytes, lag.behind_rows, lag.row_bytes) == (0, 0, None)
    assert str(lag) == "query delays batch 3: 0 bytes behind"


def test_a_query_has_not_caught_up_while_a_leader_is_away() -> None:
    read = found(source(END, END, OLD | {"orders": {"0": 600, "1": 1400}}, rows=0))
    assert (read.behind_bytes, read.has_caught_up, [each.is_old for each in read.partitions]) == (
        0,
        False,
        [True, False],
    )
    assert str(read) == "query delays batch 3: 0 bytes behind (orders-0 0 or more, its leader is away)"
    unread = found(source(latest={"@old": {"orders": {"1": 3400}}, **LATEST}))
    assert (unread.behind_bytes, unread.has_caught_up, unread.partitions[1].is_old) == (2000, False, True)
    assert found(source(END, END, {"orders": {"0": 600, "1": 1400}})).has_caught_up


def test_a_log_end_that_was_seen_earlier_is_no_negative_lag() -> None:
    assert found(source(latest={"orders": {"0": 100, "1": 1400}})).behind_bytes == 0


def test_partitions_without_a_position_and_without_a_start() -> None:
    lag = found(source(start=None, end={"@planned": 1, "orders": {"0": 600}}))
    assert lag.partitions == (PartitionLag("orders", 0, 600, 600), PartitionLag("orders", 1, 0, 3400))
    assert lag.row_bytes is None, "where the first batch began is unknown"


def test_a_batch_that_is_repeated_after_a_restart_says_nothing_of_the_end() -> None:
    assert lag_of(progress(source(latest=None))) is None


def test_several_topics_and_sources() -> None:
    other = source({"@planned": 1, "a": {"0": 0}}, {"@planned": 2, "a": {"0": 50}}, {"a": {"0": 60}}, rows=5)
    kafka = {"description": "KafkaV2", "endOffset": '{"orders":{"0":23}}', "latestOffset": None, "numInputRows": 100}
    lag = found(source(), kafka, other)
    assert [(each.topic, each.partition) for each in lag.partitions] == [("a", 0), ("orders", 0), ("orders", 1)]
    assert (lag.rows, lag.behind_bytes) == (15, 2010)


@pytest.mark.parametrize(
    "end", [None, "{}", "no JSON", "[1]", '{"spool": "a3", "id": 7}', '{"@planned": 1, "orders": {"0": "x"}}']
)
def test_other_sources_have_no_lag(end: str | None) -> None:
    assert lag_of(progress({"endOffset": end, "latestOffset": "{}", "numInputRows": 3})) is None
    assert lag_of(progress()) is None


def event(report: dict[str, Any]) -> QueryProgressEvent:
    return cast("QueryProgressEvent", SimpleNamespace(progress=StreamingQueryProgress.fromJson(report)))


def reported(*sources: dict[str, Any]) -> dict[str, Any]:
    """Return a report with all that PySpark's own class reads."""
    whole = progress(*sources)
    for each in whole["sources"]:
        each.update(inputRowsPerSecond=1.0, processedRowsPerSecond=1.0, metrics={})
    return {
        **whole,
        "id": "8c57e1ec-0000-0000-0000-000000000000",
        "runId": "8c57e1ec-0000-0000-0000-000000000001",
        "batchDuration": 10,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
        "sink": {"description": "s", "numOutputRows": 1, "metrics": {}},
        "observedMetrics": {},
    }


def test_a_listener_says_how_old_the_oldest_unread_message_is_at_least() -> None:
    lags: list[StreamLag] = []
    listener = LagListener(lags.append)

    def whole(read_to: int, log_end: int, **old: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        return reported(source(END, {"@planned": 1, "orders": {"0": read_to}}, {"orders": {"0": log_end}, **old}))

    def report(second: int, read_to: int, log_end: int) -> None:
        each = whole(read_to, log_end)
        listener.onQueryProgress(event({**each, "timestamp": f"2013-01-01T10:15:{second:02}.500Z"}))

    for second, read_to, log_end in [(0, 100, 300), (10, 200, 300), (20, 300, 900), (30, 400, 950), (35, 900, 950)]:
        report(second, read_to, log_end)
    report(40, 950, 950)
    assert [lag.behind_seconds for lag in lags] == [0, 10, 0, 10, 5, 0]
    for second in range(50):
        report(second, 950, 1000 + second)
    assert lags[-1].behind_seconds == 49
    report(55, 0, 100)  # the topic was re-created
    report(59, 100, 100)
    assert [lag.behind_seconds for lag in lags[-2:]] == [0, 0]
    report(59, 100, 900)
    report(59, 100, 200)  # again, and a step back to where it is
    listener.onQueryProgress(event({**whole(200, 200), "timestamp": "2013-01-01T10:16:30.500Z"}))
    assert lags[-1].behind_seconds == 0
    listener.onQueryProgress(event({**whole(200, 900), "timestamp": "2013-01-01T10:16:40.500Z"}))
    listener.onQueryProgress(event({**whole(200, 200, **OLD), "timestamp": "2013-01-01T10:16:50.500Z"}))
    assert lags[-1].behind_seconds == 10, "while no leader tells where the log ends"


def test_a_listener_keeps_little_of_a_query_that_stays_behind_and_nothing_of_one_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag_module, "_MOST_ENDS", 8)
    lags: list[StreamLag] = []
    listener = LagListener(lags.append)
    for second in range(60):
        each = reported(source(END, END, {"orders": {"0": 600, "1": 2000 + second}}))
        listener.onQueryProgress(event({**each, "timestamp": f"2013-01-01T10:15:{second:02}.000Z"}))
    assert lags[-1].behind_seconds == 59
    assert sum(len(ends) for ends in listener._ends.values()) <= 8  # noqa: SLF001
    listener.onQueryTerminated(cast("QueryTerminatedEvent", SimpleNamespace(id=lags[-1].query_id)))
    assert not listener._ends  # noqa: SLF001


def test_an_error_of_the_function_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(lag: StreamLag) -> None:
        raise ValueError("no such gauge")

    LagListener(fail).onQueryProgress(event(reported(source())))
    assert "could not be reported" in caplog.text
    assert "no such gauge" in caplog.text


def test_a_listener_without_a_function_logs(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "nsq_ha.spark"):
        LagListener().onQueryProgress(event(reported(source())))
    assert "query delays batch 3: 2,000 bytes behind" in caplog.text
