"""Random cancellations of every call of both clients; ``python -m integration.cancellations`` makes more of them."""

import pytest

from integration.cancellations import cancel, set_up, stage
from tests.support.full import FULL

CANCELLED = 200 if FULL else 70


@pytest.mark.timeout(900)
async def test_calls_that_are_cancelled_at_random_hang_nothing_and_lose_nothing() -> None:
    with stage() as cluster:
        set_up(cluster)
        run = await cancel(CANCELLED, 1, cluster.lookupd)
    assert run.cancelled.total() >= CANCELLED
    assert run.acknowledged
    assert run.acknowledged <= run.seen
