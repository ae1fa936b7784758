"""Which channels are missing on which partition, and when a topic that grows is spread over more partitions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.growth import LedPartition, PartitionCount, is_new, lacking, lasting

A, B = {"a": False}, {"b": False}

names = st.sampled_from(["a", "b", "c", "d#ephemeral"])
held = st.builds(LedPartition, st.integers(0, 2), st.dictionaries(names, st.booleans()))


def test_a_partition_lacks_what_any_sibling_has() -> None:
    assert lacking(LedPartition(0, A), [LedPartition(5, A), LedPartition(5, B)]) == {"b": False}
    assert lacking(LedPartition(0, {}), [LedPartition(5, A | B), LedPartition(5, A)]) == {"a": False, "b": False}
    assert lacking(LedPartition(0, A), [LedPartition(5, A)]) == {}
    assert lacking(LedPartition(0, {}), []) == {}


def test_channels_that_end_with_their_reader_are_not_copied() -> None:
    assert lacking(LedPartition(0, {}), [LedPartition(5, A | {"replay#ephemeral": False})]) == A
    assert lasting(["a", "b#ephemeral"]) == {"a"}


def test_a_channel_is_paused_only_if_it_is_paused_everywhere() -> None:
    paused = {"a": True}
    assert lacking(LedPartition(0, {}), [LedPartition(5, paused), LedPartition(5, paused)]) == {"a": True}
    assert lacking(LedPartition(0, {}), [LedPartition(5, paused), LedPartition(5, A)]) == {"a": False}
    assert lacking(LedPartition(0, {}), [LedPartition(5, A), LedPartition(5, paused)]) == {"a": False}


def test_a_partition_is_new_if_it_came_later_or_is_empty_or_has_no_lasting_channel() -> None:
    assert is_new(2, LedPartition(1, A), first=2)
    assert is_new(1, LedPartition(0, A), first=2)
    assert is_new(1, LedPartition(1, {}), first=2)
    assert is_new(1, LedPartition(1, {"replay#ephemeral": False}), first=2)
    assert not is_new(1, LedPartition(1, A), first=2)


@given(held, st.lists(held))
def test_what_is_created_is_missing_here_exists_elsewhere_and_lasts(
    here: LedPartition, others: list[LedPartition]
) -> None:
    found = lacking(here, others)
    assert not found.keys() & here.paused.keys()
    assert found.keys() <= {name for other in others for name in other.paused}
    assert lasting(found) == found.keys()
    assert not lacking(LedPartition(here.messages, {**here.paused, **found}), others), "once is enough"


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


@pytest.mark.parametrize(
    ("found", "at", "taken"),
    [
        pytest.param([(10.0, 2)], 10.0, (4, 2), id="falls: at once"),
        pytest.param([(10.0, 6), (11.0, 4)], 11.0, None, id="grows, and is taken back"),
        pytest.param([(10.0, 5), (14.0, 6)], 18.9, None, id="grows again: waits again"),
        pytest.param([(10.0, 5), (14.0, 6)], 19.0, (4, 6), id="and is used then"),
    ],
)
def test_a_number_that_changes_again(found: list[tuple[float, int]], at: float, taken: tuple[int, int] | None) -> None:
    count = counting(4)
    for now, number in found:
        count.found(number, now, 5.0)
    assert count.take(at) == taken
    assert (count.used, count.is_pending) == (4 if taken is None else taken[1], at == 18.9)


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
