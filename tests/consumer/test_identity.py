"""A message is recognised by its identity: equal ids of two nsqds are two messages, a copy of a finished one is one."""

import asyncio

import pytest

from nsq_ha import Consumer, Message
from nsq_ha.events import Event, FinishedAgain
from nsq_ha.policy.redelivery import LOST_WITHIN
from nsq_ha.protocol import Finish, Identity, Layout, Requeue, Touch
from tests.support.nsqd import Peer, error, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually
from tests.support.work import work

HEX = b"0d6f2c4e1a000000"
"""The id that two plain nsqds of one host give to what they receive in the same millisecond."""


async def two_plain(stage: Stage) -> list[Peer]:
    return [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]


def send(peer: Peer, body: bytes, attempts: int = 1) -> None:
    peer.message(body, HEX, layout=Layout.PLAIN, attempts=attempts)


async def test_equal_ids_of_two_plain_nsqds_are_two_messages(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    seen, may_end = [], asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        await may_end.wait()

    async with stage.consumer(max_in_flight=10) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        one, other = await two_plain(stage)
        send(one, b"one")
        await eventually(lambda: len(seen) == 1)
        send(other, b"other")
        await eventually(lambda: len(seen) == 2)
        assert not stage.nsqds[0].peers[0].of(Finish)
        assert not stage.nsqds[1].peers[0].of(Finish)
        may_end.set()
        await stage.nsqds[0].until(lambda: one.of(Finish))
        await stage.nsqds[1].until(lambda: other.of(Finish))
        await consumer.aclose()
        await running
        assert consumer.stats().finished_unhandled == 0
    assert sorted(seen) == [b"one", b"other"]


async def test_a_late_fin_is_of_one_nsqd(stage: Stage) -> None:
    """The message that was finished too late comes again from its nsqd; another nsqd's is handled."""
    for nsqd in stage.nsqds:
        nsqd.identity = Identity(msg_timeout=1000)
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(max_in_flight=10) as consumer:
        one, other = await two_plain(stage)
        send(one, b"one")
        message = await anext(consumer)
        await dawdle(1.5)
        message.finish()
        send(other, b"other")
        assert (await anext(consumer)).body == b"other"
        send(one, b"one", attempts=2)
        one.message(b"last", message_id(9), layout=Layout.PLAIN)
        assert (await anext(consumer)).body == b"last"
        await stage.nsqds[0].until(lambda: len(one.of(Finish)) == 2)
        assert consumer.stats().finished_unhandled == 1


async def test_auto_touch_keeps_both_of_two_messages_with_one_id(stage: Stage) -> None:
    for nsqd in stage.nsqds:
        nsqd.identity = Identity(msg_timeout=4000, max_msg_timeout=20_000)
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(max_in_flight=10, auto_touch=True) as consumer:
        one, other = await two_plain(stage)
        send(one, b"one")
        send(other, b"other")
        held = [await anext(consumer), await anext(consumer)]
        await dawdle(9.0)
        assert len(one.of(Touch)) >= 3
        assert len(other.of(Touch)) >= 3
        for message in held:
            message.finish()


async def test_giving_up_a_message_spares_the_one_with_its_id(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])

    async def give_up(_: Message) -> None:
        raise RuntimeError("the other cluster is away")

    async with stage.consumer(max_in_flight=10, max_attempts=1, on_give_up=give_up, handler_backoff=None) as consumer:
        one, other = await two_plain(stage)
        send(one, b"one")
        (await anext(consumer)).requeue()
        await stage.nsqds[0].until(lambda: one.of(Requeue))
        send(other, b"other", attempts=2)
        assert (await anext(consumer)).body == b"other"


# ---------------------------------------------------------------- FINs without effect


def refused(number: int) -> bytes:
    listed = " ".join(str(byte) for byte in message_id(number))
    return error(b"E_FIN_FAILED FIN [%b] failed Message ID not in flight" % listed.encode())


@pytest.fixture
def events() -> list[Event]:
    return []


async def read_one(consumer: Consumer, body: bytes) -> None:
    message = await anext(consumer)
    assert message.body == body
    message.finish()


@pytest.mark.parametrize("attempts", [1, 2])
async def test_an_ordered_message_whose_fin_is_refused_is_not_handled_again(
    stage: Stage, events: list[Event], attempts: int
) -> None:
    """Seen after a replica had died: one message was handled 22 times in 7 s, always with one attempt."""
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer(on_event=events.append) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2), offset=0)
        await read_one(consumer, b"first")
        peer.message(b"second", message_id(3), offset=60)
        await read_one(consumer, b"second")
        third = asyncio.ensure_future(anext(consumer))
        for count in range(2, 24):
            await stage.nsqd.until(lambda count=count: len(peer.of(Finish)) == count)  # type: ignore[misc]
            peer.write(refused(3))
            peer.message(b"second", message_id(3), offset=60, attempts=attempts)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 24)
        peer.message(b"third", message_id(4), offset=120)
        assert (await third).body == b"third"
        assert consumer.stats().finished_unhandled == 22
    again = [event for event in events if isinstance(event, FinishedAgain)]
    assert [(event.internal_id, event.attempts, event.nsqd) for event in again] == [
        (3, attempts, stage.nsqd.node.address)
    ] * 22


async def quick_for_long(consumer: Consumer, peer: Peer, count: int = 200) -> None:
    """Deliver messages until none is checked any more, and no FIN of those that were is in doubt."""
    await peer.feed([b"quick"] * count, 100)
    await peer.nsqd.until(lambda: len(peer.of(Finish)) == count)
    await dawdle(LOST_WITHIN + 1.0)


async def test_what_is_handled_as_its_connection_is_lost_is_not_handled_twice_at_once(stage: Stage) -> None:
    """Its attempts do not change, and so far all handlers were quick."""
    seen: list[bytes] = []
    may_end = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"slow":
            await may_end.wait()

    async with stage.consumer(heartbeat_interval=60.0) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        await quick_for_long(consumer, peer)
        peer.message(b"slow", message_id(3), offset=60)
        await eventually(lambda: b"slow" in seen)
        peer.abort()
        again = await stage.nsqd.subscriber(1)
        again.message(b"slow", message_id(3), offset=60)
        again.message(b"last", message_id(4), offset=120)
        await stage.nsqd.until(lambda: Finish(message_id(4)) in again.of(Finish))
        may_end.set()
        await stage.nsqd.until(lambda: Finish(message_id(3)) in again.of(Finish))
        assert consumer.stats().finished_unhandled == 1
    await running
    assert seen[200:] == [b"slow", b"last"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_is_not_finished_after_its_connection_was_lost_goes_back_or_waits(
    stage: Stage, *, is_cancelled: bool
) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    has_begun, may_fail = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        has_begun.set()
        await may_fail.wait()
        raise ValueError("the handler fails")

    async with stage.consumer(heartbeat_interval=60.0, handler_backoff=None) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        peer.message(b"slow", message_id(2), offset=0)
        await has_begun.wait()
        peer.abort()
        again = await stage.nsqd.subscriber(1)
        again.message(b"slow", message_id(2), offset=0)
        await eventually(lambda: consumer.stats().in_flight == 1 and not consumer.stats().queued)
        if is_cancelled:
            running.cancel()
        may_fail.set()
        if is_cancelled:  # which is no failure
            await eventually(lambda: consumer.stats().queued == 1)
        else:
            await stage.nsqd.until(lambda: again.of(Requeue))
            assert consumer.stats().in_flight == 0
    await asyncio.wait({running})


async def test_what_is_finished_after_its_connection_was_lost_is_not_handed_out_again(stage: Stage) -> None:
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"held":
            peer.abort()
            await stage.nsqd.subscriber(1)

    async with stage.consumer(heartbeat_interval=60.0) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(work(consumer, handle, iterates=True))
        await quick_for_long(consumer, peer)
        peer.message(b"held", message_id(3), offset=60)
        again = await stage.nsqd.subscriber(1)
        again.message(b"held", message_id(3), offset=60)
        again.message(b"last", message_id(4), offset=120)
        await stage.nsqd.until(lambda: len(again.of(Finish)) == 2)
        assert consumer.stats().finished_unhandled == 1
    await running
    assert seen[200:] == [b"held", b"last"]


async def test_what_was_away_for_more_than_a_minute_is_not_handed_out_again(stage: Stage) -> None:
    """While no nsqlookupd led, a partition was without a leader for 72 s."""
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"held":
            stage.lead({}, 1)
            peer.abort()
            await eventually(lambda: consumer.stats().partitions[0].state != "connected")

    async with stage.consumer(heartbeat_interval=60.0) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(work(consumer, handle, iterates=True))
        await quick_for_long(consumer, peer)
        peer.message(b"held", message_id(3), offset=60)
        await eventually(lambda: b"held" in seen)
        await dawdle(72.0)
        stage.lead({0: stage.nsqds[1]})
        again = await stage.nsqds[1].subscriber()
        again.message(b"held", message_id(3), offset=60)
        again.message(b"last", message_id(4), offset=120)
        await stage.nsqds[1].until(lambda: len(again.of(Finish)) == 2)
        assert consumer.stats().finished_unhandled == 1
    await running
    assert seen[200:] == [b"held", b"last"]


async def test_an_ordered_message_whose_fin_was_lost_with_its_connection_is_not_handled_again(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2), offset=0)
        await read_one(consumer, b"first")
        peer.message(b"second", message_id(3), offset=60)
        await read_one(consumer, b"second")
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        stage.lead({0: stage.nsqds[1]}, ordered=True)
        peer.abort()
        peer = await stage.nsqds[1].subscriber()
        # The first FIN is proven by the second message: an operator wants to see it again.
        peer.message(b"first", message_id(2), offset=0)
        await read_one(consumer, b"first")
        peer.message(b"second", message_id(3), offset=60)
        third = asyncio.ensure_future(anext(consumer))
        await stage.nsqds[1].until(lambda: len(peer.of(Finish)) == 2)
        peer.message(b"third", message_id(4), offset=120)
        assert (await third).body == b"third"
        assert consumer.stats().finished_unhandled == 1


async def test_a_topic_that_was_created_again_gives_ids_again(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"old", message_id(2), offset=0)
        await read_one(consumer, b"old")
        await stage.nsqd.until(lambda: peer.of(Finish))
        peer.abort()
        peer = await stage.nsqd.subscriber(1)
        peer.message(b"new", message_id(2), offset=0, timestamp_ns=2)
        await read_one(consumer, b"new")


async def test_a_slow_message_of_an_ordinary_topic_whose_fin_is_refused_is_not_handled_again(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2))
        peer.message(b"second", message_id(3), offset=60)
        message = await anext(consumer)
        await dawdle(5.0)
        message.finish()
        await stage.nsqd.until(lambda: peer.of(Finish))
        peer.write(refused(2))
        await read_one(consumer, b"second")
        peer.message(b"first", message_id(2), attempts=2)
        peer.message(b"third", message_id(4), offset=120)
        await read_one(consumer, b"third")
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 4)
        assert consumer.stats().finished_unhandled == 1


async def test_a_refused_requeue_finishes_nothing(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2), offset=0)
        (await anext(consumer)).requeue(0)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        peer.write(refused(2).replace(b"FIN [", b"REQ ["))
        peer.message(b"first", message_id(2), offset=0)
        await read_one(consumer, b"first")
