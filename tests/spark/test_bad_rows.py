"""Rows that cannot be published: they end the write, are dropped and counted, or go to the dead letters."""

import base64
import datetime
import itertools
import json
import logging
import pickle
from typing import Any, TypeVar

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions, WriteOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.read.range_reader import RangeReader
from nsq_ha.spark.sink import NsqBatchWriter, NsqStreamWriter, TaskWritten
from tests.support.spark_rows import delivered

VALUE, KEY = StructField("value", BinaryType()), StructField("key", StringType())
TOPIC = StructField("topic", StringType())
HUGE = b"x" * (MAX_MESSAGE_BYTES + 1)
GOOD = [b"%03d" % number for number in range(100)]
T = TypeVar("T")
names = (f"bad_rows_{number}" for number in itertools.count())


def stored(asked: BlockingCluster, topic: str) -> list[Message]:
    given = ReadOptions.parse({"lookupd": ",".join(asked.lookupd), "topic": topic, "fetchTimeout": "1s"})
    return [row for part in plan(given, asked) for rows in delivered(RangeReader(part, given, asked)) for row in rows]


def bodies(asked: BlockingCluster, topic: str) -> list[bytes]:
    return [row.body for row in stored(asked, topic)]


def batch_of(columns: dict[str, Any]) -> Any:  # noqa: ANN401 - pyarrow has no types
    kinds = {"value": pa.binary(), "key": pa.string(), "topic": pa.string()}
    return pa.RecordBatch.from_pydict({name: pa.array(cells, kinds[name]) for name, cells in columns.items()})


def pickled(thing: T) -> T:
    """Return what Spark makes of it between driver and task."""
    copy: T = pickle.loads(pickle.dumps(thing))  # noqa: S301 - our own
    return copy


def write(dev_cluster: DevCluster, topic: str, columns: dict[str, Any], **more: str) -> TaskWritten:
    """Write one record batch as a task does; gives what it tells the driver, as the driver gets it."""
    fields = {"value": VALUE, "key": KEY, "topic": TOPIC}
    given = {"lookupd": dev_cluster.lookupd[0], **({} if "topic" in columns else {"topic": topic}), **more}
    writer = NsqBatchWriter(given, StructType([fields[name] for name in columns]), overwrite=False)
    result: TaskWritten = pickled(pickled(writer).write(iter([batch_of(columns)])))
    writer.commit([result])
    return result


def with_bad_rows(*bad: bytes | None) -> list[bytes | None]:
    """Put bad rows among the good ones, far apart."""
    rows: list[bytes | None] = [*GOOD]
    for number, row in enumerate(bad):
        rows.insert(17 + 31 * number, row)
    return rows


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (None, "row 17 of the task has no value: NSQ accepts no empty message"),
        (b"", "row 17 of the task has no value: NSQ accepts no empty message"),
        (HUGE, f"row 17 of the task has a value of {len(HUGE)} bytes"),
    ],
)
def test_by_default_one_bad_row_ends_the_write_and_is_named(
    dev_cluster: DevCluster, bad: bytes | None, said: str
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    with pytest.raises(ConfigError, match=said):
        write(dev_cluster, topic, {"value": with_bad_rows(bad)})


def test_bad_rows_are_dropped_and_counted(
    dev_cluster: DevCluster, asked: BlockingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    with caplog.at_level(logging.WARNING, "nsq_ha.spark"):
        result = write(dev_cluster, topic, {"value": with_bad_rows(None, b"", HUGE)}, onBadRow="drop")
    assert (result.bad.dropped, result.bad.dead_letters) == (3, 0)
    assert bodies(asked, topic) == GOOD
    committed = caplog.messages[-1]
    assert "100 messages" in committed
    assert "3 rows dropped, 0 sent to the dead-letter topic, the first: row 17 of the task has no value" in committed
    assert len([line for line in caplog.messages if line.startswith("a row was dropped: row 17")]) == 1


def age_of(text: str) -> float:
    return (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(text)).total_seconds()


@pytest.mark.parametrize("extended", [False, True])
def test_bad_rows_go_to_the_dead_letters(dev_cluster: DevCluster, asked: BlockingCluster, extended: bool) -> None:
    topic = dev_cluster.create_topic(next(names), 1, ordered=True)
    dead = dev_cluster.create_topic(next(names), 2, extended=extended)
    rows = with_bad_rows(b"no key", b"", HUGE)
    keys = [None if row == b"no key" else "k" for row in rows]
    more = {"onBadRow": "deadLetter", "deadLetterTopic": dead, "trace": "true"}
    result = write(dev_cluster, topic, {"value": rows, "key": keys}, **more)
    assert (result.bad.dropped, result.bad.dead_letters) == (0, 3)
    assert bodies(asked, topic) == GOOD
    letters = sorted((json.loads(body) for body in bodies(asked, dead)), key=lambda letter: letter["size"])
    assert [letter["size"] for letter in letters] == [0, 6, len(HUGE)]
    empty, keyless, huge = letters
    origins = [letter.pop("spark") for letter in letters]
    assert [origin["row"] for origin in origins] == [48, 17, 79]
    assert {(origin["query"], origin["batch"], origin["task"]) for origin in origins} == {(None, None, 0)}
    assert len({origin["write"] for origin in origins}) == 1
    assert all(abs(age_of(origin["at"])) < 600 for origin in origins)
    assert keyless == {
        "reason": f"row 17 of the task has no key, and topic {topic!r} is ordered",
        "topic": topic,
        "key": None,
        "size": 6,
        "value": base64.b64encode(b"no key").decode(),
        "truncated": False,
    }
    assert empty["key"] == "k"
    assert "no value" in empty["reason"]
    assert huge["truncated"]
    assert HUGE.startswith(base64.b64decode(huge["value"]))


def test_a_row_without_a_topic_is_a_bad_row_and_an_unknown_topic_is_not(
    dev_cluster: DevCluster, asked: BlockingCluster
) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    columns = {"value": [b"a", b"b", b"c"], "topic": [topic, None, topic]}
    with pytest.raises(ConfigError, match="row 1 of the task has no topic"):
        write(dev_cluster, "", columns)
    asked_again = write(dev_cluster, "", columns, onBadRow="drop")
    assert asked_again.bad.first == "row 1 of the task has no topic"
    assert bodies(asked, topic) == [b"a", b"c"]
    with pytest.raises(Exception, match="there is no topic 'bad_rows_nowhere'"):
        write(dev_cluster, "", {"value": [b"a"], "topic": ["bad_rows_nowhere"]}, onBadRow="drop")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"onBadRow": "ignore"}, "option 'onBadRow': must be 'fail', 'drop' or 'deadLetter', not 'ignore'"),
        ({"onBadRow": "deadLetter"}, "option 'deadLetterTopic': is missing"),
        ({"deadLetterTopic": "dead"}, "option 'deadLetterTopic': needs onBadRow=deadLetter"),
        ({"onBadRow": "deadletter", "deadLetterTopic": "t"}, "option 'deadLetterTopic': is the topic of the write"),
        ({"onBadRow": "deadLetter", "deadLetterTopic": "a b"}, "option 'deadLetterTopic'"),
    ],
)
def test_options_that_do_not_agree(given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        WriteOptions.parse({"lookupd": "127.0.0.1:4161", "topic": "t", **given})


def test_dead_letters_need_their_topic_when_the_write_is_planned(dev_cluster: DevCluster) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    more = {"onBadRow": "deadLetter", "deadLetterTopic": "bad_rows_nowhere"}
    with pytest.raises(Exception, match="there is no topic 'bad_rows_nowhere'"):
        write(dev_cluster, topic, {"value": [b"a"]}, **more)


# ---------------------------------------------------------------- keys that are not stored


def test_a_key_that_is_only_used_to_choose_a_partition_is_warned_about(
    dev_cluster: DevCluster, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"value": [b"a"], "key": ["k"]}
    plain, headed = dev_cluster.create_topic(next(names), 1), dev_cluster.create_topic(next(names), 1, extended=True)
    ordered = dev_cluster.create_topic(next(names), 1, ordered=True)
    with caplog.at_level(logging.WARNING, "nsq_ha.spark"):
        for topic in (plain, headed, ordered):
            write(dev_cluster, topic, columns)
    (line,) = caplog.messages
    assert line.startswith(f"topic {plain!r}: column 'key' chooses the partition but is not stored")


def test_a_key_that_is_used_for_nothing_is_refused(dev_cluster: DevCluster) -> None:
    topic = dev_cluster.create_topic(next(names), 1)
    with pytest.raises(ConfigError, match="column 'key' would be lost: partitioner=roundrobin does not use it"):
        write(dev_cluster, topic, {"value": [b"a"], "key": ["k"]}, partitioner="roundrobin")


# ---------------------------------------------------------------- trace ids of micro-batches


class TaskContext:
    """Stands in for Spark's context of a task."""

    def __init__(self, **properties: str) -> None:
        self.properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name.rpartition(".")[2])

    def partitionId(self) -> int:  # noqa: N802
        return 0


def in_task(monkeypatch: pytest.MonkeyPatch, context: TaskContext | None) -> None:
    """Let Spark say what task this is."""
    monkeypatch.setattr("pyspark.TaskContext.get", lambda: context)


@pytest.fixture
def stream_ids(dev_cluster: DevCluster, asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    topic = dev_cluster.create_topic(next(names), 1)
    known: list[int] = []

    def ids(kind: type[NsqStreamWriter | NsqBatchWriter], context: TaskContext | None, **more: str) -> list[int]:
        in_task(monkeypatch, context)
        given = {"lookupd": dev_cluster.lookupd[0], "topic": topic, **more}
        writer = kind(given, StructType([VALUE, KEY]), overwrite=False)
        writer.write(iter([batch_of({"value": [b"a", b"b"], "key": ["k", "k"]})]))
        found = [message.trace_id for message in stored(asked, topic)]
        new, known[:] = found[len(known) :], found
        return new

    return ids


@pytest.mark.parametrize("context", [None, TaskContext(), TaskContext(queryId="q"), TaskContext(batchId="7")])
def test_a_micro_batch_that_spark_does_not_name_gets_no_made_ids(stream_ids: Any, context: TaskContext | None) -> None:  # noqa: ANN401
    """They would come again in the next micro-batch, and ``drop_repeats`` would delete its rows."""
    with pytest.raises(
        ConfigError, match=r"option 'trace': Spark did not provide .*streaming\.sql\.batchId.*traceIdColumn"
    ):
        stream_ids(NsqStreamWriter, context, trace="true")
    assert stream_ids(NsqStreamWriter, context) == [0, 0]


def test_ids_of_a_micro_batch_are_those_of_its_query_and_number(stream_ids: Any) -> None:  # noqa: ANN401
    first = stream_ids(NsqStreamWriter, TaskContext(queryId="q", batchId="0"), trace="true")
    assert len(set(first)) == 2
    assert first == stream_ids(NsqStreamWriter, TaskContext(queryId="q", batchId="0"), trace="true")
    assert not set(first) & set(stream_ids(NsqStreamWriter, TaskContext(queryId="q", batchId="1"), trace="true"))


def test_a_dead_letter_names_query_micro_batch_and_task(
    dev_cluster: DevCluster, asked: BlockingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = dev_cluster.create_topic(next(names), 1), dev_cluster.create_topic(next(names), 1)
    in_task(monkeypatch, TaskContext(queryId="q", batchId="7"))
    given = {"lookupd": dev_cluster.lookupd[0], "topic": topic, "onBadRow": "deadLetter", "deadLetterTopic": dead}
    NsqStreamWriter(given, StructType([VALUE]), overwrite=False).write(iter([batch_of({"value": [b"a", b""]})]))
    (letter,) = map(json.loads, bodies(asked, dead))
    origin = letter["spark"]
    assert [origin[name] for name in ("query", "batch", "task", "row")] == ["q", "7", 0, 1]


def test_two_writes_of_one_foreach_batch_share_no_ids(stream_ids: Any) -> None:  # noqa: ANN401
    context = TaskContext(queryId="q", batchId="0")
    ids = [number for _ in range(2) for number in stream_ids(NsqBatchWriter, context, trace="true")]
    assert len(set(ids)) == 4


def test_a_write_that_has_a_name_has_the_same_ids_if_it_is_repeated(stream_ids: Any) -> None:  # noqa: ANN401
    context = TaskContext(queryId="q", batchId="0")
    first = stream_ids(NsqBatchWriter, context, trace="true", writeId="q/0/alerts")
    assert first == stream_ids(NsqBatchWriter, context, trace="true", writeId="q/0/alerts")
    assert not set(first) & set(stream_ids(NsqBatchWriter, context, trace="true", writeId="q/1/alerts"))
    with pytest.raises(ConfigError, match="option 'writeId': is for batch writes"):
        stream_ids(NsqStreamWriter, context, trace="true", writeId="q/0/alerts")
