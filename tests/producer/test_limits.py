"""No partition takes the room of the others, and the line in front of one moves in order; without a connection."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.producer.limits import PartitionBuffer, PendingPublish, PendingPublishes
from tests.support.nsqd import LIMIT
from tests.support.waiting import turn

MOST = 100


class Front:
    """A line, and what it has queued."""

    def __init__(self, pending: PendingPublishes) -> None:
        self.queued: list[PendingPublish] = []
        self.given_up: list[PendingPublish] = []
        self.buffer = PartitionBuffer(pending, submit=self.queued.append, give_up=self.given_up.append, expire=print)

    def sizes(self) -> list[int]:
        return [request.size for request in self.queued]

    def admit(self, pending: PendingPublishes, size: int, *keys: str) -> PendingPublish:
        request = PendingPublish(topic="orders", future=pending.new_future(), size=size)
        request.keys = keys
        self.buffer.admit(request)
        return request


class Compared(PendingPublish, eq=False, kw_only=True):
    """Counts how often it is looked for."""

    comparisons: list[object]

    def __eq__(self, other: object) -> bool:
        self.comparisons.append(other)
        return self is other

    __hash__ = object.__hash__


@pytest.fixture
async def pending() -> PendingPublishes:
    return PendingPublishes(30.0, MOST)


@pytest.fixture
async def front(pending: PendingPublishes) -> Front:
    return Front(pending)


async def test_what_has_no_room_waits_and_nothing_passes_it(pending: PendingPublishes, front: Front) -> None:
    for size in (40, 30, 1):
        front.admit(pending, size)
    assert front.sizes() == [40]
    assert [request.waits_for_room for request in front.buffer.waiting] == [True, True]
    assert (front.buffer.held_bytes, pending.total_bytes) == (40, 40)
    front.buffer.free(40)
    await turn()
    assert front.sizes() == [40, 30, 1]
    assert not any(request.waits_for_room for request in front.queued)
    assert (front.buffer.held_bytes, pending.total_bytes, pending.full_buffers) == (31, 31, {})


async def test_there_is_room_where_it_fits_and_nothing_waits(front: Front) -> None:
    assert put(front, 40)
    assert not put(front, 21)
    assert put(front, 20)


async def test_what_fits_does_not_pass_what_waits(pending: PendingPublishes, front: Front) -> None:
    front.admit(pending, 40)
    front.admit(pending, 21)
    assert not put(front, 1)
    assert front.sizes() == [40]


async def test_another_partition_has_room(pending: PendingPublishes, front: Front) -> None:
    other = Front(pending)
    for _ in range(20):
        front.admit(pending, 10)
    for _ in range(20):
        other.admit(pending, 10)
    assert (front.buffer.held_bytes, other.buffer.held_bytes) == (50, 30)
    for size in (500, 500):
        Front(pending).admit(pending, size)
    assert pending.total_bytes == 1080
    front.buffer.free(50)
    await turn()
    # All lanes together hold more than the limit: each goes on with one at a time.
    assert front.buffer.held_bytes == 10


async def test_one_that_ends_in_line_is_taken_out_and_counts_for_nothing(
    pending: PendingPublishes, front: Front
) -> None:
    front.admit(pending, 60)
    gone, cancelled, last = (front.admit(pending, size) for size in (50, 51, 52))
    front.buffer.remove(gone)
    front.buffer.remove(gone)
    cancelled.future.cancel()
    front.buffer.free(60)
    await turn()
    assert front.sizes() == [60, 52]
    assert gone.waits_for_room
    assert cancelled.waits_for_room
    assert front.buffer.held_bytes == last.size


async def test_what_has_no_key_can_be_taken_out(pending: PendingPublishes, front: Front) -> None:
    front.admit(pending, 60)
    assert front.buffer.withdraw() == []
    keyed, free = front.admit(pending, 50, "key"), front.admit(pending, 50)
    assert front.buffer.withdraw() == [free]
    assert list(front.buffer.waiting) == [keyed]


async def test_who_waits_until_one_is_queued_hears_of_it(pending: PendingPublishes, front: Front) -> None:
    front.admit(pending, 60)
    following, last = front.admit(pending, 50), front.admit(pending, 50)
    waiting = [asyncio.create_task(pending.until_queued(request)) for request in (following, last)]
    await turn()
    front.buffer.free(60)
    await asyncio.wait_for(waiting[0], LIMIT)
    assert not waiting[1].done()
    pending.close()
    await asyncio.wait_for(waiting[1], LIMIT)


async def test_nothing_is_let_in_once_all_is_closed(pending: PendingPublishes, front: Front) -> None:
    front.admit(pending, 60)
    front.admit(pending, 50)
    front.buffer.free(60)
    pending.close()
    await turn()
    assert front.sizes() == [60]


async def test_leaving_the_line_in_any_order_looks_for_nobody(pending: PendingPublishes, front: Front) -> None:
    front.admit(pending, MOST)
    comparisons: list[object] = []
    waiting = [
        Compared(topic="orders", future=pending.new_future(), size=1, comparisons=comparisons) for _ in range(400)
    ]
    for request in waiting:
        front.buffer.admit(request)
    leaving = waiting[1:-1]
    random.Random(1).shuffle(leaving)
    for request in leaving:
        front.buffer.give_up(request)
        front.buffer.give_up(request)  # it has gone
    assert comparisons == []
    assert list(map(id, front.buffer.waiting)) == [id(waiting[0]), id(waiting[-1])]


# ---------------------------------------------------------------- shares of all partitions


def fronts(count: int, limit: int) -> list[Front]:
    pending = PendingPublishes(30.0, limit)
    return [Front(pending) for _ in range(count)]


def put(front: Front, size: int) -> bool:
    """Queue ``size`` bytes if there is room."""
    future = asyncio.get_running_loop().create_future()
    return front.buffer.take_in(PendingPublish(topic="orders", future=future, size=size))


@pytest.mark.parametrize(
    ("held", "others", "size", "expected"),
    [
        (0, 0, 1, True),
        (0, 0, 500, True),
        (0, 100, 500, True),
        (45, 0, 10, True),
        (45, 0, 11, False),
        (10, 70, 10, True),
        (10, 70, 11, False),
    ],
)
async def test_when_a_partition_has_room(held: int, others: int, size: int, expected: bool) -> None:
    front, other = fronts(2, 100)
    for each, given_bytes in ((front, held), (other, others)):
        assert not given_bytes or put(each, given_bytes)
    assert put(front, size) is expected


@given(stuck=st.integers(1, 12), size=st.integers(1, 40))
async def test_partitions_that_are_stuck_leave_a_part_to_the_others(stuck: int, size: int) -> None:
    limit = 10_000
    partitions = fronts(stuck, limit)
    while any([put(front, size) for front in partitions]):  # noqa: C419 - each in turn
        pass
    held = [front.buffer.held_bytes for front in partitions]
    part = limit / (stuck + 1)
    assert max(held) <= part + stuck * size
    assert limit - sum(held) >= part - stuck * size


@given(sizes=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5000)), max_size=200))
async def test_the_sum_exceeds_the_limit_by_one_publish_for_each_partition_at_most(
    sizes: list[tuple[int, int]],
) -> None:
    partitions = fronts(6, 1000)
    first = [0] * 6
    for number, size in sizes:
        if put(partitions[number], size):
            first[number] = first[number] or size
    assert sum(front.buffer.held_bytes for front in partitions) <= 1000 + sum(first)
