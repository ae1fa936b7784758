"""A start position that the server never takes is told, not tried for ever."""

import asyncio

import pytest

from nsq_ha import Consumer, StartFrom
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import InvalidCommandError

TOO_LATE = 253402214400
"""Its nanoseconds have no 64 bits."""


def beyond_the_bound() -> StartFrom:
    """Make what the constructor refuses, as a server with a bound of its own would see it."""
    start = StartFrom.timestamp(0)
    object.__setattr__(start, "value", TOO_LATE)
    return start


@pytest.mark.parametrize("ordered", [False, True])
async def test_it_is_raised_by_entering(ordered: bool) -> None:
    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "history", 1, 1, ordered=ordered)
        with pytest.raises(InvalidCommandError, match=f"E_INVALID Invalid timestamp {TOO_LATE}"):
            async with Consumer("history", "audit", lookupd=cluster.lookupd, start_from=beyond_the_bound()):
                pytest.fail("entered")
