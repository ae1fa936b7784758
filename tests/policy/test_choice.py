"""When a topic that grows is spread over more partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.choice import PartitionCount


def counting(number: int) -> PartitionCount:
    count = PartitionCount()
    count.found(number, 0.0, 5.0)
    assert count.take(0.0) is None
    return count


def test_the_first_number_is_used_at_once() -> None:
    count = PartitionCount()
    assert (count.used, count.is_pending, count.take(0.0)) == (0, False, None)
    count.found(2, 0.0, 5.0)
    assert count.is_pending
    assert count.take(0.0) is None
    assert (count.used, count.is_pending) == (2, False)


def test_a_number_that_grows_waits() -> None:
    count = counting(2)
    count.found(4, 10.0, 5.0)
    count.found(4, 12.0, 5.0)
    assert count.take(14.9) is None
    assert (count.used, count.is_pending) == (2, True)
    assert count.take(15.0) == (2, 4)
    assert (count.used, count.is_pending, count.take(16.0)) == (4, False, None)


def test_a_number_that_falls_is_used_at_once() -> None:
    count = counting(4)
    count.found(2, 10.0, 5.0)
    assert count.take(10.0) == (4, 2)


def test_a_growth_that_is_taken_back_changes_nothing() -> None:
    count = counting(2)
    count.found(4, 10.0, 5.0)
    count.found(2, 11.0, 5.0)
    assert count.take(11.0) is None
    assert (count.used, count.is_pending) == (2, False)


def test_a_further_growth_waits_again() -> None:
    count = counting(2)
    count.found(3, 10.0, 5.0)
    count.found(4, 14.0, 5.0)
    assert count.take(18.9) is None
    assert count.take(19.0) == (2, 4)


@given(st.lists(st.tuples(st.integers(1, 5), st.floats(0.0, 4.0)), min_size=1))
def test_a_partition_is_never_used_before_its_delay(told: list[tuple[int, float]]) -> None:
    count, now = PartitionCount(), 0.0
    number, since = 0, 0.0
    for following, wait in told:
        if following != number:
            number, since = following, now
        count.found(following, now, 5.0)
        before = count.used
        count.take(now)
        if count.used > before > 0:
            assert count.used == number
            assert now - since >= 5.0
        now += wait
