"""Without any nsqlookupd: known leaders are read and written, nothing ends, and one warning says so.

The cluster is silent for many times as long as a read is patient; the real one was for ten minutes.
"""

import itertools
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from nsq_ha.devcluster import DevCluster
from nsq_ha.policy.topology import Node, TopicView
from nsq_ha.protocol.encoding import MAGIC, encode_mpub
from nsq_ha.spark import cluster as cluster_module
from nsq_ha.spark.cluster import BlockingCluster, worker_cluster
from nsq_ha.spark.options import ReadOptions, WriteOptions
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.sink import NsqBatchWriter, TaskWritten
from nsq_ha.spark.source import NsqStreamReader
from tests.devcluster.probes import until

VALUE, PARTITION = StructField("value", BinaryType()), StructField("partition", IntegerType())
PATIENCE = 1.0
SILENCE = 4 * PATIENCE
LOOKUPDS = ("nsqlookupd-0", "nsqlookupd-1")
names = (f"silent_{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def lonely() -> Iterator[DevCluster]:
    with DevCluster(nsqlookupds=2, time_scale=0.02) as cluster:
        yield cluster


@pytest.fixture(params=["freeze", "kill"])
def silence(request: pytest.FixtureRequest, lonely: DevCluster) -> Iterator[Callable[[], None]]:
    """Freeze or kill all nsqlookupds; they come back after the test."""
    act: Callable[[str], None] = getattr(lonely, request.param)
    back = lonely.thaw if request.param == "freeze" else lonely.start

    def silenced() -> None:
        for each in LOOKUPDS:
            act(each)

    yield silenced
    for each in LOOKUPDS:
        if not lonely.is_up(each):
            back(each)
    until(lambda: all(lonely.is_up(each) for each in LOOKUPDS))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a client lose patience with nsqlookupds as quickly as with everything else here."""
    monkeypatch.setattr(cluster_module, "_ROUTINE_TIMEOUT", 0.05)
    monkeypatch.setattr(cluster_module, "ROUTINE", 0.05)
    monkeypatch.setattr(cluster_module, "_ROUTINE_PAUSE", 0.5)


def view_of(lonely: DevCluster, topic: str) -> TopicView:
    with BlockingCluster(tuple(lonely.lookupd)) as asked:
        until(lambda: len(asked.view(topic).leaders) == 2)
        return asked.view(topic)


def publish(topic: str, partition: int, leader: Node, bodies: list[bytes]) -> None:
    with socket.create_connection((leader.host, leader.tcp_port), 10) as connection:
        connection.sendall(MAGIC + encode_mpub(topic, partition, bodies))
        assert b"OK" in connection.recv(100)


def options(lonely: DevCluster, topic: str, **more: str) -> dict[str, str]:
    given = {"lookupd": ",".join(lonely.lookupd), "topic": topic, "startingOffsets": "earliest"}
    return given | {"fetchTimeout": f"{PATIENCE:g}s", "fetchRetries": "0"} | more


def reader_of(given: dict[str, str]) -> NsqStreamReader:
    return NsqStreamReader(ReadOptions.parse(given, "stream"), Projection(StructType([VALUE, PARTITION])))


@pytest.mark.few(1)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("more", [{}, {"topic": "", "subscribePattern": "{topic}.*"}], ids=["topic", "pattern"])
def test_a_stream_reads_on_and_warns_once(
    lonely: DevCluster, silence: Callable[[], None], caplog: pytest.LogCaptureFixture, more: dict[str, str]
) -> None:
    topic = lonely.create_topic(next(names), 2)
    view = view_of(lonely, topic)
    given = {name: text.format(topic=topic) for name, text in (options(lonely, topic) | more).items()}
    reader = reader_of({name: text for name, text in given.items() if text})
    seen: list[tuple[int, bytes]] = []
    sent: list[tuple[int, bytes]] = []
    at = reader.initialOffset()

    def batch() -> None:
        nonlocal at
        number = len(sent)
        for partition in (0, 1):
            bodies = [b"%06d" % (number + each) for each in range(3)]
            publish(topic, partition, view.leaders[partition], bodies)
            sent.extend((partition, body) for body in bodies)
        while len(seen) < len(sent):
            end = json.loads(json.dumps(reader.latestOffset(at)))
            for part in reader.partitions(at, end):
                for rows in reader.read(part):
                    seen.extend(
                        zip(rows.column("partition").to_pylist(), rows.column("value").to_pylist(), strict=True)
                    )
            at = end

    with caplog.at_level(logging.WARNING):
        batch()
        silence()
        end = time.monotonic() + SILENCE
        while time.monotonic() < end:
            batch()
    reader.stop()
    assert sorted(seen) == sorted(sent)
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1, warned
    assert warned[0].startswith("no nsqlookupd answers, going on with the servers known so far: ")


@pytest.mark.few(1)
@pytest.mark.usefixtures("quick")
def test_micro_batches_are_written_on(
    lonely: DevCluster, silence: Callable[[], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark creates a writer for each plan and each commit, in processes that it uses again."""
    topic = lonely.create_topic(next(names), 2)
    view_of(lonely, topic)
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    given = {"lookupd": ",".join(lonely.lookupd), "topic": topic, "publishTimeout": f"{PATIENCE:g}s"}
    numbers = itertools.count()
    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32())])

    def batch() -> None:
        parts = [b"%06d" % next(numbers) for _ in range(10)]
        rows = pa.RecordBatch.from_pydict({"value": parts, "partition": [0, 1] * 5}, schema)
        written: Any = NsqBatchWriter(given, StructType([VALUE, PARTITION]), overwrite=False).write(iter([rows]))
        assert isinstance(written, TaskWritten)
        assert sum(part.rows for part in written.parts.values()) == 10
        NsqBatchWriter(given, StructType([VALUE, PARTITION]), overwrite=False).commit([written])

    batch()
    with caplog.at_level(logging.WARNING):
        silence()
        end = time.monotonic() + SILENCE
        while time.monotonic() < end:
            batch()
    assert [record.getMessage()[:22] for record in caplog.records] == ["no nsqlookupd answers,"]
    monkeypatch.delenv("SPARK_REUSE_WORKER")
    with worker_cluster(WriteOptions.parse(given).lookupd):
        pass  # closes what was kept


def test_one_nsqlookupd_that_is_frozen_hides_no_topic(lonely: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_ROUTINE_TIMEOUT", 5.0)
    topic = lonely.create_topic(next(names), 1)
    with BlockingCluster(tuple(lonely.lookupd), timeout=30.0) as asked:
        assert topic in asked.topics()
        later = lonely.create_topic(next(names), 1)
        lonely.freeze(LOOKUPDS[0])
        try:
            assert later in asked.topics(0.001)
            assert asked.silence is None
        finally:
            lonely.thaw(LOOKUPDS[0])
