"""The trace log: one line for each traced publish, delivery, finish and requeue."""

import json
import time
from pathlib import Path

from integration.reading import Consumers, next_of, read
from nsq_ha import OutgoingMessage, Producer, tracelog

KEYS = {"event", "time_ns", "topic", "partition", "internal_id", "trace_id", "offset", "attempt", "nsqd"}


async def test_a_message_leaves_its_trace(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    before = time.time_ns()
    async with consume(ordered) as consumer:
        with tracelog.write_to(path, ordered):
            receipt = await producer.publish(ordered, mark, key="k", trace_id=77)
            first = await next_of(consumer, mark)
            first.requeue(0)
            await read(consumer, mark, 1)
        await producer.publish(ordered, mark + b"unlogged", key="k", trace_id=78)
        await read(consumer, mark, 1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines if line["trace_id"] == 77] == [
        "publish",
        "delivery",
        "requeue",
        "delivery",
        "finish",
    ] or [line["event"] for line in lines] == ["delivery", "publish", "requeue", "delivery", "finish"]
    assert {line["trace_id"] for line in lines} == {77}
    for line in lines:
        assert set(line) == KEYS | ({"acknowledged_ns"} if line["event"] == "publish" else {"channel"})
        assert (line["topic"], line["partition"], line["nsqd"]) == (ordered, receipt.partition, receipt.nsqd)
        assert (line["internal_id"], line["offset"]) == (receipt.internal_id, receipt.offset)
        assert before <= line["time_ns"] <= time.time_ns()
        assert line.get("channel") in (None, consume.channel)
    assert [line["attempt"] for line in lines if line["event"] == "delivery"] == [1, 2]


async def test_a_batch_leaves_the_trace_of_each_message(
    producer: Producer, consume: Consumers, ordered: str, mark: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    async with consume(ordered) as consumer:
        with tracelog.write_to(path):
            await producer.publish_many(ordered, [OutgoingMessage(mark, key="k", trace_id=n + 1) for n in range(5)])
            await read(consumer, mark, 5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in ("publish", "delivery", "finish"):
        own = [line for line in lines if line["event"] == event]
        assert [line["trace_id"] for line in own] == [1, 2, 3, 4, 5]
        assert [line["offset"] for line in own] == sorted(line["offset"] for line in own)
