"""No partition takes the room of the others, no command is too large, and idle topics are forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.producer_limits import UNKNOWN_KEPT, chunks, fits, has_room, is_forgotten

LIMIT = 1000


@pytest.mark.parametrize(
    ("size", "held", "total", "expected"),
    [
        (1, 0, 0, True),
        (5 * LIMIT, 0, 0, True),
        (5 * LIMIT, 0, LIMIT, True),
        (100, 450, 450, True),
        (101, 450, 450, False),
        (100, 100, 800, True),
        (101, 100, 800, False),
    ],
)
def test_when_a_partition_has_room(size: int, held: int, total: int, expected: bool) -> None:
    assert has_room(size, held=held, total=total, limit=LIMIT) is expected


def filled(stuck: int, limit: int, size: int) -> list[int]:
    """Fill partitions that answer nothing, each in turn, until none takes more."""
    held = [0] * stuck
    grows = True
    while grows:
        grows = False
        for number in range(stuck):
            if has_room(size, held=held[number], total=sum(held), limit=limit):
                held[number] += size
                grows = True
    return held


@given(stuck=st.integers(1, 12), size=st.integers(1, 40))
def test_partitions_that_are_stuck_leave_a_part_to_the_others(stuck: int, size: int) -> None:
    limit = 10_000
    held = filled(stuck, limit, size)
    part = limit / (stuck + 1)
    assert max(held) <= part + stuck * size
    assert limit - sum(held) >= part - stuck * size


@given(sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5000)), max_size=200))
def test_the_sum_exceeds_the_limit_by_one_publish_for_each_partition_at_most(sizes: list[tuple[int, int]]) -> None:
    held, first = [0] * 6, [0] * 6
    for partition, size in sizes:
        if has_room(size, held=held[partition], total=sum(held), limit=LIMIT):
            first[partition] = first[partition] or size
            held[partition] += size
    assert sum(held) <= LIMIT + sum(first)


@given(sizes=st.lists(st.integers(1, 50), max_size=60), max_bytes=st.integers(1, 120), max_count=st.integers(1, 20))
def test_messages_that_come_one_by_one_are_cut_alike(sizes: list[int], max_bytes: int, max_count: int) -> None:
    cut: list[list[int]] = []
    for position, size in enumerate(sizes):
        before = cut[-1] if cut else []
        if not cut or not fits(size, sum(sizes[each] for each in before), len(before), max_bytes, max_count):
            cut.append([])
        cut[-1].append(position)
    assert cut == [list(part) for part in chunks(sizes, max_bytes, max_count)]


@given(sizes=st.lists(st.integers(1, 50), max_size=60), max_bytes=st.integers(1, 120), max_count=st.integers(1, 20))
def test_chunks_hold_everything_in_order_within_the_limits(sizes: list[int], max_bytes: int, max_count: int) -> None:
    cut = list(chunks(sizes, max_bytes, max_count))
    assert [position for part in cut for position in part] == list(range(len(sizes)))
    for part in cut:
        assert 1 <= len(part) <= max_count
        assert len(part) == 1 or sum(sizes[position] for position in part) <= max_bytes


def test_a_chunk_is_as_large_as_the_limits_allow() -> None:
    assert list(chunks([3] * 7, 9, 100)) == [range(3), range(3, 6), range(6, 7)]
    assert list(chunks([1] * 5, 100, 2)) == [range(2), range(2, 4), range(4, 5)]
    assert list(chunks([20, 1, 20], 9, 100)) == [range(1), range(1, 2), range(2, 3)]


@pytest.mark.parametrize(
    ("unused_for", "is_known", "is_needed", "expected"),
    [
        (1e9, True, True, False),
        (1e9, False, True, False),
        (600.0, True, False, False),
        (600.1, True, False, True),
        (UNKNOWN_KEPT, False, False, False),
        (UNKNOWN_KEPT + 0.1, False, False, True),
    ],
)
def test_when_a_topic_is_forgotten(unused_for: float, is_known: bool, is_needed: bool, expected: bool) -> None:
    assert is_forgotten(unused_for, is_known=is_known, is_needed=is_needed, idle_timeout=600.0) is expected


def test_an_unknown_topic_is_never_kept_longer_than_a_known_one() -> None:
    assert is_forgotten(2.0, is_known=False, is_needed=False, idle_timeout=1.0)
