"""What is being published now: ends and time limits, without a connection."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.message import Receipt
from nsq_ha.producer.limits import EXPIRED_AT_ONCE, PendingPublish, PendingPublishes
from tests.support.waiting import eventually

USUAL = 30.0
RECEIPTS = [Receipt("orders", 0, "here:4150")]


class Partition:
    """Fails what expires, as a sender would."""

    def __init__(self) -> None:
        self.expired: list[PendingPublish] = []
        self.on_expire: Callable[[], object] = lambda: None

    def give_up(self, request: PendingPublish) -> None:
        pass

    def expire(self, request: PendingPublish) -> None:
        self.on_expire()
        self.expired.append(request)
        request.fail(PublishError("late", topic="orders", partition=0, attempts=0, maybe_stored=False))


@pytest.fixture
async def pending() -> PendingPublishes:
    return PendingPublishes(USUAL)


@pytest.fixture
async def partition() -> Partition:
    return Partition()


def request(pending: PendingPublishes, partition: Partition | None = None, size: int = 10) -> PendingPublish:
    """Return a request that is queued at ``partition``."""
    one = PendingPublish(topic="orders", future=pending.new_future(), size=size)
    if partition is not None:
        one.holder = partition
    return one


async def test_one_that_is_stored_is_let_go_of_at_once(pending: PendingPublishes, partition: Partition) -> None:
    usual, other = request(pending, partition), request(pending, partition, 20)
    pending.add(usual, USUAL)
    pending.add(other, 5.0)
    assert pending.total_bytes == 30
    pending.stored(usual, RECEIPTS)
    pending.stored(other, RECEIPTS)
    assert (await usual.future, await other.future) == (RECEIPTS, RECEIPTS)
    assert (pending.total_bytes, pending.futures()) == (0, [])
    pending.let_go(usual)
    pending.let_go(other)
    assert pending.total_bytes == 0
    pending.close()


async def test_one_that_failed_is_let_go_of_once(pending: PendingPublishes, partition: Partition) -> None:
    one = request(pending, partition)
    pending.add(one, USUAL)
    partition.expire(one)
    pending.stored(one, RECEIPTS)
    assert isinstance(one.future.exception(), PublishError)
    assert pending.futures() == [one.future]
    pending.let_go(one)
    pending.let_go(one)
    assert pending.futures() == []
    assert not one.future.cancelled()
    pending.close()


async def test_one_that_was_never_queued_is_let_go_of(pending: PendingPublishes) -> None:
    one = request(pending)
    pending.add(one, 5.0)
    pending.let_go(one)
    assert one.future.cancelled()
    assert (pending.total_bytes, pending.futures()) == (0, [])
    pending.close()


async def test_each_ends_at_its_own_limit_the_others_go_on(pending: PendingPublishes, partition: Partition) -> None:
    usual, late, early = (request(pending, partition) for _ in range(3))
    pending.add(usual, USUAL)
    pending.add(late, 0.02)
    pending.add(early, 0.01)
    await eventually(lambda: len(partition.expired) == 2)
    assert set(partition.expired) == {early, late}
    assert early.deadline < late.deadline < usual.deadline
    assert not usual.future.done()
    pending.close()


async def test_many_different_limits_end_in_their_order(pending: PendingPublishes, partition: Partition) -> None:
    count = 400
    limits = [1.0 + number / 100 for number in range(count)]
    random.Random(1).shuffle(limits)
    requests = [request(pending, partition, 0) for _ in limits]
    for one, limit in zip(requests, limits, strict=True):
        pending.add(one, limit)
    for one in requests[: count // 2]:  # most are answered before
        pending.stored(one, RECEIPTS)
    await eventually(lambda: len(partition.expired) == count // 2)
    for one in requests:
        pending.let_go(one)
    in_order = [one.deadline for one in partition.expired]
    assert in_order == sorted(in_order)
    assert pending.futures() == []
    pending.close()


async def test_the_first_ones_to_end_are_expired_by_one_timer(
    pending: PendingPublishes, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[float] = []
    call_at = pending.loop.call_at

    def counted(when: float, *given: Any, **more: Any) -> asyncio.TimerHandle:  # noqa: ANN401 - what call_at takes
        timers.append(when)
        return call_at(when, *given, **more)

    monkeypatch.setattr(pending.loop, "call_at", counted)
    requests = [request(pending, partition, 0) for _ in range(100)]
    for one in requests:
        pending.add(one, None)
    for one in requests[:50]:
        pending.stored(one, RECEIPTS)
    assert timers == [requests[0].deadline]
    timers.clear()
    await eventually(lambda: len(partition.expired) == 50, 2 * USUAL)
    assert set(timers) & {one.deadline for one in requests} <= {one.deadline for one in requests[50:]}
    pending.close()


async def test_thousands_that_end_together_leave_turns_to_others() -> None:
    pending, partition = PendingPublishes(0.01), Partition()
    requests = [request(pending, partition) for _ in range(3 * EXPIRED_AT_ONCE)]
    for one in requests:
        pending.add(one, None)
    turns: list[int] = []

    def count() -> None:
        if len(partition.expired) % EXPIRED_AT_ONCE == 0:
            asyncio.get_running_loop().call_soon(lambda: turns.append(len(partition.expired)))

    partition.on_expire = count
    await eventually(lambda: len(partition.expired) == len(requests))
    assert turns[:2] == [EXPIRED_AT_ONCE, 2 * EXPIRED_AT_ONCE]
    for one in requests:
        assert isinstance(one.future.exception(), PublishError)
        pending.let_go(one)
    pending.close()


async def test_one_that_is_done_does_not_expire(pending: PendingPublishes, partition: Partition) -> None:
    done, waiting = request(pending, partition), request(pending, partition)
    pending.add(done, 0.01)
    pending.add(waiting, 0.01)
    done.future.set_result(RECEIPTS)
    await eventually(lambda: bool(partition.expired))
    assert partition.expired == [waiting]
    pending.close()


async def test_nothing_expires_once_it_is_closed(pending: PendingPublishes, partition: Partition) -> None:
    one = request(pending, partition)
    pending.add(one, 0.01)
    pending.close()
    await asyncio.wait({one.future}, timeout=0.05)
    assert partition.expired == []
    assert not one.future.done()
