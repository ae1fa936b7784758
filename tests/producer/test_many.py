"""Large batches: others run while one is cut, and its time limit counts meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from nsq_ha import OutgoingMessage, Producer, PublishError, Receipt
from nsq_ha.errors import ConfigError
from nsq_ha.producer.batch import BATCH_COUNT, STEP
from nsq_ha.protocol import Mpub, Pub
from tests.support.nsqd import LIMIT
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import block, turn

COMMANDS = 6


def bodies(commands: int = COMMANDS) -> list[bytes]:
    return [b"%d" % number for number in range(commands * BATCH_COUNT)]


def keyed(count: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"%d" % number, key="k") for number in range(count)]


def arrived(stage: Stage) -> list[bytes]:
    """The bodies that nsqd was sent, in order."""
    found: list[bytes] = []
    for command in stage.nsqd.commands:
        if isinstance(command, Mpub):
            found += command.bodies
        elif isinstance(command, Pub):
            found.append(command.body)
    return found


def pending(producer: Producer) -> int:
    return producer.stats().pending_bytes


async def looks(producer: Producer, call: "asyncio.Task[object]") -> AsyncIterator[int]:
    """Give what is pending at each turn of the loop that others get, until ``call`` has ended."""
    async with asyncio.timeout(LIMIT):
        while not call.done():
            yield pending(producer)
            await turn()


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other tasks run at each break, however short the work before it was."""
    monkeypatch.setattr("nsq_ha.producer.batch.TURN", 0.0)


@pytest.mark.usefixtures("short_turns")
async def test_others_run_between_the_commands_of_a_batch(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first")
        stage.nsqd.script = lambda _, command: isinstance(command, Mpub)  # what is queued stays pending
        batch = bodies()
        call: asyncio.Task[object] = asyncio.create_task(producer.publish_many(TOPIC, batch, timeout=LIMIT))
        seen: set[int] = set()
        async for bytes_pending in looks(producer, call):
            seen.add(bytes_pending)
            if bytes_pending == sum(map(len, batch)):
                break
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(seen - {0}) >= COMMANDS
        assert pending(producer) == 0


async def test_a_large_batch_arrives_whole_and_in_order(stage: Stage) -> None:
    async with stage.producer() as producer:
        results = await producer.publish_many(TOPIC, bodies())
    assert len(results) == COMMANDS * BATCH_COUNT
    assert all(isinstance(result, Receipt) for result in results)
    assert arrived(stage) == bodies()


async def test_a_later_publish_of_its_key_does_not_pass(stage: Stage) -> None:
    count = 3 * STEP
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first", key="k")
        many = asyncio.create_task(producer.publish_many(TOPIC, keyed(count)))
        later = asyncio.create_task(producer.publish(TOPIC, b"later", key="k"))
        await asyncio.gather(many, later)
    assert arrived(stage) == [b"first", *(message.body for message in keyed(count)), b"later"]


@pytest.mark.usefixtures("short_turns")
async def test_what_was_not_queued_within_the_limit_was_not_sent_and_is_reported_so(stage: Stage) -> None:
    is_over = False
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first")
        batch = bodies()
        call = asyncio.create_task(producer.publish_many(TOPIC, batch, timeout=0.9))
        async for bytes_pending in looks(producer, call):
            if bytes_pending and not is_over:
                is_over = True
                block(1.0)
        results = await call
        assert pending(producer) == 0
        await producer.publish(TOPIC, b"last")
    came = set(arrived(stage))
    unsent = {
        body
        for body, result in zip(batch, results, strict=True)
        if isinstance(result, PublishError) and not result.maybe_stored
    }
    assert unsent
    assert unsent.isdisjoint(came)
    assert unsent | came == {b"first", *batch, b"last"}
    final = results[-1]
    assert isinstance(final, PublishError)
    assert (final.attempts, final.maybe_stored) == (0, False)
    assert "time limit passed before this part" in str(final)


@pytest.mark.usefixtures("short_turns")
async def test_while_messages_are_looked_at_the_limit_counts_too(stage: Stage) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first")
        call = asyncio.create_task(producer.publish_many(TOPIC, keyed(3 * STEP), timeout=0.9))
        await turn()
        block(1.0)
        results = await call
    assert all(isinstance(result, PublishError) and not result.maybe_stored for result in results)
    assert len(results) == 3 * STEP
    assert arrived(stage) == [b"first"]


async def test_a_message_that_is_not_legal_is_named_before_anything_is_sent(stage: Stage) -> None:
    batch: list[bytes | OutgoingMessage] = [*keyed(3 * STEP), b""]
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"first")
        with pytest.raises(ConfigError, match=f"message {3 * STEP}: a body must not be empty"):
            await producer.publish_many(TOPIC, batch)
        batch[-1] = OutgoingMessage(b"x", partition=9)
        with pytest.raises(ConfigError, match=f"message {3 * STEP}: partition 9"):
            await producer.publish_many(TOPIC, batch)
    assert arrived(stage) == [b"first"]


async def test_closing_lets_a_batch_end_that_is_being_cut(stage: Stage) -> None:
    async with stage.producer(close_timeout=LIMIT) as producer:
        await producer.publish(TOPIC, b"first")
        call = asyncio.create_task(producer.publish_many(TOPIC, bodies()))
        async for bytes_pending in looks(producer, call):
            if bytes_pending:
                break
        await producer.aclose()
        assert all(isinstance(result, Receipt) for result in await call)


async def test_a_batch_that_is_cut_when_closing_gives_up_ends_at_once(stage: Stage) -> None:
    async with stage.producer(close_timeout=0.001) as producer:
        await producer.publish(TOPIC, b"first")
        stage.nsqd.script = lambda _, command: isinstance(command, Mpub)
        call = asyncio.create_task(producer.publish_many(TOPIC, bodies(30), timeout=10 * LIMIT))
        async for bytes_pending in looks(producer, call):
            if bytes_pending:
                break
        await producer.aclose()
        results = await asyncio.wait_for(call, LIMIT)
        assert all(isinstance(result, PublishError) for result in results)
