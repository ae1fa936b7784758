"""The plan: ranges between message boundaries, and what is refused before any task starts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from nsq_ha.admin.nsqd_http import StoredMessage
from nsq_ha.errors import (
    ConfigError,
    ConnectError,
    DataLossError,
    LookupUnavailableError,
    NoLeaderError,
    NsqError,
    TopicNotFoundError,
)
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.spark.cluster import Extent
from nsq_ha.spark.options import EARLIEST, LATEST, OffsetBound, ReadOptions
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.batch_planner import Range, plan

if TYPE_CHECKING:
    from nsq_ha.admin.nsqd_http import Search

ONE, TWO = Node("127.0.0.1", 4150, 4151), Node("127.0.0.2", 4150, 4151)
META = TopicMeta(partition_num=2, ordered=True)
WHOLE = TopicView("flights", META, {0: ONE, 1: TWO}, complete=True, exists=True)
OPTIONS = ReadOptions(lookupd=("http://127.0.0.1:4161",), topics=("flights",), fetch_timeout=0.1, fetch_retries=1)


@dataclass
class Answers:
    """A cluster with scripted answers, in turn; the last one is repeated."""

    views: list[TopicView | NsqError] = field(default_factory=lambda: [WHOLE])
    logs: dict[int, Extent] = field(default_factory=lambda: {0: Extent(100, 500, 10), 1: Extent(0, 0)})
    step: int = 50
    committed: int = 10**9
    asked: int = 0

    def view(self, topic: str, max_age: float = 0.0) -> TopicView:
        self.asked += 1
        view = self.views.pop(0) if len(self.views) > 1 else self.views[0]
        if isinstance(view, NsqError):
            raise view
        return replace(view, topic=topic)

    def extents(self, topic: str, node: Node) -> dict[int, Extent]:
        return {partition: log for partition, log in self.logs.items() if WHOLE.leaders[partition] == node}

    def stored(self, topic: str, partition: int, node: Node, mode: Search, position: int) -> StoredMessage | None:
        number = position if mode == "count" else -(-position // self.step) + 1
        offset = (number - 1) * self.step
        if offset >= self.logs[partition].end:
            return None
        if offset >= self.committed:
            self.committed += self.step
            return None
        return StoredMessage(number, 0, 0, offset, number, "", "")

    def flush(self, topic: str, partition: int, node: Node, prefix: str) -> None:
        """Do nothing, as for a topic that accepts only registered channels."""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


def planned(
    answers: Answers, starting: OffsetBound = "earliest", ending: OffsetBound = "latest", **changed: bool
) -> list[Range]:
    options = replace(OPTIONS, starting_offsets=starting, ending_offsets=ending, **changed)  # type: ignore[arg-type]
    return plan(options, answers)  # type: ignore[arg-type]


def bounds(ranges: list[Range]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in ranges}


def test_a_whole_topic_is_from_what_is_kept_to_the_write_end_and_empty_partitions_are_left_out() -> None:
    assert planned(Answers()) == [Range("flights", 0, 100, 500, ONE, ordered=True, extended=False)]


def test_named_offsets_and_the_special_ones() -> None:
    logs = {0: Extent(100, 500, 10), 1: Extent(0, 300, 6)}
    assert bounds(
        planned(Answers(logs=logs), {"flights": {0: 200, 1: EARLIEST}}, {"flights": {0: LATEST, 1: 250}})
    ) == {
        0: (200, 500),
        1: (0, 250),
    }
    assert bounds(planned(Answers(logs=logs), {"flights": {1: 300}})) == {0: (100, 500)}, "nothing at the end itself"


def test_an_offset_inside_a_message_means_the_next_one() -> None:
    assert bounds(planned(Answers(), {"flights": {0: 201}}, {"flights": {0: 399}})) == {0: (250, 400)}


def test_an_offset_inside_the_last_message_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'startingOffsets': no message of flights-0 begins at or after offset 480"):
        planned(Answers(), {"flights": {0: 480}})


@pytest.mark.parametrize(("offset", "lossy"), [(40, (100, 500)), (900, (100, 500))])
def test_a_start_outside_of_the_log_is_data_loss(offset: int, lossy: tuple[int, int]) -> None:
    with pytest.raises(
        DataLossError, match=rf"'startingOffsets': offset {offset} of flights-0 is not in the log \[100, 500\)"
    ):
        planned(Answers(), {"flights": {0: offset}})
    # A log shorter than the start was re-created: all of it is unread.
    assert bounds(planned(Answers(), {"flights": {0: offset}}, fail_on_data_loss=False)) == {0: lossy}


@pytest.mark.parametrize(("offset", "lossy"), [(900, {0: (100, 500)}), (40, {})])
def test_an_end_outside_of_the_log_is_data_loss(offset: int, lossy: dict[int, tuple[int, int]]) -> None:
    with pytest.raises(DataLossError, match="'endingOffsets'"):
        planned(Answers(), "earliest", {"flights": {0: offset}})
    assert bounds(planned(Answers(), "earliest", {"flights": {0: offset}}, fail_on_data_loss=False)) == lossy


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="'endingOffsets': flights-0 ends at 200, before its start 300"):
        planned(Answers(), {"flights": {0: 300}}, {"flights": {0: 200}})


def test_an_end_by_partition_that_is_before_the_start_is_named() -> None:
    options = replace(OPTIONS, starting_offsets={"flights": {0: 300}}, ending_offsets_by_timestamp={"flights": {0: 0}})
    with pytest.raises(ConfigError, match="'endingOffsetsByTimestamp': flights-0 ends at 100, before its start 300"):
        plan(options, Answers())  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["starting", "ending"])
def test_a_partition_that_is_not_there_is_refused(option: str) -> None:
    place: dict[str, OffsetBound] = {option: {"flights": {2: 0}}}
    with pytest.raises(ConfigError, match=rf"'{option}Offsets': 'flights' has 2 partitions, not \[2\]"):
        planned(Answers(), **place)  # type: ignore[arg-type]


def test_a_topic_without_channels_of_our_own_is_refused() -> None:
    closed = replace(WHOLE, meta=replace(META, disable_channel_auto_create=True))
    with pytest.raises(ConfigError, match="accepts registered channels only"):
        planned(Answers([closed]))


def test_a_topic_that_nobody_knows_is_refused_at_once() -> None:
    answers = Answers([TopicView("flights", None, {}, complete=False, exists=False)])
    with pytest.raises(TopicNotFoundError, match="'topic': there is no topic 'flights'"):
        planned(answers)
    assert answers.asked == 1


def test_a_missing_leader_and_a_silent_nsqlookupd_are_waited_for() -> None:
    partial = replace(WHOLE, leaders={1: TWO}, complete=False)
    answers = Answers([LookupUnavailableError("none"), partial, partial, WHOLE])
    assert bounds(planned(answers)) == {0: (100, 500)}
    assert answers.asked == 4


def test_a_pattern_is_asked_again_while_no_nsqlookupd_answers() -> None:
    answers = Answers()
    given: list[NsqError | tuple[str, ...]] = [LookupUnavailableError("none"), LookupUnavailableError("none")]

    def topics(max_age: float) -> tuple[str, ...]:
        found = given.pop(0) if given else ("flights", "other")
        if isinstance(found, NsqError):
            raise found
        return found

    answers.topics = topics  # type: ignore[attr-defined]
    options = replace(OPTIONS, topics=(), subscribe_pattern="fl.*", fetch_timeout=20.0)
    assert bounds(plan(options, answers)) == {0: (100, 500)}  # type: ignore[arg-type]
    given += [LookupUnavailableError("none")] * 100_000
    with pytest.raises(LookupUnavailableError):
        plan(replace(options, fetch_timeout=0.01), answers)  # type: ignore[arg-type]


def test_a_missing_leader_is_waited_for_as_long_as_a_task_would() -> None:
    partial = replace(WHOLE, leaders={1: TWO}, complete=False)
    answers = Answers([*[partial] * 40, WHOLE])
    options = replace(OPTIONS, fetch_timeout=0.001, fetch_retries=20_000)
    assert bounds(plan(options, answers)) == {0: (100, 500)}  # type: ignore[arg-type]
    assert answers.asked == 41


def test_a_missing_leader_is_named_when_the_patience_ends() -> None:
    with pytest.raises(NoLeaderError, match=r"no leader of partition\(s\) \[0\]: writes are disabled"):
        planned(Answers([replace(WHOLE, leaders={1: TWO}, complete=False, note="writes are disabled")]))


def test_a_leader_that_is_none_any_more_is_looked_up_again() -> None:
    with pytest.raises(NoLeaderError, match="no longer leads flights-0"):
        planned(Answers(logs={1: Extent(0, 0)}))


def test_errors_that_no_waiting_cures_come_at_once() -> None:
    answers = Answers([ConfigError("lookupd"), ConnectError("later")])
    with pytest.raises(ConfigError, match="lookupd"):
        planned(answers)
    assert answers.asked == 1
