"""No partition takes the room of the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.policy.room import has_room

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
def test_the_rows_of_the_table(size: int, held: int, total: int, expected: bool) -> None:
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
