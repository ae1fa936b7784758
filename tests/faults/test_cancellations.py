"""Random cancellations of every call of both clients."""

import pytest

from integration.cancellations import PARTITIONS, TOPIC, cancel
from nsq_ha.devcluster import DevCluster
from tests.support.full import FULL

CANCELLED = 200 if FULL else 70


@pytest.mark.timeout(900)
async def test_calls_that_are_cancelled_at_random_hang_nothing_and_lose_nothing() -> None:
    with DevCluster(nsqlookupds=2, nsqds=3, time_scale=0.05) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        run = await cancel(CANCELLED, 1, cluster.lookupd)
    assert run.cancelled.total() >= CANCELLED
    assert run.acknowledged
    assert run.acknowledged <= run.seen
