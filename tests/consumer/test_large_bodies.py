"""RDY follows the size of the bodies that come, so that ``max_in_flight_bytes`` holds."""

import pytest

from nsq_ha import Consumer
from nsq_ha.protocol import Ready
from tests.support.nsqd import Peer, message_id
from tests.support.stage import Stage

pytestmark = pytest.mark.usefixtures("any_may_wait")

KIB = 1024
LIMIT_BYTES = 64 * KIB


def readies(peer: Peer) -> list[int]:
    """RDY that were sent, in order."""
    return [command.count for command in peer.of(Ready)]  # type: ignore[attr-defined]


async def take(stage: Stage, consumer: Consumer, peer: Peer, *sizes: int) -> None:
    """Deliver, hand out and finish messages of these sizes, one after another."""
    for number, size in enumerate(sizes):
        peer.message(b"x" * size, message_id(number + 2))
        message = await anext(consumer)
        assert len(message.body) == size
        message.finish()


async def test_until_the_first_message_the_largest_is_expected(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=3 * KIB * KIB):
        peer = await stage.nsqd.subscriber()
        await stage.nsqd.until(lambda: readies(peer) == [3])


async def test_small_bodies_get_all_that_max_in_flight_allows(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=LIMIT_BYTES) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 100)
        await stage.nsqd.until(lambda: peer.ready == 100)


async def test_a_large_body_lowers_ready_at_once(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=LIMIT_BYTES) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 100, 16 * KIB)
        await stage.nsqd.until(lambda: peer.ready == 4)


async def test_one_may_always_be_in_flight(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=KIB) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 16 * KIB)
        await stage.nsqd.until(lambda: peer.ready == 1)


async def test_it_rises_again_little_by_little_and_not_for_each_message(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=LIMIT_BYTES) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 16 * KIB, *[100] * 60)
        await stage.nsqd.until(lambda: peer.ready == 100)
        sent = readies(peer)[1:]
        assert sent == sorted(sent)
        assert len(sent) < 20


async def test_where_the_limit_cannot_be_reached_bodies_change_nothing(stage: Stage) -> None:
    async with stage.consumer(max_in_flight=10) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 16 * KIB, 100, 64 * KIB)
        assert readies(peer) == [10]


@pytest.mark.parametrize(("count", "ready"), [(2, 2), (0, 0), (200, 4)])
async def test_a_changed_max_in_flight_keeps_to_the_bytes(stage: Stage, count: int, ready: int) -> None:
    async with stage.consumer(max_in_flight=100, max_in_flight_bytes=LIMIT_BYTES) as consumer:
        peer = await stage.nsqd.subscriber()
        await take(stage, consumer, peer, 16 * KIB)
        await stage.nsqd.until(lambda: peer.ready == 4)
        consumer.set_max_in_flight(count)
        if ready != 4:
            await stage.nsqd.until(lambda: peer.ready == ready)
        await take(stage, consumer, peer, 16 * KIB)
        assert readies(peer)[-1] == ready
