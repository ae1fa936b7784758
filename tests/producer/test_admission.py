"""The line in front of a topic moves at once and in order, even if waiting tasks are cancelled."""

import asyncio
import random

import pytest

from nsq_ha.producer.topic import AdmissionQueue
from tests.support.inside import topics_of
from tests.support.nsqd import LIMIT, Holding
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually, turn


async def test_those_who_are_quick_are_let_in_together(stage: Stage) -> None:
    stage.lookupd.answer("/lookup", {"message": "no"}, 500)
    stage.nsqd.script = holding = Holding()
    count = 200
    async with stage.producer() as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"%d" % n, key="k")) for n in range(count)]
        await eventually(lambda: TOPIC in topics_of(producer) and topics_of(producer)[TOPIC].queued == count)
        publisher = topics_of(producer)[TOPIC]
        found = asyncio.Event()
        publisher.watch.add_listener(lambda _: found.set())
        stage.lead({0: stage.nsqd})
        await asyncio.wait_for(found.wait(), LIMIT)
        # One place in each turn of the loop would take as many turns as there are places.
        await turn(count // 10)
        assert publisher.queued == 0
        assert publisher.senders[0].load == count
        await stage.nsqd.until(lambda: holding.held)
        stage.nsqd.script = None
        holding.release()
        await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)


class Crowd:
    """Many tasks in one line; ``log`` is the order in which they reached the front."""

    def __init__(self) -> None:
        self.admission = AdmissionQueue()
        self.log: list[int] = []
        self.at_front = 0
        self.may_leave: dict[int, asyncio.Event] = {}

    async def stand(self, number: int, *, is_quick: bool = True) -> None:
        async with self.admission.front(is_quick=is_quick):
            self.at_front += 1
            assert self.at_front == 1
            self.log.append(number)
            if number in self.may_leave:
                await self.may_leave[number].wait()
            self.at_front -= 1

    def start(self, count: int, *slow: int) -> "list[asyncio.Task[None]]":
        self.may_leave = {number: asyncio.Event() for number in slow}
        return [asyncio.create_task(self.stand(n, is_quick=n not in slow)) for n in range(count)]


async def test_one_who_takes_long_holds_all_behind_him() -> None:
    crowd = Crowd()
    tasks = crowd.start(10, 0, 5)
    await turn(3)
    assert crowd.log == [0]
    crowd.may_leave[0].set()
    await turn(12)
    assert crowd.log == [0, 1, 2, 3, 4, 5]
    crowd.may_leave[5].set()
    await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
    assert crowd.log == list(range(10))


async def test_a_quick_one_that_takes_long_after_all_holds_them_too() -> None:
    crowd = Crowd()
    tasks = crowd.start(10, 0)
    crowd.may_leave[3] = asyncio.Event()
    crowd.may_leave[0].set()
    await turn(12)
    assert crowd.log == [0, 1, 2, 3]
    crowd.may_leave[3].set()
    await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
    assert crowd.log == list(range(10))


async def test_whoever_is_cancelled_leaves_the_line_moving() -> None:
    for gone in ({0}, {1}, {0, 1, 2}, {4}, {9}, {5, 6}):
        crowd = Crowd()
        tasks = crowd.start(10, 0, 5)
        await turn(3)
        for number in gone:
            tasks[number].cancel()
            crowd.at_front -= number == 0
        for event in crowd.may_leave.values():
            event.set()
        await asyncio.wait_for(asyncio.wait(tasks), LIMIT)
        assert [task.cancelled() for task in tasks] == [number in gone for number in range(10)]
        assert [number for number in crowd.log if number not in gone] == [n for n in range(10) if n not in gone]


async def test_leaving_the_line_in_any_order_looks_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = []

    def equals(ticket: object, other: object) -> bool:
        comparisons.append(other)
        return ticket is other

    monkeypatch.setattr("nsq_ha.producer.topic._Ticket.__eq__", equals)
    monkeypatch.setattr("nsq_ha.producer.topic._Ticket.__hash__", object.__hash__)
    crowd = Crowd()
    tasks = crowd.start(200, 0)
    await turn(2)
    leaving = tasks[2:]
    random.Random(1).shuffle(leaving)
    for task in leaving:
        task.cancel()
    await asyncio.wait(leaving)
    assert comparisons == []
    crowd.may_leave[0].set()
    await asyncio.wait_for(asyncio.gather(*tasks[:2]), LIMIT)
    assert crowd.log == [0, 1]


async def test_whoever_leaves_the_front_unadmitted_wakes_only_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of publishes to a topic that nobody knows expire one by one."""
    count = 50
    crowd = Crowd()
    tasks = crowd.start(count)
    crowd.may_leave = {number: asyncio.Event() for number in range(count)}
    await turn(2)
    waits = 0
    loop = asyncio.get_running_loop()
    create_future = loop.create_future

    def counted() -> "asyncio.Future[object]":
        nonlocal waits
        waits += 1
        return create_future()

    monkeypatch.setattr(loop, "create_future", counted)
    for number in range(count - 1):
        tasks[number].cancel()
        crowd.at_front = 0
        await turn(3)
        assert crowd.log[-1] == number + 1
    assert waits <= 2 * count
    crowd.may_leave[count - 1].set()
    await asyncio.wait_for(tasks[-1], LIMIT)
