"""Reading a topic of a plain cluster: every nsqd that has it."""

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from nsq_ha import Backoff, ConfigError, Message, StartFrom
from nsq_ha.errors import MessageRefusedError
from nsq_ha.policy import plain_topology
from nsq_ha.protocol import Close, Command, Layout, Ready, Requeue, Sub
from nsq_ha.protocol.commands import Identify
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import LIMIT, FakeNsqd, Peer, Subscribe, error, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually, turn

pytestmark = pytest.mark.usefixtures("any_may_wait")


def read(stage: Stage) -> set[int]:
    """Return the numbers of the nsqds that have a subscribed connection."""
    return {number for number, nsqd in enumerate(stage.nsqds) if any(peer.ready for peer in nsqd.open_peers)}


async def looked_up_again(stage: Stage) -> None:
    """Wait for a look-up that began after this call."""
    count = stage.lookupd.count("/lookup")
    await eventually(lambda: stage.lookupd.count("/lookup") >= count + 2)


async def test_every_nsqd_of_the_topic_is_subscribed(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(max_in_flight=10):
        for nsqd in stage.nsqds[:2]:
            peer = await nsqd.subscriber()
            assert peer.of(*Subscribe) == [Sub(TOPIC, "ch", None)]
            assert peer.ready == 5
    assert not stage.nsqds[2].peers


async def test_a_plain_nsqd_is_offered_no_time_below_its_minimum(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)
    async with stage.consumer():
        peer = await stage.nsqd.subscriber()
    (identify,) = peer.of(Identify)
    assert isinstance(identify, Identify)
    assert json.loads(identify.body)["output_buffer_timeout"] == 25


async def test_a_silent_nsqd_makes_no_close_longer(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.list_plain(stage.nsqd)
    loop = asyncio.get_running_loop()
    async with stage.consumer(close_timeout=2.0):
        await stage.nsqd.subscriber()
        stage.nsqd.is_silent = True
        began = loop.time()
    assert loop.time() - began < 2.5
    assert "closed with messages unanswered: none, but an nsqd did not answer CLS" in caplog.text


async def test_an_nsqd_that_is_listed_later_is_subscribed(stage: Stage) -> None:
    stage.list_plain(stage.nsqds[0])
    async with stage.consumer():
        await stage.nsqds[0].subscriber()
        stage.list_plain(*stage.nsqds[:2])
        await eventually(lambda: read(stage) == {0, 1})


async def test_a_connection_to_an_nsqd_that_is_no_longer_listed_stays_in_use(stage: Stage) -> None:
    """It is tombstoned, and may hold messages."""
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(lookup_interval=0.1) as consumer:
        peer = await stage.nsqds[0].subscriber()
        stage.list_plain(stage.nsqds[1])
        await looked_up_again(stage)
        assert read(stage) == {0, 1}
        peer.message(b"left over", layout=Layout.PLAIN)
        message = await anext(consumer)
        message.finish()
        assert message.body == b"left over"


async def test_an_nsqd_that_has_gone_is_neither_asked_for_nor_warned_about(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_topology, "FORGET_ROUNDS", 4)
    caplog.set_level(logging.INFO)
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(lookup_interval=0.1):
        await eventually(lambda: read(stage) == {0, 1})
        stage.list_plain(stage.nsqds[1])
        await stage.nsqds[0].stop()
        rounds = stage.lookupd.count("/lookup")
        await eventually(lambda: "orders: an nsqd that is no longer listed is not read any more" in caplog.text)
        assert 4 <= stage.lookupd.count("/lookup") - rounds <= 7
        assert read(stage) == {1}
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "topic orders is no longer listed for nsqd" in caplog.text


async def test_what_was_unanswered_at_an_nsqd_that_has_gone_is_not_counted_as_finished(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_topology, "FORGET_ROUNDS", 4)
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer(lookup_interval=0.1) as consumer:
        peer = await stage.nsqds[0].subscriber()
        peer.message(b"x", layout=Layout.PLAIN)
        message = await anext(consumer)
        stage.list_plain(stage.nsqds[1])
        await eventually(lambda: read(stage) == {1})
        stats = consumer.stats()
        assert (stats.delivered, stats.finished, stats.returned, stats.in_flight) == (1, 0, 1, 0)
        message.finish()


async def test_what_goes_back_to_an_nsqd_that_has_gone_is_not_handed_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another consumer gets it."""
    monkeypatch.setattr(plain_topology, "FORGET_ROUNDS", 4)
    stage.list_plain(*stage.nsqds[:2])
    stage.nsqds[0].script = lambda _, command: isinstance(command, Close)  # it answers late
    async with stage.consumer(lookup_interval=0.1) as consumer:
        peer = await stage.nsqds[0].subscriber()
        for number in range(3):
            peer.message(b"x", message_id(number + 2), layout=Layout.PLAIN)
        await eventually(lambda: len(consumer_machine_of(consumer).queue) == 3)
        stage.list_plain(stage.nsqds[1])
        await stage.nsqds[0].until(lambda: len(peer.of(Requeue)) == 3)
        taking = asyncio.create_task(anext(consumer))
        await turn(3)
        assert not taking.done()
        taking.cancel()
        await asyncio.wait({taking})


async def test_nor_is_what_waits_until_handlers_work_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_topology, "FORGET_ROUNDS", 4)
    stage.list_plain(*stage.nsqds[:2])
    stage.nsqds[0].script = lambda _, command: isinstance(command, Close)  # it answers late
    async with stage.consumer(lookup_interval=0.1, handler_backoff=Backoff(0.1, 0.1)) as consumer:
        gone, other = [await nsqd.subscriber() for nsqd in stage.nsqds[:2]]
        for number in (1, 9):
            other.message(b"fails", message_id(number), layout=Layout.PLAIN)
            (await anext(consumer)).requeue()
        other.message(b"test", message_id(2), layout=Layout.PLAIN)
        test = await anext(consumer)
        gone.message(b"x", message_id(3), layout=Layout.PLAIN)
        taking = asyncio.create_task(anext(consumer))
        await eventually(lambda: consumer_machine_of(consumer).queue)
        stage.list_plain(stage.nsqds[1])
        await stage.nsqds[0].until(lambda: gone.of(Requeue))
        test.finish()
        await turn(3)
        assert not taking.done()
        taking.cancel()
        await asyncio.wait({taking})


async def test_an_nsqd_that_comes_back_is_read_again(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])
    async with stage.consumer():
        await eventually(lambda: read(stage) == {0, 1})
        stage.list_plain(stage.nsqds[1])
        await stage.nsqds[0].stop()
        await eventually(lambda: read(stage) == {1})
        await stage.nsqds[0].start()
        stage.list_plain(*stage.nsqds[:2])
        await eventually(lambda: read(stage) == {0, 1})


@pytest.mark.parametrize(
    "option",
    [{"partitions": [0]}, {"start_from": StartFrom.beginning()}, {"tag": "blue"}, {"ordered": True}],
    ids=lambda option: next(iter(option)),
)
async def test_options_of_the_partitioned_server_are_refused(stage: Stage, option: dict[str, Any]) -> None:
    stage.list_plain(stage.nsqd)
    with pytest.raises(ConfigError, match=f"remove {next(iter(option))}=.*: it needs the partitioned server"):
        await stage.consumer(**option).__aenter__()


async def test_a_topic_that_nobody_has_is_read_once_it_is_published_to(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.lookupd.answer("/lookup", {"message": "TOPIC_NOT_FOUND"}, status=404)
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with stage.consumer(start_timeout=60.0):
        assert loop.time() - began < 5
        await eventually(lambda: "no nsqd has topic 'orders' yet: the first publish creates it" in caplog.text)
        stage.list_plain(stage.nsqd)
        await eventually(lambda: read(stage) == {0})


@pytest.mark.parametrize("max_attempts", [None, 3])
async def test_a_plain_nsqd_gets_back_what_nobody_answered(stage: Stage, max_attempts: int | None) -> None:
    """It requeues nothing when a connection ends: the messages used to wait for their timeout, 60 s by default."""
    stage.list_plain(stage.nsqd)
    async with asyncio.timeout(LIMIT), stage.consumer(max_attempts=max_attempts, close_timeout=6 * LIMIT) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"%d" % number, message_id(number), layout=Layout.PLAIN)
        await anext(consumer)
        await eventually(lambda: len(consumer_machine_of(consumer).queue) == 2)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    ends = [command for command in peer.commands if isinstance(command, Close | Requeue)]
    assert ends[0] == Close()
    assert sorted(ends[1:], key=repr) == [Requeue(message_id(number), 0) for number in range(3)]


async def test_a_copy_of_what_a_handler_still_has_at_the_end_of_the_close_goes_back(stage: Stage) -> None:
    """It stayed in flight until its timeout: it arrived over another connection than the message of the handler."""
    stage.list_plain(stage.nsqd)
    has_begun = asyncio.Event()

    async def hold(message: Message) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT), stage.consumer(close_timeout=0.5, heartbeat_interval=60.0) as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(hold, concurrency=2))
        peer.message(b"x", b"0123456789abcdef", layout=Layout.PLAIN)
        await has_begun.wait()
        peer.abort()
        again = await stage.nsqd.subscriber(1)
        again.message(b"x", b"0123456789abcdef", layout=Layout.PLAIN, attempts=2)
        await eventually(lambda: consumer.stats().in_flight == 1 and not consumer.stats().queued)
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)
    assert again.of(Requeue) == [Requeue(b"0123456789abcdef", 0)]
    await asyncio.wait({running})


async def test_an_old_nsqd_that_counts_rdy_down_delivers_more_than_rdy(stage: Stage) -> None:
    """Before 0.3.0 each message lowers RDY, so a consumer used to stop for good after ``max_in_flight`` messages."""
    nsqd = stage.nsqd
    nsqd.identity = msgspec.structs.replace(nsqd.identity, version="0.2.30", msg_timeout=0)
    stage.list_plain(nsqd)
    ready = [0]

    def set_ready(_: Peer, command: Command) -> None:
        if isinstance(command, Ready):
            ready[0] = command.count

    nsqd.script = set_ready
    async with stage.consumer(max_in_flight=4) as consumer:
        peer = await nsqd.subscriber()
        for number in range(20):
            await eventually(lambda: ready[0] > 0)
            ready[0] -= 1
            peer.message(b"x", message_id(number + 2), layout=Layout.PLAIN)
            (await anext(consumer)).finish()


async def test_an_nsqd_that_is_too_old_is_named(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.nsqd.identity = msgspec.structs.replace(stage.nsqd.identity, version="0.2.22")
    stage.list_plain(stage.nsqd)
    async with stage.consumer(start_timeout=0.1) as consumer:
        text = f"nsqd {stage.nsqd.node.address} has version 0.2.22, but this library needs 0.2.23 or newer"
        await eventually(lambda: text in caplog.text)
        assert not consumer.health(patience=0).is_healthy


async def test_an_old_nsqd_that_refuses_a_long_requeue_is_asked_for_no_longer_one(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Before 1.1.0 nsqd closes the connection because of a delay above ``--max-req-timeout``, each time."""

    def refuse_long(peer: Peer, command: Command) -> bool:
        if not isinstance(command, Requeue) or command.delay_ms <= 2000:
            return False
        peer.write(error(f"E_INVALID REQ timeout {command.delay_ms}000000 out of range 0-2000000000"))
        peer.close()
        return True

    def delays() -> list[int]:
        return [command.delay_ms for command in nsqd.commands if isinstance(command, Requeue)]

    nsqd = stage.nsqd
    nsqd.script = refuse_long
    stage.list_plain(nsqd)
    async with stage.consumer() as consumer:
        for number in range(4):
            peer = await nsqd.subscriber(min(number, 1))
            peer.message(b"x", message_id(number + 2), layout=Layout.PLAIN)
            (await anext(consumer)).requeue(60)
        await eventually(lambda: len(delays()) == 4)
    assert delays() == [60_000, 2000, 2000, 2000]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "delays a requeue by at most 2 s (--max-req-timeout)" in line


class Strict:
    """An nsqd whose flags permit less than usual; each refusal closes the connection, as the real one does."""

    def __init__(self, name: str, words: str, *, least: int = 0, most: int = 2**31) -> None:
        self._name = name
        self._words = words
        self._range = range(least, most + 1)

    def __call__(self, peer: Peer, command: Command) -> bool:
        if not isinstance(command, Identify):
            return False
        value = json.loads(command.body)[self._name]
        if value == 0 or value in self._range:
            return False
        peer.write(error(f"E_BAD_BODY IDENTIFY {self._words} ({value}) is invalid"))
        peer.close()
        return True


@pytest.mark.parametrize(
    ("strict", "own"),
    [
        (Strict("output_buffer_size", "output buffer size", most=8192), {"output_buffer_bytes": 9000}),
        (Strict("output_buffer_timeout", "output buffer timeout", least=100), {"output_buffer_timeout": 0.05}),
        (Strict("heartbeat_interval", "heartbeat interval", most=1500), {"heartbeat_interval": 1.7}),
    ],
)
async def test_a_default_that_an_nsqd_forbids_is_left_to_it_and_a_choice_is_an_error(
    stage: Stage, strict: Strict, own: dict[str, Any]
) -> None:
    stage.nsqd.script = strict
    stage.list_plain(stage.nsqd)
    async with stage.consumer() as consumer, stage.producer() as producer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2), layout=Layout.PLAIN)
        (await anext(consumer)).finish()
        await producer.publish(TOPIC, b"y")
    (option,) = own
    with pytest.raises(MessageRefusedError, match=f"value of the option {option}"):
        async with stage.consumer(**own):
            pass


async def test_max_in_flight_holds_while_it_moves_from_one_nsqd_to_another(stage: Stage) -> None:
    """A message may be on its way from the nsqd that loses RDY, and the other one sends one at once."""
    running = most = done = 0
    sent = {id(nsqd): 0 for nsqd in stage.nsqds}

    def script(peer: Peer, command: Command) -> None:
        if (
            isinstance(command, Ready)
            and not sent[id(peer.nsqd)]
            and (command.count > 0) == (peer.nsqd is not first[0])
        ):
            sent[id(peer.nsqd)] += 1
            peer.message(b"x", message_id(peer.nsqd.port), layout=Layout.PLAIN)

    async def handle(message: Message) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await dawdle(0.5)
        running -= 1
        done += 1

    stage.list_plain(*stage.nsqds)
    first: list[FakeNsqd] = []
    async with stage.consumer(max_in_flight=1) as consumer:
        handling = asyncio.create_task(consumer.run(handle, concurrency=8))
        await eventually(lambda: len(read(stage)) == 1)
        first.append(stage.nsqds[min(read(stage))])
        for nsqd in stage.nsqds:
            nsqd.script = script
        await eventually(lambda: done == 2)
    await handling
    assert most == 1
