"""What a search asks for, and what the trace logs say."""

import dataclasses
import json
import tracemalloc
from pathlib import Path
from typing import cast

import pytest

from nsq_ha import OutgoingMessage, Producer, Receipt
from nsq_ha.admin import AdminClient, PartitionDescription, StoredMessage, TopicDescription, browsing
from nsq_ha.admin.reading import Reading
from nsq_ha.dashboard.search import MAX_FOUND, Query, fates, query_of, search, steps_of
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import NsqError
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from tests.dashboard.conftest import channel, node, partition, reading
from tests.support.waiting import eventually

LIMIT = 60.0


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
    assert [(step["event"], step["time_ns"], step["channel"], step["attempt"]) for step in steps] == [
        ("publish", 10, None, 1),
        ("delivery", 20, "c", 1),
        ("finish", 30, "c", 2),
    ]
    assert steps_of([log], Query("a", internal_id=5)) == steps
    assert steps_of([log], Query("a", partition=1, number=3)) == ()


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "{5",
        "[5]",
        '{"event": "other", "time_ns": 1, "topic": "a", "internal_id": 5}',
        '{"event": [5], "time_ns": 1, "topic": "a", "internal_id": 5}',
        '{"event": "publish", "topic": "a", "internal_id": 5}',
        '{"event": "publish", "time_ns": "x", "topic": "a", "internal_id": 5}',
        line("publish", 10**400),
        '{"event": "publish", "time_ns": 1, "topic": "a", "internal_id": 5, "nsqd": 3}',
        '{"event": "publish", "time_ns": 1, "topic": "a", "internal_id": 6, "attempt": 5}',
        "5" + "{" * 100000,
    ],
)
def test_lines_of_other_programs(tmp_path: Path, text: str) -> None:
    log = tmp_path / "trace"
    log.write_text(f"{text}\n{line('publish', 10)}\n")
    assert [step["time_ns"] for step in steps_of([log], Query("a", internal_id=5))] == [10]


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


async def test_every_message_of_a_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with DevCluster(time_scale=0.02) as cluster:
        cluster.create_topic("orders", 2, 3, extended=True, sync_every=1)
        async with AdminClient(cluster.lookupd) as admin, Producer(lookupd=cluster.lookupd) as producer:
            batch = [OutgoingMessage(b"%d" % number, partition=1, trace_id=100 + number) for number in range(9)]
            outcomes = await producer.publish_many("orders", batch)
            assert all(isinstance(outcome, Receipt) for outcome in outcomes), outcomes

            async def are_flushed() -> bool:
                return await admin.find_message("orders", partition=1, number=9) is not None

            await eventually(are_flushed, LIMIT)
            one = await admin.find_message("orders", partition=1, number=5)
            assert one is not None
            assert await admin.find_message("orders", internal_id=one.internal_id) == one
            assert await admin.find_message("orders", internal_id=one.internal_id + 50) is None
            answer = await search(admin, Reading(0.0), Query("orders", trace_id=107), (), limit=LIMIT)
            assert [found.message.body for found in answer.found] == ["7"]
            answer = await search(admin, Reading(0.0), Query("orders", trace_id=7), (), limit=LIMIT)
            assert answer.found == ()
            assert answer.notes[0] == "Looked at all 9 messages."
            monkeypatch.setattr(browsing, "MAX_SCANNED", 4)
            answer = await search(admin, Reading(0.0), Query("orders", trace_id=7), (), limit=LIMIT)
            assert answer.notes[0].startswith("Looked at 4 messages, the latest of each partition first")
            assert "nsq-ha trace 7 --trace-id --topic orders" in answer.notes[1]


@pytest.mark.parametrize("is_logged", [True, False])
async def test_few_messages_of_a_trace_id_are_kept_and_these_in_part(*, is_logged: bool, tmp_path: Path) -> None:
    """Any publisher may give one trace id to many large messages: 500 of 1 MiB took 505 MiB."""

    class Logs:
        """Stands in for the admin client of a topic with 64 partitions, each with such messages."""

        async def describe(self, topic: str) -> TopicDescription:
            view = TopicView(topic, TopicMeta(64), {}, complete=True, exists=True)
            parts = [
                PartitionDescription(n, Node("n", 1, 2), True, (), dataclasses.replace(partition(topic, n), messages=9))
                for n in range(64)
            ]
            return TopicDescription(view, tuple(parts), "")

        async def find_message(self, topic: str, *, internal_id: int = 0, **where: int) -> StoredMessage:
            number = where.get("number", 1)
            return StoredMessage(internal_id or number, 9, number, number * 40, number, "x" * 2**20, "y" * 2**16)

    log = tmp_path / "trace"
    log.write_text("\n".join(line("publish", number, internal_id=number) for number in range(1, 61)))
    admin, logs = cast("AdminClient", Logs()), [log] if is_logged else []
    tracemalloc.start()
    try:
        answer = await search(admin, Reading(0.0), Query("a", trace_id=9), logs, limit=LIMIT)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {(len(each.message.body), len(each.message.headers)) for each in answer.found} == {(20_000, 20_000)}
    assert len(answer.found) == MAX_FOUND
    assert any("Only the first 20 messages are shown" in note for note in answer.notes)
    assert peak < 24 * 2**20


async def test_equal_ids_of_plain_nsqds_are_named_as_such(tmp_path: Path) -> None:
    log = tmp_path / "trace"
    log.write_text("\n".join((line("delivery", 20), line("finish", 30))))
    admin = AdminClient(lookupd="http://127.0.0.1:1")
    alone = await search(admin, reading(1, is_plain=True), Query("a", internal_id=5), [log])
    assert not any("equal ids" in note for note in alone.notes)
    log.write_text("\n".join((line("delivery", 20), line("delivery", 25, nsqd="n:2"))))
    answer = await search(admin, reading(1, is_plain=True), Query("a", internal_id=5), [log])
    assert [step["nsqd"] for step in answer.steps] == ["n:1", "n:2"]
    assert any("These lines are of 2 nsqds. Plain nsqds may give equal ids" in note for note in answer.notes)
