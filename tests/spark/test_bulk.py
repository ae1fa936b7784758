"""Bulk reads on the dev cluster: the same rows as through a subscription, whatever happens."""

import json
import logging
import random
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import DataLossError, ResponseTimeoutError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.topology import Node
from nsq_ha.protocol.encoding import MAGIC, encode_mpub, encode_mpub_ext
from nsq_ha.spark.cluster import BlockingCluster, Extent
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.pull.calls import Pulled
from nsq_ha.spark.read import range_reader
from nsq_ha.spark.read.bulk import reader as bulk_module
from nsq_ha.spark.read.bulk.cutting import DamagedLogError, StoredMessages, cut
from nsq_ha.spark.read.bulk.reader import BulkLink
from nsq_ha.spark.read.range_reader import RangeReader, Replay, read_ranges
from tests.spark.projections import ALL


def options(asked: BlockingCluster, topic: str, **more: str) -> ReadOptions:
    given = {"lookupd": ",".join(asked.lookupd), "topic": topic, "fetchTimeout": "10s", "fetch": "bulk", **more}
    return ReadOptions.parse(given)


def publish(asked: BlockingCluster, topic: str, lots: Sequence[Sequence[bytes]], partition: int = 0) -> None:
    """Publish each lot as one MPUB; every third message of an extended topic has a key."""
    view = asked.view(topic)
    assert view.meta is not None
    node = view.leaders[partition]
    with socket.create_connection((node.host, node.tcp_port), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(MAGIC)
        for lot in lots:
            if view.meta.extend_support:
                headed = [
                    (json.dumps({"key": f"k{n}", "n": n} if n % 3 else {}).encode(), each) for n, each in enumerate(lot)
                ]
                connection.sendall(encode_mpub_ext(topic, partition, headed))
            else:
                connection.sendall(encode_mpub(topic, partition, lot))
            (size,) = struct.unpack(">i", answers.read(4))
            assert answers.read(size) == b"\x00\x00\x00\x00OK"


def http_of(dev_cluster: DevCluster) -> tuple[str, int]:
    """Return the address of a port that speaks HTTP."""
    host, _, port = dev_cluster.http_address("nsqd-0").removeprefix("http://").rpartition(":")
    return host, int(port)


def mixed(seed: int = 1) -> list[list[bytes]]:
    """Single messages and batches of all sizes."""
    chance = random.Random(seed)
    counts = [1] * 60 + [7] * 20 + [200] * 3 + [1, 2, 3] * 10
    return [[chance.randbytes(chance.randrange(1, 400)) for _ in range(count)] for count in counts]


def table(batches: Iterator[Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    return pa.Table.from_batches(list(batches), schema=ALL.arrow_schema).combine_chunks()


def subscribed(ranges: Sequence[Range], given: ReadOptions) -> Any:  # noqa: ANN401 - as above
    return table(read_ranges(ranges, replace(given, fetch="subscribe"), ALL))


@pytest.fixture
def no_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that reads through a subscription."""

    def refuse(asked: Range, *_: object) -> Replay:
        raise AssertionError(f"a subscription reads {asked}")

    monkeypatch.setattr(range_reader, "Replay", refuse)


@contextmanager
def subscriptions() -> Iterator[list[int]]:
    """The offsets at which subscriptions begin."""
    found: list[int] = []
    original = Replay.open

    def noted(self: Replay, position: int) -> None:
        found.append(position)
        original(self, position)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "open", noted)
        yield found


KINDS = [("plain", {}), ("in_order", {"ordered": True}), ("headed", {"extended": True})]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_kind_of_topic_gives_the_rows_of_a_subscription(
    dev_cluster: DevCluster, asked: BlockingCluster, name: str, kind: dict[str, bool]
) -> None:
    topic = dev_cluster.create_topic(f"bulk_{name}", **kind)
    lots = mixed()
    publish(asked, topic, lots)
    given = options(asked, topic)
    ranges = plan(given, asked)
    with subscriptions() as used:
        rows = table(read_ranges(ranges, given, ALL))
    assert used == []
    assert rows["value"].to_pylist() == [body for lot in lots for body in lot]
    assert rows.equals(subscribed(ranges, given))


@pytest.mark.usefixtures("no_subscription")
def test_parts_of_a_log_fit_together_wherever_they_are_cut(dev_cluster: DevCluster, asked: BlockingCluster) -> None:
    topic = dev_cluster.create_topic("bulk_parts")
    lots = mixed(2)
    publish(asked, topic, lots)
    for more in ({"maxRecordsPerPartition": "97"}, {"minPartitions": "13", "arrowBatchRows": "10"}):
        given = options(asked, topic, **more)
        ranges = plan(given, asked)
        assert len(ranges) > 8
        batches = list(read_ranges(ranges, given, ALL))
        assert max(each.num_rows for each in batches) <= given.arrow_batch_rows
        assert table(iter(batches))["value"].to_pylist() == [body for lot in lots for body in lot]


@pytest.mark.usefixtures("no_subscription")
def test_a_fresh_tail_is_flushed_first(dev_cluster: DevCluster, asked: BlockingCluster) -> None:
    topic = dev_cluster.create_topic("bulk_fresh", sync_every=100_000)
    given = options(asked, topic, fetchTimeout="10s")
    publish(asked, topic, [[b"old"]])
    for number in range(5):
        (before,) = plan(given, asked)
        publish(asked, topic, [[b"%d" % number, b"x"], [b"y"]])
        (after,) = plan(given, asked)
        part = replace(after, start=before.end)
        assert table(read_ranges([part], given, ALL))["value"].to_pylist() == [b"%d" % number, b"x", b"y"]


def test_a_log_that_begins_before_its_entries_is_read_by_a_subscription(
    dev_cluster: DevCluster, asked: BlockingCluster
) -> None:
    topic = dev_cluster.create_topic("bulk_early", sync_every=1)
    publish(asked, topic, [[b"a", b"b", b"c"], [b"d"]])
    dev_cluster.clean(topic, 0, 1)
    given = options(asked, topic)
    with subscriptions() as used:
        rows = table(read_ranges(plan(given, asked), given, ALL))
    assert rows["value"].to_pylist() == [b"b", b"c", b"d"]
    assert len(used) == 1


def test_the_start_was_deleted_meanwhile(dev_cluster: DevCluster, asked: BlockingCluster) -> None:
    topic = dev_cluster.create_topic("bulk_deleted", sync_every=1)
    publish(asked, topic, [[b"%d" % number] for number in range(20)])
    given = options(asked, topic, fetchTimeout="100ms", fetchRetries="1")
    ranges = plan(given, asked)
    dev_cluster.clean(topic, 0, 10)
    with pytest.raises(DataLossError, match="the log now begins at"):
        list(read_ranges(ranges, given, ALL))
    lossy = replace(given, fail_on_data_loss=False)
    assert table(read_ranges(ranges, lossy, ALL))["value"].to_pylist() == [b"%d" % n for n in range(10, 20)]


def test_an_end_that_the_log_never_reaches_is_data_loss(dev_cluster: DevCluster, asked: BlockingCluster) -> None:
    topic = dev_cluster.create_topic("bulk_short", sync_every=1)
    publish(asked, topic, [[b"a"], [b"b"]])
    given = options(asked, topic, fetchTimeout="100ms", fetchRetries="1")
    (part,) = plan(given, asked)
    with pytest.raises(DataLossError, match="the log ends at"):
        list(read_ranges([replace(part, end=part.end + 31)], given, ALL))
    with pytest.raises(DataLossError, match="lies inside the message"):
        list(read_ranges([replace(part, end=part.end - 1)], given, ALL))


# ---------------------------------------------------------------- leaders


@pytest.fixture
def small_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many answers, each confirmed by itself."""
    monkeypatch.setattr(bulk_module, "PULL_BYTES", 2000)
    monkeypatch.setattr(bulk_module, "HELD_BYTES", 2000)
    monkeypatch.setattr(range_reader, "_REOPEN", Backoff(initial=0.01, maximum=0.05))


@pytest.mark.usefixtures("small_pulls", "no_subscription")
@pytest.mark.parametrize("fault", ["move_leader", "kill", "cut"])
def test_the_same_rows_come_when_the_leader_changes_in_the_middle(
    dev_cluster: DevCluster, asked: BlockingCluster, fault: str
) -> None:
    topic = dev_cluster.create_topic(f"bulk_{fault}", sync_every=1)
    lots = mixed(3)
    publish(asked, topic, lots)
    given = options(asked, topic, fetchTimeout="3s", arrowBatchRows="50")
    (part,) = plan(given, asked)
    leader = dev_cluster.leader(topic)
    assert leader is not None
    reader = RangeReader(part, given, asked)
    batches = map(ALL.batch, reader.batches())
    got = [next(batches)]
    if fault == "move_leader":
        dev_cluster.move_leader(topic)
    else:
        getattr(dev_cluster, fault)(leader)
    try:
        got += batches
    finally:
        dev_cluster.start(leader)
    assert table(iter(got))["value"].to_pylist() == [body for lot in lots for body in lot]
    assert reader.opened >= 2


@pytest.mark.usefixtures("small_pulls")
def test_rows_of_a_node_that_does_not_lead_never_leave(
    dev_cluster: DevCluster, asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = dev_cluster.create_topic("bulk_follower", sync_every=1)
    publish(asked, topic, mixed(4))
    given = options(asked, topic, fetchTimeout="100ms", fetchRetries="1")
    (part,) = plan(given, asked)
    real, times = BlockingCluster.extents, [2]

    def extents(self: BlockingCluster, topic: str, node: Node) -> Mapping[int, Extent]:
        times[0] -= 1
        return real(self, topic, node) if times[0] >= 0 else {}

    monkeypatch.setattr(BlockingCluster, "extents", extents)
    got: list[Any] = []
    with pytest.raises(ResponseTimeoutError, match=r"no longer leads bulk_follower-0") as failed:
        got.extend(map(ALL.batch, RangeReader(part, given, asked).batches()))
    assert got
    reached = got[-1]["offset"][-1].as_py() + got[-1]["raw_size"][-1].as_py()
    assert reached < part.end
    assert f"at offset {reached}: no progress" in str(failed.value)


# ---------------------------------------------------------------- no bulk


@pytest.mark.parametrize("fault", ["closed", "foreign", "silent", "unknown"])
def test_a_port_that_does_not_work_gives_one_warning_and_a_subscription(
    dev_cluster: DevCluster,
    asked: BlockingCluster,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = dev_cluster.create_topic(f"bulk_{fault}", sync_every=1)
    lots = mixed(5)
    publish(asked, topic, lots)
    given = options(asked, topic, minPartitions="3", fetchTimeout="500ms")
    ranges = plan(given, asked)
    assert len(ranges) >= 3
    with socket.create_server(("127.0.0.1", 0)) as other:
        if fault == "closed":
            other.close()
        address = http_of(dev_cluster) if fault == "foreign" else None
        if fault in ("closed", "silent"):
            address = other.getsockname() if fault == "silent" else ("127.0.0.1", 1)
        monkeypatch.setattr(bulk_module, "copy_port", lambda _: address)
        with subscriptions() as used, caplog.at_level(logging.WARNING, "nsq_ha.spark"):
            rows = table(read_ranges(ranges, given, ALL))
    assert rows["value"].to_pylist() == [body for lot in lots for body in lot]
    assert used == [part.start for part in ranges]
    (warning,) = [record.getMessage() for record in caplog.records if record.name == "nsq_ha.spark"]
    (nsqd,) = {part.leader.address for part in ranges if part.leader is not None}
    assert warning.startswith(
        f"fetch=bulk is not possible, so subscriptions read the logs of nsqd {nsqd}: {ranges[0].name} at offset 0"
    )


def test_a_server_that_does_not_know_the_call_is_a_warning(
    dev_cluster: DevCluster,
    asked: BlockingCluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = dev_cluster.create_topic("bulk_old", sync_every=1)
    publish(asked, topic, [[b"a"]])
    monkeypatch.setattr("nsq_ha.spark.pull.calls.METHOD", "NsqdCoordRpcServer.PullMore")
    given = options(asked, topic)
    (part,) = plan(given, asked)
    assert part.leader is not None
    assert table(map(ALL.batch, RangeReader(part, given, asked).batches()))["value"].to_pylist() == [b"a"]
    assert asked.uncopied == {part.leader.address}
    assert "unknown method" in caplog.text


@pytest.mark.usefixtures("small_pulls")
def test_a_damaged_answer_leaves_the_rest_to_a_subscription(
    dev_cluster: DevCluster, asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = dev_cluster.create_topic("bulk_damaged", sync_every=1)
    lots = mixed(6)
    publish(asked, topic, lots)
    given = options(asked, topic)
    ranges = plan(given, asked)
    calls = [0]

    def damage(pulled: Pulled, asked: Range) -> tuple[StoredMessages, int] | None:
        calls[0] += 1
        if calls[0] == 5:
            raise DamagedLogError("the messages of an entry of the log do not fill it")
        return cut(pulled, asked)

    monkeypatch.setattr(bulk_module, "cut", damage)
    with subscriptions() as used:
        rows = table(read_ranges(ranges, given, ALL))
    assert rows["value"].to_pylist() == [body for lot in lots for body in lot]
    assert len(used) == 1
    assert used[0] > 0


def test_on_a_slow_link_a_subscription_reads_the_rest(
    dev_cluster: DevCluster, asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer came too late again and again, and the task failed."""
    topic = dev_cluster.create_topic("bulk_slow", sync_every=1)
    lots = mixed(8)
    publish(asked, topic, lots)
    given = options(asked, topic, fetchRetries="1")
    ranges = plan(given, asked)
    original = BulkLink.answer

    def slow(link: BulkLink, patience: float) -> Pulled | str:
        answer = original(link, patience)
        if link.answered > 1:
            raise ResponseTimeoutError("nsqd sent only a part of an answer in time")
        return answer

    monkeypatch.setattr(BulkLink, "answer", slow)
    with subscriptions() as used:
        rows = table(read_ranges(ranges, given, ALL))
    assert rows["value"].to_pylist() == [body for lot in lots for body in lot]
    assert used == [0]
