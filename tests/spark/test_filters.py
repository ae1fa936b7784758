"""Filters as a hint: what they leave may be too much, never too little."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from nsq_ha.spark.plan.batch_planner import FilterLimits
from nsq_ha.spark.source import limits_of
from tests.spark.model import Log, search_in_log

LOG = Log([10] * 20)
COMPARISONS: dict[type[Any], Callable[[int, int], bool]] = {
    EqualTo: lambda offset, value: offset == value,
    GreaterThan: lambda offset, value: offset > value,
    GreaterThanOrEqual: lambda offset, value: offset >= value,
    LessThan: lambda offset, value: offset < value,
    LessThanOrEqual: lambda offset, value: offset <= value,
}


def test_topics_and_partitions_are_those_that_all_filters_allow() -> None:
    found = limits_of([In(("topic",), ("a", "b")), EqualTo(("topic",), "b"), EqualTo(("partition",), 1)])
    assert found == FilterLimits(topics=frozenset("b"), partitions=frozenset({1}))
    wanted = [(topic, number) for topic in "ab" for number in (0, 1) if found.allows(topic, number)]
    assert wanted == [("b", 1)]
    assert FilterLimits().allows("anything", 7)


@pytest.mark.parametrize(
    "each",
    [
        IsNotNull(("offset",)),
        Not(EqualTo(("topic",), "a")),
        EqualTo(("value",), b"x"),
        EqualTo(("headers", "topic"), "a"),
        GreaterThan(("offset",), None),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001 - a naive one means no moment
        LessThan(("timestamp",), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_what_says_nothing_about_places_limits_nothing(each: Filter) -> None:
    assert limits_of([each]) == FilterLimits()


@given(
    st.lists(st.tuples(st.sampled_from(list(COMPARISONS)), st.integers(-20, 230)), max_size=4),
    st.sampled_from(LOG.offsets),
    st.sampled_from(LOG.offsets),
)
def test_no_row_that_a_filter_wants_is_left_out(filters: list[tuple[type[Any], int]], one: int, other: int) -> None:
    start, end = sorted((one, other))
    narrowed = limits_of([kind(("offset",), value) for kind, value in filters])
    low, high = narrowed.narrow(start, end, search_in_log(LOG, 0.0))
    assert start <= low <= high <= end
    assert {low, high} <= set(LOG.offsets)
    wanted = [
        offset
        for offset in LOG.offsets[:-1]
        if start <= offset < end
        if all(COMPARISONS[kind](offset, value) for kind, value in filters)
    ]
    assert all(low <= offset < high for offset in wanted)


def test_a_time_narrows_from_below() -> None:
    log = Log([10] * 5, [100_000, 200_000, 300_000, 400_000, 500_000])
    since = limits_of([GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(300, UTC))])
    assert since.time_from == 300_000
    assert since.narrow(0, 50, search_in_log(log)) == (20, 50)
    assert since.narrow(30, 50, search_in_log(log)) == (30, 50)
    assert since.narrow(0, 10, search_in_log(log)) == (10, 10), "nothing of it is so young"


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=12), st.integers(0, 20))
def test_no_row_is_left_out_though_the_clock_of_the_next_leader_is_behind(ahead_ms: list[int], second: int) -> None:
    times = [1000 * number + ahead for number, ahead in enumerate(ahead_ms)]
    since = limits_of([GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(second, UTC))])
    low, high = since.narrow(0, 10 * len(times), search_in_log(Log([10] * len(times), times)))
    assert all(low <= 10 * number < high for number, time_ms in enumerate(times) if time_ms >= 1000 * second)
