"""What a search asks for, and what the trace logs say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from nsq_ha.dashboard.search import Query, fates, query_of, step_of, steps_of
from nsq_ha.errors import NsqError
from tests.dashboard.conftest import channel, node, partition, reading

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"topic": "a"}, None),
        ({"topic": " a ", "id": " 1_000,000 "}, Query("a", internal_id=1000000)),
        ({"topic": "a", "trace": "7"}, Query("a", trace_id=7)),
        ({"topic": "a", "partition": "2", "offset": "0"}, Query("a", partition=2, offset=0)),
        ({"topic": "a", "partition": "2", "number": "9"}, Query("a", partition=2, number=9)),
    ],
)
def test_forms(fields: dict[str, str], expected: Query | None) -> None:
    assert query_of(fields) == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "1"},
        {"topic": "a b", "id": "1"},
        {"topic": "a", "id": "x"},
        {"topic": "a", "id": "9" * 21},
        {"topic": "a", "id": "²"},
        {"topic": "a", "id": "1", "trace": "2"},
        {"topic": "a", "partition": "1"},
        {"topic": "a", "offset": "1"},
        {"topic": "a", "partition": "1", "offset": "1", "number": "1"},
    ],
)
def test_forms_that_name_no_message(fields: dict[str, str]) -> None:
    with pytest.raises(NsqError):
        query_of(fields)


def line(event: str, at: int, **fields: object) -> str:
    known = {"time_ns": at, "topic": "a", "partition": 1, "internal_id": 5, "trace_id": 9, "attempt": 1, "nsqd": "n:1"}
    return json.dumps({"event": event, **known, **fields})


def test_steps_are_those_of_the_message(tmp_path: Path) -> None:
    log = tmp_path / "trace"
    lines = [
        line("finish", 30, channel="c", attempt=2),
        "INFO nsq_ha.trace " + line("publish", 10, channel=None),
        line("delivery", 20, channel="c"),
        line("delivery", 21, topic="b"),
        line("delivery", 22, internal_id=59, trace_id=95),
        "nonsense 5 9 {",
    ]
    log.write_text("\n".join(lines))
    steps = steps_of([log, tmp_path / "none"], Query("a", trace_id=9))
    assert [(step.event, step.time_ns, step.channel, step.attempt) for step in steps] == [
        ("publish", 10, "", 1),
        ("delivery", 20, "c", 1),
        ("finish", 30, "c", 2),
    ]
    assert steps_of([log], Query("a", internal_id=5)) == steps
    assert steps_of([log], Query("a", partition=1, number=3)) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '{"event": "other"}',
        '{"event": "publish", "time_ns": "x"}',
        '{"event": "publish", "topic": 3}',
        "{" * 100000,
    ],
)
def test_lines_of_other_programs(text: str) -> None:
    assert step_of(text.encode()) is None


def test_fates_go_by_the_position_of_each_channel() -> None:
    channels = [
        channel("ahead", depth=0, messages=10),
        channel("behind", depth=8, messages=10),
        channel("late", depth=0, messages=3),
        channel("paused", depth=8, messages=10, paused=True),
    ]
    now = reading(1, node(1, partition("a", 0, *channels)))
    found = {fate.channel: fate for fate in fates(now, "a", 0, 5)}
    assert {name: fate.state for name, fate in found.items()} == {
        "ahead": "passed",
        "behind": "not passed",
        "late": "not read",
        "paused": "not passed",
    }
    assert "2 before it" in found["behind"].text
    assert found["paused"].text.startswith("paused")
    assert fates(now, "a", 7, 5) == fates(now, "b", 0, 5) == ()
