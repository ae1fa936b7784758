"""Plain functions as handlers: how many run at once, where, and with what."""

import asyncio
import contextvars
import logging
import threading

import pytest

from nsq_ha import Message
from nsq_ha.base.threads import HandlerThreads
from nsq_ha.protocol import Finish, Requeue
from tests.support.nsqd import LIMIT, message_id
from tests.support.stage import Stage
from tests.support.waiting import turn

MANY = 40


async def test_as_many_run_at_once_as_was_asked_for(stage: Stage) -> None:
    """Each waits until all have begun; meanwhile host names are resolved as before."""
    all_began = threading.Barrier(MANY + 1)

    def handle(message: Message) -> None:
        all_began.wait(LIMIT)

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=MANY))
        peer = await stage.nsqd.subscriber()
        await stage.nsqd.until(lambda: peer.ready >= MANY)
        for number in range(MANY):
            peer.message(b"x", message_id(number + 2))
        await asyncio.wait_for(asyncio.get_running_loop().getaddrinfo("localhost", 80), LIMIT)
        assert not peer.of(Finish)
        await asyncio.to_thread(all_began.wait, LIMIT)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == MANY)
        assert not peer.of(Requeue)
    await running


async def test_threads_are_used_again_and_started_only_when_needed(stage: Stage) -> None:
    seen = set()

    def handle(message: Message) -> None:
        seen.add(threading.current_thread().name)

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=MANY))
        peer = await stage.nsqd.subscriber()
        for number in range(10):
            peer.message(b"x", message_id(number + 2))
            await stage.nsqd.until(lambda: len(peer.of(Finish)) == number + 1)  # noqa: B023 - awaited here
    await running
    assert seen == {"nsq_ha handler 1"}


async def test_context_variables_reach_the_handler(stage: Stage) -> None:
    word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")
    seen = []

    def handle(message: Message) -> None:
        seen.append(word.get())

    async with stage.consumer() as consumer:
        word.set("given")
        running = asyncio.create_task(consumer.run(handle))
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        await stage.nsqd.until(lambda: peer.of(Finish))
    await running
    assert seen == ["given"]


async def test_a_handler_that_never_returns_keeps_neither_the_run_nor_the_process(stage: Stage) -> None:
    began, release = threading.Event(), threading.Event()
    threads = []

    def handle(message: Message) -> None:
        threads.append(threading.current_thread())
        began.set()
        release.wait(LIMIT)

    async with asyncio.timeout(LIMIT):
        async with stage.consumer(close_timeout=0.1) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            peer = await stage.nsqd.subscriber()
            peer.message(b"x")
            await asyncio.to_thread(began.wait, LIMIT)
        await running
    assert threads[0].is_alive()
    assert threads[0].daemon
    assert not peer.of(Finish)
    release.set()


async def test_fewer_messages_in_flight_than_handlers_is_warned_about(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Message) -> None:
        """Succeed."""

    caplog.set_level(logging.WARNING)
    for count in (3, 4):
        async with stage.consumer(max_in_flight=3) as consumer:
            running = asyncio.create_task(consumer.run(handle, concurrency=count))
            await stage.nsqd.subscriber()
            await turn()
        await running
    # asyncio's debug mode logs, too, on a busy machine.
    assert [record.message for record in caplog.records if record.name == "nsq_ha.consumer"] == [
        "orders/ch: only 3 of 4 handlers can run at once: raise max_in_flight=3 to concurrency or more"
    ]


# ------------------------------------------------------------ the threads alone


@pytest.mark.real_time
async def test_a_function_whose_caller_has_gone_before_it_began_is_not_called() -> None:
    """on_give_up was called for a message that had gone back to nsqd, if all threads were busy until then."""
    threads, may_end = HandlerThreads(1), threading.Event()
    called: list[object] = []
    first = asyncio.create_task(threads.call(lambda _: may_end.wait(10.0), None))
    gone, last = (asyncio.create_task(threads.call(called.append, name)) for name in ("gone", "last"))
    await turn()
    gone.cancel()
    await asyncio.wait({gone})
    may_end.set()
    await asyncio.gather(first, last)
    assert (called, threads._busy) == (["last"], 0)
    threads.close()


@pytest.mark.real_time
async def test_a_thread_has_the_callers_context_and_returns_its_error() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    threads = HandlerThreads(1)
    assert await threads.call(lambda _: variable.get(), None) == "mine"
    error = KeyError("no")

    def fail(given: object) -> None:
        raise error if given is None else StopIteration(given)

    with pytest.raises(KeyError) as caught:
        await threads.call(fail, None)
    assert caught.value is error
    with pytest.raises(RuntimeError, match=r"^handler raised StopIteration\(5\)$") as stopped_error:
        await threads.call(fail, 5)
    assert isinstance(stopped_error.value.__cause__, StopIteration)
    threads.close()


@pytest.mark.real_time
async def test_a_thread_that_cannot_start_is_not_waited_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = HandlerThreads(1)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await threads.call(lambda number: number, 1)
    assert await asyncio.wait_for(threads.call(lambda number: number, 2), 10.0) == 2
    threads.close()
