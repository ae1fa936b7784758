"""Staying subscribed: refusals, lost connections, moved leaders, new partitions, silence."""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from nsq_ha import ConfigError, Consumer, ServerError, TlsConfig
from nsq_ha.errors import NsqError, SubscribeRefusedError
from nsq_ha.policy.redelivery import DAMAGED_ATTEMPTS
from nsq_ha.protocol import Command, Finish, Identity, Ready, SubAdvanced, SubOrdered, Touch
from nsq_ha.protocol.commands import Auth, Identify, Requeue
from tests.support.inside import partitions_of
from tests.support.nsqd import LIMIT, OK, Peer, Refusing, Subscribe, error, message_id
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually, turn


@pytest.mark.usefixtures("any_may_wait")
async def test_what_is_subscribed(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    async with stage.consumer():
        for number in (0, 1):
            peer = await stage.nsqds[number].subscriber()
            assert peer.of(*Subscribe) == [SubAdvanced(TOPIC, "ch", number)]
            assert peer.ready == 100


async def test_an_ordered_topic_is_subscribed_in_order(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, ordered=True)
    async with stage.consumer():
        peer = await stage.nsqd.subscriber()
        assert peer.of(*Subscribe) == [SubOrdered(TOPIC, "ch", 0)]
        assert peer.ready == 1


@pytest.mark.parametrize(
    ("option", "is_ordered", "command"),
    [(True, False, SubOrdered(TOPIC, "ch", 0)), (False, True, SubAdvanced(TOPIC, "ch", 0))],
)
async def test_the_option_decides_whether_it_is_subscribed_in_order(
    stage: Stage, *, option: bool, is_ordered: bool, command: Command
) -> None:
    stage.lead({0: stage.nsqds[0]}, ordered=is_ordered)
    async with stage.consumer(ordered=option):
        peer = await stage.nsqd.subscriber()
        assert peer.of(*Subscribe) == [command]


async def test_an_extended_topic_is_announced(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]}, extended=True)
    async with stage.consumer():
        peer = await stage.nsqd.subscriber()
        (identify,) = peer.of(Identify)
        assert b'"extend_support":true' in identify.body  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "texts",
    [
        ["E_FAILED_ON_NOT_LEADER "],
        ["E_FAILED_ON_NOT_WRITABLE ", "E_FAILED_ON_NOT_LEADER "],
        ["E_TOPIC_NOT_EXIST "],
        ["E_SUB_EXTEND_NEED topic is extended"],
        ["E_SUB_EXTEND_FORBIDDON topic is not"],
        ["E_SUB_ORDER_IS_MUST ordered topic"],
        ["E_SOMETHING_NEW of a later server"],
    ],
)
async def test_a_refusal_that_may_pass_is_tried_again(stage: Stage, texts: list[str]) -> None:
    stage.nsqd.script = Refusing(Subscribe, *texts, closes=True)
    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        stage.nsqd.peers[-1].message(b"x")
        (await anext(consumer)).finish()
    assert len(stage.nsqd.peers) == 1 + len(texts)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Subscribe, "E_BAD_TOPIC SUB topic name is not valid"),
        (Subscribe, "E_BAD_CHANNEL SUB channel name is not valid"),
        (Subscribe, "E_SUB_CHANNEL_NOT_REGISTERED register it"),
        (Subscribe, "E_UNAUTHORIZED AUTH failed for SUB"),
        (Subscribe, "E_AUTH_FIRST AUTH required before SUB"),
        (Subscribe, "E_INVALID cannot SUB with heartbeats disabled"),
        (Identify, "E_BAD_BODY IDENTIFY msg timeout (900000) is invalid"),
    ],
)
async def test_a_refusal_that_no_retry_cures_is_raised(
    stage: Stage, caplog: pytest.LogCaptureFixture, kind: type[Command], text: str
) -> None:
    stage.nsqd.script = Refusing(kind, *[text] * 100, closes=True)
    consumer = stage.consumer()
    with pytest.raises(ServerError) as caught:
        await consumer.__aenter__()
    assert str(caught.value).startswith(text)
    assert [record.levelno for record in caplog.records if text in record.getMessage()] == [logging.ERROR]
    for call in (anext(consumer), consumer.run(print)):
        with pytest.raises(ServerError):
            await call


async def test_a_refusal_later_is_raised_to_who_iterates(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        running = asyncio.create_task(consumer.run(print, concurrency=3))
        await turn()
        stage.nsqd.script = Refusing(Subscribe, "E_UNAUTHORIZED AUTH failed", closes=True)
        peer.close()
        with pytest.raises(ServerError, match="E_UNAUTHORIZED"):
            await asyncio.wait_for(running, LIMIT)


async def test_auth_without_a_secret_is_raised(stage: Stage) -> None:
    stage.nsqd.identity = Identity(auth_required=True)
    with pytest.raises(ServerError, match="set auth_secret"):
        async with stage.consumer():
            pass
    assert not stage.nsqd.commands[1:]


async def test_auth_comes_before_the_subscription(stage: Stage) -> None:
    stage.nsqd.identity = Identity(auth_required=True)
    async with stage.consumer(auth_secret="open sesame"):
        peer = await stage.nsqd.subscriber()
        assert [type(command) for command in peer.commands] == [Identify, Auth, SubAdvanced, Ready]


@pytest.mark.parametrize("kind", [Auth, SubAdvanced])
@pytest.mark.parametrize("refusal", ["E_AUTH_FAILED AUTH failed", "E_UNAUTHORIZED AUTH failed"])
async def test_a_refusal_after_a_subscription_is_retried_with_the_present_secret(
    stage: Stage, caplog: pytest.LogCaptureFixture, kind: type[Command], refusal: str
) -> None:
    """The auth server may be away, or the secret was replaced: this used to end consumers for good."""
    numbers = itertools.count(1)
    stage.nsqd.identity = Identity(auth_required=True)
    async with stage.consumer(auth_secret=lambda: f"secret-{next(numbers)}") as consumer:
        peer = await stage.nsqd.subscriber()
        stage.nsqd.script = Refusing(kind, *[refusal] * 12, closes=True)
        peer.close()
        peer = await stage.nsqd.subscriber(1)
        sent = [command.secret for command in stage.nsqd.commands if isinstance(command, Auth)]
        assert sent == [b"secret-%d" % number for number in range(1, 15)]
        peer.message(b"x")
        (await anext(consumer)).finish()
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(refusal in line and "still trying" in line for line in warned)


async def test_a_channel_that_another_leader_does_not_know_yet_is_waited_for(stage: Stage) -> None:
    """Leaders get registered channels from the nsqlookupds, which used to end consumers after a change of leaders."""
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        stage.nsqd.script = Refusing(Subscribe, *["E_SUB_CHANNEL_NOT_REGISTERED not registered"] * 5, closes=True)
        peer.close()
        (await stage.nsqd.subscriber(1)).message(b"x")
        (await anext(consumer)).finish()


async def test_a_wrong_secret_is_raised_at_the_start_without_another_attempt(stage: Stage) -> None:
    stage.nsqd.identity = Identity(auth_required=True)
    stage.nsqd.script = Refusing(Auth, "E_AUTH_FAILED AUTH failed", closes=True)
    with pytest.raises(ServerError, match="E_AUTH_FAILED"):
        async with stage.consumer(auth_secret="hush"):
            pass
    assert len(stage.nsqd.peers) == 1


async def test_a_secret_that_is_late_is_waited_for(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([OSError("hush"), OSError("hush")])

    async def secret() -> str:
        if (failure := next(failures, None)) is not None:
            raise failure
        return "hush"

    stage.nsqd.identity = Identity(auth_required=True)
    async with stage.consumer(auth_secret=secret):
        await stage.nsqd.subscriber()
    assert len(stage.nsqd.peers) == 3
    assert "hush" not in caplog.text


async def test_tls_files_that_cannot_be_read_are_reported(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls"):
        async with stage.consumer(tls=TlsConfig(ca_file=str(tmp_path / "none.pem"))):
            pass


# ------------------------------------------------------------ connections that end


async def test_a_lost_connection_is_reopened_at_once(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        began = loop.time()
        peer.close()
        again = await stage.nsqd.subscriber(1)
        assert loop.time() - began < 2.0
        again.message(b"x")
        (await anext(consumer)).finish()


async def test_messages_of_a_lost_connection_are_not_handed_out(stage: Stage) -> None:
    # The server delivers them again: handling them now would be handling them twice.
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(3):
            peer.message(b"old %d" % number, message_id(number))
        first = await anext(consumer)
        peer.close()
        again = await stage.nsqd.subscriber(1)
        first.finish()
        again.message(b"new")
        message = await anext(consumer)
        assert message.body == b"new"
        message.finish()
        await stage.nsqd.until(lambda: again.of(Finish))
    # The answer to a message goes only through the connection that it came by.
    assert peer.of(Finish) == []
    assert [command.message_id for command in again.of(Finish)] == [message.id]  # type: ignore[attr-defined]


async def test_a_silent_connection_is_left_within_two_heartbeats(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(heartbeat_interval=1.0):
        peer = await stage.nsqd.subscriber()
        peer.stop_heartbeats()
        began = loop.time()
        await stage.nsqd.subscriber(1)
        assert 1.0 < loop.time() - began < 3 * 3.0
        await stage.nsqd.until(lambda: not peer.is_open)


async def test_a_damaged_stream_is_left(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"before")
        peer.write(b"\xff" * 100)
        await stage.nsqd.until(lambda: not peer.is_open)
        again = await stage.nsqd.subscriber(1)
        again.message(b"after")
        message = await anext(consumer)
        message.finish()
        assert message.body == b"after"


async def test_a_node_that_hangs_at_the_subscription_is_tried_again(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        return isinstance(command, Subscribe) and len(stage.nsqd.peers) == 1

    stage.nsqd.script = script
    async with stage.consumer(connect_timeout=0.3):
        await stage.nsqd.subscriber()
    assert len(stage.nsqd.peers) >= 2


async def test_failed_answers_leave_the_connection(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        (await anext(consumer)).finish()
        for code in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"):
            peer.write(error(f"{code} [0 0] failed: Message ID not in flight"))
        peer.message(b"y", message_id(3))
        message = await anext(consumer)
        message.finish()
        assert message.body == b"y"
        assert peer.is_open


# ------------------------------------------------------------ leaders


async def test_a_moved_leader_is_followed_though_the_old_one_is_well(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    async with stage.consumer(lookup_interval=0.1) as consumer:
        old = await stage.nsqds[0].subscriber()
        stage.lead({0: stage.nsqds[1]})
        new = await stage.nsqds[1].subscriber()
        await stage.nsqds[0].until(lambda: not old.is_open)
        new.message(b"x")
        message = await anext(consumer)
        message.finish()
        assert message.nsqd == stage.nsqds[1].node.address


async def test_the_old_leader_is_kept_while_the_new_one_does_not_answer(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0]})
    stage.nsqds[1].is_silent = True
    async with stage.consumer(lookup_interval=0.1, connect_timeout=0.3) as consumer:
        old = await stage.nsqds[0].subscriber()
        stage.lead({0: stage.nsqds[1]})
        await stage.nsqds[1].peer(1)
        old.message(b"x")
        message = await anext(consumer)
        message.finish()
        assert message.nsqd == stage.nsqds[0].node.address


async def test_a_lookup_without_the_partition_leaves_a_healthy_connection(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.05) as consumer:
        peer = await stage.nsqd.subscriber()
        stage.lead({}, 1)
        asked = stage.lookupd.count("/lookup")
        await eventually(lambda: stage.lookupd.count("/lookup") > asked + 5)
        peer.message(b"x")
        (await anext(consumer)).finish()
    assert len(stage.nsqd.peers) == 1


async def test_new_partitions_are_subscribed(stage: Stage) -> None:
    async with stage.consumer(lookup_interval=0.1, max_in_flight=10):
        first = await stage.nsqds[0].subscriber()
        assert first.ready == 10
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        second = await stage.nsqds[1].subscriber()
        assert second.of(*Subscribe) == [SubAdvanced(TOPIC, "ch", 1)]
        await stage.nsqds[0].until(lambda: first.ready == 5)
        await stage.nsqds[1].until(lambda: second.ready == 5)


async def test_at_rest_new_partitions_are_subscribed_within_the_longest_interval(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(heartbeat_interval=3600.0):
        await stage.nsqds[0].subscriber()
        await dawdle(400.0)
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        began = loop.time()
        await eventually(lambda: stage.nsqds[1].peers, 100.0)
        assert loop.time() - began < 60.0 + 1.0


async def test_a_lost_connection_is_looked_up_at_once_at_rest(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    async with stage.consumer(heartbeat_interval=3600.0):
        peer = await stage.nsqds[0].subscriber()
        await dawdle(400.0)
        stage.lead({0: stage.nsqds[1]})
        began = loop.time()
        peer.close()
        await stage.nsqds[1].subscriber()
        assert loop.time() - began < 2.0


async def test_a_partition_that_comes_late_is_subscribed(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.lead({0: stage.nsqds[0]}, 2)
    async with stage.consumer(start_timeout=0.2):
        assert "not all partitions are subscribed yet" in caplog.text
        stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
        await stage.nsqds[1].subscriber()


async def test_chosen_partitions_only(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1], 2: stage.nsqds[2]})
    async with stage.consumer(partitions=[2, 0]):
        await stage.nsqds[0].subscriber()
        await stage.nsqds[2].subscriber()
    assert stage.nsqds[1].peers == []


# ------------------------------------------------------------ messages that are damaged


async def test_a_message_that_was_damaged_on_the_way_is_requeued(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped bit in a frame's size used to finish the message: it was lost."""
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        head = bytes(8) + b"\0\x01" + message_id(7)
        peer.write((4 + len(head)).to_bytes(4, "big") + b"\0\0\0\x02" + head)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        assert peer.of(Requeue) == [Requeue(message_id(7), 0)]
        peer.message(b"good", message_id(7))
        message = await anext(consumer)
        message.finish()
        assert message.body == b"good"
        await stage.nsqd.until(lambda: peer.of(Finish))
        assert peer.of(Finish) == [Finish(message_id(7))]
    assert "orders-0: requeued a message that cannot be decoded" in caplog.text


async def test_a_message_that_is_damaged_each_time_is_finished_loudly_and_the_next_one_comes(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        head = bytes(8) + DAMAGED_ATTEMPTS.to_bytes(2, "big") + message_id(7)
        peer.write((4 + len(head)).to_bytes(4, "big") + b"\0\0\0\x02" + head)
        peer.message(b"good", message_id(8))
        message = await anext(consumer)
        message.finish()
        assert message.body == b"good"
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        assert peer.of(Finish) == [Finish(message_id(7)), Finish(message_id(8))]
    assert "finished a message that cannot be decoded" in caplog.text


async def test_a_flood_of_damaged_messages_does_not_fill_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """A hostile nsqd caused 29,000 lines a second."""
    async with stage.consumer():
        peer = await stage.nsqd.subscriber()
        for attempts in (1, DAMAGED_ATTEMPTS):
            head = bytes(8) + attempts.to_bytes(2, "big") + message_id(7)
            peer.write(500 * ((4 + len(head)).to_bytes(4, "big") + b"\0\0\0\x02" + head))
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 500)
        assert len(peer.of(Requeue)) == 500
    lines = [record for record in caplog.records if "cannot be decoded" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING", "ERROR"]


async def test_some_more_messages_than_asked_for(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=1) as consumer:
        peer = await stage.nsqd.subscriber()
        for number in range(16):
            peer.message(b"x", message_id(number + 1))
        for _ in range(16):
            (await anext(consumer)).finish()
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 16)


@pytest.mark.usefixtures("any_may_wait")
async def test_the_same_id_again_and_again(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        for _ in range(200):
            peer.message(b"x")
        peer.message(b"last", message_id(9))
        async with asyncio.timeout(LIMIT):
            while (message := await anext(consumer)).body != b"last":
                message.finish()
        message.finish()
        await stage.nsqd.until(lambda: Finish(message_id(9)) in peer.of(Finish))
        assert Finish(message_id(2)) in peer.of(Finish)


# ------------------------------------------------------------ the end


async def test_cancelled_while_it_starts(stage: Stage) -> None:
    stage.nsqd.is_silent = True
    starting = asyncio.create_task(stage.consumer().__aenter__())
    await stage.nsqd.peer()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await stage.nsqd.until(lambda: not stage.nsqd.open_peers)


async def test_a_touch_goes_through(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")
        message = await anext(consumer)
        message.touch()
        await stage.nsqd.until(lambda: peer.of(Touch))
        assert peer.of(Touch) == [Touch(message.id)]
        message.finish()
        peer.write(OK[:0])


# ------------------------------------------------------------ nsqds named by address


def direct(stage: Stage, **options: Any) -> Consumer:  # noqa: ANN401 - ConsumerConfig's fields
    return Consumer(TOPIC, "ch", nsqd=f"127.0.0.1:{stage.nsqd.port}", **options)


@pytest.mark.parametrize("text", ["E_SUB_ORDER_IS_MUST ordered", "E_SUB_EXTEND_NEED extended"])
async def test_a_topic_that_is_read_in_another_way_is_refused_at_once(stage: Stage, text: str) -> None:
    """No lookup says what the topic is, so it used to be tried for ever."""
    stage.nsqd.script = Refusing(Subscribe, *[text] * 100, closes=True)
    with pytest.raises(SubscribeRefusedError, match="read it with lookupd="):
        await direct(stage).__aenter__()


async def test_a_topic_that_a_named_nsqd_does_not_have_says_what_to_give(stage: Stage) -> None:
    stage.nsqd.script = Refusing(Subscribe, *["E_TOPIC_NOT_EXIST "] * 100, closes=True)
    async with direct(stage, start_timeout=0.05) as consumer:
        await eventually(lambda: "topic 'orders' is not on this nsqd" in str(partitions_of(consumer)[0].trouble))
        assert "give lookupd=" in str(partitions_of(consumer)[0].trouble)
        stage.nsqd.script = None  # it was created
        await consumer.wait_subscribed()


async def test_partitions_of_named_nsqds_are_refused(stage: Stage) -> None:
    with pytest.raises(ConfigError, match="remove partitions=: it needs the partitioned server"):
        await direct(stage, partitions=[3]).__aenter__()


async def test_a_refusal_that_is_raised_again_does_not_grow(stage: Stage) -> None:
    stage.nsqd.script = Refusing(Subscribe, "E_BAD_TOPIC SUB topic name is not valid", closes=True)
    consumer = stage.consumer()
    with pytest.raises(NsqError):
        await consumer.__aenter__()
    depths = []
    for _ in range(3):
        with pytest.raises(NsqError) as caught:
            consumer._shell.check_open()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1
