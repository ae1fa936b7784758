"""Tasks that wait for messages go on inside the call that brings them, and nothing else changes for them."""

import asyncio
import contextvars

import pytest

from nsq_ha import Message
from nsq_ha.consumer.inbox import ConsumerInbox
from nsq_ha.consumer.queue import MessageQueue
from nsq_ha.protocol import Finish
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually


class Waiters:
    """Tasks that wait for arrivals and note each time that they go on."""

    def __init__(self) -> None:
        self.arrivals = MessageQueue()
        self.went_on: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, *names: str) -> None:
        """Start tasks and let them come to wait."""
        self.tasks += [asyncio.create_task(self._wait(name)) for name in names]
        await _turns()

    async def _wait(self, name: str) -> None:
        await self.arrivals.arrival(asyncio.get_running_loop())
        self.went_on.append(name)


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def _by_the_loop(waiters: Waiters) -> asyncio.Future[list[str]]:
    """Wake as a read does, outside of all tasks; gives who had gone on when that returned."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[list[str]] = loop.create_future()

    def read() -> None:
        waiters.arrivals.wake_now()
        seen.set_result(list(waiters.went_on))

    loop.call_soon(read)
    return seen


async def test_a_task_goes_on_inside_the_call() -> None:
    waiters = Waiters()
    await waiters.add("one")
    assert await _by_the_loop(waiters) == ["one"]
    await asyncio.gather(*waiters.tasks)


async def test_no_task_runs_inside_another() -> None:
    waiters = Waiters()
    await waiters.add("one")
    waiters.arrivals.wake_now()  # this test is a task
    assert waiters.went_on == []
    await _turns()
    assert waiters.went_on == ["one"]


async def test_of_several_all_go_on_in_the_next_turn_in_their_order() -> None:
    waiters = Waiters()
    await waiters.add("one", "two")
    assert await _by_the_loop(waiters) == []
    await _turns()
    assert waiters.went_on == ["one", "two"]


async def test_nobody_waits() -> None:
    assert await _by_the_loop(Waiters()) == []


async def test_who_was_cancelled_is_not_run_and_who_came_after_is() -> None:
    waiters = Waiters()
    await waiters.add("one")
    waiters.tasks[0].cancel()
    await _turns()
    assert waiters.tasks[0].cancelled()
    await waiters.add("two")
    assert await _by_the_loop(waiters) == ["two"]


async def test_cancelled_and_woken_in_one_turn_it_is_cancelled() -> None:
    waiters = Waiters()
    await waiters.add("one")
    waiters.tasks[0].cancel()
    assert await _by_the_loop(waiters) == []
    await _turns()
    assert waiters.tasks[0].cancelled()


async def test_a_task_keeps_its_context() -> None:
    name = contextvars.ContextVar("name", default="none")
    arrivals = MessageQueue()

    async def wait() -> str:
        name.set("task")
        await arrivals.arrival(asyncio.get_running_loop())
        return name.get()

    task = asyncio.create_task(wait())
    await _turns()
    asyncio.get_running_loop().call_soon(arrivals.wake_now)
    assert await task == "task"
    assert name.get() == "none"


def test_what_ends_the_program_is_raised_by_the_loop_and_not_through_the_read() -> None:
    returned = []
    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        arrivals = MessageQueue()

        async def wait() -> None:
            await arrivals.arrival(asyncio.get_running_loop())
            raise SystemExit(3)

        def read() -> None:
            arrivals.wake_now()
            returned.append(True)

        tasks.append(asyncio.create_task(wait()))
        await _turns()
        asyncio.get_running_loop().call_soon(read)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert returned
    assert isinstance(tasks[0].exception(), SystemExit)  # otherwise it would be logged, perhaps during another test


async def test_a_message_is_handled_and_finished_in_the_turn_that_reads_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    order: list[str] = []
    brings = ConsumerInbox.arrived

    def arrived(inbox: ConsumerInbox, messages: list[Message]) -> None:
        brings(inbox, messages)
        order.append("read")

    monkeypatch.setattr(ConsumerInbox, "arrived", arrived)

    async def handler(_: Message) -> None:
        order.append("handled")

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        peer = await stage.nsqd.subscriber()
        peer.message(b"one", message_id(2))
        await eventually(lambda: peer.of(Finish) == [Finish(message_id(2))])
        assert order == ["handled", "read"]
    await running


async def test_a_time_limit_around_waiting_loses_no_message(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.01)
        peer.message(b"one", message_id(2))
        async with asyncio.timeout(5):
            message = await anext(consumer)
        message.finish()
        assert message.body == b"one"
