"""Where an application's mistakes and limits end: loops, partitions, handlers that never return."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from nsq_ha import ClosedError, ConfigError, Message, StartFrom
from nsq_ha.consumer.answers import Said
from nsq_ha.consumer.handlers import check_handler
from tests.support.inside import shell_of
from tests.support.nsqd import message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn


async def test_a_handler_that_never_returns_is_cancelled_at_the_limit_of_closing(stage: Stage) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def handler(_: Message) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    consumer = stage.consumer(close_timeout=0.2)
    async with consumer:
        running = asyncio.create_task(consumer.run(handler))
        (await stage.nsqd.subscriber()).message(b"long", message_id(2))
        async with asyncio.timeout(5):
            await began.wait()
    async with asyncio.timeout(5):
        await running
    assert ended.is_set()


async def test_a_partition_that_the_topic_does_not_have_is_reported_at_once(stage: Stage) -> None:
    with pytest.raises(ConfigError, match=r"partitions: topic 'orders' has only partition 0, not 9"):
        async with stage.consumer(partitions=[9]):
            pytest.fail("entered")


@pytest.mark.parametrize("extra", [{}, {"partitions": None}])
async def test_so_is_a_start_position_for_one(stage: Stage, extra: dict[str, None]) -> None:
    """It used to be ignored."""
    start = {0: StartFrom.beginning(), 7: StartFrom.end(), 5: StartFrom.end()}
    with pytest.raises(ConfigError, match=r"start_from: topic 'orders' has only partition 0, not 5, 7"):
        async with stage.consumer(start_from=start, **extra):
            pytest.fail("entered")


async def test_no_partitions_at_all_are_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="partitions must name at least one partition"):
        stage.consumer(partitions=[])


def generates(message: Message) -> Iterator[Message]:
    yield message


async def generates_too(message: Message) -> AsyncIterator[Message]:
    yield message


@pytest.mark.parametrize(
    ("handler", "concurrency"),
    [(None, 1), (print, 0), (print, "8"), (print, True), (print, 10_001), (generates, 1), (generates_too, 1)],
)
async def test_what_is_no_handler_or_no_number_is_refused(stage: Stage, handler: object, concurrency: object) -> None:
    async with stage.consumer() as consumer:
        with pytest.raises(ConfigError, match="must be"):
            await consumer.run(handler, concurrency=concurrency)  # type: ignore[arg-type]


async def test_a_topic_that_comes_later_is_subscribed_without_waiting_for_the_next_look_up(stage: Stage) -> None:
    stage.lead({})
    async with stage.consumer(start_timeout=0.05, lookup_interval=3600.0) as consumer:
        stage.lead({0: stage.nsqd})
        async with asyncio.timeout(10):
            await consumer.wait_subscribed()
        await eventually(lambda: len(stage.nsqd.open_peers) == 1)


def takes_nothing() -> None: ...


def takes_two(message: Message, other: object) -> None: ...


class Generating:
    def __call__(self, message: Message) -> Iterator[Message]:
        yield message


@pytest.mark.parametrize(
    "handler",
    [takes_nothing, lambda: None, takes_two, partial(generates_too), Generating(), partial(takes_nothing)],
)
async def test_a_handler_that_cannot_take_a_message_is_refused_at_once(stage: Stage, handler: object) -> None:
    """It used to fail for each message."""
    async with stage.consumer() as consumer:
        with pytest.raises(ConfigError, match=r"handler must (take one argument, the message|be a function of a)"):
            await consumer.run(handler)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handler", [print, partial(takes_two, other=1), Message.finish, lambda *_: None, lambda m, n=1: (m, n)]
)
def test_what_takes_one_argument_is_a_handler(handler: object) -> None:
    check_handler(handler)


# ------------------------------------------------------------ two ways of reading at once


async def test_iterating_while_a_handler_runs_is_refused(stage: Stage) -> None:
    """Each took some of the messages, at random."""
    async with asyncio.timeout(10), stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(print))
        await turn()
        with pytest.raises(ConfigError, match="orders/ch cannot be iterated while run"):
            aiter(consumer)
        with pytest.raises(ConfigError, match="orders/ch cannot be iterated while run"):
            await anext(consumer)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        (await stage.nsqd.subscriber()).message(b"x")
        (await anext(consumer)).finish()


async def test_a_handler_that_begins_while_a_task_waits_for_a_message_ends_the_wait(stage: Stage) -> None:
    async with asyncio.timeout(10), stage.consumer() as consumer:
        handled: list[Message] = []
        waiting = asyncio.create_task(consumer.__anext__())
        await turn()
        running = asyncio.create_task(consumer.run(handled.append))
        with pytest.raises(ConfigError, match="orders/ch cannot be iterated while run"):
            await waiting
        (await stage.nsqd.subscriber()).message(b"x")
        await eventually(lambda: handled)
        await consumer.aclose()
        await running


async def test_one_run_at_a_time(stage: Stage) -> None:
    """Two would share the messages, whatever their handlers."""

    async def handle(message: Message) -> None:
        """Succeed."""

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        await turn()
        with pytest.raises(ConfigError, match=r"orders/ch: run\(\) is active already: raise its concurrency="):
            await consumer.run(handle)
        running.cancel()
        await asyncio.wait({running})
        running = asyncio.create_task(consumer.run(handle))
        await turn()
        assert not running.done()
    await running


async def test_a_closed_consumer_runs_no_handler(stage: Stage) -> None:
    """The call used to return at once, as if all messages were handled."""

    async def handle(message: Message) -> None:
        """Succeed."""

    consumer = stage.consumer()
    with pytest.raises(ClosedError, match="use the consumer with 'async with'"):
        await consumer.run(handle)
    async with consumer:
        pass
    with pytest.raises(ClosedError, match="the consumer is closed"):
        await consumer.run(handle)


async def test_an_action_that_fails_leaves_the_others_for_the_next_turn(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        shell, done = shell_of(consumer), list[Said]()

        def act(said: Said) -> None:
            done.append(said)
            if said.is_warning:
                raise ValueError("fails")

        shell.acts[Said] = act
        shell.machine.actions += (Said(is_warning=True, text="first"), Said(is_warning=False, text="second"))
        with pytest.raises(ValueError, match="fails"):
            shell.drain()
        await turn()
        assert [said.text for said in done] == ["first", "second"]
