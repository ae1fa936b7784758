"""The line in front of a topic moves at once and in order, even if waiting tasks are cancelled."""

import asyncio

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
