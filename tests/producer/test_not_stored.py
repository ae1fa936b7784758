"""What was surely not stored is not in doubt: what no server has read to its end, and what follows a final refusal."""

import asyncio
from functools import partial

import pytest

from nsq_ha import Producer
from nsq_ha.errors import PublishError
from nsq_ha.protocol import Command
from nsq_ha.protocol.frames import HEARTBEAT
from tests.support.nsqd import LIMIT, Holding, Peer, Publish, error, response
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually

LARGE = b"x" * 8_000_000
COUNT = 5


class Final:
    """Refuses the first publish of each connection and reads nothing more from it, as nsqd does."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen: dict[Peer, int] = {}

    def __call__(self, peer: Peer, command: Command) -> bool:
        if isinstance(command, Publish):
            self.seen[peer] = self.seen.get(peer, 0) + 1
            if self.seen[peer] == 1:
                peer.write(error(self.text))
                asyncio.get_running_loop().call_soon(peer.close)
            return True
        return False


async def outcomes(producer: Producer, *bodies: bytes, timeout: float = LIMIT) -> list[PublishError]:
    given = await asyncio.gather(
        *(producer.publish(TOPIC, body, timeout=timeout) for body in bodies), return_exceptions=True
    )
    return [each for each in given if isinstance(each, PublishError)]


@pytest.mark.parametrize(
    "text", ["E_INVALID DPUB timeout 7200000 out of range 0-3600000", "E_BAD_MESSAGE PUB message too big 9 > 8"]
)
@pytest.mark.parametrize("policy", ["retry", "fail"])
async def test_what_follows_a_final_refusal_is_not_stored(stage: Stage, text: str, policy: str) -> None:
    """4 of 5 were said to be in doubt."""
    async with stage.producer(on_unreachable=policy) as producer:
        await producer.publish(TOPIC, b"x")
        stage.nsqd.script = final = Final(text)
        failed = await outcomes(producer, *[b"x"] * COUNT)
        assert max(final.seen.values()) == COUNT, "they were written together"
        assert [each.maybe_stored for each in failed] == [False] * COUNT
        assert producer.stats().uncertain == 0


async def test_what_follows_a_refusal_of_one_publish_only_is_in_doubt(stage: Stage) -> None:
    async with stage.producer(on_unreachable="fail") as producer:
        await producer.publish(TOPIC, b"x")
        stage.nsqd.script = Final("E_PUB_FAILED no space left")  # a partitioned nsqd goes on after it
        failed = await outcomes(producer, *[b"x"] * COUNT)
        assert sorted(each.maybe_stored for each in failed) == [False, *[True] * (COUNT - 1)]


@pytest.mark.parametrize(("text", "doubt"), [("E_BAD_MESSAGE too big", False), ("E_PUB_FAILED x", True)])
async def test_a_late_refusal_leaves_no_doubt_if_it_comes_before_storing(
    stage: Stage, text: str, *, doubt: bool
) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer(on_unreachable="fail") as producer:
        publishing = asyncio.create_task(outcomes(producer, b"x"))
        await stage.nsqd.until(partial(holding.has, 1))
        await dawdle(1.5)
        holding.held[0][0].write(error(text))
        (failed,) = await publishing
        assert failed.maybe_stored is doubt


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("heartbeat", [False, True])
async def test_a_command_that_was_not_written_to_its_end_is_not_stored(
    stage: Stage, count: int, *, heartbeat: bool
) -> None:
    """8 of 8 were said to be in doubt."""
    async with stage.producer(on_unreachable="fail", max_message_bytes=len(LARGE), publish_timeout=LIMIT) as producer:
        await producer.publish(TOPIC, b"x")
        (peer,) = stage.nsqd.peers
        peer.pause()
        publishing = asyncio.create_task(outcomes(producer, *[LARGE] * count))
        await eventually(lambda: producer.stats().in_flight > 0)
        if heartbeat:  # its answer does not make the publish complete
            peer.write(response(HEARTBEAT))
        await dawdle(0.1)
        peer.abort()
        failed = await publishing
        assert [each.maybe_stored for each in failed] == [False] * count


async def test_what_was_written_before_a_large_one_stays_in_doubt(stage: Stage) -> None:
    async with stage.producer(on_unreachable="fail", max_message_bytes=len(LARGE)) as producer:
        await producer.publish(TOPIC, b"x")
        (peer,) = stage.nsqd.peers
        peer.pause()
        publishing = asyncio.create_task(outcomes(producer, b"small", LARGE))
        await eventually(lambda: producer.stats().in_flight == 2)
        peer.abort()
        assert [each.maybe_stored for each in await publishing] == [True, False]


async def test_a_large_one_that_the_socket_has_taken_whole_is_in_doubt(stage: Stage) -> None:
    stage.nsqd.script = holding = Holding()
    async with stage.producer(on_unreachable="fail", max_message_bytes=len(LARGE)) as producer:
        publishing = asyncio.create_task(outcomes(producer, b"x" * 1_000_000))
        await stage.nsqd.until(partial(holding.has, 1))
        stage.nsqd.peers[0].abort()
        assert [each.maybe_stored for each in await publishing] == [True]
