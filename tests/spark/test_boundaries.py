"""Places in a log: each is a message boundary, whatever was asked for."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.spark.plan import boundaries
from nsq_ha.spark.plan.boundaries import PartitionLog, shares
from tests.spark.model import Log, search_in_log

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundaries, "PAUSE", 0.001)


def test_a_boundary_is_the_offset_itself_or_the_next_message() -> None:
    place = search_in_log(Log([10, 20, 30], cleaned=1))
    assert [place.boundary(offset) for offset in (0, 10, 11, 30)] == [10, 10, 30, 30]
    assert [place.boundary(offset) for offset in (60, 99)] == [60, 60], "the end is one, and nothing lies behind it"
    assert place.boundary(31) is None, "inside the last message"


def test_what_is_not_committed_yet_is_waited_for() -> None:
    def fresh() -> PartitionLog:
        return search_in_log(Log([10, 20, 30], uncommitted=2), patience=5.0)

    assert fresh().patiently(lambda place: place.boundary(5)) == 10
    assert fresh().patiently(lambda place: place.after_rows(0, 2)) == 30
    assert fresh().patiently(lambda place: place.after_bytes(0, 11)) == 30


def test_rows_are_counted_from_a_place_to_the_end() -> None:
    place = search_in_log(Log([10, 20, 30, 5]))
    assert [place.rows_behind(offset) for offset in (0, 10, 11, 60, 65)] == [4, 3, 2, 1, 0]
    assert place.rows_behind(61) == 0, "inside the last message"


@given(SIZES, st.integers(0, 15), st.data())
def test_after_some_rows_is_where_the_next_one_begins(sizes: list[int], rows: int, data: st.DataObject) -> None:
    log = Log(sizes)
    first = data.draw(st.integers(0, len(sizes)))
    found = search_in_log(log, 0.0).after_rows(log.offsets[first], rows)
    assert found == log.offsets[min(first + rows, len(sizes))]


@given(SIZES, st.integers(0, 400), st.data())
def test_after_some_bytes_is_the_next_boundary(sizes: list[int], count: int, data: st.DataObject) -> None:
    log = Log(sizes)
    start = data.draw(st.sampled_from(log.offsets))
    found = search_in_log(log, 0.0).after_bytes(start, count)
    assert found == min((at for at in log.offsets if at >= start + count), default=log.offsets[-1])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(-1, 21))
def test_a_time_is_where_the_first_message_begins_that_is_not_older(times: list[int], wanted: int) -> None:
    log = Log([7] * len(times), sorted(times))
    expected = next((7 * number for number, time in enumerate(sorted(times)) if time >= wanted), None)
    assert search_in_log(log).at_time(wanted) == expected


@given(SIZES, st.integers(1, 6), st.one_of(st.none(), st.integers(1, 5)))
def test_cuts_are_boundaries_inside_of_the_range(sizes: list[int], pieces: int, rows: int | None) -> None:
    log = Log(sizes)
    cuts = search_in_log(log).cuts(0, log.offsets[-1], pieces, rows)
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(log.offsets[1:-1])
    bounds = [0, *cuts, log.offsets[-1]]
    if rows is not None:
        numbers = [log.offsets.index(bound) for bound in bounds]
        assert all(after - before <= rows for before, after in itertools.pairwise(numbers))


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1000), max_size=8), st.integers(1, 3000))
def test_shares_use_up_the_limit_and_no_more_than_the_backlog(backlogs: dict[int, int], limit: int) -> None:
    parts = shares(limit, backlogs)
    assert parts.keys() == backlogs.keys()
    assert all(min(1, backlog) <= parts[key] <= backlog for key, backlog in backlogs.items())
    assert abs(sum(parts.values()) - min(limit, sum(backlogs.values()))) <= len(backlogs)


def test_each_partition_gets_a_share_as_from_spark_s_kafka_connector() -> None:
    assert shares(10, {"a": 101, "b": 11, "c": 1}) == {"a": 8, "b": 1, "c": 1}
    assert shares(2, {"a": 90, "b": 9, "c": 1, "d": 0}) == {"a": 1, "b": 1, "c": 1, "d": 0}
