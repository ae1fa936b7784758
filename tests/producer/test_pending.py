"""What is being published now: ends and time limits, without a connection."""

import random
from collections.abc import Callable

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.message import Receipt
from nsq_ha.producer.limits import PendingPublish, PendingPublishes
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


async def test_one_that_was_never_queued_is_let_go_of(pending: PendingPublishes) -> None:
    one = request(pending)
    pending.add(one, 5.0)
    pending.let_go(one)
    assert one.future.cancelled()
    assert (pending.total_bytes, pending.futures()) == (0, [])
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


async def test_one_that_is_done_does_not_expire(pending: PendingPublishes, partition: Partition) -> None:
    done, waiting = request(pending, partition), request(pending, partition)
    pending.add(done, 0.01)
    pending.add(waiting, 0.01)
    done.future.set_result(RECEIPTS)
    await eventually(lambda: bool(partition.expired))
    assert partition.expired == [waiting]
    pending.close()
