"""The line in front of one partition, without a connection."""

import asyncio

import pytest

from nsq_ha.producer.line import Line
from nsq_ha.producer.outgoing import Outgoing
from nsq_ha.producer.under_way import UnderWay
from tests.support.nsqd import LIMIT
from tests.support.waiting import turn

MOST = 100


class Front:
    """A line, and what it has queued."""

    def __init__(self, under_way: UnderWay) -> None:
        self.queued: list[Outgoing] = []
        self.line = Line(under_way, self.queued.append)

    def sizes(self) -> list[int]:
        return [outgoing.size for outgoing in self.queued]

    def admit(self, under_way: UnderWay, size: int, *keys: str) -> Outgoing:
        outgoing = Outgoing("orders", under_way.new_future(), size)
        outgoing.keys = keys
        self.line.admit(outgoing)
        return outgoing


@pytest.fixture
async def under_way() -> UnderWay:
    return UnderWay(lambda _: None, 30.0, MOST)


@pytest.fixture
async def front(under_way: UnderWay) -> Front:
    return Front(under_way)


async def test_what_has_no_room_waits_and_nothing_passes_it(under_way: UnderWay, front: Front) -> None:
    for size in (40, 30, 1):
        front.admit(under_way, size)
    assert front.sizes() == [40]
    assert [outgoing.is_in_line for outgoing in front.line.waiting] == [True, True]
    assert (front.line.held, under_way.pending_bytes) == (40, 40)
    front.line.free(40)
    await turn()
    assert front.sizes() == [40, 30, 1]
    assert not any(outgoing.is_in_line for outgoing in front.queued)
    assert (front.line.held, under_way.pending_bytes, under_way.lines) == (31, 31, {})


async def test_another_partition_has_room(under_way: UnderWay, front: Front) -> None:
    other = Front(under_way)
    for _ in range(20):
        front.admit(under_way, 10)
    for _ in range(20):
        other.admit(under_way, 10)
    assert (front.line.held, other.line.held) == (50, 30)
    for size in (500, 500):
        Front(under_way).admit(under_way, size)
    assert under_way.pending_bytes == 1080
    front.line.free(50)
    await turn()
    # All lanes together hold more than the limit: each goes on with one at a time.
    assert front.line.held == 10


async def test_one_that_ends_in_line_is_taken_out_and_counts_for_nothing(under_way: UnderWay, front: Front) -> None:
    front.admit(under_way, 60)
    gone, cancelled, last = (front.admit(under_way, size) for size in (50, 51, 52))
    front.line.remove(gone)
    front.line.remove(gone)
    cancelled.future.cancel()
    front.line.free(60)
    await turn()
    assert front.sizes() == [60, 52]
    assert gone.is_in_line
    assert cancelled.is_in_line
    assert front.line.held == last.size


async def test_what_has_no_key_can_be_taken_out(under_way: UnderWay, front: Front) -> None:
    front.admit(under_way, 60)
    assert front.line.withdraw() == []
    keyed, free = front.admit(under_way, 50, "key"), front.admit(under_way, 50)
    assert front.line.withdraw() == [free]
    assert list(front.line.waiting) == [keyed]


async def test_who_waits_until_one_is_queued_hears_of_it(under_way: UnderWay, front: Front) -> None:
    front.admit(under_way, 60)
    following, last = front.admit(under_way, 50), front.admit(under_way, 50)
    waiting = [asyncio.create_task(under_way.until_queued(outgoing)) for outgoing in (following, last)]
    await turn()
    front.line.free(60)
    await asyncio.wait_for(waiting[0], LIMIT)
    assert not waiting[1].done()
    under_way.close()
    await asyncio.wait_for(waiting[1], LIMIT)


async def test_nothing_is_let_in_once_all_is_closed(under_way: UnderWay, front: Front) -> None:
    front.admit(under_way, 60)
    front.admit(under_way, 50)
    front.line.free(60)
    under_way.close()
    await turn()
    assert front.sizes() == [60]
