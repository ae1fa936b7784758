"""The first subscription to an ordered channel with a backlog, where nsqd restarts its reader."""

import asyncio

import pytest

from nsq_ha import Backoff, ConfigError, ConsumerConfig, Message
from nsq_ha.consumer.inflight import Subscription
from nsq_ha.protocol import Close, Finish, Requeue
from tests.consumer.parts import Source
from tests.support.inside import consumer_machine_of
from tests.support.nsqd import Peer, message_id, response
from tests.support.stage import Stage
from tests.support.waiting import eventually, turn


async def test_a_first_message_that_comes_twice_is_handed_out_once(stage: Stage) -> None:
    """The real server delivered it twice, 8 of 8 times."""
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number in (2, 2, 3):
            peer.message(b"%d" % number, message_id(number))
        bodies = []
        for _ in range(2):
            message = await anext(consumer)
            bodies.append(message.body)
            message.finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
    assert bodies == [b"2", b"3"]


async def test_a_copy_of_a_finished_message_is_finished_too(stage: Stage) -> None:
    """The first FIN may have been refused, since nsqd forgot that the message was in flight."""
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2))
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.of(Finish))
        peer.message(b"first", message_id(2))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        peer.message(b"second", message_id(3))
        message = await anext(consumer)
        message.finish()
    assert message.body == b"second"


def test_a_copy_is_not_finished_before_the_loop_learns_how_a_thread_answered_the_message() -> None:
    """FIN would lose a message that the thread requeued: the REQ behind it would have no effect."""
    source = Source()
    conn = Subscription(source.conn.partition, is_ordered=True)
    message, again = (Message(message_id(2, 3), b"x", 1, 7, source) for _ in range(2))
    assert conn.without_repeat([message]) == [message]
    message.answered = True
    assert conn.without_repeat([again]) == []
    assert conn.commands == []


async def test_one_that_was_requeued_comes_again(stage: Stage) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        (await anext(consumer)).requeue(0)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        peer.message(b"x", message_id(2))  # the REQ was refused, and nsqd restarts its reader
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.of(Finish))


@pytest.mark.parametrize("attempts", [2, 3])
async def test_a_timed_out_message_is_no_copy(stage: Stage, attempts: int) -> None:
    stage.lead({0: stage.nsqd}, ordered=True)
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        first = await anext(consumer)
        peer.message(b"x", message_id(2), attempts=attempts)
        second = asyncio.create_task(anext(consumer))
        await turn(3)
        first.finish()
        peer.message(b"y", message_id(3))
        (await second).requeue(0)


async def all_is_answered(stage: Stage, peer: Peer) -> None:
    """Wait until the client has read, and answered, all that was sent to it."""
    before = peer.nops
    peer.write(response(b"_heartbeat_"))
    await stage.nsqd.until(lambda: peer.nops > before)


async def test_a_copy_of_a_message_that_waits_again_is_not_finished(stage: Stage) -> None:
    """The handler that got it first was cancelled. If the consumer closed now, nobody would ever get it."""
    stage.lead({0: stage.nsqd}, ordered=True)
    began = asyncio.Event()

    async def handle(_: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle))
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        await began.wait()
        running.cancel()
        await asyncio.wait({running})
        peer.message(b"x", message_id(2))
        await all_is_answered(stage, peer)
        assert peer.of(Finish) == []
        (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: peer.of(Finish))
        await all_is_answered(stage, peer)
    assert len(peer.of(Finish)) == 1


async def test_nor_is_one_of_a_message_that_is_being_given_up(stage: Stage) -> None:
    """If that fails, nsqd must deliver it again."""
    stage.lead({0: stage.nsqd}, ordered=True)
    may_fail = asyncio.Event()

    async def give_up(_: Message) -> None:
        await may_fail.wait()
        raise OSError("not now")

    async with stage.consumer(max_attempts=1, on_give_up=give_up, requeue_backoff=Backoff(0.01, 0.01)) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        (await anext(consumer)).requeue()
        peer.message(b"x", message_id(2))
        await all_is_answered(stage, peer)
        may_fail.set()
        await stage.nsqd.until(lambda: peer.of(Requeue))
    assert peer.of(Finish) == []


async def test_nor_is_one_of_a_message_that_is_left_to_the_end_of_its_connection(stage: Stage) -> None:
    """With max_attempts it is not requeued when the consumer closes, but it was not handled, either."""
    stage.lead({0: stage.nsqd}, ordered=True)
    stage.nsqd.script = lambda _, command: isinstance(command, Close)  # it answers late, and sends until then
    began = asyncio.Event()

    async def handle(_: Message) -> None:
        began.set()
        await asyncio.Event().wait()

    async with stage.consumer(max_attempts=3) as consumer:
        running = asyncio.create_task(consumer.run(handle))
        peer = await stage.nsqd.subscriber()
        peer.message(b"x", message_id(2))
        await began.wait()
        closing = asyncio.create_task(consumer.aclose())
        await stage.nsqd.until(lambda: peer.of(Close))
        running.cancel()
        await asyncio.wait({running})
        peer.message(b"x", message_id(2))
        await all_is_answered(stage, peer)
        peer.close()
        await closing
    assert peer.of(Finish, Requeue) == []


# ------------------------------------------------------------ options that do not fit the topic


async def test_a_tag_on_a_topic_without_tags_is_refused(stage: Stage) -> None:
    """Everything used to be delivered."""
    with pytest.raises(ConfigError, match="topic 'orders' has no tags"):
        await stage.consumer(tag="blue").__aenter__()
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.consumer(tag="blue"):
        await stage.nsqd.subscriber()


async def test_forcing_order_on_an_unordered_topic_is_warned_about_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer(ordered=True):
        pass
    lines = [record.getMessage() for record in caplog.records if "ordered for all its consumers" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("orders/ch: the topic is not ordered: ordered=True")


@pytest.mark.parametrize("option", [{"ordered": True}, {"tag": "blue"}])
def test_nsqds_named_by_address_have_neither_order_nor_tags(option: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"remove {next(iter(option))}.* needs the partitioned server"):
        ConsumerConfig(nsqd=("127.0.0.1:4150",), **option)  # type: ignore[arg-type]
    assert ConsumerConfig(nsqd=("127.0.0.1:4150",), ordered=False).tag is None


async def test_what_waits_for_its_partition_is_not_handled_once_its_connection_is_lost(stage: Stage) -> None:
    """The server delivers it again: handled here as well, it would be handled twice."""
    stage.lead({0: stage.nsqd}, ordered=True)
    handled: list[bytes] = []
    may_go_on = asyncio.Event()

    async def handle(message: Message) -> None:
        handled.append(message.body)
        await may_go_on.wait()

    async with stage.consumer() as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        peer = await stage.nsqd.subscriber()
        peer.message(b"first", message_id(2))
        peer.message(b"second", message_id(3))
        await eventually(lambda: handled == [b"first"] and not consumer_machine_of(consumer).queue)
        peer.close()
        again = await stage.nsqd.subscriber(1)
        may_go_on.set()
        again.message(b"third", message_id(4))
        await stage.nsqd.until(lambda: again.of(Finish))
        assert handled == [b"first", b"third"]
    await running
