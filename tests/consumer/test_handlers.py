"""Handlers that fail in unusual ways."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any, cast

import pytest

from nsq_ha import Message
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES
from nsq_ha.protocol import Finish, Layout, Ready, Requeue
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually, turn


async def fails_by_a_task(message: Message) -> None:
    """Await what somebody else cancelled."""
    other = asyncio.ensure_future(asyncio.Event().wait())
    other.cancel()
    await other


async def finishes(message: Message) -> None:
    """Succeed."""


def runs_out(message: Message) -> None:
    next(iter(()))


@pytest.mark.parametrize("handler", [fails_by_a_task, runs_out])
@pytest.mark.parametrize("concurrency", [1, 4])
async def test_whatever_a_handler_fails_with_its_message_comes_again_and_others_are_handled(
    stage: Stage,
    handler: Callable[[Message], Awaitable[None] | None],
    concurrency: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=concurrency))
        peer = await stage.nsqd.subscriber()
        peer.message(b"1", message_id(2))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 1)
        assert not running.done()
        peer.message(b"2", message_id(3))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 2)
    await running
    assert caplog.text.count("handler failed on") == 1  # the other one is counted


async def test_a_handler_that_fails_all_the_time_fills_no_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """It wrote 43 MB of tracebacks in 20 s."""
    caplog.set_level(logging.WARNING)

    async def handle(message: Message) -> None:
        await dawdle(0.01)
        if message.body == b"odd":
            raise KeyError(message.body)
        raise ValueError(message.body)

    async with stage.consumer(handler_backoff=None) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        peer = await stage.nsqd.subscriber()
        for number in range(2000):
            peer.message(b"odd" if number == 1000 else b"%d" % number, message_id(number + 2))
            await stage.nsqd.until(lambda: len(peer.of(Requeue)) == number + 1)  # noqa: B023 - awaited here
    await running
    lines = [record for record in caplog.records if record.getMessage().startswith("handler failed on")]
    assert len(lines) <= 5
    assert [record.exc_info[0] for record in lines if record.exc_info] == [ValueError, KeyError]
    counted = [re.search(r"\(and (\d+) times more since the last line\)", record.getMessage()) for record in lines]
    assert sum(int(found[1]) for found in counted if found) > 1000


class Enough(BaseException):
    """What no handler should raise."""


@pytest.mark.parametrize("kind", [Enough, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_plain", [False, True])
async def test_what_is_no_exception_ends_the_run_and_gives_the_message_to_other_consumers(
    stage: Stage, kind: type[BaseException], concurrency: int, *, is_plain: bool
) -> None:
    """The event loop goes on, so that the consumer closes as after any error."""

    async def handle(message: Message) -> None:
        raise kind

    if is_plain:
        stage.list_plain(stage.nsqd)
    async with stage.consumer() as consumer:
        running = asyncio.create_task(raised_by(consumer.run(handle, concurrency=concurrency)))
        peer = await stage.nsqd.subscriber()
        peer.message(b"1", message_id(2), layout=Layout.PLAIN if is_plain else Layout.DETAIL)
        assert type(await running) is kind
        await stage.nsqd.until(lambda: peer.of(Requeue))
        said = peer.of(Ready, Requeue)
        assert isinstance(said[-1], Requeue)
        assert isinstance(said[-2], Ready)
        assert (said[-2].count, said[-1].delay_ms) == (0, 0)
        # Whoever wants messages again gets some.
        waiting = asyncio.create_task(consumer.get(timeout=60.0))
        await stage.nsqd.until(lambda: peer.ready > 0)
        peer.message(b"2", message_id(3), layout=Layout.PLAIN if is_plain else Layout.DETAIL)
        (await waiting).finish()


async def raised_by(running: Awaitable[None]) -> BaseException | None:
    """Return what a call raises; a SystemExit of a task would end the event loop."""
    try:
        await running
    except BaseException as error:  # noqa: BLE001 - whatever a handler raises
        return error
    return None


async def test_a_way_to_give_up_that_awaits_what_is_cancelled_loses_nobody_and_nothing(stage: Stage) -> None:
    async with stage.consumer(max_attempts=1, on_give_up=fails_by_a_task) as consumer:
        running = asyncio.create_task(consumer.run(finishes))
        peer = await stage.nsqd.subscriber()
        peer.message(b"1", message_id(2), attempts=2 + EXTRA_DELIVERIES)
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 1)
        peer.message(b"2", message_id(3))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 1)
        assert not running.done()
    await running


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_way_to_give_up_that_raises_what_is_no_exception_ends_the_run_at_once(
    stage: Stage, concurrency: int
) -> None:
    given_up = []

    async def give_up(message: Message) -> None:
        given_up.append(message.body)
        raise Enough

    async with stage.consumer(max_attempts=1, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"%d" % number, message_id(number + 2), attempts=2 + EXTRA_DELIVERIES)
        await eventually(lambda: len(consumer_machine_of(consumer).queue) == 3)
        with pytest.raises(Enough):
            await consumer.run(finishes, concurrency=concurrency)
        assert given_up == [b"0"]
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert peer.of(Requeue) == [Requeue(message_id(2), 0)]


async def test_a_way_to_give_up_that_is_cancelled_leaves_the_message_to_who_comes_next(stage: Stage) -> None:
    began = asyncio.Event()

    async def give_up(message: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    async with stage.consumer(max_attempts=1, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2), attempts=2 + EXTRA_DELIVERIES)
        waiting = asyncio.create_task(consumer.run(finishes, concurrency=2))
        await began.wait()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert len(consumer_machine_of(consumer).queue) == 1
        assert peer.of(Requeue) == []


async def test_workers_that_wait_for_nothing_take_messages_in_one_turn(stage: Stage) -> None:
    """A worker takes the next message itself, unless another one is about to take one."""
    handled = []

    async def handle(message: Message) -> None:
        handled.append(message.body)

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=8))
        peer = await stage.nsqd.subscriber()
        await peer.feed(b"%d" % number for number in range(300))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 300 and peer.ready >= 100)
        before = len(peer.reads)
        await peer.feed((b"%d" % number for number in range(300, 400)), first=302)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 400)
        assert len(peer.reads) - before < 100
    await running
    assert handled == [b"%d" % number for number in range(400)]


async def returns_false(message: Message) -> bool:
    return message.body != b"bad"


def returns_false_in_a_thread(message: Message) -> bool:
    return message.body != b"bad"


def returns_a_coroutine(message: Message) -> Awaitable[bool]:
    return returns_false(message)


def answers_and_returns_false(message: Message) -> bool:
    message.requeue(0)
    return False


@pytest.mark.parametrize("handler", [returns_false, returns_false_in_a_thread, returns_a_coroutine])
async def test_a_handler_that_returns_false_is_warned_about_once(
    stage: Stage, handler: Callable[[Message], Awaitable[bool] | bool], caplog: pytest.LogCaptureFixture
) -> None:
    """In pynsq that requeues. Here it finishes, which nobody would notice."""
    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handler))
        peer = await stage.nsqd.subscriber()
        for number, body in enumerate([b"fine", b"bad", b"bad"], start=2):
            peer.message(body, message_id(number))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    await running
    (warning,) = (record.getMessage() for record in caplog.records if "returned False" in record.getMessage())
    assert warning.startswith(f"orders/ch: the handler {handler.__qualname__} returned False")
    assert "to requeue a message, raise an exception or call message.requeue()" in warning


async def test_a_handler_that_answers_and_returns_false_is_not_warned_about(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(answers_and_returns_false))
        peer = await stage.nsqd.subscriber()
        peer.message(b"1", message_id(2))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 1)
    await running
    assert "returned False" not in caplog.text


_place: ContextVar[str] = ContextVar("place", default="nowhere")


@pytest.mark.parametrize("kind", ["async", "thread", "thread that returns a coroutine"])
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_each_call_of_a_handler_has_a_copy_of_the_context_of_run(
    stage: Stage, kind: str, concurrency: int
) -> None:
    seen: list[str] = []

    async def waits(message: Message) -> None:
        seen.append(_place.get())
        _place.set(message.body.decode())
        await turn()
        assert _place.get() == message.body.decode()
        await asyncio.create_task(other())
        if message.body == b"1":
            raise ValueError("failed")

    async def other() -> None:
        seen.append(_place.get())

    def plain(message: Message) -> None:
        seen.append(_place.get())
        _place.set(message.body.decode())
        seen.append(_place.get())

    def returns(message: Message) -> Awaitable[None]:
        return waits(message)

    handlers: dict[str, Callable[[Message], object]] = {"async": waits, "thread": plain}
    handler = handlers.get(kind, returns)
    _place.set("run")
    async with stage.consumer(max_in_flight=10) as consumer:
        running = asyncio.create_task(consumer.run(handler, concurrency=concurrency))
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"%d" % number, message_id(number + 2))
            await stage.nsqd.until(lambda count=number + 1: len(peer.of(Finish, Requeue)) == count)  # type: ignore[misc]
    await running
    assert seen == ["run", "0", "run", "1", "run", "2"]


async def test_a_task_factory_may_set_context_variables(stage: Stage) -> None:
    """That of an error tracker gives each task a scope of its own."""
    tasks: set[asyncio.Task[Any]] = set()
    handled: list[bytes] = []
    scopes: list[str] = []

    async def in_a_scope(coroutine: Coroutine[Any, Any, object]) -> object:
        _place.set(f"scope {len(scopes)}")
        scopes.append(_place.get())
        return await coroutine

    def make(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, object],
        **more: Any,  # noqa: ANN401 - what newer Pythons pass on
    ) -> asyncio.Task[Any]:
        return asyncio.Task(in_a_scope(coroutine), loop=loop, **more)

    async def handle(message: Message) -> None:
        tasks.add(asyncio.current_task())  # type: ignore[arg-type]  # it runs in one
        handled.append(message.body)

    loop = asyncio.get_running_loop()
    async with stage.consumer(max_in_flight=10) as consumer:
        loop.set_task_factory(cast("Any", make))  # its type has a coroutine or a generator
        running = asyncio.create_task(consumer.run(handle))
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"%d" % number, message_id(number + 2))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    await running
    loop.set_task_factory(None)
    assert handled == [b"0", b"1", b"2"]
    assert len(tasks) == 1
