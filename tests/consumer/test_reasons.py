"""Why a subscription leaves a connection, and what it tells the consumer."""

import asyncio
import logging
from typing import Any

import pytest

from nsq_ha import Consumer
from nsq_ha.engine.link import Link
from nsq_ha.errors import ConfigError
from nsq_ha.message import Message
from tests.support.inside import inbox_of, subscriptions_of
from tests.support.stage import Stage
from tests.support.waiting import dawdle, eventually, turn


@pytest.fixture
def reasons(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note why connections that were in use are left."""
    noted: list[str] = []
    leave = Link._leave

    def note(link: Link[Any], reason: Any, **more: Any) -> None:  # noqa: ANN401 - as Link's
        if link.connection is not None:
            noted.append(str(reason))
        leave(link, reason, **more)

    monkeypatch.setattr(Link, "_leave", note)
    return noted


async def test_each_connection_is_left_for_a_reason_that_is_named(stage: Stage, reasons: list[str]) -> None:
    one, two = stage.nsqds[:2]
    async with stage.consumer(lookup_interval=1.0) as consumer:
        await one.subscriber()
        subscription = subscriptions_of(consumer)[0]
        stage.lead({0: two})
        await two.subscriber()
        assert reasons == [f"left for {two.node.address}, which leads now"]
        assert subscription.ready > 0
        await eventually(lambda: subscription.max_ready > 0)
    assert len(reasons) <= 2


async def test_a_bug_is_reported_and_the_partition_is_read_again(
    stage: Stage, reasons: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        subscription = subscriptions_of(consumer)[0]
        subscription.link.survive(ZeroDivisionError("odd"))
        await turn(3)
        assert reasons == ["unexpected error while consuming: ZeroDivisionError('odd')"]
        assert str(subscription.trouble) == reasons[0]
        assert (subscription.ready, subscription.in_flight, subscription.unanswered) == (0, 0, 0)
        assert subscription.max_ready == 0
        assert tuple(subscription.seen) == (0, 0, 0, 0)
        subscription.link.news.set()
        peer = await stage.nsqd.subscriber(1)
        await eventually(lambda: subscription.trouble is None)
        peer.message(b"x")
        (await anext(consumer)).finish()
    texts = [text.partition(";")[0] for text in caplog.messages if "unexpected" in text]
    assert texts[0] == "orders-0: unexpected error, continuing"


async def test_a_bug_while_leaving_is_reported_too(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.consumer() as consumer:
        await stage.nsqd.subscriber()
        subscription = subscriptions_of(consumer)[0]

        def fail(*_: object) -> None:
            raise KeyError("odd")

        with monkeypatch.context() as patched:
            patched.setattr(subscription, "looked", fail)
            patched.setattr(subscription, "failed", fail)
            subscription.link.news.set()
            await eventually(lambda: len(caplog.messages) >= 2)
        texts = [text.partition(";")[0] for text in caplog.messages]
        assert texts[:2] == [
            "orders-0: unexpected error, continuing",
            "orders-0, leaving its connection: unexpected error, continuing",
        ]
        await stage.nsqd.subscriber(1)


async def test_fewer_messages_than_handlers_is_a_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def handle(message: Message) -> None:
        await consumer.aclose()

    for most, concurrency, warned in ((2, 3, True), (3, 3, False)):
        caplog.clear()
        async with stage.consumer(max_in_flight=most) as consumer:
            before = len(stage.nsqd.peers)
            peer = stage.nsqd.peers[before - 1]
            peer.message(b"x")
            await consumer.run(handle, concurrency=concurrency)
        text = "orders/ch: only 2 of 3 handlers can run at once: raise max_in_flight=2 to concurrency or more"
        assert (text in caplog.messages) == warned


async def test_a_consumer_says_how_it_cannot_be_used(stage: Stage) -> None:
    with pytest.raises(ConfigError) as caught:
        stage.consumer(partitions=())
    assert str(caught.value) == "partitions must name at least one partition; None reads all of them"
    with pytest.raises(ConfigError, match=r"^on_give_up must take one argument, the message; "):
        stage.consumer(max_attempts=1, on_give_up=lambda: None)
    for names in (("bad topic", "ch"), ("orders", "bad channel")):
        with pytest.raises(ConfigError, match="bad"):
            Consumer(*names, lookupd=stage.lookupd.url)
    with pytest.raises(ConfigError, match="partition"):
        stage.consumer(partitions=(5000,))


async def test_a_close_with_messages_unanswered_is_a_warning(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with stage.consumer(close_timeout=0.5) as consumer:
        peer = await stage.nsqd.subscriber()
        peer.message(b"x")

        async def never(_: Message) -> None:
            await dawdle(1000.0)

        running = asyncio.create_task(consumer.run(never))
        await eventually(lambda: inbox_of(consumer).pace.flow.in_flight == 1)
        await eventually(lambda: not inbox_of(consumer).waiting)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.5, abs=0.3)
    await running
    assert "orders/ch: closed with messages unanswered: 1 of 127.0.0.1:" in caplog.text
