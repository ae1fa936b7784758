"""Reading by TLS from an nsqd that can write to a connection for a short time only: it is replaced in time."""

import asyncio
from functools import partial

import pytest

from nsq_ha import Consumer, Message
from nsq_ha.policy import tls_renewal
from nsq_ha.protocol import Close, Command, Finish, Identity, Ready, Requeue, SubAdvanced, SubOrdered
from tests.support.inside import shell_of, tls_in_memory
from tests.support.nsqd import LIMIT, Peer, Subscribe, message_id
from tests.support.stage import Stage
from tests.support.tls import PARTITIONED, TLS, replaced_soon, secure, without_collector
from tests.support.waiting import eventually


@pytest.fixture
def secured(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    secure(stage)
    replaced_soon(monkeypatch)
    return stage


class Events:
    """Commands that the first nsqd received, over all connections, in order."""

    def __init__(self, stage: Stage) -> None:
        self.all: list[tuple[int, Command]] = []
        self._peers = stage.nsqd.peers
        stage.nsqd.script = self.note

    def note(self, peer: Peer, command: Command) -> None:
        self.all.append((self._peers.index(peer), command))

    def of(self, number: int, kind: type[Command]) -> list[int]:
        """Return the places of the commands of this kind over the n-th connection."""
        return [place for place, (peer, command) in enumerate(self.all) if peer == number and isinstance(command, kind)]


async def held(consumer: Consumer, count: int) -> list[Message]:
    async with asyncio.timeout(LIMIT):
        return [await anext(consumer) for _ in range(count)]


@pytest.mark.parametrize(("ordered", "command"), [(False, SubAdvanced), (True, SubOrdered)])
async def test_the_next_connection_is_subscribed_before_the_last_one_stops(
    secured: Stage, ordered: bool, command: type[Command]
) -> None:
    secured.lead({0: secured.nsqd}, ordered=ordered)
    events = Events(secured)
    async with secured.consumer(tls=TLS):
        await secured.nsqd.until(lambda: events.of(2, Ready))
    for number in (1, 2):
        (subscribed,), (stopped,), asked = (
            events.of(number, command),
            events.of(number - 1, Close),
            events.of(number, Ready),
        )
        assert subscribed < stopped < asked[0]


async def test_what_came_over_a_connection_is_answered_there_however_late(secured: Stage) -> None:
    """nsqd still reads from a connection that it cannot write to, so nothing is redelivered."""
    secured.nsqd.writes_for = 60.0
    async with secured.consumer(tls=TLS) as consumer:
        first = await secured.nsqd.subscriber()
        first.message(b"a", message_id(1))
        first.message(b"b", message_id(2))
        one, two = await held(consumer, 2)
        await secured.nsqd.subscriber(2)
        first.mute()
        one.finish()
        two.requeue(0)
        await secured.nsqd.until(lambda: first.of(Requeue))
        assert first.of(Finish) == [Finish(message_id(1))]
        await secured.nsqd.until(lambda: not first.is_open)
    assert not [peer for peer in secured.nsqd.peers[1:] if peer.of(Finish, Requeue)]


async def test_a_connection_that_is_kept_for_answers_shows_that_the_client_lives(secured: Stage) -> None:
    async with secured.consumer(tls=TLS, heartbeat_interval=1.0) as consumer:
        first = await secured.nsqd.subscriber()
        first.message(b"a")
        (message,) = await held(consumer, 1)
        await secured.nsqd.subscriber(1)
        first.mute()
        nops = first.nops
        await secured.nsqd.until(lambda: first.nops >= nops + 3)
        message.finish()
        await secured.nsqd.until(lambda: first.of(Finish))


@pytest.mark.real_time
async def test_replaced_connections_do_not_stay_in_memory(secured: Stage) -> None:
    """Few are left without the collector, which comes rarely: attempts that were given up, if the machine is busy."""
    with without_collector():
        async with secured.consumer(tls=TLS, connect_timeout=LIMIT) as consumer:
            for number in range(12):
                peer = await secured.nsqd.subscriber(number)
                peer.message(b"x", message_id(number + 1))
                (message,) = await held(consumer, 1)
                message.finish()
        await eventually(lambda: tls_in_memory() <= 4)


async def test_the_sum_of_ready_and_unanswered_stays_within_max_in_flight(secured: Stage) -> None:
    async with secured.consumer(tls=TLS, max_in_flight=4) as consumer:
        first = await secured.nsqd.subscriber()
        assert first.ready == 4
        for number in range(3):
            first.message(b"x", message_id(number + 1))
        messages = await held(consumer, 3)
        second = await secured.nsqd.subscriber(1)
        assert second.ready == 1
        messages.pop().finish()
        await secured.nsqd.until(lambda: any(peer.ready == 2 for peer in secured.nsqd.peers[1:]))
        for message in messages:
            message.finish()
        await secured.nsqd.until(lambda: any(peer.ready == 4 for peer in secured.nsqd.peers[1:]))


def _asking(stage: Stage) -> list[Peer]:
    """Return the connections that messages may be written to."""
    return [peer for peer in stage.nsqd.peers if peer.ready and peer.is_open and not peer.of(Close)]


def _in_flight_is_below(limit: int, sent: int, seen: list[int]) -> bool:
    return sent - len(seen) < limit


async def test_messages_flow_over_many_connections_once_each(secured: Stage) -> None:
    count = 200
    seen: list[int] = []

    async def feed() -> None:
        for number in range(count):
            # Two in flight: never more than any connection is ready for.
            await eventually(partial(_in_flight_is_below, 2, number, seen))
            await eventually(lambda: _asking(secured))
            _asking(secured)[-1].message(b"%d" % number, message_id(number + 1))

    async with secured.consumer(tls=TLS) as consumer:
        feeding = asyncio.create_task(feed())
        for _ in range(count):
            (message,) = await held(consumer, 1)
            seen.append(int(message.body))
            message.finish()
        await feeding
        await secured.nsqd.until(lambda: len(secured.nsqd.peers) > 3)
        finished = [command for command in secured.nsqd.commands if isinstance(command, Finish)]
        await secured.nsqd.until(lambda: len([c for c in secured.nsqd.commands if isinstance(c, Finish)]) == count)
    assert len(seen) == len(set(seen)) == count
    assert len(finished) <= count


async def test_a_connection_that_cannot_be_replaced_is_read_until_its_time_is_over(
    secured: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced before messages are lost, and its messages are still answered there."""
    monkeypatch.setattr(tls_renewal, "WRITES_FOR", 1.0)
    secured.nsqd.writes_for = 60.0
    refused = 0

    def script(peer: Peer, command: Command) -> bool:
        nonlocal refused
        if isinstance(command, Subscribe) and len(secured.nsqd.peers) > 1 and not secured.nsqd.peers[0].of(Close):
            refused += 1
            peer.abort()
            return True
        return False

    secured.nsqd.script = script
    async with secured.consumer(tls=TLS) as consumer:
        first = await secured.nsqd.subscriber()
        first.message(b"a")
        (message,) = await held(consumer, 1)
        await secured.nsqd.subscriber(1)
        assert refused
        message.finish()
        await secured.nsqd.until(lambda: first.of(Finish))


async def test_closing_waits_for_what_came_over_connections_before_this_one(secured: Stage) -> None:
    async with secured.consumer(tls=TLS) as consumer:
        first = await secured.nsqd.subscriber()
        first.message(b"a")
        (message,) = await held(consumer, 1)
        await secured.nsqd.subscriber(1)
        closing = asyncio.create_task(consumer.aclose())
        await secured.nsqd.until(lambda: secured.nsqd.peers[-1].of(Close))
        assert not closing.done()
        message.finish()
        await asyncio.wait_for(closing, LIMIT)
        await secured.nsqd.until(lambda: first.of(Finish))


@pytest.mark.parametrize("is_answered", [False, True])
async def test_one_close_command_reaches_a_connection_however_closing_and_replacing_meet(
    secured: Stage, is_answered: bool
) -> None:
    """A second CLS makes nsqd close at once, and what is unanswered would come again."""
    waiting: list[Peer] = []

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Close) and not waiting:
            waiting.append(peer)
            return not is_answered
        return False

    secured.nsqd.script = script
    async with secured.consumer(tls=TLS, close_timeout=LIMIT) as consumer:
        await secured.nsqd.until(lambda: waiting)
        closing = asyncio.create_task(consumer.aclose())
        await eventually(shell_of(consumer).closing.is_set)
        if not is_answered:
            secured.nsqd.answer(waiting[0], Close())
        await asyncio.wait_for(closing, LIMIT)
    assert all(len(peer.of(Close)) <= 1 for peer in secured.nsqd.peers)


async def test_a_new_leader_takes_over_while_a_connection_is_replaced(secured: Stage) -> None:
    async with secured.consumer(tls=TLS, lookup_interval=0.1) as consumer:
        await secured.nsqd.subscriber(2)
        secured.lead({0: secured.nsqds[1]})
        peer = await secured.nsqds[1].subscriber()
        peer.message(b"there")
        (message,) = await held(consumer, 1)
        message.finish()
        await secured.nsqd.until(lambda: not secured.nsqd.open_peers)


async def test_plain_connections_are_never_replaced(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_renewal, "WRITES_FOR", 0.2)
    stage.nsqd.identity = PARTITIONED
    async with stage.consumer(heartbeat_interval=1.0):
        peer = await stage.nsqd.subscriber()
        await stage.nsqd.until(lambda: peer.nops >= 2)
    assert len(stage.nsqd.peers) == 1


async def test_an_nsqd_with_a_later_version_keeps_its_connections(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_renewal, "WRITES_FOR", 0.2)
    secure(stage, writes_for=60.0)
    stage.nsqd.identity = Identity(version="0.3.7-HA.1.13.1")
    async with stage.consumer(tls=TLS, heartbeat_interval=1.0):
        peer = await stage.nsqd.subscriber()
        await stage.nsqd.until(lambda: peer.nops >= 2)
    assert len(stage.nsqd.peers) == 1
