"""A leader that sends heartbeats and answers no publish: how soon it gets publishes once it is well again."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from nsq_ha import Producer, Receipt
from nsq_ha.errors import PublishError
from nsq_ha.policy.liveness import DOUBTED_AFTER
from nsq_ha.protocol import Command, Pub
from tests.support.nsqd import Holding, Peer, Publish
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle, eventually

SOON = 3.0
"""Seconds from the recovery of a leader to the first stored publish."""


def clock() -> float:
    return asyncio.get_running_loop().time()


class Ill:
    """Swallows publishes until it is well, and then those of the connections that it swallowed some of."""

    def __init__(self) -> None:
        self.well_at: float | None = None
        self.lost: set[Peer] = set()
        self.bodies: list[bytes] = []
        self.written: Counter[bytes] = Counter()

    def __call__(self, peer: Peer, command: Command) -> bool:
        if not isinstance(command, Publish):
            return False
        body = command.body if isinstance(command, Pub) else b""
        self.written[body] += 1
        if self.well_at is None or peer in self.lost:
            self.lost.add(peer)
            return True
        self.bodies.append(body)
        return False

    def recover(self) -> None:
        self.well_at = clock()


async def keep_publishing(producer: Producer, stored: list[tuple[float, Receipt]], **options: object) -> None:
    """Publish one after another; note when which receipt came."""
    number = 0
    while True:
        number += 1
        try:
            receipt = await producer.publish(TOPIC, b"%d" % number, **options)  # type: ignore[arg-type]
        except PublishError:
            continue
        stored.append((clock(), receipt))
        await dawdle(0.02)


Start = Callable[[Stage], None]


def one_partition(stage: Stage) -> None:
    stage.lead({0: stage.nsqd})


def two_partitions(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})


def one_plain(stage: Stage) -> None:
    stage.list_plain(stage.nsqd)


def two_plain(stage: Stage) -> None:
    stage.list_plain(*stage.nsqds[:2])


@pytest.mark.few(every=5)
@pytest.mark.parametrize("ill_for", [1.3, 5.0, 17.5, 40.0])
@pytest.mark.parametrize(
    ("start", "options"),
    [
        pytest.param(one_partition, {}, id="one partition"),
        pytest.param(one_partition, {"timeout": 1.0}, id="short limits"),
        pytest.param(one_partition, {"partition": 0}, id="in order"),
        pytest.param(one_partition, {"partition": 0, "timeout": 1.0}, id="in order, short limits"),
        pytest.param(one_partition, {"key": "k", "timeout": 4.0}, id="one key"),
        pytest.param(two_partitions, {}, id="two partitions"),
        pytest.param(one_plain, {}, id="one plain nsqd"),
        pytest.param(two_plain, {}, id="two plain nsqds"),
    ],
)
async def test_it_gets_publishes_soon_after_its_recovery(
    stage: Stage, start: Start, options: dict[str, object], ill_for: float
) -> None:
    start(stage)
    address = stage.nsqd.node.address
    stored: list[tuple[float, Receipt]] = []
    async with stage.producer(close_timeout=0.1) as producer:
        await producer.publish(TOPIC, b"first", **options)  # type: ignore[arg-type]
        stage.nsqd.script = ill = Ill()
        publishing = [asyncio.create_task(keep_publishing(producer, stored, **options)) for _ in range(3)]
        await eventually(lambda: ill.lost)
        await dawdle(ill_for)
        ill.recover()
        began = clock()

        def since() -> list[float]:
            return [at - began for at, receipt in stored if receipt.nsqd == address and at > began]

        await eventually(since, 60.0)
        for task in publishing:
            task.cancel()
        await asyncio.wait(publishing)
        assert since()[0] <= SOON


async def test_the_order_of_a_key_outlives_it(stage: Stage) -> None:
    stage.nsqd.script = ill = Ill()
    async with stage.producer() as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"%d" % n, key="k")) for n in range(5)]
        await eventually(lambda: ill.lost)
        await dawdle(6.0)
        ill.recover()
        receipts = await asyncio.wait_for(asyncio.gather(*tasks), SOON)
        assert receipts[0].attempts > 1
        assert {receipt.attempts for receipt in receipts[1:]} == {1}
    assert ill.bodies == [b"0", b"1", b"2", b"3", b"4"]


async def test_one_that_only_takes_long_keeps_its_connection(stage: Stage) -> None:
    """As a leader whose follower has died: for 12 s it answers nothing at all, then everything."""
    holding = Holding()
    stage.nsqd.script = holding
    async with stage.producer() as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"%d" % n, key=f"{n}")) for n in range(50)]
        await eventually(lambda: len(holding.held) >= 50)
        await dawdle(12.0)
        stage.nsqd.script = None
        copies = Counter(holding.bodies())
        assert sum(copies.values()) <= 50 + 12.0 / DOUBTED_AFTER  # single publishes ask whether it is well
        assert max(copies.values()) <= 2
        while holding.held:
            holding.release()
        receipts = await asyncio.wait_for(asyncio.gather(*tasks), 1.0)
        assert len(receipts) == 50
        await eventually(lambda: len(stage.nsqd.open_peers) == 1)
        assert stage.nsqd.open_peers == [stage.nsqd.peers[0]]
        assert (await producer.publish(TOPIC, b"later")).attempts == 1


@pytest.fixture
def ill(stage: Stage) -> Ill:
    stage.nsqd.script = ill = Ill()
    return ill


async def test_set_to_fail_nothing_is_written_twice(stage: Stage, ill: Ill) -> None:
    async with stage.producer(on_unreachable="fail") as producer:
        with pytest.raises(PublishError):
            await producer.publish(TOPIC, b"x", timeout=10.0)
        assert ill.written == {b"x": 1}
        ill.recover()
        assert (await producer.publish(TOPIC, b"y", timeout=SOON)).attempts == 1


async def test_closing_ends_the_question(stage: Stage, ill: Ill) -> None:
    async with stage.producer(close_timeout=0.1) as producer:
        task = asyncio.create_task(producer.publish(TOPIC, b"x"))
        await eventually(lambda: len(stage.nsqd.peers) == 2)
    with pytest.raises(PublishError) as caught:
        await task
    assert caught.value.maybe_stored
