"""Refusals: which are retried, which are reported, and whether the message may be stored."""

import asyncio
from collections.abc import Callable

import pytest

from nsq_ha import Backoff, OutgoingMessage, Producer, Receipt
from nsq_ha.engine.lookups import TopicWatch
from nsq_ha.errors import (
    AuthError,
    InvalidCommandError,
    MessageRefusedError,
    NotLeaderError,
    PublishError,
    ServerError,
)
from nsq_ha.protocol import Command, Identity, Pub
from nsq_ha.protocol.commands import MpubExt
from tests.support.nsqd import OK, Peer, Publish, Refusing, error
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("text", "closes"),
    [
        ("E_FAILED_ON_NOT_LEADER ", False),
        ("E_FAILED_ON_NOT_WRITABLE ", False),
        ("E_PUB_FAILED exiting", False),
        ("E_PUB_FAILED exiting", True),
        ("E_TOPIC_NOT_EXIST ", True),
        ("E_PUB_TOO_MUCH_WAITING 100", True),
    ],
)
async def test_trouble_of_the_server_is_tried_again(stage: Stage, text: str, closes: bool) -> None:
    stage.nsqd.script = Refusing(Publish, text, text, closes=closes)
    async with stage.producer() as producer:
        receipt = await producer.publish(TOPIC, b"x", key="k")
        assert receipt.attempts == 3
        # The first of a topic, and one for the trouble.
        await eventually(lambda: stage.lookupd.count("/lookup") >= 2)


@pytest.mark.parametrize(
    ("text", "is_stale"), [("E_FAILED_ON_NOT_LEADER ", True), ("E_PUB_TOO_MUCH_WAITING 100", False)]
)
async def test_the_leader_is_looked_up_only_if_it_may_have_moved(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, text: str, is_stale: bool
) -> None:
    async with stage.producer() as producer:
        await producer.publish(TOPIC, b"x", key="k")
        stage.nsqd.script = Refusing(Publish, text)
        lookups: list[TopicWatch] = []

        def refresh_soon(watch: TopicWatch) -> None:
            lookups.append(watch)

        monkeypatch.setattr(TopicWatch, "refresh_soon", refresh_soon)
        assert (await producer.publish(TOPIC, b"y", key="k")).attempts == 2
        assert bool(lookups) is is_stale


async def test_a_refused_batch_is_tried_again(stage: Stage) -> None:
    stage.nsqd.script = Refusing(Publish, "E_MPUB_FAILED exiting")
    async with stage.producer() as producer:
        receipts = await producer.publish_many(TOPIC, [b"x", b"y"])
    assert [receipt.attempts for receipt in receipts if isinstance(receipt, Receipt)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("E_BAD_MESSAGE message too big 9 > 8", MessageRefusedError),
        ("E_BAD_BODY invalid body size 0", MessageRefusedError),
        ("E_PUB_FAILED ErrType:7 ErrCode:0 : invalid message write size (9) maxMsgSize=8", MessageRefusedError),
        ("E_EXT_NOT_SUPPORT ext content not supported", MessageRefusedError),
        ("E_INVALID_JSON_HEADER not json", MessageRefusedError),
        ("INVALID_TRACE_ID trace", MessageRefusedError),
        ("E_INVALID cannot PUB in current state", InvalidCommandError),
        ("E_UNAUTHORIZED AUTH failed", AuthError),
        ("E_SOMETHING_NEW of a later server", ServerError),
    ],
)
async def test_a_fault_of_the_caller_is_reported_at_once(stage: Stage, text: str, kind: type[ServerError]) -> None:
    stage.nsqd.script = Refusing(Publish, text)
    async with stage.producer() as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", key="k")
        assert type(caught.value.__cause__) is kind
        # A code that we do not know tells nothing about what was stored.
        assert (caught.value.attempts, caught.value.maybe_stored) == (1, kind is ServerError)
        assert (caught.value.topic, caught.value.partition) == (TOPIC, 0)
        assert text in str(caught.value)
        # The next one has nothing to do with it.
        assert (await producer.publish(TOPIC, b"y", key="k")).attempts == 1
    # Nor does such a code tell what the next answer belongs to. Without permission, nsqd closes the connection.
    assert len(stage.nsqd.peers) == (2 if kind in (ServerError, AuthError) else 1)


@pytest.mark.parametrize("text", ["E_SUB_ORDER_IS_MUST sub", "E_BAD_CHANNEL name", "E_IDENTIFY_FAILED", "what?", ""])
async def test_an_error_that_refuses_no_publish_leaves_doubt_and_the_connection_is_left(
    stage: Stage, text: str
) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if not isinstance(command, Pub) or len(stage.nsqd.peers) > 1:
            return False
        if command.body == b"second":
            peer.write(error(text) if text else error("\x00"))
        return True

    stage.nsqd.script = script
    async with stage.producer() as producer:
        first = asyncio.create_task(producer.publish(TOPIC, b"first", key="a"))
        second = asyncio.create_task(producer.publish(TOPIC, b"second", key="b"))
        with pytest.raises(PublishError) as caught:
            await first  # the oldest gets the answer
        assert caught.value.maybe_stored
        # Nobody knows whose answer that was, so unanswered publishes are sent again over a new connection.
        assert (await second).attempts == 2
    assert len(stage.nsqd.peers) == 2


async def test_one_refused_publish_fails_alone(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Pub) and command.body == b"bad":
            peer.write(error("E_BAD_MESSAGE bad"))
            return True
        return False

    stage.nsqd.script = script
    bodies = [b"a", b"bad", b"b"]
    async with stage.producer() as producer:
        outcomes = await asyncio.gather(
            *(producer.publish(TOPIC, body, key=body) for body in bodies), return_exceptions=True
        )
    assert [type(outcome) for outcome in outcomes] == [Receipt, PublishError, Receipt]


async def test_refused_messages_do_not_delay_others(stage: Stage) -> None:
    """nsqd closes the connection after each of them; the pause before the next one used to grow to a second."""
    loop = asyncio.get_running_loop()

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Pub) and command.body == b"too large":
            peer.write(error("E_BAD_MESSAGE message too big 9 > 5"))
            peer.close()
            return True
        return False

    stage.nsqd.script = script
    async with stage.producer(backoff=Backoff(initial=0.05, maximum=60.0, factor=10.0, jitter=0.0)) as producer:
        began = loop.time()
        for _ in range(6):
            with pytest.raises(PublishError, match="with max_message_bytes=5 the client refuses"):
                await producer.publish(TOPIC, b"too large")
        calls = [producer.publish(TOPIC, body) for body in (b"too large", b"too large", b"too large", b"x")]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [PublishError] * 3 + [Receipt]
        assert loop.time() - began < 1.0


@pytest.mark.parametrize("late", [False, True])
async def test_a_refusal_after_a_long_hang_leaves_doubt(stage: Stage, late: bool) -> None:
    # The leader may have written it locally, waiting for a follower that does not answer.
    loop = asyncio.get_running_loop()

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Pub):
            loop.call_later(1.2 if late else 0.0, peer.write, error("E_FAILED_ON_NOT_WRITABLE "))
            return True
        return False

    stage.nsqd.script = script
    async with stage.producer(on_unreachable="fail") as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", key="k")
    assert caught.value.maybe_stored is late
    assert ("(may be stored, " if late else "(not stored, ") in str(caught.value)


async def test_one_attempt_in_doubt_makes_the_whole_call_in_doubt(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if not isinstance(command, Pub):
            return False
        if len(stage.nsqd.peers) == 1:
            peer.abort()
        else:
            peer.write(error("E_BAD_MESSAGE at the second attempt"))
        return True

    stage.nsqd.script = script
    async with stage.producer() as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", key="k")
    assert isinstance(caught.value.__cause__, MessageRefusedError)
    assert (caught.value.attempts, caught.value.maybe_stored) == (2, True)


async def test_after_a_refused_batch_with_headers_the_connection_is_left(stage: Stage) -> None:
    # The server reads the rest of the batch as commands: no answer after the error can be trusted.
    stage.lead({0: stage.nsqd}, extended=True)

    def script(peer: Peer, command: Command) -> bool:
        if len(stage.nsqd.peers) > 1 or not isinstance(command, Publish):
            return False
        if isinstance(command, MpubExt):
            peer.write(error("E_INVALID_JSON_HEADER bad") + error("E_INVALID invalid command [[123 125]]"))
        return True

    stage.nsqd.script = script
    async with stage.producer() as producer:
        batch = [OutgoingMessage(b"x", headers={}, partition=0), OutgoingMessage(b"y", headers={}, partition=0)]
        async with asyncio.TaskGroup() as group:
            refusing = group.create_task(producer.publish_many(TOPIC, batch))
            behind_it = group.create_task(producer.publish(TOPIC, b"behind", key="k"))
        refused, behind = refusing.result(), behind_it.result()
        assert [type(result.__cause__) for result in refused if isinstance(result, PublishError)] == [
            MessageRefusedError
        ] * 2
        # What was written behind it went to a new connection.
        assert behind.attempts == 2
    assert len(stage.nsqd.peers) == 2


async def test_refused_publishes_of_one_key_keep_their_order(stage: Stage) -> None:
    stored: list[bytes] = []
    refusals = iter([True, False, True, True, False] * 50)

    def script(peer: Peer, command: Command) -> bool:
        if not isinstance(command, Pub):
            return False
        if next(refusals):
            peer.write(error("E_FAILED_ON_NOT_LEADER "))
        else:
            stored.append(command.body)
            peer.write(OK)
        return True

    stage.nsqd.script = script
    async with stage.producer() as producer:
        await asyncio.gather(*(producer.publish(TOPIC, b"%d" % n, key="k") for n in range(12)))
    assert stored == [b"%d" % n for n in range(12)]


async def test_auth_that_is_refused_is_reported_at_once(stage: Stage) -> None:
    stage.nsqd.identity = Identity(auth_required=True)
    async with stage.producer() as producer:
        async with asyncio.timeout(5):
            with pytest.raises(PublishError) as caught:
                await producer.publish(TOPIC, b"x", key="k")
    assert isinstance(caught.value.__cause__, AuthError)
    assert (caught.value.attempts, caught.value.maybe_stored) == (0, False)


async def test_a_node_with_too_many_connections_is_tried_again(stage: Stage) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if len(stage.nsqd.peers) < 3:
            peer.write(error("too much client connections: 1"))
            peer.close()
            return True
        return False

    stage.nsqd.script = script
    async with stage.producer() as producer:
        assert (await producer.publish(TOPIC, b"x", key="k")).attempts == 1


async def test_fail_ends_at_the_first_trouble_and_looks_up(stage: Stage) -> None:
    stage.nsqd.script = Refusing(Publish, "E_FAILED_ON_NOT_LEADER ")
    async with stage.producer(on_unreachable="fail") as producer:
        with pytest.raises(PublishError) as caught:
            await producer.publish(TOPIC, b"x", key="k")
        assert isinstance(caught.value.__cause__, NotLeaderError)
        assert (caught.value.attempts, caught.value.maybe_stored) == (1, False)
        assert (await producer.publish(TOPIC, b"y", key="k")).attempts == 1
        await eventually(lambda: stage.lookupd.count("/lookup") >= 2)


def every_publish(text: str) -> Callable[[Peer, Command], bool]:
    """Return a script that refuses publishes and closes, as nsqd does for a topic that it does not have."""

    def refuse(peer: Peer, command: Command) -> bool:
        if isinstance(command, Publish):
            peer.write(error(text))
            peer.close()
            return True
        return False

    return refuse


async def test_a_topic_that_a_named_nsqd_does_not_have_says_what_to_give(stage: Stage) -> None:
    stage.nsqd.script = every_publish("E_TOPIC_NOT_EXIST ")
    async with Producer(nsqd=f"127.0.0.1:{stage.nsqd.port}") as producer:
        with pytest.raises(
            PublishError, match=r"topic 'orders' is not on this nsqd, .* give lookupd=.*topic create\)$"
        ):
            await producer.publish(TOPIC, b"x", timeout=0.5)
