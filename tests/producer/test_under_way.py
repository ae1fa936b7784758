"""What is being published now: bytes, ends and time limits, without a connection."""

import asyncio

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.message import Receipt
from nsq_ha.producer.outgoing import Outgoing
from nsq_ha.producer.under_way import UnderWay
from tests.support.waiting import eventually

USUAL = 30.0
RECEIPTS = [Receipt("orders", 0, "here:4150")]


class Expired(list[Outgoing]):
    """Takes what expires, and ends it as a sender would."""

    def __call__(self, outgoing: Outgoing) -> None:
        self.append(outgoing)
        outgoing.fail(PublishError("late", topic="orders", partition=0, attempts=0, maybe_stored=False))


@pytest.fixture
def expired() -> Expired:
    return Expired()


@pytest.fixture
async def under_way(expired: Expired) -> UnderWay:
    return UnderWay(expired, USUAL, 100)


def outgoing(under_way: UnderWay, size: int = 10) -> Outgoing:
    return Outgoing("orders", under_way.new_future(), size)


async def test_one_that_is_stored_is_let_go_of_at_once(under_way: UnderWay) -> None:
    usual, other = outgoing(under_way), outgoing(under_way, 20)
    under_way.add_usual(usual)
    under_way.add(other, 5.0)
    under_way.pending_bytes += other.size
    assert under_way.pending_bytes == 30
    under_way.stored([usual, other], RECEIPTS)
    assert (await usual.future, await other.future) == (RECEIPTS, RECEIPTS)
    assert (under_way.pending_bytes, under_way.futures()) == (0, [])
    under_way.let_go(usual)
    under_way.let_go(other)
    assert under_way.pending_bytes == 0
    under_way.close()


async def test_one_that_failed_is_let_go_of_once(under_way: UnderWay, expired: Expired) -> None:
    one = outgoing(under_way)
    under_way.add_usual(one)
    expired(one)
    under_way.stored([one], RECEIPTS)
    assert isinstance(one.future.exception(), PublishError)
    assert under_way.futures() == [one.future]
    under_way.let_go(one)
    under_way.let_go(one)
    assert under_way.futures() == []
    assert not one.future.cancelled()
    under_way.close()


async def test_one_that_was_never_queued_has_no_bytes(under_way: UnderWay) -> None:
    one = outgoing(under_way)
    under_way.add(one, 5.0)
    under_way.let_go(one)
    assert one.future.cancelled()
    assert (under_way.pending_bytes, under_way.futures()) == (0, [])
    under_way.close()


async def test_each_ends_at_its_own_limit_the_others_go_on(under_way: UnderWay, expired: Expired) -> None:
    usual, late, early = (outgoing(under_way) for _ in range(3))
    under_way.add_usual(usual)
    under_way.add(late, 0.02)
    under_way.add(early, 0.01)
    await eventually(lambda: len(expired) == 2)
    assert set(expired) == {early, late}
    assert early.deadline < late.deadline < usual.deadline
    assert not usual.future.done()
    under_way.close()


async def test_one_that_is_done_does_not_expire(under_way: UnderWay, expired: Expired) -> None:
    done, waiting = outgoing(under_way), outgoing(under_way)
    under_way.add(done, 0.01)
    under_way.add(waiting, 0.01)
    done.future.set_result(RECEIPTS)
    await eventually(lambda: bool(expired))
    assert expired == [waiting]
    under_way.close()


async def test_nothing_expires_once_it_is_closed(under_way: UnderWay, expired: Expired) -> None:
    one = outgoing(under_way)
    under_way.add(one, 0.01)
    under_way.close()
    await asyncio.wait({one.future}, timeout=0.05)
    assert expired == []
    assert not one.future.done()
