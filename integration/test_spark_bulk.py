"""Bulk reads for Spark: the rows of a subscription, from a cluster of any kind."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from integration.cluster import ClusterUnderTest
from nsq_ha import OutgoingMessage, Producer
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.read.bulk import reader as bulk
from nsq_ha.spark.read.bulk.cutting import StoredMessages
from nsq_ha.spark.read.range_reader import RangeReader, Rows
from tests.spark.projections import ALL

COUNT = 2000


@pytest.fixture(params=["ordinary", "ordered", "extended"])
def topic(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(request.param)
    return name


async def publish(producer: Producer, topic: str, mark: bytes) -> list[bytes]:
    """Publish batches, single messages and large ones to two partitions; return the bodies."""
    bodies = [mark + b"%04d" % number + bytes(number % 300) for number in range(COUNT)]
    sent = [OutgoingMessage(body, partition=number % 2) for number, body in enumerate(bodies)]
    await producer.publish_many(topic, sent[:-40])
    await asyncio.gather(*(producer.publish(topic, each.body, partition=each.partition) for each in sent[-40:]))
    large = [mark + bytes((number,)) * 900_000 for number in range(4)]
    for number, body in enumerate(large):
        await producer.publish(topic, body, partition=number % 2)
    return [*bodies, *large]


def both(
    lookupd: tuple[str, ...], topic: str, between: Callable[[Range], None] = lambda _: None
) -> Iterator[tuple[Any, Any]]:
    """Read each partition in bulk and through a subscription; ``between`` is called after the first rows in bulk."""
    given = {"lookupd": ",".join(lookupd), "topic": topic, "fetch": "bulk", "includeHeaders": "true"}
    # After 5 s, the default, a subscription reads the rest; a busy nsqd takes longer to make its log readable.
    options = ReadOptions.parse({**given, "arrowBatchRows": "100", "fetchTimeout": "60s"})
    with BlockingCluster(options.lookupd) as asked:
        for part in plan(options, asked):
            batches = map(copied_batch, RangeReader(part, options, asked).batches())
            copied = [next(batches)]
            between(part)
            copied += batches
            plain = dataclasses.replace(options, fetch="subscribe")
            subscribed = [ALL.batch(rows) for rows in RangeReader(part, plain, asked).batches()]
            yield table(copied), table(subscribed)


def copied_batch(rows: Rows) -> Any:  # noqa: ANN401 - pyarrow has no types
    assert isinstance(rows, StoredMessages), "a subscription reads"
    return ALL.batch(rows)


def table(batches: list[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    # A message that waits for long at the client comes again, and counts that.
    return pa.Table.from_batches(batches).combine_chunks().drop_columns(["attempts"])


def compared(found: Iterator[tuple[Any, Any]]) -> list[bytes]:
    """Compare, and return the bodies."""
    values: list[bytes] = []
    for copied, subscribed in found:
        assert copied.equals(subscribed)
        values += copied["value"].to_pylist()
    return values


async def test_the_rows_are_those_of_a_subscription(
    cluster: ClusterUnderTest, producer: Producer, topic: str, mark: bytes
) -> None:
    bodies = await publish(producer, topic, mark)
    values = await asyncio.to_thread(lambda: compared(both(tuple(cluster.lookupd), topic)))
    assert sorted(value for value in values if value.startswith(mark)) == sorted(bodies)


# A real cluster refuses to move leaders for minutes after any change of its nodes.
@pytest.mark.timeout(900)
async def test_a_leader_that_moves_in_the_middle_changes_no_row(
    cluster: ClusterUnderTest, producer: Producer, ordinary: str, mark: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many small answers: there must still be something to ask for when the leadership goes.
    monkeypatch.setattr(bulk, "PULL_BYTES", 20_000)
    monkeypatch.setattr(bulk, "HELD_BYTES", 20_000)

    def move(part: Range) -> None:
        if part.partition == 0:
            cluster.move_leader(ordinary, 0)

    bodies = await publish(producer, ordinary, mark)
    values = await asyncio.to_thread(lambda: compared(both(tuple(cluster.lookupd), ordinary, move)))
    assert sorted(value for value in values if value.startswith(mark)) == sorted(bodies)
