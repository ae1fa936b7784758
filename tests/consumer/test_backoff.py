"""Handlers that fail: the consumer pauses, tests with single messages, and reads on when they work again."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest

from nsq_ha import Backoff, ConfigError, Consumer, Message
from nsq_ha.consumer.pace import ConsumerPace, Flow
from nsq_ha.events import BackoffChanged, Event
from nsq_ha.policy.consumer_backoff import PauseState
from nsq_ha.policy.ready import FEW
from nsq_ha.protocol import Finish, Identity, Ready, Requeue
from tests.support.inside import inbox_of
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage
from tests.support.turns import TURN, turns
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


def state_of(consumer: Consumer) -> PauseState:
    pauses = inbox_of(consumer).pace.backoff.states
    return next(iter(pauses.values()), PauseState.FLOWING)


# ------------------------------------------------------------ one consumer


async def test_a_pause_of_thousands_of_messages_is_short_work(stage: Stage) -> None:
    """Each that was kept looked at all that were: 2,500 took 0.3 s in one turn, after a failure."""
    handler, consumer = Handler(is_broken=False), stage.consumer(handler_backoff=SECOND, max_in_flight=2500)
    async with running(consumer, handler):
        peer = await stage.nsqd.subscriber()
        await always_full(peer, 2500)
        await eventually(lambda: peer.ready == 2500 and len(handler.calls) == 2500)
        handler.is_broken = True
        with turns() as measured:
            deliver(peer, range(2500, 5000))
            await eventually(lambda: len(handler.calls) == 2502)
        assert len(inbox_of(consumer).pace.backoff.parked) > 2000
    assert measured.longest < TURN, measured.what


async def test_a_failing_handler_is_called_once_after_each_pause(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        feeding = asyncio.create_task(always_full(peer, 500))
        await eventually(lambda: len(handler.calls) == 6, 60.0)
        assert handler.gaps == [1.0, 2.0, 4.0, 8.0, 8.0]
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
        began = asyncio.get_running_loop().time()
        await dawdle(3.0)
        assert len(handler.calls) <= 4
        assert asyncio.get_running_loop().time() - began < 4.0
        feeding.cancel()


async def test_ready_falls_to_0_and_one_connection_gets_1(stage: Stage) -> None:
    stage.lead(dict(enumerate(stage.nsqds)))
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND, max_in_flight=30), handler):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds]
        await eventually(lambda: [peer.ready for peer in peers] == [10, 10, 10])
        peers[0].message(b"bad", message_id(2))
        await eventually(lambda: [peer.ready for peer in peers] == [0, 0, 0])
        await eventually(lambda: sorted(peer.ready for peer in peers) == [0, 0, 1])
        # It has no message, so it is another connection's turn.
        first = next(peer for peer in peers if peer.ready)
        await eventually(lambda: sorted(peer.ready for peer in peers) == [0, 0, 1] and first.ready == 0)
        handler.is_broken = False
        tester = next(peer for peer in peers if peer.ready)
        tester.message(b"good", message_id(3, peers.index(tester)))
        await eventually(lambda: [peer.ready for peer in peers] == [10, 10, 10])
    assert handler.bodies == [b"bad", b"good"]


async def test_messages_that_arrived_before_the_pause_wait_and_keep_their_order(stage: Stage) -> None:
    handler = Handler()
    consumer = stage.consumer(handler_backoff=SECOND)
    async with running(consumer, handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(6))
        await eventually(lambda: len(handler.calls) == 2)
        assert consumer.stats().queued == 4
        handler.is_broken = False
        await eventually(lambda: len(handler.calls) == 6)
        assert handler.gaps == [1.0, 2.0, 1.0, 0.0, 0.0]
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 4)
    assert handler.bodies == [b"%d" % number for number in range(6)]
    assert [command.message_id for command in peer.of(Requeue)] == [message_id(2), message_id(3)]  # type: ignore[attr-defined]


async def test_messages_that_cannot_wait_go_back_to_nsqd(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=5000)
    handler = Handler()
    async with running(stage.consumer(handler_backoff=Backoff(4.0, 4.0, jitter=0.0)), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(4))
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 4)
        assert peer.of(Requeue)[1:] == [Requeue(message_id(number + 2), 0) for number in (1, 2, 3)]
        await stage.nsqd.until(lambda: peer.ready == 1)
    assert handler.bodies == [b"0"]


async def test_messages_that_wait_for_a_slow_test_go_back_in_time(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=4000)
    gate = asyncio.Event()
    seen: list[bytes] = []

    async def handle(message: Message) -> None:
        seen.append(message.body)
        if len(seen) == 1:
            raise ValueError
        await gate.wait()

    loop = asyncio.get_running_loop()
    async with running(stage.consumer(handler_backoff=SECOND), handle):
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        deliver(peer, range(4))
        await eventually(lambda: len(seen) == 2)
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 3)
        assert 1.9 < loop.time() - began < 2.3
        gate.set()
        await stage.nsqd.until(lambda: peer.ready > 1)
    assert seen == [b"0", b"1"]


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
        deliver(peer, range(16))
        await eventually(lambda: len(handler.calls) == 10)
    assert handler.gaps[7:] == [1.0, 2.0]


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
        peer.message(b"bad", message_id(3))
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
        deliver(peer, range(4))
        times: list[float] = []
        for delay in (None, 9.0, None):
            (await anext(consumer)).requeue(delay)
            times.append(loop.time())
        (await anext(consumer)).finish()
        times.append(loop.time())
    assert [round(after - before, 1) for before, after in itertools.pairwise(times)] == [1.0, 1.0, 2.0]


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
                    if len(times) <= 2:
                        raise ValueError
            if len(times) == 5:
                break
    assert [round(after - before, 1) for before, after in itertools.pairwise(times)] == [1.0, 2.0, 1.0, 0.0]


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
        await eventually(lambda: len(handler.calls) == 3)
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    assert handler.gaps == [1.0, 2.0]


async def test_a_requeue_from_a_thread_is_a_failure(stage: Stage) -> None:
    def handle(message: Message) -> None:
        message.requeue()

    async with running(stage.consumer(handler_backoff=SECOND), handle):
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2))
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
        peer.message(b"bad", message_id(2))
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"stuck", message_id(3))
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
    assert handler.bodies == [b"bad", b"stuck", b"good"]


async def test_the_success_of_a_test_counts_though_its_connection_is_lost(stage: Stage) -> None:
    gate = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.body == b"bad":
            raise ValueError
        await gate.wait()

    consumer = stage.consumer(handler_backoff=SECOND)
    async with running(consumer, handle):
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2))
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
        peer.message(b"bad", message_id(2))
        (await anext(consumer)).requeue()
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
        assert state_of(consumer) is PauseState.FLOWING


async def test_a_test_that_is_touched_is_waited_for(stage: Stage) -> None:
    stage.nsqd.identity = Identity(msg_timeout=3000)
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2))
        (await anext(consumer)).requeue()
        await stage.nsqd.until(lambda: peer.ready == 1)
        peer.message(b"long", message_id(3))
        test = await anext(consumer)
        for _ in range(4):
            await dawdle(2.0)
            test.touch()
            assert state_of(consumer) is PauseState.IN_TEST
        test.finish()
        assert state_of(consumer) is PauseState.FLOWING


async def test_a_test_of_a_cancelled_run_is_the_next_one_again(stage: Stage) -> None:
    handler = Handler()
    gate = asyncio.Event()

    async def waits(message: Message) -> None:
        gate.set()
        await asyncio.Event().wait()

    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
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
    assert handler.bodies == [b"1", b"2"]


async def test_messages_that_wait_are_dropped_with_their_connection(stage: Stage) -> None:
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await eventually(lambda: len(handler.calls) == 1)
        await turn(5)
        peer.abort()
        again = await stage.nsqd.subscriber()
        handler.is_broken = False
        await stage.nsqd.until(lambda: again.ready == 1)
        again.message(b"again", message_id(3))
        await stage.nsqd.until(lambda: again.ready > 1)
    assert handler.bodies == [b"0", b"again"]


# ------------------------------------------------------------ pausing, closing


async def test_a_paused_consumer_asks_for_no_test(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND, max_in_flight=5) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2))
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
        bad, held = await anext(consumer), await anext(consumer)
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
    assert len(handler.calls) == 1
    await eventually(lambda: not peer.is_open)


@pytest.mark.parametrize("waits", [False, True])
async def test_closing_ends_who_waits_for_the_pause(stage: Stage, waits: bool) -> None:
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(2 if waits else 1))
        (await anext(consumer)).requeue()
        reading = asyncio.create_task(anext(aiter(consumer), None))
        await turn(5)
        await consumer.aclose()
        assert await reading is None


async def test_cancelling_who_waits_for_the_pause_loses_nothing(stage: Stage) -> None:
    async with stage.consumer(handler_backoff=SECOND) as consumer:
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(3))
        (await anext(consumer)).requeue()
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.2)
        assert (await anext(consumer)).body == b"1"


# ------------------------------------------------------------ one connection


@asynccontextmanager
async def two_ordered(stage: Stage, handler: Handler, **options: Any) -> AsyncIterator[list[Peer]]:  # noqa: ANN401
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, ordered=True)
    async with running(stage.consumer(handler_backoff=SECOND, **options), handler, concurrency=4):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        await eventually(lambda: [peer.ready for peer in peers] == [1, 1])
        yield peers


async def test_on_an_ordered_topic_the_other_partitions_go_on(stage: Stage) -> None:
    handler = Handler()
    async with two_ordered(stage, handler, requeue_backoff=Backoff(0.1, 0.1)) as peers:
        peers[0].message(b"bad", message_id(2))
        await eventually(lambda: [peer.ready for peer in peers] == [0, 1])
        handler.is_broken = False
        peers[1].message(b"good", message_id(3, 1))
        await stage.nsqds[1].until(lambda: peers[1].of(Finish))
        assert [peer.ready for peer in peers] == [0, 1]
        await stage.nsqds[0].until(lambda: peers[0].ready == 1)
        peers[0].message(b"bad", message_id(2), attempts=2)
        await stage.nsqds[0].until(lambda: peers[0].of(Finish))
        await eventually(lambda: peers[0].ready == 1)
    assert handler.bodies == [b"bad", b"good", b"bad"]


async def test_the_pauses_of_many_partitions_share_together(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poison for each of 1,024 partitions took 6 s of CPU: each change looked at each partition."""
    shares, many = 0, FEW + 36
    share = Flow.share

    def counted(flow: Flow) -> None:
        nonlocal shares
        shares += 1
        share(flow)

    monkeypatch.setattr(Flow, "share", counted)
    nsqd = stage.nsqds[0]
    stage.lead(dict.fromkeys(range(many), nsqd), ordered=True)
    async with running(stage.consumer(max_in_flight=10 * many, handler_backoff=SECOND), Handler(), concurrency=4):
        await nsqd.until(lambda: sum(peer.ready > 0 for peer in nsqd.peers) == many)
        shares = 0
        for number, peer in enumerate(nsqd.peers):
            peer.message(b"bad", message_id(number + 2))
        await nsqd.until(lambda: sum(len(peer.of(Requeue)) for peer in nsqd.peers) == many)
        assert shares < many / 2


async def test_asking_for_care_again_changes_nothing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection asks for each of a thousand messages: 515 ms in one turn with 1,024 partitions."""
    reviews = 0
    review = ConsumerPace.review

    def counted(pace: ConsumerPace) -> None:
        nonlocal reviews
        reviews += 1
        review(pace)

    async with stage.consumer() as consumer:
        pace = inbox_of(consumer).pace
        pace.be_careful(monotonic() + 60.0)
        monkeypatch.setattr(ConsumerPace, "review", counted)
        for _ in range(100):
            pace.be_careful(monotonic() + 60.0)
        assert (reviews, pace.is_careful) == (0, True)
        pace.be_careful(0.0)
        assert reviews == 1


async def test_the_scope_may_be_the_consumer_on_an_ordered_topic(stage: Stage) -> None:
    handler = Handler()
    async with two_ordered(stage, handler, handler_backoff_scope="consumer") as peers:
        peers[0].message(b"bad", message_id(2))
        await eventually(lambda: [peer.ready for peer in peers] == [0, 0])


async def test_the_scope_may_be_a_connection_on_an_ordinary_topic(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    handler = Handler()
    options: dict[str, Any] = {"handler_backoff": SECOND, "handler_backoff_scope": "connection", "max_in_flight": 10}
    async with running(stage.consumer(**options), handler):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        await eventually(lambda: [peer.ready for peer in peers] == [5, 5])
        deliver(peers[0], range(3))
        await eventually(lambda: [peer.ready for peer in peers] == [0, 8])
        handler.is_broken = False
        deliver(peers[1], range(10, 14))
        await stage.nsqds[1].until(lambda: len(peers[1].of(Finish)) == 4)
        assert handler.bodies == [b"0", b"10", b"11", b"12", b"13"]
        await stage.nsqds[0].until(lambda: len(peers[0].of(Finish)) == 2)
        await eventually(lambda: sum(peer.ready for peer in peers) == 10 and peers[0].ready >= 1)


async def test_partitions_take_turns_around_one_that_pauses(stage: Stage) -> None:
    stage.lead(dict(enumerate(stage.nsqds)))
    handler = Handler()
    options: dict[str, Any] = {"handler_backoff": SECOND, "handler_backoff_scope": "connection", "max_in_flight": 1}
    async with running(stage.consumer(**options), handler):
        peers = [await nsqd.subscriber() for nsqd in stage.nsqds]
        await eventually(lambda: sorted(peer.ready for peer in peers) == [0, 0, 1])
        bad = next(peer for peer in peers if peer.ready)
        bad.message(b"bad", message_id(2, peers.index(bad)))
        others = [peer for peer in peers if peer is not bad]
        await eventually(lambda: bad.ready == 0)
        for other in others:
            await eventually(lambda: other.ready == 1)  # noqa: B023 - awaited here
        await eventually(lambda: bad.ready == 1)


async def test_the_pause_of_a_partition_that_is_no_longer_read_ends(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    options: dict[str, Any] = {"handler_backoff": SECOND, "handler_backoff_scope": "connection"}
    async with stage.consumer(**options, lookup_interval=0.1) as consumer:
        await consumer.wait_subscribed()
        backoff = inbox_of(consumer).pace.backoff
        backoff.left({0, 1})
        message = Message(message_id(2), b"x", 1, 1, _Source())
        backoff.failed(message)
        assert backoff.is_active
        backoff.left({0, 1})
        assert not backoff.is_active


class _Source:
    topic, channel, partition, nsqd = "orders", "ch", 7, "127.0.0.1:4150"

    def finish(self, message: Message) -> None: ...

    def requeue(self, message: Message, delay: float | None) -> None: ...

    def touch(self, message: Message) -> None: ...


# ------------------------------------------------------------ the log, the options


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
        if "back-off" in record.getMessage() or "work again" in record.getMessage()
    ]
    assert lines[0] == (
        "WARNING",
        "orders/ch: a handler failed: asking for no messages for 0.5 s, then for one as a test (back-off level 1)",
    )
    assert [level for level, _ in lines] == ["WARNING"] * 3 + ["INFO"]
    assert "(back-off level 1; 9 changes before were not logged)" in lines[1][1]
    assert lines[-1][1].startswith("orders/ch: handlers work again, after 17.")
    assert lines[-1][1].endswith("s and 35 failures: asking for messages as before")


async def test_changes_are_reported(stage: Stage) -> None:
    events: list[Event] = []
    handler = Handler()
    async with running(stage.consumer(handler_backoff=SECOND, on_event=events.append), handler):
        peer = await stage.nsqd.subscriber()
        deliver(peer, range(5))
        await eventually(lambda: len(handler.calls) == 2)
        handler.is_broken = False
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 3)
    changes = [event for event in events if isinstance(event, BackoffChanged)]
    assert [(event.state, event.seconds) for event in changes] == [
        ("paused", 1.0),
        ("testing", 0.0),
        ("paused", 2.0),
        ("testing", 0.0),
        ("paused", 1.0),
        ("testing", 0.0),
        ("ended", 0.0),
    ]
    assert {(event.topic, event.channel, event.partition) for event in changes} == {("orders", "ch", None)}


def test_a_wrong_scope_is_refused() -> None:
    with pytest.raises(ConfigError, match="handler_backoff_scope"):
        Consumer("orders", "ch", lookupd="http://127.0.0.1:1", handler_backoff_scope="topic")  # type: ignore[arg-type]
