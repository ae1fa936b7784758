"""The trace log's lines and its switch."""

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_ha import Message, Receipt, tracelog
from nsq_ha.tracelog import TraceSwitch, switch, write_to
from tests.test_message import Source

RECEIPT = Receipt("orders", 3, "127.0.0.1:4150", 2, 77, 7, 66, 34)


@pytest.fixture(autouse=True)
def left_as_it_was() -> Iterator[None]:
    yield
    assert not switch.is_any
    assert tracelog.log.handlers == []
    assert (tracelog.log.level, tracelog.log.propagate) == (logging.NOTSET, True)


def message() -> Message:
    return Message((3 << 50 | 77).to_bytes(8, "big") + (7).to_bytes(8, "big"), b"paid", 2, 1, Source(), 66, 34)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with write_to(path):
        tracelog.log_publish(RECEIPT, 123)
        for event in ("delivery", "requeue", "finish"):
            tracelog.log_message(event, message())
    publish, *others = lines(path)
    assert publish.pop("acknowledged_ns") > 10**18  # type: ignore[operator]
    assert publish == {
        "event": "publish",
        "time_ns": 123,
        "topic": "orders",
        "partition": 3,
        "internal_id": 77,
        "trace_id": 7,
        "offset": 66,
        "attempt": 2,
        "nsqd": "127.0.0.1:4150",
    }
    assert [line["event"] for line in others] == ["delivery", "requeue", "finish"]
    for line in others:
        assert line.pop("time_ns") > 10**18  # type: ignore[operator]
        line.pop("event")
        assert line == {
            "topic": "orders",
            "partition": 3,
            "channel": "billing",
            "internal_id": 3 << 50 | 77,
            "trace_id": 7,
            "offset": 66,
            "attempt": 2,
            "nsqd": "127.0.0.1:4150",
        }


def test_a_file_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    for _ in range(2):
        with write_to(path, "orders"):
            tracelog.log_publish(RECEIPT, 1)
    assert len(lines(path)) == 2


def test_an_unfinished_line_takes_no_other_with_it(tmp_path: Path) -> None:
    """A process was killed while it wrote; the first line of the next one went with its last one."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"event":"publish"}\n{"event":"del', encoding="utf-8")
    with write_to(path):
        tracelog.log_publish(RECEIPT, 1)
    first, torn, last = path.read_text(encoding="utf-8").splitlines()
    assert (json.loads(first)["event"], torn, json.loads(last)["time_ns"]) == ("publish", '{"event":"del', 1)


def test_nothing_goes_to_other_loggers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with write_to(tmp_path / "trace.jsonl"):
        tracelog.log_publish(RECEIPT, 1)
    assert caplog.records == []


def test_a_file_that_cannot_be_opened_switches_nothing_on(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), write_to(tmp_path / "none" / "trace.jsonl"):
        pass


def test_a_failing_block_switches_off(tmp_path: Path) -> None:
    with pytest.raises(KeyError), write_to(tmp_path / "trace.jsonl", "orders"):
        raise KeyError("x")


def test_several_files_at_once(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    first, second, third = write_to(paths[0], "orders"), write_to(paths[1]), write_to(paths[2], "returns")
    first.__enter__()
    second.__enter__()
    third.__enter__()
    tracelog.log_publish(RECEIPT, 1)
    first.__exit__(None, None, None)
    assert switch.is_on("orders")
    tracelog.log_publish(RECEIPT, 2)
    second.__exit__(None, None, None)
    assert (switch.is_on("orders"), switch.is_on("returns")) == (False, True)
    third.__exit__(None, None, None)
    # A file has the lines of its own topics.
    assert [len(lines(path)) for path in paths] == [1, 2, 0]


def test_a_file_leaves_what_was_switched_on_before(tmp_path: Path) -> None:
    switch.enable("orders")
    with write_to(tmp_path / "trace.jsonl", "orders"):
        switch.disable("orders")
        assert switch.is_on("orders")
        switch.enable("orders")
    assert switch.is_any
    switch.disable("orders")


@pytest.fixture
def heard() -> Iterator[None]:
    """Somebody listens to the logger."""
    tracelog.log.setLevel(logging.INFO)
    yield
    tracelog.log.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("heard")
def test_the_switch() -> None:
    own = TraceSwitch()
    assert not own.is_any
    assert not own.is_on("orders")
    own.enable("orders", "returns")
    assert (own.is_any, own.is_on("orders"), own.is_on("returns"), own.is_on("other")) == (True, True, True, False)
    own.disable("orders")
    assert (own.is_any, own.is_on("orders"), own.is_on("returns")) == (True, False, True)
    own.enable()
    assert own.is_on("other")
    own.disable("returns")
    assert own.is_on("returns")
    own.disable()
    assert (own.is_any, own.is_on("returns")) == (False, False)


def test_the_switch_is_off_while_nobody_listens() -> None:
    own = TraceSwitch()
    own.enable()
    tracelog.log.setLevel(logging.ERROR)
    try:
        assert not own.is_on("orders")
    finally:
        tracelog.log.setLevel(logging.NOTSET)


@pytest.mark.usefixtures("heard")
def test_the_switch_may_be_turned_in_any_thread() -> None:
    own = TraceSwitch()
    threads = [threading.Thread(target=own.enable, args=(f"topic-{n}",)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(own.is_on(f"topic-{n}") for n in range(50))
