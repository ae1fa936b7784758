"""The plan of a stream: offsets never go back, limits hold, and every message is in one micro-batch."""

import json
import logging
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import (
    ConfigError,
    ConnectError,
    DataLossError,
    LookupUnavailableError,
    NoLeaderError,
    ResponseTimeoutError,
    TopicNotFoundError,
)
from nsq_ha.policy.topology import Node, TopicView
from nsq_ha.spark.checkpoint import OLD, PLANNED, RESTARTED, dated
from nsq_ha.spark.cluster import ROUTINE, Extent
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.plan.boundaries import PartitionLog
from nsq_ha.spark.plan.metadata import MANY
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from tests.devcluster.probes import until
from tests.spark.model import NODES, Log, Model

Given = dict[str, str]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


def planner(model: Model, **options: str) -> StreamPlanner:
    shown = {"lookupd": "127.0.0.1:4161", "topic": "t", "startingOffsets": "earliest", "metadataRefresh": "0"}
    given = ReadOptions.parse(shown | {"fetchTimeout": "50ms", "fetchRetries": "1"} | options, "stream")
    return StreamPlanner(given, model.cluster)


def two(one: Log | None = None, other: Log | None = None) -> Model:
    return Model({"t": {0: one or Log([10] * 10), 1: other or Log([10] * 5, cleaned=2)}})


def bounds(plan: StreamPlanner, start: dict[str, Any], end: dict[str, Any]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in plan.ranges(start, end)}


def test_a_new_query_begins_where_it_is_set_and_keeps_to_it() -> None:
    model = two()
    plan = planner(model)
    assert plan.initial() == {"t": {"0": 0, "1": 20}}
    latest = planner(model, startingOffsets="latest")
    assert latest.initial() == {"t": {"0": 100, "1": 50}}
    model.topics_["t"][0].sizes = [10] * 20
    assert latest.initial() == {"t": {"0": 100, "1": 50}}, "Spark asks twice"
    shown = {"startingOffsets": json.dumps({"t": {"0": 31, "1": -1}})}
    assert planner(model, **shown).initial() == {"t": {"0": 40, "1": 50}}


def test_a_micro_batch_goes_to_the_ends_of_the_logs() -> None:
    plan = planner(two())
    begin = plan.initial()
    end = plan.latest(begin)
    assert end == plan.report() == {"t": {"0": 100, "1": 50}}
    assert bounds(plan, begin, end) == {0: (0, 100), 1: (20, 50)}
    assert plan.latest(end) == end
    assert bounds(plan, end, end) == {}, "partitions without news have no task"


def test_a_partition_that_is_added_is_read_from_its_beginning() -> None:
    model = two()
    plan = planner(model)
    begin = plan.latest(None)
    model.topics_["t"][2] = Log([10] * 3, cleaned=1)
    end = plan.latest(begin)
    assert end["t"]["2"] == 30
    assert bounds(plan, begin, end) == {2: (10, 30)}


@pytest.mark.parametrize("trouble", ["leaderless", "deaf"])
def test_a_partition_whose_leader_is_gone_stands_still_and_stops_nobody(trouble: str) -> None:
    model = two()
    plan = planner(model)
    begin = plan.initial()
    if trouble == "leaderless":
        model.leaderless.add(("t", 0))
    else:
        model.deaf.add(NODES[0])
    end = plan.latest(begin)
    assert end == {"t": {"0": 0, "1": 50}}
    assert bounds(plan, begin, end) == {1: (20, 50)}
    model.leaderless.clear()
    model.deaf.clear()
    assert plan.latest(end) == {"t": {"0": 100, "1": 50}}


def test_the_end_of_a_partition_without_a_leader_is_reported_as_old() -> None:
    model = two()
    plan = planner(model, maxOffsetsPerTrigger="4")
    begin = plan.latest(plan.initial())
    model.leaderless.add(("t", 0))
    end = plan.latest(begin)
    assert (end["t"]["0"], plan.report()) == (30, {"t": {"0": 100, "1": 50}, OLD: {"t": {"0": 100}}})
    again = planner(model)
    again.latest(begin)
    assert again.report() == {"t": {"0": 30, "1": 50}, OLD: {"t": {"0": 30}}}, "it has never seen the end"
    model.leaderless.clear()
    again.latest(begin)
    assert again.report() == {"t": {"0": 100, "1": 50}}


def test_no_end_is_old_of_what_is_gone_for_good() -> None:
    model = two()
    model.topics_["u"] = {0: Log([10])}
    plan = planner(model, topic="t,u", failOnDataLoss="false")
    begin = plan.latest(plan.initial())
    del model.topics_["u"], model.topics_["t"][1]
    assert plan.latest(begin)["u"] == {"0": 10}
    assert plan.report() == {"t": {"0": 100}}


def test_where_a_partition_begins_that_the_checkpoint_lacks_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """From offset 0 the task would miss the deleted messages before its beginning."""
    model = two()
    model.leaderless.add(("t", 1))
    begin, end = {"t": {"0": 0}}, {"t": {"0": 50, "1": 50}}
    with pytest.raises(NoLeaderError, match="t-1: its leader does not answer"):
        planner(model).ranges(begin, end)
    asked = model.view

    def elected(topic: str, max_age: float = 0.0) -> TopicView:
        found = asked(topic, max_age)
        model.leaderless.clear()
        return found

    monkeypatch.setattr(model, "view", elected)
    assert bounds(planner(model), begin, end) == {0: (0, 50), 1: (20, 50)}


def test_a_limit_of_rows_is_divided_by_backlog() -> None:
    plan = planner(two(), maxOffsetsPerTrigger="4")
    begin = plan.initial()
    # 10 and 3 rows wait: three and one.
    assert plan.latest(begin) == {"t": {"0": 30, "1": 30}}
    assert plan.latest(begin, limited=False) == {"t": {"0": 100, "1": 50}}


@pytest.mark.parametrize(
    ("limit", "ends"), [({"maxOffsetsPerTrigger": "10"}, (600, 300)), ({"maxBytesPerTrigger": "1000"}, (700, 400))]
)
def test_a_limit_is_shared_by_all_topics_and_leaves_no_small_one_out(limit: Given, ends: tuple[int, int]) -> None:
    model = Model({"large": {0: Log([100] * 600), 1: Log([100] * 300)}, "small": {0: Log([100] * 2)}})
    plan = planner(model, topic="large,small", **limit)
    assert plan.latest(plan.initial()) == {"large": {"0": ends[0], "1": ends[1]}, "small": {"0": 100}}


def test_partitions_advance_to_a_common_time() -> None:
    old, young = Log([10] * 4, times_ms=(1_000, 2_000, 8_000, 9_000)), Log([10] * 3, times_ms=(5_000, 6_000, 11_500))
    plan = planner(two(old, young), maxTimePerTrigger="3s")
    offset, seen = plan.initial(), []
    while (following := plan.latest(offset)) != offset:
        offset = following
        seen.append((following["t"]["0"], following["t"]["1"]))
    assert seen == [(20, 0), (20, 20), (40, 20), (40, 30)]
    assert planner(two(old, young), maxTimePerTrigger="1h").latest(plan.initial()) == {"t": {"0": 40, "1": 30}}


def test_a_log_whose_times_go_back_advances() -> None:
    model = two(Log([10] * 5, times_ms=(1_000, 9_000, 2_000, 9_500, 1_500)), Log([10], times_ms=(1_200,)))
    plan = planner(model, maxTimePerTrigger="1s", maxOffsetsPerTrigger="2")
    offset = plan.initial()
    for _ in range(5):
        offset = plan.latest(offset)
    assert offset == {"t": {"0": 50, "1": 10}}


def test_two_limits_together_leave_nobody_out_for_good() -> None:
    # By messages partition 1 has the larger backlog, by bytes partition 0.
    model = two(Log([1000]), Log([1] * 3))
    plan = planner(model, maxOffsetsPerTrigger="1", maxBytesPerTrigger="1")
    offset = plan.initial()
    plan.prepare_target()
    for _ in range(3):
        before, offset = offset, plan.latest(offset)
        assert before != offset
    assert offset == {"t": {"0": 1000, "1": 3}}


def test_a_batch_waits_for_enough_rows_but_not_for_ever() -> None:
    model = two()
    begin = planner(model).initial()
    patient = planner(model, minOffsetsPerTrigger="14", maxTriggerDelay="1h")
    assert patient.latest(begin) == begin
    model.topics_["t"][0].sizes = [10] * 11
    assert patient.latest(begin) == {"t": {"0": 110, "1": 50}}
    assert planner(model, minOffsetsPerTrigger="100", maxTriggerDelay="0").latest(begin)["t"]["0"] == 110


@given(
    st.lists(st.lists(st.integers(1, 30), max_size=12), min_size=1, max_size=3),
    st.sampled_from(
        [
            {},
            {"maxOffsetsPerTrigger": "3"},
            {"maxBytesPerTrigger": "25"},
            {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "40"},
            {"maxTimePerTrigger": "2ms"},
            {"maxTimePerTrigger": "3ms", "maxOffsetsPerTrigger": "2", "maxBytesPerTrigger": "25"},
        ]
    ),
    st.booleans(),
)
def test_every_message_is_in_exactly_one_micro_batch(logs: list[list[int]], limits: Given, now: bool) -> None:
    model = Model({"t": {number: Log(sizes) for number, sizes in enumerate(logs)}})
    plan = planner(model, **limits)
    begin = plan.initial()
    if now:
        plan.prepare_target()
        # What comes later is not this query's.
        model.topics_["t"][0].sizes = [*logs[0], 7]
    seen: dict[int, list[int]] = {number: [] for number in range(len(logs))}
    for _ in range(sum(map(len, logs)) + 2):
        end = plan.latest(begin)
        rows = 0
        for part in plan.ranges(begin, end):
            offsets = model.topics_["t"][part.partition].offsets
            assert {part.start, part.end} <= set(offsets)
            inside = [at for at in offsets if part.start <= at < part.end]
            rows += len(inside)
            seen[part.partition] += inside
        if "maxOffsetsPerTrigger" in limits:
            assert rows < int(limits["maxOffsetsPerTrigger"]) + len(logs)
        if end == begin:
            break
        begin = end
    assert seen == {number: Log(sizes).offsets[:-1] for number, sizes in enumerate(logs)}


def test_what_there_is_now_is_reached_though_a_leader_is_gone() -> None:
    model = two()
    plan = planner(model)
    begin = plan.initial()
    plan.prepare_target()
    model.deaf.add(NODES[0])
    model.topics_["t"][2] = Log([10])
    assert plan.latest(begin) == {"t": {"0": 100, "1": 50}}, "to stand still would end the query too early"


SECOND = 1_000_000_000_000
"""Milliseconds of a time at which offsets were taken."""


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "4"}, {"minOffsetsPerTrigger": "900"}], ids=str)
@pytest.mark.parametrize(("first", "at"), [(SECOND + 9000, 20), (SECOND - 9000, 100)], ids=["created again", "cut"])
@pytest.mark.parametrize("now", [True, False])
def test_a_log_that_is_shorter_is_read_only_where_it_was_created_again(
    first: int, at: int, now: bool, limit: Given
) -> None:
    # What follows the first message may be younger either way.
    log = Log([10] * 10, [0, 0, first, *[SECOND + 9000] * 7], cleaned=2)
    plan = planner(two(log), failOnDataLoss="false", **limit)
    if now:
        plan.prepare_target()
    start: dict[str, Any] = {"t": {"0": 200, "1": 50}, PLANNED: SECOND // 1000}
    end = plan.latest(start)
    assert end == {"t": {"0": at, "1": 50}, RESTARTED: {"t": {"0": at}}}, "at once, whatever it is to wait for"
    assert bounds(plan, start, end) == {}, "a step back reads nothing"
    read = []
    for _ in range(10):
        start, end = dated(end, SECOND / 1000 + 20), plan.latest(dated(end, SECOND / 1000 + 20))
        read += list(bounds(plan, start, end).values())
    if "minOffsetsPerTrigger" not in limit or now:
        assert end["t"] == {"0": 100, "1": 50}
        assert [low for low, _ in read] == ([at, *[high for _, high in read[:-1]]] if at < 100 else [])


def test_of_many_topics_some_are_looked_up_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    names, ages, view = [f"t{number:02}" for number in range(3 * MANY)], [], Model.view

    def noted(self: Model, topic: str, max_age: float = 0.0) -> TopicView:
        ages.append(max_age)
        return view(self, topic)

    plan = planner(Model({name: {0: Log([10])} for name in names}), topic=",".join(names), metadataRefresh="1ms")
    begin = plan.initial()
    monkeypatch.setattr(Model, "view", noted)
    until(lambda: plan.latest(begin) and ages)
    assert ages == sorted(MANY * [ROUTINE, 2 * ROUTINE, 3 * ROUTINE])


def test_a_topic_that_is_gone() -> None:
    model = two()
    with pytest.raises(TopicNotFoundError):
        planner(Model()).latest(None)
    plan, planned = planner(model), planner(model)
    begin = plan.latest(None)
    assert planned.latest(None) == begin
    del model.topics_["t"]
    with pytest.raises(DataLossError, match="t-0: the topic is gone"):
        plan.latest(begin)
    with pytest.raises(DataLossError, match="t-0: the topic is gone"):
        planned.ranges(begin, begin)
    lossy = planner(Model(), failOnDataLoss="false")
    assert lossy.latest(begin) == begin
    assert lossy.ranges(begin, begin) == []


@pytest.mark.parametrize("lossy", ["true", "false"])
@pytest.mark.parametrize(
    ("reads", "named"),
    [
        ({"topic": "t"}, "'t'"),
        ({"subscribe": "t,u"}, "'t', 'u'"),
        ({"subscribePattern": "[tu]"}, r"topics that match '\[tu\]'"),
        ({"assign": '{"t": [0, 1]}'}, "t-0, t-1"),
    ],
)
def test_the_checkpoint_of_another_query_is_named_as_what_it_is(reads: Given, named: str, lossy: str) -> None:
    model = two()
    model.topics_ |= {"a": {0: Log([10])}, "u": {0: Log([10])}}
    given = {"lookupd": "127.0.0.1:4161", "failOnDataLoss": lossy} | reads
    plan = StreamPlanner(ReadOptions.parse(given, "stream"), model.cluster)
    other = {"a": {"0": 10}, PLANNED: 5}
    said = (
        f"the checkpoint is that of another query: it has offsets of 'a', but this query reads {named}: "
        "give each query a checkpointLocation of its own"
    )
    with pytest.raises(ConfigError, match=said.replace("'a'", "(a-0|'a')")) as refused:
        plan.latest(other)
    assert "failOnDataLoss" not in str(refused.value)
    with pytest.raises(ConfigError, match="the checkpoint is that of another query"):
        plan.ranges({"a": {"0": 0}}, other)


def test_a_topic_that_a_query_reads_no_more_is_asked_about(caplog: pytest.LogCaptureFixture) -> None:
    model = two()
    model.topics_["a"] = {0: Log([10])}
    begin = {"a": {"0": 10}, "t": {"0": 20, "1": 50}}
    with pytest.raises(ConfigError) as refused:
        planner(model).latest(begin)
    assert str(refused.value) == (
        "the checkpoint also has offsets of 'a', which this query no longer reads: read it as before, or give the query"
        ' a new checkpointLocation and, to continue with the others, startingOffsets={"t": {"0": 20, "1": 50}}'
    )
    lossy = planner(model, failOnDataLoss="false")
    end = lossy.latest(begin)
    assert end == {"a": {"0": 10}, "t": {"0": 100, "1": 50}}, "its offset is kept"
    assert bounds(lossy, begin, end) == {0: (20, 100)}
    lossy.latest(end)
    assert [record.getMessage() for record in caplog.records] == [
        "the checkpoint also has offsets of 'a', which this query no longer reads; they stay there"
    ]


def test_a_partition_of_the_checkpoint_that_the_topic_lacks_is_data_loss(caplog: pytest.LogCaptureFixture) -> None:
    begin = {"t": {"0": 20, "1": 50, "7": 90}}
    lacks = r"^t-7: topic 't' has only 2 partitions; set failOnDataLoss=false"
    with pytest.raises(DataLossError, match=lacks):
        planner(two(), fetchTimeout="600s").latest(begin)
    with pytest.raises(DataLossError, match=lacks):
        planner(two(), fetchTimeout="600s").ranges(begin, begin)
    plan = planner(two())
    plan.latest({"t": {"0": 20}})
    assert plan.latest(begin) == {"t": {"0": 100, "1": 50, "7": 90}}, "an nsqlookupd may not have heard of it yet"
    assert bounds(plan, begin, {"t": {"0": 30, "1": 50, "7": 99}}) == {0: (20, 30), 7: (90, 99)}, (
        "the task waits for it"
    )
    with pytest.raises(DataLossError, match=lacks):
        until(lambda: not plan.latest(begin), 20.0)
    lossy = planner(two(), failOnDataLoss="false")

    def is_said() -> bool:
        assert lossy.latest(begin) == {"t": {"0": 100, "1": 50, "7": 90}}
        return any("t-7: topic 't' has only 2" in record.getMessage() for record in caplog.records)

    until(is_said)
    assert bounds(lossy, begin, {"t": {"0": 30, "1": 50, "7": 99}}) == {0: (20, 30)}
    reads_all = planner(two())
    reads_all.prepare_target()
    with pytest.raises((DataLossError, ResponseTimeoutError), match="has only 2 partitions"):
        reads_all.latest({"t": {"0": 100, "1": 50, "7": 90}})


def test_one_look_at_a_shorter_log_moves_nothing() -> None:
    model = two()
    plan = planner(model)
    begin = plan.latest(plan.initial())
    found, looks = model.extents, iter([True])

    def behind(topic: str, node: Node) -> dict[int, Extent]:
        extents = found(topic, node)
        return {0: Extent(0, 40, 4)} if 0 in extents and next(looks, False) else extents

    model.extents = behind  # type: ignore[method-assign]
    assert plan.latest(begin) == begin, "not back to 40"
    model.topics_["t"][0].sizes = [10] * 11
    assert plan.latest(begin) == {"t": {"0": 110, "1": 50}}


@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_shorter_log_whose_leader_goes_is_not_lost(lossy: str) -> None:
    model = two()
    plan = planner(model, failOnDataLoss=lossy)
    begin = {"t": {"0": 200, "1": 50}}
    found = model.extents

    def last_words(topic: str, node: Node) -> dict[int, Extent]:
        extents = found(topic, node)
        if 0 in extents:
            model.leaderless.add(("t", 0))
        return extents

    model.extents = last_words  # type: ignore[method-assign]
    assert plan.latest(begin) == begin, "an election takes longer than this looks"


def test_a_plan_that_goes_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planner(two())
    back = {"t": {"0": 40, "1": 50}}
    with pytest.raises(ConfigError, match="t-0: the plan goes back from offset 100 to 40, which would repeat messages"):
        plan.ranges({"t": {"0": 100, "1": 50}}, back)
    for marked in (back, back | {RESTARTED: {"t": {"1": 50}}, PLANNED: 5}):
        with pytest.raises(ConfigError, match="t-0: the plan goes back from offset 100 to 40"):
            # Of a version that took a wrong answer for an offset: no loss of data, so it is not allowed by name.
            planner(two(), failOnDataLoss="false").ranges({"t": {"0": 100, "1": 50}}, marked)
    with pytest.raises(ConfigError, match=r"t-0: the plan goes back from offset 100 to 40"):
        Range("t", 0, 100, 40, None, ordered=False, extended=False)
    monkeypatch.setattr(PartitionLog, "after_rows", lambda *_: 40)
    with pytest.raises(ConfigError, match="t-0: the plan goes back from offset 60 to 40"):
        planner(two(), maxOffsetsPerTrigger="2").latest({"t": {"0": 60, "1": 50}})


def test_a_partition_that_stands_still_for_long_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    model = two()
    plan = planner(model, maxOffsetsPerTrigger="4")
    begin = plan.initial()

    def gone(*_: object) -> None:
        raise ConnectError("gone")

    model.stored = gone  # type: ignore[method-assign, assignment]
    until = time.monotonic() + 60.0
    while "t-0 makes no progress" not in caplog.text and time.monotonic() < until:
        plan.latest(begin)
    for _ in range(20):
        plan.latest(begin)
    assert caplog.text.count("t-0 makes no progress: gone") == 1


def test_topics_of_a_pattern_come_and_go() -> None:
    model = two()
    plan = planner(model)
    options = ReadOptions.parse(
        {"lookupd": "127.0.0.1:4161", "subscribePattern": "t.*", "metadataRefresh": "0"}, "stream"
    )
    plan = StreamPlanner(options, model.cluster)
    begin = plan.initial()
    model.topics_["t2"] = {0: Log([5])}
    model.topics_["other"] = {0: Log([5])}
    assert plan.latest(begin) == {**begin, "t2": {"0": 5}}


@pytest.mark.parametrize("has_end", [False, True])
def test_a_topic_of_a_pattern_is_not_gone_because_an_nsqlookupd_that_just_started_lists_nothing(
    monkeypatch: pytest.MonkeyPatch, *, has_end: bool
) -> None:
    model = two()
    monkeypatch.setattr(model, "topics", lambda max_age=0.0: ())
    given = {"lookupd": "127.0.0.1:4161", "subscribePattern": "t.*", "metadataRefresh": "1m"}
    plan = StreamPlanner(ReadOptions.parse(given, "stream"), model.cluster)
    if has_end:
        plan.prepare_target()
    begin = {"t": {"0": 20, "1": 20}}
    end = plan.latest(begin)
    assert bounds(plan, begin, end) == {0: (20, 100), 1: (20, 50)}
    assert plan.latest(end) == end
    del model.topics_["t"]
    with pytest.raises(DataLossError, match="the topic is gone"):
        StreamPlanner(ReadOptions.parse(given, "stream"), model.cluster).latest(end)


@pytest.mark.parametrize("reads", [{"topic": "t"}, {"subscribePattern": "t.*"}])
def test_without_any_nsqlookupd_the_known_leaders_are_read(reads: Given, caplog: pytest.LogCaptureFixture) -> None:
    model = two()
    given = {"lookupd": "127.0.0.1:4161", "startingOffsets": "earliest", "metadataRefresh": "0"} | reads
    plan = StreamPlanner(
        ReadOptions.parse(given | {"fetchTimeout": "50ms", "fetchRetries": "0"}, "stream"), model.cluster
    )
    begin = plan.initial()
    model.silent = True
    until = time.monotonic() + 0.5  # ten times the patience of the read
    with caplog.at_level(logging.INFO):
        while time.monotonic() < until:
            log = model.topics_["t"][0]
            log.sizes = [*log.sizes, 10]
            end = plan.latest(begin)
            assert end["t"]["0"] == log.extent.end
            assert bounds(plan, begin, end)[0] == (begin["t"]["0"], log.extent.end)
            begin = end
        # A leader that dies now stops its partition, and no query.
        model.deaf.add(NODES[1])
        model.topics_["t"][1].sizes = [10] * 9
        assert plan.latest(begin) == begin
        model.deaf.clear()
        model.silent = False
        assert plan.latest(begin)["t"]["1"] == 90


def test_a_query_that_knows_no_leader_waits_for_an_nsqlookupd_but_not_for_ever() -> None:
    model = two()
    model.silent = True
    begin = {"t": {"0": 20, "1": 20}}
    plan = planner(model)
    with pytest.raises(LookupUnavailableError, match="none of them answers"):
        plan.latest(begin)
    model.silent = False
    assert plan.latest(begin)["t"]["0"] == 100


def test_answers_are_kept_for_as_long_as_the_options_say() -> None:
    model = two()
    plan = planner(model, metadataRefresh="600")
    end = plan.latest(None)
    asked = model.asked
    assert plan.latest(end) == end
    assert model.asked == asked


def test_progress_is_shown_on_a_channel_and_its_failure_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = two()
    plan = planner(model, reportChannel="spark_lag")
    end = plan.latest(plan.initial())
    plan.commit(end)
    assert model.opened == [("t", 0, "spark_lag", 100), ("t", 1, "spark_lag", 50)]
    model.deaf.add(NODES[0])
    plan.commit({"t": {"0": 100, "1": 10, "9": 5}})
    assert len(model.opened) == 2, "neither a deaf leader, nor what is cleaned, nor what is not there"
    assert "t-0: reportChannel 'spark_lag' is not updated" in caplog.text
    planner(model).commit(end)
    assert len(model.opened) == 2


def test_ranges_are_cut_and_stay_whole_where_the_leader_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = two()
    plan = planner(model, minPartitions="4")
    begin = plan.initial()
    end = plan.latest(begin)
    ranges = plan.ranges(begin, end)
    cut = [(each.start, each.end) for each in ranges if each.partition == 0]
    assert len(ranges) >= 4
    assert len(cut) > 1
    assert [low for low, _ in cut] == [0, *(high for _, high in cut[:-1])]
    assert cut[-1][1] == 100

    def gone(*_: object) -> None:
        raise ConnectError("gone")

    model.stored = gone  # type: ignore[method-assign, assignment]
    assert bounds(plan, begin, end) == {0: (0, 100), 1: (20, 50)}
    assert "t-0 is not split: t-0: no progress for 0.1 s" in caplog.text
