"""Partitions above ``connections_per_nsqd``, and the topics of plain nsqds, share connections."""

import asyncio

import pytest

from nsq_ha.errors import PublishError
from nsq_ha.protocol import Command
from tests.support.nsqd import LIMIT, FakeNsqd, Holding, Peer
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import eventually

PARTITIONS = 24


def most_open(nsqds: list[FakeNsqd]) -> dict[int, int]:
    """Note how many connections were open at once, by nsqd."""
    most = dict.fromkeys(range(len(nsqds)), 0)

    def script(peer: Peer, command: Command) -> bool:
        for number, nsqd in enumerate(nsqds):
            most[number] = max(most[number], len(nsqd.open_peers))
        return False

    for nsqd in nsqds:
        nsqd.script = script
    return most


@pytest.mark.parametrize(("limit", "opened"), [(0, 1), (1, 2), (4, 5), (7, 8), (8, 8), (64, 8)])
async def test_partitions_above_the_limit_share_one_connection_for_each_nsqd(
    stage: Stage, limit: int, opened: int
) -> None:
    stage.lead({partition: stage.nsqds[partition % 3] for partition in range(PARTITIONS)})
    most = most_open(stage.nsqds[:3])
    async with stage.producer(connections_per_nsqd=limit) as producer:
        for _ in range(3):
            tasks = [producer.publish(TOPIC, b"x", partition=partition) for partition in range(PARTITIONS)]
            receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
            assert [(receipt.partition, receipt.attempts) for receipt in receipts] == [
                (partition, 1) for partition in range(PARTITIONS)
            ]
    assert set(most.values()) == {opened}


async def test_topics_of_plain_nsqds_share_one_connection_to_each(stage: Stage) -> None:
    stage.list_plain(candidates=stage.nsqds)
    most = most_open(stage.nsqds)
    async with stage.producer() as producer:
        for _ in range(3):
            await asyncio.gather(*(producer.publish(f"topic{number}", b"x") for number in range(40)))
    assert set(most.values()) == {1}


async def test_attempts_that_fail_do_not_count_later(stage: Stage) -> None:
    stage.lead(dict.fromkeys(range(4), stage.nsqd))
    stage.nsqd.accepts = False
    async with stage.producer(connections_per_nsqd=2) as producer:
        tasks = [producer.publish(TOPIC, b"x", partition=partition, timeout=3.0) for partition in range(4)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {PublishError}
        stage.nsqd.accepts = True
        most = most_open([stage.nsqd])
        await asyncio.gather(*(producer.publish(TOPIC, b"x", partition=partition) for partition in range(4)))
        assert most == {0: 3}


async def test_a_loss_is_one_of_all_who_share_and_all_go_on(stage: Stage) -> None:
    stage.lead(dict.fromkeys(range(4), stage.nsqd))
    stage.nsqd.script = holding = Holding()
    async with stage.producer(connections_per_nsqd=0) as producer:
        tasks = [asyncio.create_task(producer.publish(TOPIC, b"x", partition=number)) for number in range(4)]
        await eventually(lambda: holding.has(4))
        stage.nsqd.script = None
        (peer,) = stage.nsqd.open_peers
        peer.abort()
        receipts = await asyncio.wait_for(asyncio.gather(*tasks), LIMIT)
        assert [(receipt.partition, receipt.attempts) for receipt in receipts] == [(number, 2) for number in range(4)]
        assert len(stage.nsqd.peers) == 2
