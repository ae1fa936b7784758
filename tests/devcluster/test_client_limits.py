"""Clients of nsqds with other limits than the default ones: what is larger works, and a refusal says what to change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from nsq_ha import Consumer, OutgoingMessage, Producer, PublishError, Receipt
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import MessageRefusedError, ServerError
from tests.support.waiting import eventually

pytestmark = [pytest.mark.real_time, pytest.mark.timeout(120)]

LIMIT = 30.0
LARGE = 5_000_000
Options = dict[str, Any]


@pytest.fixture(params=[False, True], ids=["partitioned", "plain"])
def is_plain(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
async def start(is_plain: bool) -> AsyncIterator[Any]:
    """Return a function that starts a cluster with some limits, and returns the options of clients."""
    async with AsyncExitStack() as stack:

        async def begin(**limits: Any) -> Options:  # noqa: ANN401 - of DevCluster
            cluster = DevCluster(nsqds=1, nsqlookupds=1, plain=is_plain, **limits)
            stack.push_async_callback(asyncio.to_thread, cluster.close)
            await asyncio.to_thread(cluster.__enter__)
            await asyncio.to_thread(cluster.create_topic, "orders", *(() if is_plain else (1, 1)))
            return {"lookupd": cluster.lookupd, "lookup_timeout": LIMIT, "connect_timeout": LIMIT}

        yield begin


async def test_a_message_of_3_mb_arrives_if_both_sides_allow_it(start: Any) -> None:  # noqa: ANN401
    options = await start(max_msg_size=LARGE)
    body = b"x" * 3_000_000
    async with (
        Consumer("orders", "ch", **options) as consumer,
        Producer(**options, max_message_bytes=LARGE) as producer,
    ):
        await producer.publish("orders", body)
        outcomes = await producer.publish_many("orders", [body, b"small", b"y" * LARGE])
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)
        found = []
        for _ in range(4):
            async with await anext(consumer) as message:
                found.append(len(message.body))
        assert sorted(found) == [5, len(body), len(body), LARGE]


@pytest.mark.few("partitioned-5", "plain-1")
@pytest.mark.parametrize("count", [1, 5])
async def test_a_server_that_accepts_less_says_what_to_change(start: Any, count: int) -> None:  # noqa: ANN401
    options = await start()
    async with Producer(**options, max_message_bytes=LARGE) as producer:
        calls = [producer.publish("orders", bytes(3_000_000), timeout=LIMIT) for _ in range(count)]
        outcomes = await asyncio.gather(*calls, producer.publish("orders", b"small"), return_exceptions=True)
        assert isinstance(outcomes.pop(), Receipt)
        for error in outcomes:
            assert isinstance(error, PublishError)
            assert isinstance(error.__cause__, MessageRefusedError)
            assert not error.maybe_stored or error.attempts > 1  # nsqd closed the connection before it came to this one
            assert "message too big 3000000 > 1048576: split the message, or start nsqd with a larger" in str(error)
            assert "--max-msg-size; with max_message_bytes=1048576" in str(error)


async def test_a_batch_is_cut_as_the_server_accepts_it(start: Any) -> None:  # noqa: ANN401
    options = await start(max_msg_size=3000, max_body_size=10_000)
    bodies: list[bytes | OutgoingMessage] = [bytes(2000)] * 40
    async with Producer(**options, max_batch_bytes=10_000) as producer:
        assert all(isinstance(outcome, Receipt) for outcome in await producer.publish_many("orders", bodies))
    async with Producer(**options) as producer:
        refused = (await producer.publish_many("orders", bodies))[0]
        assert isinstance(refused, PublishError)
        assert "set max_batch_bytes=10000 for smaller batches, or start nsqd with a larger --max-body-size" in str(
            refused
        )


async def test_a_message_larger_than_a_batch_is_sent_alone(start: Any) -> None:  # noqa: ANN401
    options = await start(max_msg_size=20_000, max_body_size=10_000)
    async with (
        Consumer("orders", "ch", **options) as consumer,
        Producer(**options, max_message_bytes=20_000, max_batch_bytes=10_000) as producer,
    ):
        outcomes = await producer.publish_many("orders", [bytes(20_000), b"1", bytes(9_000), bytes(9_993)])
        assert all(isinstance(outcome, Receipt) for outcome in outcomes)
        found = [len((await anext(consumer)).body) for _ in range(4)]
        assert sorted(found) == [1, 9_000, 9_993, 20_000]


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"msg_timeout": 7200.0}, "option msg_timeout; change it, or nsqd's --max-msg-timeout"),
        ({"heartbeat_interval": 300.0}, "option heartbeat_interval; change it, or nsqd's --max-heartbeat-interval"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_default_server_refuses_them(
    start: Any,  # noqa: ANN401
    option: Options,
    text: str,
) -> None:
    options = await start()
    with pytest.raises(ServerError) as refused:
        async with Consumer("orders", "ch", **options, **option):
            pass
    assert text in str(refused.value)
    if "heartbeat_interval" in option:
        async with Producer(**options, **option) as producer:
            with pytest.raises(PublishError) as failed:
                await producer.publish("orders", b"x", timeout=4.0)
        assert text in str(failed.value)


async def test_a_long_deferral(start: Any, is_plain: bool) -> None:  # noqa: ANN401
    if not is_plain:
        return
    options = await start(max_req_timeout=7200.0)
    async with Producer(**options) as producer:
        await producer.publish("orders", b"x", defer=7200.0)
        with pytest.raises(PublishError) as refused:
            await producer.publish("orders", b"x", defer=7200.5)
        assert "DPUB timeout 7200500 out of range 0-7200000: nsqd delays a message by at most 7200 s: lower defer" in (
            str(refused.value)
        )


async def test_a_message_beyond_max_frame_bytes_is_warned_about_at_once(
    start: Any,  # noqa: ANN401
    caplog: pytest.LogCaptureFixture,
) -> None:
    # A plain nsqd delivers it again only after its timeout; until then the next connection seems sound.
    options = await start(max_msg_size=LARGE)
    async with (
        Consumer("orders", "ch", **options, max_frame_bytes=100_000),
        Producer(**options) as producer,
    ):
        await producer.publish("orders", bytes(200_000))
        await eventually(lambda: "frame announces" in caplog.text)
    (warned, *_) = [record for record in caplog.records if "frame announces" in record.getMessage()]
    assert "more than max_frame_bytes=100000: raise it if messages can be that large" in warned.getMessage()
    assert warned.levelname == "WARNING"
