"""RDY, answers in one write, what closing sends, and messages that are held back."""

import asyncio
import logging

import pytest

from nsq_ha import Backoff, ConfigError, Consumer, Message
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES
from nsq_ha.protocol import Close, Command, Finish, Identity, Layout, Ready, Requeue, Touch
from tests.support.nsqd import LIMIT, FakeNsqd, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn

pytestmark = pytest.mark.usefixtures("any_may_wait")


async def deliver(stage: Stage, *bodies: bytes) -> Peer:
    """Deliver messages over the first nsqd's subscription."""
    peer = await stage.nsqd.subscriber()
    for number, body in enumerate(bodies):
        peer.message(body, message_id(number + 2))
    return peer


# ------------------------------------------------------------ RDY


def shares(stage: Stage) -> list[int]:
    return [peer.ready for nsqd in stage.nsqds for peer in nsqd.open_peers]


async def subscribers(*nsqds: FakeNsqd) -> None:
    for nsqd in nsqds:
        await nsqd.subscriber()


@pytest.mark.parametrize(("most", "shared"), [(3, [1, 1, 1]), (10, [3, 3, 4]), (11, [3, 4, 4]), (200, [66, 67, 67])])
async def test_max_in_flight_is_shared_exactly(stage: Stage, most: int, shared: list[int]) -> None:
    stage.lead(dict(enumerate(stage.nsqds)))
    async with stage.consumer(max_in_flight=most):
        await subscribers(*stage.nsqds)
        await eventually(lambda: sorted(shares(stage)) == shared)


@pytest.mark.parametrize("count", [-1, 1_000_001, True, None])
async def test_a_wrong_limit_is_refused_while_running(stage: Stage, count: object) -> None:
    async with stage.consumer(max_in_flight=10) as consumer:
        with pytest.raises(ConfigError) as caught:
            consumer.set_max_in_flight(count)  # type: ignore[arg-type]
    assert str(caught.value) == f"max_in_flight must be a whole number, 0..1000000, not {count!r}"


async def test_the_sum_never_exceeds_max_in_flight_while_partitions_join(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "nsq_ha.wire")
    async with stage.consumer(max_in_flight=12, lookup_interval=0.1):
        for count in (1, 2, 3):
            stage.lead({number: stage.nsqds[number] for number in range(count)})
            await subscribers(*stage.nsqds[:count])
            await eventually(lambda: sorted(shares(stage)) == [12 // count] * count)  # noqa: B023 - awaited here
    assert max(sums_sent(caplog)) == 12


def sums_sent(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the sum of all RDY after each that was sent. Servers may read from several connections in any order."""
    current: dict[str, int] = {}
    sums = []
    for record in caplog.records:
        connection, _, command = record.getMessage().partition(" > RDY ")
        if command:
            current[connection] = int(command.split()[0])
            sums.append(sum(current.values()))
    return sums


async def test_many_partitions_that_join_and_leave_share_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nsq_ha.policy.ready.FEW", 0)
    stage.lead(dict(enumerate(stage.nsqds)))
    async with stage.consumer(max_in_flight=12) as consumer:
        await consumer.wait_subscribed()
        await eventually(lambda: sorted(shares(stage)) == [4, 4, 4])
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        await stage.nsqds[2].stop()
        await eventually(lambda: sorted(shares(stage)) == [6, 6])


async def test_no_connection_gets_more_than_its_server_allows(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    stage.nsqds[0].identity = Identity(max_rdy_count=7)
    async with stage.consumer(max_in_flight=100):
        await subscribers(*stage.nsqds[:2])
        await eventually(lambda: shares(stage) == [7, 93])


async def test_a_lost_share_goes_to_the_others_and_comes_back(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer(max_in_flight=10):
        await subscribers(*stage.nsqds[:2])
        await stage.nsqds[1].stop()
        await eventually(lambda: shares(stage) == [10])
        await stage.nsqds[1].start()
        await eventually(lambda: shares(stage) == [5, 5])


async def test_pausing_and_resuming(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=5) as consumer:
        peer = await stage.nsqd.subscriber()
        consumer.set_max_in_flight(0)
        await stage.nsqd.until(lambda: peer.ready == 0)
        consumer.set_max_in_flight(9)
        await stage.nsqd.until(lambda: peer.ready == 9)


@pytest.mark.parametrize("kind", ["partitioned", "ordered", "plain"])
@pytest.mark.parametrize("calls_handler", [True, False])
async def test_starting_paused(stage: Stage, kind: str, calls_handler: bool) -> None:
    if kind == "plain":
        stage.list_plain(*stage.nsqds[:2])
    else:
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]}, ordered=kind == "ordered")
    seen: list[bytes] = []

    async def iterate(consumer: Consumer) -> None:
        async for message in consumer:
            seen.append(message.body)
            message.finish()

    async with stage.consumer(max_in_flight=0) as consumer:
        await consumer.wait_subscribed()
        peers = [nsqd.open_peers[0] for nsqd in stage.nsqds[:2]]
        handler = consumer.run(lambda message: seen.append(message.body))
        reading = asyncio.create_task(handler if calls_handler else iterate(consumer))
        if not calls_handler:
            handler.close()
        await turn(50)
        assert [peer.of(Ready) for peer in peers] == [[], []]
        assert (consumer.max_in_flight, reading.done(), seen) == (0, False, [])
        consumer.set_max_in_flight(2)
        await eventually(lambda: [peer.ready for peer in peers] == [1, 1])
        for peer in peers:
            peer.message(b"x", layout=Layout.PLAIN if kind == "plain" else Layout.DETAIL)
        await eventually(lambda: seen == [b"x", b"x"])
        await consumer.aclose()
        await reading


async def test_fewer_than_partitions_take_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq_ha.policy.ready.LOOK_INTERVAL", 0.05)
    stage.lead(dict(enumerate(stage.nsqds)))
    served: set[int] = set()
    async with stage.consumer(max_in_flight=1):

        def look() -> bool:
            ready = [nsqd.open_peers[0].ready if nsqd.open_peers else 0 for nsqd in stage.nsqds]
            assert sum(ready) <= 1
            served.update(number for number, count in enumerate(ready) if count)
            return served == {0, 1, 2}

        await eventually(look)


async def test_the_turn_of_an_idle_partition_is_short(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq_ha.policy.ready.LONGEST_CHOSEN", 1.0)
    stage.lead(dict(enumerate(stage.nsqds)))
    readies = []

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Ready):
            number = stage.nsqds.index(peer.nsqd)
            readies.append((number, command.count))
            if number == 1 and command.count:
                peer.message(b"x")
        elif isinstance(command, Finish) and peer.ready:
            peer.message(b"x")
        return False

    for nsqd in stage.nsqds:
        nsqd.script = script
    async with stage.consumer(max_in_flight=1) as consumer:
        async with asyncio.timeout(LIMIT):
            while [number for number, count in readies if count].count(1) < 3:
                message = await anext(consumer)
                message.finish()
                await turn()
    turns = [number for number, count in readies if count]
    # It had two full turns, and between them each of the others one.
    first, second = [place for place, number in enumerate(turns) if number == 1][:2]
    assert sorted(turns[first + 1 : second]) == [0, 2]


# ------------------------------------------------------------ answers


async def test_answers_of_one_turn_leave_in_one_write(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await deliver(stage, *[b"x"] * 50)
        messages = [await anext(consumer) for _ in range(50)]
        before = len(peer.reads)
        for message in messages:
            message.finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 50)
        assert len(peer.reads) - before <= 2


async def test_answers_keep_their_order(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await deliver(stage, b"a", b"b", b"c", b"d")
        a, b, c, d = [await anext(consumer) for _ in range(4)]
        a.touch()
        a.finish()
        b.requeue(0)
        c.finish()
        d.touch()
        d.requeue(1.5)
        await stage.nsqd.until(lambda: len(peer.of(Finish, Requeue, Touch)) == 6)
        sent = peer.of(Finish, Requeue, Touch)
    assert sent.index(Touch(a.id)) < sent.index(Finish(a.id))
    assert sent.index(Touch(d.id)) < sent.index(Requeue(d.id, 1500))
    assert Requeue(b.id, 0) in sent
    assert Finish(c.id) in sent


async def test_a_requeue_without_delay_grows_with_the_attempts(stage: Stage) -> None:
    backoff = Backoff(initial=1.0, maximum=5.0, factor=2.0, jitter=0.0)
    async with stage.consumer(requeue_backoff=backoff) as consumer:
        peer = await stage.nsqd.subscriber()
        for attempts in (1, 2, 3, 4, 4000):
            peer.message(b"x", message_id(attempts), attempts=attempts)
            (await anext(consumer)).requeue()
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 5)
        assert [command.delay_ms for command in peer.of(Requeue)] == [1000, 2000, 4000, 5000, 5000]  # type: ignore[attr-defined]


async def test_a_held_message_is_touched_and_requeued_at_once_when_its_time_has_come(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    stage.nsqd.identity = Identity(msg_timeout=400)
    loop = asyncio.get_running_loop()
    async with stage.consumer() as consumer:
        peer = await deliver(stage, b"x")
        message = await anext(consumer)
        message.requeue(0.9)
        began = loop.time()
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert loop.time() - began > 0.85
        assert peer.of(Requeue) == [Requeue(message.id, 0)]
        assert len(peer.of(Touch)) >= 3
        assert {command.message_id for command in peer.of(Touch)} == {message.id}  # type: ignore[attr-defined]


async def test_a_held_message_is_not_touched_once_the_consumer_has_closed(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    stage.nsqd.identity = Identity(msg_timeout=400)
    async with stage.consumer(close_timeout=0.1) as consumer:
        peer = await deliver(stage, b"x")
        (await anext(consumer)).requeue(LIMIT)
        await stage.nsqd.until(lambda: peer.of(Touch))
    caplog.clear()
    until = asyncio.get_running_loop().time() + 1.0
    await eventually(lambda: asyncio.get_running_loop().time() > until)
    assert caplog.text == ""


async def test_a_held_message_is_forgotten_with_its_connection(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await deliver(stage, b"x")
        (await anext(consumer)).requeue(0.2)
        peer.close()
        again = await stage.nsqd.subscriber(1)
        again.message(b"x")
        message = await anext(consumer)
        until = asyncio.get_running_loop().time() + 0.4
        await eventually(lambda: asyncio.get_running_loop().time() > until)
        assert again.of(Requeue) == []
        message.finish()


# ------------------------------------------------------------ closing


async def test_closing_asks_for_no_more_and_gives_back_what_was_not_handed_out(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await deliver(stage, b"a", b"b", b"c")
        handed_out = await anext(consumer)
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: len(peer.of(Requeue)) == 2)
        assert not closing.done()
        handed_out.finish()
        await asyncio.wait_for(closing, LIMIT)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert [type(command) for command in peer.commands[-4:]] == [Close, Requeue, Requeue, Finish]


async def test_closing_with_unanswered_messages_is_bounded(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(close_timeout=0.3) as consumer:
        await deliver(stage, b"a")
        holds = asyncio.Event()

        async def hold() -> None:
            await anext(consumer)
            holds.set()
            await asyncio.Event().wait()

        holding = asyncio.create_task(hold())
        await holds.wait()
        began = loop.time()
    assert loop.time() - began < 3.0
    assert "closed with messages unanswered" in caplog.text
    holding.cancel()
    await asyncio.wait({holding})


async def test_closing_a_silent_server_is_bounded(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(close_timeout=0.3):
        await stage.nsqd.subscriber()
        stage.nsqd.is_silent = True
        began = loop.time()
    assert loop.time() - began < 3.0


async def test_a_cancelled_close_leaves_nothing(stage: Stage) -> None:
    consumer = stage.consumer()
    await consumer.__aenter__()
    await deliver(stage, b"a")
    await anext(consumer)
    closing = asyncio.create_task(consumer.aclose())
    await turn()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await consumer.aclose()
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_a_second_close_waits_for_the_first(stage: Stage) -> None:
    consumer = stage.consumer(close_timeout=LIMIT)
    await consumer.__aenter__()
    await deliver(stage, b"a")
    message = await anext(consumer)
    closing = [asyncio.create_task(consumer.aclose()) for _ in range(2)]
    await turn()
    assert not any(close.done() for close in closing)
    message.finish()
    await asyncio.gather(*closing)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_closing_does_not_wait_for_a_lost_connection(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer() as consumer:
        peer = await deliver(stage, b"x")
        await anext(consumer)
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Close))
        began = loop.time()
        peer.abort()
        await closing
    assert loop.time() - began < 3.0


# ------------------------------------------------------------ giving up


async def test_a_cancelled_give_up_loses_no_message(stage: Stage) -> None:
    entered, calls = asyncio.Event(), 0

    async def give_up(message: Message) -> None:
        nonlocal calls
        calls += 1
        entered.set()
        if calls == 1:
            await asyncio.Event().wait()

    async with stage.consumer(max_attempts=1, on_give_up=give_up) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"bad", message_id(2), attempts=2 + EXTRA_DELIVERIES)
        peer.message(b"good", message_id(3))
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.wait_for(entered.wait(), LIMIT)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        good = await asyncio.wait_for(anext(consumer), LIMIT)
        assert good.body == b"good"
        good.finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        assert calls == 2


async def test_a_failing_handler_is_logged_and_its_message_requeued(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    async def handle(message: Message) -> None:
        raise RuntimeError(f"no room for {len(message.body)} bytes")

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        peer = await deliver(stage, b"a secret body")
        await stage.nsqd.until(lambda: peer.of(Requeue))
    await running
    assert "no room for 13 bytes" in caplog.text
    assert "a secret body" not in caplog.text


async def test_a_partition_that_was_busy_leaves_its_share_to_the_one_that_is_busy_now(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer(max_in_flight=8) as consumer:
        first, second = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        held: list[Message] = []

        async def busy(peer: Peer, other: Peer) -> None:
            """Deliver as much as is granted, until the partition has nearly all."""
            while (other.ready, peer.ready) != (1, 7):
                while len(held) < peer.ready:
                    peer.message(b"x", message_id(len(peer.commands) * 100 + len(held)))
                    held.append(await asyncio.wait_for(anext(consumer), LIMIT))
                await eventually(lambda: len(held) < peer.ready or (other.ready, peer.ready) == (1, 7))
            while held:
                held.pop().finish()

        async with asyncio.timeout(10 * LIMIT):
            await busy(first, second)
            await busy(second, first)
