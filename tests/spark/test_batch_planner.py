"""The plan: ranges between message boundaries, and what is refused before any task starts."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from nsq_ha.errors import (
    ConfigError,
    DataLossError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    TopicNotFoundError,
)
from nsq_ha.policy.topology import TopicMeta, TopicView
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.options.values import EARLIEST, LATEST, OffsetBound
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.batch_planner import Range, plan
from tests.spark.model import NODES, Log, Model

ONE, TWO = NODES[:2]
META = TopicMeta(partition_num=2, ordered=True)
WHOLE = TopicView("flights", META, {0: ONE, 1: TWO}, complete=True, exists=True)
OPTIONS = ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",), fetch_timeout=0.1, fetch_retries=1)


class Answers(Model):
    """One topic, of which the nsqlookupds give these views in turn; the last one is repeated."""

    def __init__(self, *views: TopicView, second: Sequence[int] = ()) -> None:
        super().__init__({"flights": {0: Log([50] * 10, cleaned=2), 1: Log(second)}})
        self.views = [*(views or (WHOLE,))]

    def view(self, topic: str, max_age: float = 0.0) -> TopicView:
        self.asked += 1
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


def planned(
    answers: Answers, starting: OffsetBound = "earliest", ending: OffsetBound = "latest", **changed: bool
) -> list[Range]:
    options = replace(OPTIONS, starting_offsets=starting, ending_offsets=ending, **changed)  # type: ignore[arg-type]
    return plan(options, answers.cluster)


def bounds(ranges: list[Range]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in ranges}


def test_a_whole_topic_is_from_what_is_kept_to_the_write_end_and_empty_partitions_are_left_out() -> None:
    assert planned(Answers()) == [Range("flights", 0, 100, 500, ONE, ordered=True, extended=False)]


def test_named_offsets_and_the_special_ones() -> None:
    answers = Answers(second=[50] * 6)
    found = planned(answers, {"flights": {0: 200, 1: EARLIEST}}, {"flights": {0: LATEST, 1: 250}})
    assert bounds(found) == {0: (200, 500), 1: (0, 250)}
    assert bounds(planned(answers, {"flights": {1: 300}})) == {0: (100, 500)}, "nothing at the end itself"


def test_an_offset_inside_a_message_means_the_next_one() -> None:
    assert bounds(planned(Answers(), {"flights": {0: 201}}, {"flights": {0: 399}})) == {0: (250, 400)}


def test_an_offset_inside_the_last_message_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'startingOffsets': no message of flights-0 begins at or after offset 480"):
        planned(Answers(), {"flights": {0: 480}})


@pytest.mark.parametrize("offset", [40, 900])
def test_a_start_outside_of_the_log_is_data_loss(offset: int) -> None:
    with pytest.raises(
        DataLossError, match=rf"'startingOffsets': offset {offset} of flights-0 is not in the log \[100, 500\)"
    ):
        planned(Answers(), {"flights": {0: offset}})
    # A log shorter than the start was re-created: all of it is unread.
    assert bounds(planned(Answers(), {"flights": {0: offset}}, fail_on_data_loss=False)) == {0: (100, 500)}


@pytest.mark.parametrize(("offset", "lossy"), [(900, {0: (100, 500)}), (40, {})])
def test_an_end_outside_of_the_log_is_data_loss(offset: int, lossy: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(DataLossError, match="'endingOffsets'"):
        planned(Answers(), "earliest", {"flights": {0: offset}})
    assert bounds(planned(Answers(), "earliest", {"flights": {0: offset}}, fail_on_data_loss=False)) == lossy


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="'endingOffsets': flights-0 ends at 200, before its start 300"):
        planned(Answers(), {"flights": {0: 300}}, {"flights": {0: 200}})


@pytest.mark.parametrize("option", ["starting", "ending"])
def test_a_partition_that_is_not_there_is_refused(option: str) -> None:
    place: dict[str, OffsetBound] = {option: {"flights": {2: 0}}}
    with pytest.raises(ConfigError, match=rf"'{option}Offsets': 'flights' has 2 partitions, not \[2\]"):
        planned(Answers(), **place)  # type: ignore[arg-type]


def test_a_topic_without_channels_of_our_own_is_refused() -> None:
    closed = replace(WHOLE, meta=replace(META, disable_channel_auto_create=True))
    with pytest.raises(ConfigError, match="accepts registered channels only"):
        planned(Answers(closed))


def test_a_topic_that_nobody_knows_is_refused_at_once() -> None:
    answers = Answers(TopicView("flights", None, {}, complete=False, exists=False))
    with pytest.raises(TopicNotFoundError, match="'topic': there is no topic 'flights'"):
        planned(answers)
    assert answers.asked == 1


def test_a_pattern_is_asked_again_while_no_nsqlookupd_answers() -> None:
    answers = Answers()
    given: list[NsqError | tuple[str, ...]] = [LookupUnavailableError("none"), LookupUnavailableError("none")]

    def topics(max_age: float) -> tuple[str, ...]:
        found = given.pop(0) if given else ("flights", "other")
        if isinstance(found, NsqError):
            raise found
        return found

    answers.topics = topics  # type: ignore[method-assign, assignment]
    options = replace(OPTIONS, topics=(), subscribe_pattern="fl.*", fetch_timeout=20.0)
    assert bounds(plan(options, answers)) == {0: (100, 500)}  # type: ignore[arg-type]
    given += [LookupUnavailableError("none")] * 100_000
    with pytest.raises(LookupUnavailableError):
        plan(replace(options, fetch_timeout=0.01), answers.cluster)


def test_a_missing_leader_is_waited_for_as_long_as_a_task_would() -> None:
    partial = replace(WHOLE, leaders={1: TWO}, complete=False)
    answers = Answers(*[partial] * 40, WHOLE)
    options = replace(OPTIONS, fetch_timeout=0.001, fetch_retries=20_000)
    assert bounds(plan(options, answers)) == {0: (100, 500)}  # type: ignore[arg-type]
    assert answers.views == [WHOLE]


def test_a_missing_leader_is_named_when_the_patience_ends() -> None:
    with pytest.raises(NoLeaderError, match=r"no leader of partition\(s\) \[0\]: writes are disabled"):
        planned(Answers(replace(WHOLE, leaders={1: TWO}, complete=False, note="writes are disabled")))
