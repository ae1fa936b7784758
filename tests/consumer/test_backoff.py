"""Handlers that fail: the consumer pauses, tests with single messages, and reads on when they work again."""

import asyncio
import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from nsq_ha import Backoff, Consumer, Message
from nsq_ha.consumer.pause import PauseState
from nsq_ha.events import BackoffChanged, Event
from nsq_ha.protocol import Finish, Identity, Layout, Ready, Requeue
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually, turn

pytestmark = pytest.mark.usefixtures("any_may_wait")

SECOND = Backoff(initial=1.0, maximum=8.0, factor=2.0, jitter=0.0)


class Handler:
    """Fails while ``is_broken``.

    Attributes:
        calls: When it was called, and with which body.
    """

    def __init__(self, *, is_broken: bool = True) -> None:
        self.is_broken = is_broken
        self.calls: list[tuple[float, bytes]] = []
        self._loop = asyncio.get_running_loop()

    async def __call__(self, message: Message) -> None:
        self.calls.append((self._loop.time(), message.body))
        await turn()
        if self.is_broken:
            raise ValueError("the database is down")

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.calls]

    @property
    def gaps(self) -> list[float]:
        times = [at for at, _ in self.calls]
        return [round(after - before, 1) for before, after in itertools.pairwise(times)]


@asynccontextmanager
async def running(consumer: Consumer, handler: Any, concurrency: int = 1) -> AsyncIterator[asyncio.Task[None]]:  # noqa: ANN401
    """Enter the consumer and run the handler until the block ends."""
    async with consumer:
        task = asyncio.create_task(consumer.run(handler, concurrency=concurrency))
        yield task
        await consumer.aclose()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def deliver(peer: Peer, numbers: range, **fields: object) -> None:
    for number in numbers:
        peer.message(b"%d" % number, message_id(number + 2), **fields)


async def always_full(peer: Peer, count: int, first: int = 0) -> None:
    """Deliver ``count`` messages, as many at once as RDY allows."""
    await peer.feed((b"%d" % (first + number) for number in range(count)), first + 2)


def two_bad(peer: Peer, **fields: object) -> None:
    """Deliver what makes a consumer pause if its handler fails on both."""
    peer.message(b"bad", message_id(1000), **fields)
    peer.message(b"bad too", message_id(1001), **fields)


async def pause(consumer: Consumer, peer: Peer) -> None:
    """Requeue two messages."""
    two_bad(peer)
    for _ in range(2):
        (await anext(consumer)).requeue()


def state_of(consumer: Consumer) -> PauseState:
    return consumer_machine_of(consumer).pause.state


# ------------------------------------------------------------ one consumer


async def test_a_failing_handler_is_called_once_after_each_pause(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        feeding = asyncio.create_task(always_full(peer, 500))
        await eventually(lambda: len(handler.calls) == 7, 60.0)
        assert handler.gaps == [0.0, 1.0, 2.0, 4.0, 8.0, 8.0]
        feeding.cancel()


async def test_without_a_backoff_it_is_called_at_full_speed(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=None), handler):
        peer = await stage.nsqd.subscriber()
        await always_full(peer, 300)
        await eventually(lambda: len(handler.calls) == 300)
        assert handler.calls[-1][0] - handler.calls[0][0] < 1.0
        assert peer.ready > 0


async def test_the_default_pauses(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(), handler):
        peer = await stage.nsqd.subscriber()
        feeding = asyncio.create_task(always_full(peer, 500))
        await dawdle(3.0)
        assert len(handler.calls) <= 5
        feeding.cancel()


async def test_ready_falls_to_0_and_one_connection_gets_1(stage: Stage) -> None:
    stage.lead(dict(enumerate(stage.nsqds)))
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND, max_in_flight=30), handler):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds]
        await eventually(lambda: [peer.ready for peer in peers] == [10, 10, 10])
        two_bad(peers[0])
        await eventually(lambda: [peer.ready for peer in peers] == [0, 0, 0])
        await eventually(lambda: sorted(peer.ready for peer in peers) == [0, 0, 1])
        # It has no message, so it is another connection's turn.
        first = next(peer for peer in peers if peer.ready)
        await eventually(lambda: sorted(peer.ready for peer in peers) == [0, 0, 1] and first.ready == 0)
        handler.is_broken = False
        tester = next(peer for peer in peers if peer.ready)
        tester.message(b"good", message_id(3, peers.index(tester)))
        await eventually(lambda: [peer.ready for peer in peers] == [10, 10, 10])
    assert handler.bodies == [b"bad", b"bad too", b"good"]


async def test_messages_that_arrived_before_the_pause_wait_and_keep_their_order(stage: Stage) -> None:
    handler = Handler()
    consumer = stage.consumer(handler_backoff=SECOND)
    async with running(consumer, handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(6))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 2)
        assert consumer.stats().queued == 4
        handler.is_broken = False
        await eventually(lambda: len(handler.calls) == 6)
        assert handler.gaps == [0.0, 1.0, 0.0, 0.0, 0.0]
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 4)
    assert handler.bodies == [b"%d" % number for number in range(6)]
    assert [command.message_id for command in peer.of(Requeue)] == [message_id(2), message_id(3)]  # type: ignore[attr-defined]


async def test_messages_that_cannot_wait_go_back_to_nsqd(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=5000)
    handler = Handler()
    async with running(stage.consumer(handler_backoff=Backoff(4.0, 4.0, jitter=0.0)), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 5)
        assert peer.of(Requeue)[2:] == [Requeue(message_id(number + 2), 0) for number in (2, 3, 4)]
        await stage.nsqd.until(lambda: peer.ready == 1)
    assert handler.bodies == [b"0", b"1"]


async def test_messages_that_wait_for_a_slow_test_go_back_in_time(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=4000)
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) <= 2:
            raise ValueError
        await gate.wait()

    loop = asyncio.get_running_loop()
    async with running(stage.consumer(handler_backoff=SECOND), handle):
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        deliver(peer, range(5))
        await eventually(lambda: len(seen) == 3)
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 4)
        assert 1.9 < loop.time() - began < 2.3
        gate.set()
        await stage.nsqd.until(lambda: peer.ready > 1)
    assert seen == [b"0", b"1", b"2"]


async def test_handlers_that_fail_together_are_one_failure(stage: Stage) -> None:
    handler = Handler()
    have_begun = asyncio.Event()

    async def handle(message: Message) -> None:
        try:
            await handler(message)
        finally:
            if len(handler.calls) == 8:
                have_begun.set()
            await have_begun.wait()

    async with running(stage.consumer(handler_backoff=SECOND), handle, concurrency=8):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(24))
        await eventually(lambda: len(handler.calls) == 18)
    assert handler.gaps[15:] == [1.0, 2.0]


async def test_a_handler_that_still_runs_has_no_say(stage: Stage) -> None:
    gates = {b"slow": asyncio.Event(), b"test": asyncio.Event()}

    async def handle(message: Message) -> None:
        if message.body in gates:
            await gates[message.body].wait()
            return
        raise ValueError

    consumer = stage.consumer(handler_backoff=SECOND, max_in_flight=10)
    async with running(consumer, handle, concurrency=4):
        peer = await stage.nsqd.subscriber()
        peer.message(b"slow", message_id(2))
        two_bad(peer)
        # Two messages are unanswered at nsqd: RDY 2 lets a third one through.
        await stage.nsqd.until(lambda: peer.ready == 2)
        peer.message(b"test", message_id(4))
        await stage.nsqd.until(lambda: peer.ready == 0)
        gates[b"slow"].set()
        await stage.nsqd.until(lambda: peer.of(Finish))
        assert state_of(consumer) is PauseState.IN_TEST
        gates[b"test"].set()
        await stage.nsqd.until(lambda: peer.ready == 10)


async def test_a_requeue_with_a_delay_is_no_failure(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        (await anext(consumer)).requeue(0)
        (await anext(consumer)).requeue(3.0)
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 2)
        assert peer.ready > 1


async def test_a_test_that_is_requeued_with_a_delay_repeats_the_pause(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        times: list[float] = []
        for delay in (None, None, 9.0, None):
            (await anext(consumer)).requeue(delay)
            times.append(loop.time())
        (await anext(consumer)).finish()
        times.append(loop.time())
    assert [round(after - before, 1) for before, after in itertools.pairwise(times)] == [0.0, 1.0, 1.0, 2.0]


async def test_iterating_pauses_too(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        async for message in consumer:
            times.append(loop.time())
            with contextlib.suppress(ValueError):
                async with message:
                    if len(times) <= 3:
                        raise ValueError
            if len(times) == 5:
                break
    assert [round(after - before, 1) for before, after in itertools.pairwise(times)] == [0.0, 1.0, 2.0, 0.0]


@pytest.mark.parametrize("policy", ["drop", "function"])
async def test_a_message_that_is_given_up_is_a_failure(stage: Stage, policy: str) -> None:
    given_up: list[bytes] = []

    def give_up(message: Message) -> None:
        given_up.append(message.body)

    handler = Handler()
    options: dict[str, Any] = {"max_attempts": 1, "on_give_up": "drop" if policy == "drop" else give_up}
    async with running(stage.consumer(handler_backoff=SECOND, **options), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await eventually(lambda: len(handler.calls) == 4)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 4)
    assert handler.gaps == [0.0, 1.0, 2.0]


async def test_a_requeue_from_a_thread_is_a_failure(stage: Stage) -> None:
    def handle(message: Message) -> None:
        message.requeue()

    async with running(stage.consumer(handler_backoff=SECOND), handle):
        peer = await stage.nsqd.subscriber()
        two_bad(peer)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        await stage.nsqd.until(lambda: peer.ready == 0)


# ------------------------------------------------------------ tests that are lost


async def test_a_test_whose_connection_is_lost_is_followed_by_another(stage: Stage) -> None:
    handler = Handler()
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"stuck":
            handler.calls.append((0.0, message.body))
            await gate.wait()
        else:
            await handler(message)

    consumer = stage.consumer(handler_backoff=SECOND)
    async with running(consumer, handle, concurrency=2):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"stuck", message_id(9))
        await stage.nsqd.until(lambda: peer.ready == 0)
        assert state_of(consumer) is PauseState.IN_TEST
        stage.lead({0: stage.nsqds[1]})
        peer.abort()
        other = await stage.nsqds[1].subscriber()
        await stage.nsqds[1].until(lambda: other.ready == 1)
        handler.is_broken = False
        other.message(b"good", message_id(4))
        await stage.nsqds[1].until(lambda: other.ready > 1)
        gate.set()
    assert handler.bodies == [b"0", b"1", b"2", b"stuck", b"good"]


async def test_the_success_of_a_test_counts_though_its_connection_is_lost(stage: Stage) -> None:
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body.startswith(b"bad"):
            raise ValueError
        await gate.wait()

    consumer = stage.consumer(handler_backoff=SECOND)
    async with running(consumer, handle):
        peer = await stage.nsqd.subscriber()
        two_bad(peer)
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"good", message_id(3))
        await stage.nsqd.until(lambda: peer.ready == 0)
        peer.abort()
        again = await stage.nsqd.subscriber()
        await stage.nsqd.until(lambda: again.ready == 1)
        gate.set()
        await stage.nsqd.until(lambda: again.ready > 1)


async def test_a_test_that_nobody_answers_is_followed_by_another(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=3000)
    loop = asyncio.get_running_loop()
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        await pause(consumer, peer)
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"forgotten", message_id(3))
        forgotten = await anext(consumer)
        began = loop.time()
        await stage.nsqd.until(lambda: peer.ready == 0)
        await stage.nsqd.until(lambda: peer.ready == 2)
        assert 2.9 < loop.time() - began < 3.4
        forgotten.touch()
        peer.message(b"good", message_id(4))
        (await anext(consumer)).finish()
        await eventually(lambda: state_of(consumer) is PauseState.FLOWING)


async def test_a_test_that_is_touched_is_waited_for(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=3000)
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        await pause(consumer, peer)
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"long", message_id(3))
        test = await anext(consumer)
        for _ in range(4):
            await dawdle(2.0)
            test.touch()
            assert state_of(consumer) is PauseState.IN_TEST
        test.finish()
        await eventually(lambda: state_of(consumer) is PauseState.FLOWING)


async def test_a_test_of_a_cancelled_run_is_the_next_one_again(stage: Stage) -> None:
    handler = Handler()
    gate = asyncio.Event()

    async def waits(message: Message) -> None:
        gate.set()
        await asyncio.Event().wait()

    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(4))
        for _ in range(2):
            (await anext(consumer)).requeue()
        first = asyncio.create_task(consumer.run(waits))
        await gate.wait()
        first.cancel()
        await asyncio.wait({first})
        assert state_of(consumer) is PauseState.TESTING
        handler.is_broken = False
        second = asyncio.create_task(consumer.run(handler))
        await eventually(lambda: len(handler.calls) == 2)
        await consumer.aclose()
        await second
    assert handler.bodies == [b"2", b"3"]


async def test_messages_that_wait_are_dropped_with_their_connection(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await eventually(lambda: len(handler.calls) == 2)
        await turn(5)
        peer.abort()
        again = await stage.nsqd.subscriber()
        handler.is_broken = False
        await stage.nsqd.until(lambda: again.ready == 1)
        again.message(b"again", message_id(4))
        await stage.nsqd.until(lambda: again.ready > 1)
    assert handler.bodies == [b"0", b"1", b"again"]


# ------------------------------------------------------------ pausing, closing


async def test_a_paused_consumer_asks_for_no_test(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND, max_in_flight=5) as consumer:
        peer = await stage.nsqd.subscriber()
        two_bad(peer)
        (await anext(consumer)).requeue()
        message = await anext(consumer)
        consumer.set_max_in_flight(0)
        message.requeue()
        await eventually(lambda: state_of(consumer) is PauseState.TESTING)
        await dawdle(2.0)
        assert [command.count for command in peer.of(Ready)] == [5, 0]  # type: ignore[attr-defined]
        consumer.set_max_in_flight(7)
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"good", message_id(3))
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.ready == 7)


async def test_no_more_than_max_in_flight_are_unanswered_for_a_test(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND, max_in_flight=2) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(2))
        (await anext(consumer)).requeue()
        bad = await anext(consumer)
        deliver(peer, range(2, 3))
        held = await anext(consumer)
        bad.requeue()
        await stage.nsqd.until(lambda: peer.ready == 2)
        peer.message(b"test", message_id(9))
        await anext(consumer)
        held.finish()
        await dawdle(3.0)
        assert peer.ready == 0


async def test_closing_in_a_pause_gives_back_what_waits(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await stage.nsqd.until(lambda: peer.ready == 0)
        await turn(5)
    assert len(handler.calls) == 2
    await eventually(lambda: not peer.is_open)


@pytest.mark.parametrize("waits", [False, True])
async def test_closing_ends_who_waits_for_the_pause(stage: Stage, waits: bool) -> None:
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3 if waits else 2))
        for _ in range(2):
            (await anext(consumer)).requeue()
        reading = asyncio.create_task(anext(aiter(consumer), None))
        await turn(5)
        await consumer.aclose()
        assert await reading is None


async def test_cancelling_who_waits_for_the_pause_loses_nothing(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(4))
        for _ in range(2):
            (await anext(consumer)).requeue()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.2)
        assert (await anext(consumer)).body == b"2"


# ------------------------------------------------------------ what failed before


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_message_that_fails_each_time_makes_no_pause(stage: Stage, attempts: int) -> None:
    """Neither by its attempts, nor, where those stay 1 after a change of the leader, by what failed here."""
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2))
        await stage.nsqd.until(lambda: peer.of(Requeue))
        for number in range(3, 8):
            peer.message(b"bad", message_id(2), attempts=attempts)
            await stage.nsqd.until(lambda: len(peer.of(Requeue)) == number - 1)  # noqa: B023 - awaited here
            assert peer.ready > 1
        began = asyncio.get_running_loop().time()
        handler.is_broken = False
        deliver(peer, range(10))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 10)
        assert asyncio.get_running_loop().time() - began < 0.5


async def test_what_failed_before_makes_a_pause_no_longer(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        two_bad(peer)
        for number in range(5):
            await stage.nsqd.until(lambda: peer.ready == 1)
            peer.message(b"old", message_id(number + 2), attempts=2)
            await eventually(lambda: len(handler.calls) == number + 3)  # noqa: B023 - awaited here
    assert handler.gaps == [0.0] + [1.0] * 5


@pytest.mark.parametrize("plain", [False, True])
async def test_a_share_of_bad_messages_costs_the_good_ones_nothing(stage: Stage, plain: bool) -> None:
    """All defaults, and each bad one again as soon as its delay is over: 2 % stood still after a minute."""
    loop, done, bad = asyncio.get_running_loop(), list[bytes](), list[bytes]()
    if plain:
        stage.list_plain(stage.nsqd)

    async def handle(message: Message) -> None:
        if message.body.startswith(b"bad"):
            bad.append(message.body)
            raise ValueError("it fails each time")
        done.append(message.body)

    async with running(stage.consumer(), handle, concurrency=4):
        peer = await stage.nsqd.subscriber()
        began, layout = loop.time(), {"layout": Layout.PLAIN} if plain else {}
        due: list[tuple[float, bytes]] = []
        attempts = Counter[bytes]()
        for number in range(3000):
            await dawdle(max(began + number / 40 - loop.time(), 0.0))
            for again in peer.of(Requeue)[attempts.total() :]:
                assert isinstance(again, Requeue)
                assert again.delay_ms > 4000  # longer than any pause
                attempts[again.message_id] += 1
                due.append((loop.time() + again.delay_ms / 1000, again.message_id))
            for at, again_id in [each for each in due if each[0] <= loop.time()]:
                due.remove((at, again_id))
                peer.message(b"bad", again_id, attempts=attempts[again_id] + 1, **layout)
            peer.message(b"good" if number % 50 else b"bad", message_id(number + 2), **layout)
        await dawdle(1.0)
    assert len(done) == 2940
    assert len(bad) > 150


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("seconds", [20.0, 200.0])
async def test_all_fail_for_a_while_and_go_on_soon_after_the_repair(stage: Stage, plain: bool, seconds: float) -> None:
    """With all defaults: at most one call a second, and the full pace within 5 s."""
    loop, handler, layout = asyncio.get_running_loop(), Handler(), Layout.PLAIN if plain else Layout.DETAIL
    if plain:
        stage.list_plain(stage.nsqd)

    async def feed(peer: Peer) -> None:
        for number in itertools.count(2):
            await stage.nsqd.until(lambda: peer.ready > number - 2 - len(peer.of(Finish, Requeue)), seconds)  # noqa: B023
            peer.message(b"x", message_id(number), layout=layout)
            await dawdle(0.025)

    async with running(stage.consumer(), handler, concurrency=4):
        feeding = asyncio.create_task(feed(await stage.nsqd.subscriber()))
        await dawdle(seconds)
        handler.is_broken = False
        began, failures = loop.time(), [at for at, _ in handler.calls]
        assert all(after - before >= 1.0 for before, after in itertools.pairwise(failures[-4:]))
        assert sum(at > began - 10.0 for at in failures) <= 10
        await dawdle(5.0)
        recovered = len(handler.calls)
        await dawdle(1.0)
        assert len(handler.calls) - recovered >= 36
        feeding.cancel()


# ------------------------------------------------------------ ordered topics


@asynccontextmanager
async def two_ordered(stage: Stage, handler: Handler, **options: Any) -> AsyncIterator[list[Peer]]:  # noqa: ANN401
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, ordered=True)
    async with running(stage.consumer(**{"handler_backoff": SECOND, **options}), handler, concurrency=4):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        await eventually(lambda: [peer.ready for peer in peers] == [1, 1])
        yield peers


async def test_on_an_ordered_topic_the_other_partitions_go_on(stage: Stage) -> None:
    handler = Handler()
    async with two_ordered(stage, handler) as peers:
        for attempts in (1, 2, 3):
            handler.is_broken = True
            peers[0].message(b"bad", message_id(2), attempts=attempts)
            await eventually(lambda: handler.bodies[-1:] == [b"bad"])
            handler.is_broken = False
            peers[1].message(b"good", message_id(2 + attempts, 1))
            await stage.nsqds[1].until(lambda: len(peers[1].of(Finish)) == attempts)  # noqa: B023 - awaited here
            assert [peer.ready for peer in peers] == [1, 1]
            await stage.nsqds[0].until(lambda: len(peers[0].of(Requeue)) == attempts)  # noqa: B023
    assert handler.bodies == [b"bad", b"good"] * 3


@pytest.mark.parametrize("backoff", [Backoff(0.5, 0.5), Backoff(60.0, 900.0)])
async def test_on_an_ordered_topic_a_failed_message_waits_no_longer_than_a_pause(
    stage: Stage, backoff: Backoff
) -> None:
    handler, loop = Handler(), asyncio.get_running_loop()
    async with two_ordered(stage, handler, requeue_backoff=backoff) as peers:
        waits: list[float] = []
        for attempts in range(1, 7):
            peers[0].message(b"bad", message_id(2), attempts=attempts)
            began = loop.time()
            await stage.nsqds[0].until(lambda: len(peers[0].of(Requeue)) == attempts)  # noqa: B023 - awaited here
            waits.append(round(loop.time() - began, 1))
    assert waits == ([0.5] * 6 if backoff.initial < 1.0 else [1.0, 2.0, 4.0, 8.0, 8.0, 8.0])
    assert all(command.delay_ms == 0 for command in peers[0].of(Requeue))  # type: ignore[attr-defined]


# ------------------------------------------------------------ the log, the events


async def test_a_pair_of_lines_and_fewer_and_fewer_of_them(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "nsq_ha.consumer")
    handler = Handler()
    async with running(stage.consumer(handler_backoff=Backoff(0.5, 0.5, jitter=0.0)), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(40))
        await eventually(lambda: len(handler.calls) == 35, 60.0)
        handler.is_broken = False
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 5)
    lines = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if "handlers fail" in record.getMessage() or "work again" in record.getMessage()
    ]
    assert lines[0] == (
        "WARNING",
        "orders/ch: handlers fail: pausing for 0.5 s, then testing with one message (2 in a row failed)",
    )
    assert [level for level, _ in lines] == ["WARNING"] * 3 + ["INFO"]
    assert "; 9 earlier changes not logged)" in lines[1][1]
    assert lines[-1][1].startswith("orders/ch: handlers work again, after 17.")
    assert lines[-1][1].endswith("s and 35 failures: asking for messages as before")


async def test_changes_are_reported(stage: Stage) -> None:
    events: list[Event] = []
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND, on_event=events.append), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await eventually(lambda: len(handler.calls) == 3)
        handler.is_broken = False
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
    changes = [event for event in events if isinstance(event, BackoffChanged)]
    assert [(event.state, event.seconds) for event in changes] == [
        ("paused", 1.0),
        ("testing", 0.0),
        ("paused", 2.0),
        ("testing", 0.0),
        ("ended", 0.0),
    ]
    assert {(event.topic, event.channel) for event in changes} == {("orders", "ch")}
