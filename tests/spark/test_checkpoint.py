"""What a stream leaves in its checkpoint, and how that shows a log that was re-created."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructField, StructType

from nsq_ha.admin.nsqd_http import Search, StoredMessage
from nsq_ha.errors import ConfigError, ConnectError, DataLossError, ResponseTimeoutError
from nsq_ha.policy.topology import Node
from nsq_ha.spark.checkpoint import (
    MARGIN,
    MARKS,
    PLANNED,
    RESTARTED,
    Mark,
    Origin,
    dated,
    from_json,
    is_of_another_log,
    special_in,
    to_json,
    undated,
)
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.boundaries import NotReadableError
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from nsq_ha.spark.read.columns import Projection
from nsq_ha.spark.source import NsqStreamReader
from tests.spark.model import Log, Model, search_in_log

PLACES = st.dictionaries(
    st.tuples(st.sampled_from(["orders", "flights", "a.b"]), st.integers(0, 1023)), st.integers(0, 2**63 - 1)
)
THEN = 1_700_000_000
"""When the offsets of these tests were taken."""

OLD, NEW = (THEN - 3600) * 1000, (THEN + 3600) * 1000
"""Milliseconds: messages of the log that was, and of the one that took its place."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


def planner(model: Model, **options: str) -> StreamPlanner:
    saved = {"lookupd": "127.0.0.1:4161", "topic": "t", "startingOffsets": "earliest", "metadataRefresh": "0"}
    given = ReadOptions.parse(saved | {"fetchTimeout": "50ms", "fetchRetries": "1"} | options, "stream")
    return StreamPlanner(given, model.cluster)


def one(*times_ms: int, cleaned: int = 0) -> Model:
    return Model({"t": {0: Log([10] * len(times_ms), times_ms, cleaned)}})


def at(offset: int, planned: int | None = THEN) -> dict[str, Any]:
    return {"t": {"0": offset}} | ({} if planned is None else {PLANNED: planned})


@given(PLACES, PLACES, st.none() | st.integers(0, 2**33), PLACES)
def test_offsets_come_back_from_the_checkpoint(
    places: dict[tuple[str, int], int],
    restarted: dict[tuple[str, int], int],
    planned: int | None,
    marked: dict[tuple[str, int], int],
) -> None:
    offsets = to_json(places, restarted)
    marks = {place: Mark(offset, offset // 2) for place, offset in marked.items()} if planned is not None else {}
    saved = json.loads(json.dumps(offsets if planned is None else dated(offsets, planned, marks=marks)))
    assert from_json(saved) == places
    assert Origin.of(saved) == Origin(planned, marks)
    assert special_in(saved) == restarted
    assert undated(saved) == to_json(places)


@pytest.mark.parametrize(
    "saved",
    [
        {"t": 5},
        {"t": {"x": 5}},
        {"t": {"0": "5"}},
        {"t": {"0": True}},
        {"t": {"²": 5}},
        {"t": {"٣": 5}},
        {"t": {"1024": 5}},
        {"t": {"0": -1}},
        {"t": {"0": 2**63}},
        {"logOffset": 3},
        {"t" * 5000: {"0": 1.5}},
        [1],
        7,
    ],
)
def test_a_checkpoint_of_another_source_is_refused(saved: Any) -> None:  # noqa: ANN401 - what Spark decodes from JSON
    with pytest.raises(ConfigError, match="the checkpoint is damaged or from another source") as refused:
        from_json(saved)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("value", ["5", 1.5, True, -1, [5], {}], ids=repr)
def test_a_damaged_time_is_refused_and_does_not_switch_its_check_off(value: object) -> None:
    with pytest.raises(ConfigError, match=f"the checkpoint is damaged or from another source: it has '{PLANNED}'"):
        planner(one(NEW, NEW, NEW)).latest({"t": {"0": 20}, PLANNED: value})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["t", "0", "²", "x"]), inner),
        max_leaves=8,
    ),
    st.sampled_from(["t", PLANNED, RESTARTED, MARKS, None]),
)
def test_no_damage_to_a_checkpoint_ends_in_another_error(value: object, name: str | None) -> None:
    saved: Any = value if name is None else {"t": {"0": 20}, PLANNED: THEN} | {name: value}
    try:
        from_json(saved), Origin.of(saved), special_in(saved)
    except ConfigError as error:
        assert "the checkpoint is damaged or from another source" in str(error)  # noqa: PT017 - only if there is one


def test_the_same_offsets_keep_their_time_or_spark_would_plan_for_ever() -> None:
    first = dated({"t": {"0": 5}}, 100.9)
    assert first == {PLANNED: 100, "t": {"0": 5}}
    assert dated({"t": {"0": 5}}, 200.0, None, first) == first
    assert dated({"t": {"0": 6}}, 200.0, first) == {PLANNED: 200, "t": {"0": 6}}
    without = {"t": {"0": 5}}
    assert dated({"t": {"0": 5}}, 200.0, without, first) == without, "as Spark has it"
    marked = {"t": {"0": 5}, RESTARTED: {"t": {"0": 5}}}
    assert dated(marked, 200.0, first) == marked | {PLANNED: 200}, "a step that goes back is news"
    assert dated({"t": {"0": 5}}, 200.0, marked) == marked == dated(marked, 200.0, first, marked)


def test_spark_gets_the_time_and_no_news_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = one(OLD, OLD)
    options = ReadOptions.parse(
        {"lookupd": "127.0.0.1:4161", "topic": "t", "metadataRefresh": "0", "driverBytes": "0"}, "stream"
    )
    reader = NsqStreamReader(options, Projection(StructType([StructField("offset", LongType())])))
    monkeypatch.setattr(reader, "_planning", StreamPlanner(options, model.cluster))
    clock = itertools.count(THEN)
    monkeypatch.setattr("nsq_ha.spark.source.time.time", lambda: float(next(clock)))
    begun = reader.initialOffset()
    marked = {MARKS: {"t": {"0": [0, OLD * 1_000_000]}}}
    assert begun == at(20) | marked == reader.initialOffset()
    assert reader.latestOffset(begun) == begun
    model.topics_["t"][0] = Log([10] * 3, [OLD] * 3)
    end = reader.latestOffset(begun)
    assert undated(end) == at(30, None)
    assert end[PLANNED] > THEN
    assert reader.latestOffset(end) == end == reader.latestOffset() == reader.reportLatestOffset()
    assert [part.value[0].start for part in reader.partitions(begun, end)] == [20]
    model.topics_["t"][0] = Log([10] * 4, [OLD] * 4)
    assert reader.latestOffset(at(30, None)) != at(30, None)
    assert reader.reportLatestOffset()["t"] == {"0": 40}


def test_offsets_of_a_query_s_progress_are_a_start() -> None:
    model = one(OLD, OLD, OLD)
    for saved in (at(20), at(20) | {RESTARTED: {"t": {"0": 20}}}):
        begun = planner(model, startingOffsets=json.dumps(saved))
        assert begun.initial() == {"t": {"0": 20}}


@given(st.integers(0, 2**33), st.floats(-1e4, 1e4), st.floats(-1e6, 1e6))
def test_a_message_is_of_another_log_when_it_is_younger_than_clocks_can_explain(
    planned: int, ahead: float, younger: float
) -> None:
    written_ns = int((planned + younger) * 1e9)
    assert is_of_another_log(written_ns, planned, ahead) == (written_ns > (planned + MARGIN + max(0, ahead)) * 1e9)


def test_the_last_message_before_an_offset() -> None:
    place = search_in_log(Log([10, 20, 30], cleaned=1))
    found = [place.before(offset) for offset in (0, 10, 11, 30, 31, 60, 99)]
    assert [each and each.offset for each in found] == [None, None, 10, 10, 30, 30, 30]
    with pytest.raises(NotReadableError, match="message number 2 is not readable yet"):
        search_in_log(Log([10, 20], uncommitted=9)).before(30)


@pytest.mark.parametrize("start", [30, 40])
def test_a_longer_log_of_younger_messages_is_data_loss(start: int) -> None:
    model = one(NEW, NEW, NEW, NEW)
    with pytest.raises(DataLossError, match=f"t-0: the topic was re-created: the offset {start} "):
        planner(model).latest(at(start))
    with pytest.raises(DataLossError, match="re-created"):
        planner(model).ranges(at(10), at(start))
    same = one(OLD, OLD, OLD, NEW)
    assert planner(same).latest(at(30)) == {"t": {"0": 40}}


def test_a_log_whose_last_messages_cannot_be_read_yet_is_judged_by_its_first() -> None:
    model = one(NEW, NEW, NEW, NEW)
    model.topics_["t"][0].uncommitted = 3
    with pytest.raises(
        DataLossError, match="t-0: the topic was re-created: the offset 30 was taken from an earlier log"
    ):
        planner(model).latest(at(30))


def test_nothing_is_read_until_it_is_known_whether_the_log_is_the_same() -> None:
    for times, is_same in (((OLD, OLD, OLD, OLD), True), ((OLD, NEW, NEW, NEW), False)):
        model = one(*times)
        model.topics_["t"][0].uncommitted = 10**9
        plan = planner(model, fetchRetries="1")
        assert plan.latest(at(30)) == undated(at(30)), "a stream stands still"
        assert plan.latest(at(30), limited=False) == undated(at(30))
        with pytest.raises(ResponseTimeoutError, match=r"t-0: no progress for 0.1 s .*not readable yet"):
            plan.ranges(at(10), at(30))
        plan.prepare_target()
        with pytest.raises(ResponseTimeoutError, match=r"t-0: no progress for 0.1 s .*not readable yet"):
            plan.latest(at(30))
        model.topics_["t"][0].uncommitted = 0
        if is_same:
            assert plan.latest(at(30)) == {"t": {"0": 40}}
            assert [(part.start, part.end) for part in plan.ranges(at(10), at(30))] == [(10, 30)]
        else:
            # It was cut, and others took the place: its first message does not tell.
            with pytest.raises(DataLossError, match="re-created"):
                plan.latest(at(30))
            with pytest.raises(DataLossError, match="re-created"):
                plan.ranges(at(10), at(30))


def test_offsets_without_a_time_are_taken_as_they_are() -> None:
    model = one(NEW, NEW, NEW)
    plan = planner(model)
    assert plan.latest(at(20, None)) == {"t": {"0": 30}}
    assert [(part.start, part.end) for part in plan.ranges(at(20, None), at(30, None))] == [(20, 30)]


MARKED = {MARKS: {"t": {"0": [10, OLD * 1_000_000]}}}


@pytest.mark.parametrize("end", [30, 40], ids=["as long", "longer"])
def test_a_topic_that_was_re_created_at_once_is_known_by_another_message(end: int) -> None:
    # As young as a topic can be that is deleted, created again and refilled within the second of the last check.
    model = one(*[OLD + 1] * (end // 10))
    begin = at(30, OLD // 1000) | MARKED
    with pytest.raises(DataLossError, match="t-0: the topic was re-created: the offset 30 was taken from an earlier"):
        planner(model).latest(begin)
    with pytest.raises(DataLossError, match="t-0: the topic was re-created: the offset 30 was taken from an earlier"):
        planner(model).ranges(at(10), begin)
    lossy = planner(model, failOnDataLoss="false")
    again = lossy.latest(begin)
    assert special_in(again) == {("t", 0): 0}
    assert lossy.marks == {("t", 0): (0, (OLD + 1) * 1_000_000)}, "of the new log"
    assert [(part.start, part.end) for part in lossy.ranges(again, lossy.latest(again))] == [(0, end)]


def test_a_topic_that_was_re_created_twice_before_its_first_message_was_read() -> None:
    model = one(OLD, OLD)
    plan = planner(model, failOnDataLoss="false")
    start = dated(plan.initial(), OLD / 1000, marks=plan.marks)
    seen = []
    for log in (Log([10] * 3, [NEW] * 3), Log([10] * 4, [NEW + 1] * 4), None, None):
        model.topics_["t"][0] = log or model.topics_["t"][0]
        end = dated(plan.latest(start), NEW / 1000, start, marks=plan.marks)
        assert dated(plan.latest(start), NEW / 1000, start, end, marks=plan.marks) == end, "Spark asks twice"
        seen += [(part.start, part.end) for part in plan.ranges(start, end)]
        start = end
    assert seen == [(0, 40)]


def test_a_log_whose_lost_tail_others_have_filled_repeats_nothing() -> None:
    model = one(OLD, NEW, NEW, NEW)
    begin = at(30) | MARKED
    with pytest.raises(DataLossError, match="t-0: the topic was re-created: the offset 30 was taken from an earlier"):
        planner(model).latest(begin)
    plan = planner(model, failOnDataLoss="false")
    end = dated(plan.latest(begin), NEW / 1000, marks=plan.marks)
    assert special_in(end) == {("t", 0): 40}
    assert plan.ranges(begin, end) == []
    assert plan.latest(end) == undated(end)
    model.topics_["t"][0] = Log([10] * 5, [OLD, *[NEW] * 4])
    assert [(part.start, part.end) for part in plan.ranges(end, plan.latest(end))] == [(40, 50)]


def test_a_log_that_grew_or_was_cleaned_is_the_same() -> None:
    begin = at(30, OLD // 1000) | MARKED
    assert planner(one(*[OLD] * 4)).latest(begin) == {"t": {"0": 40}}
    # The marked message is deleted: the time decides, as for the checkpoints of older versions.
    assert planner(one(*[OLD] * 4, cleaned=2)).latest(begin) == {"t": {"0": 40}}
    with pytest.raises(DataLossError, match="re-created"):
        planner(one(*[NEW] * 4, cleaned=2)).latest(begin)
    # Whatever the driver's clock said then.
    assert planner(one(*[NEW] * 4)).latest(at(30) | {MARKS: {"t": {"0": [10, NEW * 1_000_000]}}}) == {"t": {"0": 40}}


@pytest.mark.parametrize(
    ("first", "then", "at_"), [(OLD, 10, 10), (OLD + 1, 10, 0), (OLD + 2000, 30, 0), (OLD, 30, 20)]
)
def test_where_a_log_goes_on_that_is_shorter_than_the_offset(first: int, then: int, at_: int) -> None:
    model = one(*[first] * 2)
    begin = at(90, OLD // 1000) | {MARKS: {"t": {"0": [then, OLD * 1_000_000]}}}
    if at_ == 10:
        model = one(OLD, OLD)
        at_ = 20
    with pytest.raises(DataLossError, match="t-0: the log ends at 20, before the offset 90 reached"):
        planner(model).latest(begin)
    assert special_in(planner(model, failOnDataLoss="false").latest(begin)) == {("t", 0): at_}


def test_an_offset_inside_of_a_message_is_refused_when_it_is_planned(caplog: pytest.LogCaptureFixture) -> None:
    for offset, following in ((15, 20), (35, 40)):
        model = one(*[OLD] * 4)
        for begin in (at(offset), at(offset, None), at(offset) | MARKED):
            with pytest.raises(
                DataLossError,
                match=f"t-0: no message begins at the offset {offset}, the next one begins at {following}; "
                "the checkpoint was changed, or it belongs to another log: restore it",
            ) as refused:
                planner(model).latest(begin)
            assert "failOnDataLoss" not in str(refused.value)
        assert planner(model, failOnDataLoss="false").latest(at(offset)) == {"t": {"0": 40}}
        assert f"no message begins at the offset {offset}" in caplog.text


def test_a_driver_whose_clock_is_behind_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = one(NEW, NEW)
    monkeypatch.setattr("nsq_ha.spark.plan.log_identity.time.time", lambda: THEN + 10.0)
    model.now = NEW / 1000 + 10.0
    assert planner(model).latest(at(20)) == {"t": {"0": 20}}, "the server's clock is an hour ahead"
    model.now = THEN + 10.0
    with pytest.raises(DataLossError, match="re-created"):
        planner(model).latest(at(20))


def test_a_leader_that_does_not_tell_stops_only_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model({"t": {number: Log([10] * 3, [OLD] * 3) for number in range(2)}})
    found = model.stored

    def gone(topic: str, partition: int, node: Node, mode: Search, position: int) -> StoredMessage | None:
        if partition == 0:
            raise ConnectError("gone")
        return found(topic, partition, node, mode, position)

    monkeypatch.setattr(model, "stored", gone)
    plan = planner(model)
    start = {"t": {"0": 20, "1": 20}, PLANNED: THEN}
    assert plan.latest(start) == {"t": {"0": 20, "1": 30}}
    with pytest.raises(ResponseTimeoutError, match=r"t-0: no progress for 0.1 s .*gone"):
        plan.ranges({"t": {"0": 10, "1": 20}}, start)
    model.leaderless.add(("t", 0))
    (part,) = plan.ranges({"t": {"0": 10, "1": 20}}, start)
    assert part.leader is None, "the task finds the leader"
