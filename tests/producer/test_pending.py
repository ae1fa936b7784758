"""What is being published now: bytes, ends and time limits, without a connection."""

import asyncio
import random

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.message import Receipt
from nsq_ha.producer.pending import PendingPublishes
from nsq_ha.producer.requests import Request
from tests.support.inside import limits_kept
from tests.support.waiting import eventually

USUAL = 30.0
RECEIPTS = [Receipt("orders", 0, "here:4150")]


class Expired(list[Request]):
    """A place that only counts bytes and fails what expires, as a sender would."""

    held_bytes = 0

    def give_up(self, request: Request) -> None:
        """Nothing has to be undone here."""

    def expire(self, request: Request) -> None:
        self.append(request)
        request.fail(PublishError("late", topic="orders", partition=0, attempts=0, maybe_stored=False))


@pytest.fixture
def expired() -> Expired:
    return Expired()


@pytest.fixture
async def pending() -> PendingPublishes:
    return PendingPublishes(USUAL, 100)


def request(pending: PendingPublishes, place: Expired | None = None, size: int = 10) -> Request:
    """Return a request that is queued at ``place``."""
    if place is not None:
        pending.total_bytes += size
        place.held_bytes += size
    return Request(topic="orders", future=pending.new_future(), size=size, place=place)


async def test_one_that_is_stored_is_let_go_of_at_once(pending: PendingPublishes, expired: Expired) -> None:
    usual, other = request(pending, expired), request(pending, expired, 20)
    pending.add(usual, USUAL)
    pending.add(other, 5.0)
    assert (pending.total_bytes, expired.held_bytes) == (30, 30)
    pending.stored(usual, RECEIPTS)
    pending.stored(other, RECEIPTS)
    assert (await usual.future, await other.future) == (RECEIPTS, RECEIPTS)
    assert (pending.total_bytes, expired.held_bytes, pending.futures()) == (0, 0, [])
    pending.let_go(usual)
    pending.let_go(other)
    assert pending.total_bytes == 0
    pending.close()


async def test_one_that_failed_is_let_go_of_once(pending: PendingPublishes, expired: Expired) -> None:
    one = request(pending, expired)
    pending.add(one, USUAL)
    expired.expire(one)
    pending.stored(one, RECEIPTS)
    assert isinstance(one.future.exception(), PublishError)
    assert pending.futures() == [one.future]
    pending.let_go(one)
    pending.let_go(one)
    assert pending.futures() == []
    assert not one.future.cancelled()
    pending.close()


async def test_one_that_was_never_queued_has_no_bytes(pending: PendingPublishes) -> None:
    one = request(pending)
    pending.add(one, 5.0)
    pending.let_go(one)
    assert one.future.cancelled()
    assert (pending.total_bytes, pending.futures()) == (0, [])
    pending.close()


async def test_each_ends_at_its_own_limit_the_others_go_on(pending: PendingPublishes, expired: Expired) -> None:
    usual, late, early = (request(pending, expired) for _ in range(3))
    pending.add(usual, USUAL)
    pending.add(late, 0.02)
    pending.add(early, 0.01)
    await eventually(lambda: len(expired) == 2)
    assert set(expired) == {early, late}
    assert early.deadline < late.deadline < usual.deadline
    assert not usual.future.done()
    pending.close()


class Looked(Request, eq=False, kw_only=True):
    """Counts how often it is looked at."""

    looks: list[None]

    def __getattribute__(self, name: str) -> object:
        if name == "deadline":
            object.__getattribute__(self, "looks").append(None)
        return object.__getattribute__(self, name)


async def test_many_different_limits_take_no_more_work_than_equal_ones(
    pending: PendingPublishes, expired: Expired
) -> None:
    looks: list[None] = []
    count = 400
    limits = [1.0 + number / 100 for number in range(count)]
    random.Random(1).shuffle(limits)
    requests = [Looked(topic="orders", future=pending.new_future(), size=0, place=expired, looks=looks) for _ in limits]
    for one, limit in zip(requests, limits, strict=True):
        pending.add(one, limit)
    for one in requests[: count // 2]:  # most are answered before
        pending.stored(one, RECEIPTS)
    looks.clear()
    await eventually(lambda: len(expired) == count // 2)
    assert len(looks) <= 4 * count
    for one in requests:
        pending.let_go(one)
    in_order = [one.deadline for one in expired]
    assert in_order == sorted(in_order)
    assert pending.futures() == []
    pending.close()


async def test_limits_that_are_over_are_not_kept(pending: PendingPublishes, expired: Expired) -> None:
    waiting = request(pending, expired)
    pending.add(waiting, 1000.0)
    for number in range(10_000):
        one = request(pending, expired)
        pending.add(one, 500.0 + number / 1000)
        pending.stored(one, RECEIPTS)
        assert limits_kept(pending) <= 100
    again = request(pending, expired)
    pending.add(again, 500.0)
    await eventually(lambda: expired == [again], 600.0)
    await eventually(lambda: expired == [again, waiting], 600.0)
    pending.close()


async def test_one_that_is_done_does_not_expire(pending: PendingPublishes, expired: Expired) -> None:
    done, waiting = request(pending, expired), request(pending, expired)
    pending.add(done, 0.01)
    pending.add(waiting, 0.01)
    done.future.set_result(RECEIPTS)
    await eventually(lambda: bool(expired))
    assert expired == [waiting]
    pending.close()


async def test_nothing_expires_once_it_is_closed(pending: PendingPublishes, expired: Expired) -> None:
    one = request(pending, expired)
    pending.add(one, 0.01)
    pending.close()
    await asyncio.wait({one.future}, timeout=0.05)
    assert expired == []
    assert not one.future.done()
