"""Replays on the dev cluster: exact rows whatever happens to leaders; no Spark yet."""

from collections.abc import Callable, Mapping

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConnectError
from nsq_ha.message import Message
from nsq_ha.policy.topology import Node
from nsq_ha.spark.cluster import BlockingCluster, Extent
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan.batch_planner import Range, plan
from nsq_ha.spark.plan.metadata import MANY
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.read.range_reader import RangeReader
from tests.devcluster.probes import until
from tests.spark.conftest import Publish
from tests.spark.streams import channels_of
from tests.support.spark_rows import delivered


def options(asked: BlockingCluster, topic: str, **more: str) -> ReadOptions:
    return ReadOptions.parse({"lookupd": ",".join(asked.lookupd), "topic": topic, "fetchTimeout": "1s", **more})


def read(
    part: Range, given: ReadOptions, asked: BlockingCluster, between: Callable[[], None] | None = None
) -> list[Message]:
    """Read a range; ``between`` is called once, after the first portion."""
    got: list[Message] = []
    for batch in delivered(RangeReader(part, given, asked)):
        got += batch
        if between is not None:
            between()
            between = None
    return got


def assert_chain(part: Range, rows: list[Message]) -> None:
    ends = [row.offset + row.raw_size for row in rows if row.offset is not None and row.raw_size is not None]
    assert [row.offset for row in rows] == [part.start, *ends[:-1]]
    assert ends[-1] == part.end


@pytest.mark.parametrize(
    ("name", "kind"), [("plain", {}), ("in_order", {"ordered": True}), ("headed", {"extended": True})]
)
def test_every_kind_of_topic_comes_back_whole_and_leaves_no_channel(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, name: str, kind: dict[str, bool]
) -> None:
    topic = dev_cluster.create_topic(f"whole_{name}", 2, **kind)
    sent = {partition: [b"%d of %d" % (number, partition) for number in range(700)] for partition in (0, 1)}
    for partition, bodies in sent.items():
        publish(topic, partition, bodies)
    given = options(asked, topic)
    ranges = plan(given, asked)
    assert [part.partition for part in ranges] == [0, 1]
    for part in ranges:
        rows = read(part, given, asked)
        assert_chain(part, rows)
        assert [row.body for row in rows] == sent[part.partition]
        assert [row.headers for row in rows[:2]] == ([{"n": "0"}, {"n": "1"}] if name == "headed" else [{}, {}])
    until(lambda: not channels_of(asked, topic))  # an ephemeral channel goes a moment after its client


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small reads keep the server ahead of the reader, so that there is something to lose.
    monkeypatch.setattr("nsq_ha.spark.connection.READ_BYTES", 4096)


@pytest.mark.few(2)
@pytest.mark.usefixtures("small_portions")
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("fault", ["move_leader", "kill", "cut"])
def test_the_same_rows_come_when_the_leader_changes_in_the_middle(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, fault: str, *, ordered: bool
) -> None:
    topic = dev_cluster.create_topic(f"{fault}_{ordered}", 1, ordered=ordered)
    publish(topic, 0, [b"%04d" % number for number in range(2000)])
    given = options(asked, topic, arrowBatchRows="50")
    (part,) = plan(given, asked)
    undisturbed = [(row.offset, row.id, row.body, row.timestamp_ns) for row in read(part, given, asked)]
    leader = dev_cluster.leader(topic)
    assert leader is not None

    def happen() -> None:
        if fault == "move_leader":
            dev_cluster.move_leader(topic)
        else:
            getattr(dev_cluster, fault)(leader)

    try:
        disturbed = read(part, given, asked, happen)
    finally:
        if not dev_cluster.is_up(leader):
            dev_cluster.start(leader)
    assert_chain(part, disturbed)
    assert [(row.offset, row.id, row.body, row.timestamp_ns) for row in disturbed] == undisturbed


def test_many_topics_are_planned_with_one_question_to_each_nsqd(
    dev_cluster: DevCluster, asked: BlockingCluster, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [dev_cluster.create_topic(f"many_{number}", 1, sync_every=1) for number in range(MANY)]
    for topic in topics:
        publish(topic, 0, [topic.encode()] * 3)
    questions: list[tuple[Node, str | None]] = []
    ask = BlockingCluster._extents  # noqa: SLF001 - what is counted

    def counted(self: BlockingCluster, node: Node, topic: str | None) -> Mapping[str, dict[int, Extent]]:
        questions.append((node, topic))
        return ask(self, node, topic)

    given = ReadOptions.parse(
        {
            "lookupd": ",".join(asked.lookupd),
            "subscribePattern": "many_.*",
            "metadataRefresh": "0",
            "startingOffsets": "earliest",
        },
        "stream",
    )
    planner = StreamPlanner(given, asked)
    begin = planner.initial()
    monkeypatch.setattr(BlockingCluster, "_extents", counted)
    end = planner.latest(begin)
    assert {topic: [*partitions] for topic, partitions in begin.items()} == {topic: ["0"] for topic in topics}
    assert all(end[topic]["0"] > begin[topic]["0"] for topic in topics)
    leaders = {asked.view(topic).leaders[0] for topic in topics}
    assert sorted(node.address for node, _ in questions) == sorted(node.address for node in leaders)
    assert {topic for _, topic in questions} == {None}
    silent = questions[0][0]

    def refused(self: BlockingCluster, node: Node, topic: str | None) -> Mapping[str, dict[int, Extent]]:
        if node == silent:
            raise ConnectError("no answer")
        return counted(self, node, topic)

    led = {topic: asked.view(topic).leaders[0] for topic in topics}
    monkeypatch.setattr(BlockingCluster, "_extents", refused)
    later = StreamPlanner(given, asked).latest(begin)
    assert {topic for topic in topics if later[topic] != begin[topic]} == {
        topic for topic in topics if led[topic] != silent
    }
