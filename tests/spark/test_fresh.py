"""Plans on topics that are being written: the newest messages are acknowledged, and the server cannot find them yet."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import respx

from nsq_ha.errors import ResponseTimeoutError
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.options import ReadOptions
from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.plan.stream_planner import StreamPlanner
from tests.spark.lagging import LOOKUPD, LaggingCluster, LaggingLog

OPTIONS = {"lookupd": LOOKUPD, "topic": "t"}
IMPATIENT = {"fetchTimeout": "100ms", "fetchRetries": "1"}
LIMITS = [{"maxOffsetsPerTrigger": "7"}, {"maxBytesPerTrigger": "70"}]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


@pytest.fixture
def asked() -> Iterator[BlockingCluster]:
    with BlockingCluster((LOOKUPD,)) as cluster:
        yield cluster


def stream(asked: BlockingCluster, **more: str) -> StreamPlanner:
    given = OPTIONS | {"startingOffsets": "earliest", "metadataRefresh": "0"} | more
    return StreamPlanner(ReadOptions.parse(given, "stream"), asked)


def available_now(asked: BlockingCluster, begin: Any, **more: str) -> list[Any]:  # noqa: ANN401 - Spark's offsets
    """Plan as the trigger availableNow does; gives the offsets from the beginning to the end of the query."""
    planner = stream(asked, **more)
    offsets = [planner.initial() if begin is None else begin]
    planner.prepare_target()
    while True:
        end = planner.latest(offsets[-1])
        if end == offsets[-1]:
            return offsets
        # A backward range raises where ranges are made.
        planner.ranges(offsets[-1], end)
        offsets.append(end)
        assert len(offsets) < 1000


def ends(offsets: list[Any], partition: int) -> list[int]:
    return [each["t"][str(partition)] for each in offsets]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_batches_never_go_back_on_a_topic_that_is_being_written(
    respx_mock: respx.MockRouter, asked: BlockingCluster, limit: dict[str, str]
) -> None:
    log = LaggingLog([10] * 20)
    LaggingCluster(respx_mock, {0: log})
    offsets = available_now(asked, None, **limit)
    for _ in range(5):
        log.sizes = [*log.sizes, *[10] * 13]
        log.fresh, log.flushes_after = 6, 5
        offsets += available_now(asked, offsets[-1], **limit)[1:]
        assert ends(offsets, 0)[-1] == log.offsets[-1], "all that was there"
    reached = ends(offsets, 0)
    assert reached == sorted(set(reached)), "each batch begins where the one before ended"
    assert max(after - before for before, after in itertools.pairwise(reached)) <= 70


def test_a_batch_ends_before_what_is_not_committed(respx_mock: respx.MockRouter, asked: BlockingCluster) -> None:
    log = LaggingLog([10] * 20)
    LaggingCluster(respx_mock, {0: log, 1: LaggingLog([10] * 3)}, registered_only=False)
    planner = stream(asked)
    begin = planner.latest(planner.initial())
    assert begin == {"t": {"0": 200, "1": 30}}
    log.sizes, log.pending = [10] * 21, 15
    assert planner.latest(begin) == {"t": {"0": 210, "1": 30}}, "there may be another message instead"
    log.sizes, log.pending = [*[10] * 21, 12, 12], 0
    assert planner.latest({"t": {"0": 210, "1": 30}}) == {"t": {"0": 234, "1": 30}}


def test_a_batch_read_waits_for_what_is_not_committed(respx_mock: respx.MockRouter, asked: BlockingCluster) -> None:
    LaggingCluster(respx_mock, {0: LaggingLog([10] * 20, pending=15)}, registered_only=False)
    with pytest.raises(ResponseTimeoutError, match=r"127\.0\.0\.1:4150 has not committed all that t-0 holds"):
        plan(ReadOptions.parse(OPTIONS | IMPATIENT), asked)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_server_is_asked_to_flush_what_a_limit_needs(
    respx_mock: respx.MockRouter, asked: BlockingCluster, limit: dict[str, str]
) -> None:
    cluster = LaggingCluster(respx_mock, {0: LaggingLog([10] * 20, fresh=18)}, registered_only=False)
    planner = stream(asked, channelPrefix="mine-", **limit)
    begin = planner.initial()
    assert planner.latest(begin) == {"t": {"0": 70}}, "without waiting for the server's clock"
    (made, channel), (deleted, same), *_ = cluster.channels
    assert (made, deleted, same) == ("create", "delete", channel)
    assert channel.startswith("mine-")
    assert channel.endswith("#ephemeral")


def test_one_fresh_row_does_not_end_a_query_that_is_to_read_all(
    respx_mock: respx.MockRouter, asked: BlockingCluster
) -> None:
    LaggingCluster(respx_mock, {0: LaggingLog([10] * 200), 1: LaggingLog([10], fresh=1, flushes_after=12)})
    offsets = available_now(asked, None, maxOffsetsPerTrigger="30")
    assert offsets[-1] == {"t": {"0": 2000, "1": 10}}
    assert len(offsets) >= 7


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_query_that_is_to_read_all_raises_when_a_row_never_gets_readable(
    respx_mock: respx.MockRouter, asked: BlockingCluster, limit: dict[str, str]
) -> None:
    LaggingCluster(respx_mock, {0: LaggingLog([10] * 20), 1: LaggingLog([10] * 20, fresh=20)})
    planner = stream(asked, **IMPATIENT, **limit)
    offset: Any = planner.initial()
    planner.prepare_target()
    while offset != {"t": {"0": 200, "1": 0}}:
        before, offset = offset, planner.latest(offset)
        assert before != offset, "the query would end too early"
    with pytest.raises(ResponseTimeoutError, match=r"t-1: no progress for 0.2 s .*not readable yet"):
        planner.latest(offset)


def test_a_partition_without_a_leader_does_not_end_a_query_with_a_limit(
    respx_mock: respx.MockRouter, asked: BlockingCluster
) -> None:
    cluster = LaggingCluster(respx_mock, {0: LaggingLog([10] * 20), 1: LaggingLog([10] * 20)})
    planner = stream(asked, **IMPATIENT, maxOffsetsPerTrigger="30")
    begin = planner.initial()
    planner.prepare_target()
    cluster.leaderless.add(1)
    middle = planner.latest(begin)
    assert middle == {"t": {"0": 200, "1": 0}}, "within the limit, and without waiting"
    with pytest.raises(
        ResponseTimeoutError, match=r"t-1: no progress for 0.2 s .*its leader does not answer, or there is none"
    ):
        planner.latest(middle)
    cluster.leaderless.clear()
    assert planner.latest(middle) == {"t": {"0": 200, "1": 200}}


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_a_stream_leaves_a_partition_with_fresh_rows_for_later_and_reads_the_others(
    respx_mock: respx.MockRouter, asked: BlockingCluster, limit: dict[str, str]
) -> None:
    fresh = LaggingLog([10] * 20, fresh=20)
    LaggingCluster(respx_mock, {0: LaggingLog([10] * 3), 1: fresh})
    planner = stream(asked, **limit)
    begin = planner.initial()
    middle = planner.latest(begin)
    assert middle["t"]["0"] > 0
    assert middle["t"]["1"] == 0
    fresh.fresh = 0
    assert planner.latest({"t": {"0": 30, "1": 0}})["t"]["1"] == 70


@pytest.mark.parametrize(
    "option", [{"maxRecordsPerPartition": "7"}, {"minPartitions": "3"}], ids=lambda option: next(iter(option))
)
def test_a_batch_is_cut_when_its_fresh_rows_can_be_found(
    respx_mock: respx.MockRouter, asked: BlockingCluster, option: dict[str, str]
) -> None:
    log = LaggingLog([10] * 20, fresh=15, flushes_after=20)
    LaggingCluster(respx_mock, {0: log})
    ranges = plan(ReadOptions.parse(OPTIONS | option), asked)
    assert [(part.start, part.end) for part in ranges] == [(0, 70), (70, 140), (140, 200)]
    assert log.fresh == 0
