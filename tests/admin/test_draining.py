"""The wait for an empty channel of a cluster that is left, at a scripted one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from nsq_ha.migrate.draining import until_empty

if TYPE_CHECKING:
    from nsq_ha import Consumer
    from tests.admin.scripted import Scripted


async def test_a_topic_whose_partitions_are_not_known_is_not_empty(cluster: Scripted) -> None:
    """While it grew, its nsqlookupds named two numbers, and no partition was asked: the messages there were left."""
    cluster.follower.answer("/lookup", cluster.body(4150, 4150))
    cluster.leader.answer("/lookup", cluster.body(4150, 4150, partition_num=4))
    config = SimpleNamespace(lookupd=[cluster.follower.url, cluster.leader.url], lookupd_tls=None, tls=None)
    consumer = cast("Consumer", SimpleNamespace(topic="orders", channel="billing", config=config))
    with pytest.raises(
        TimeoutError, match="the previous cluster cannot be asked: the nsqlookupds do not agree how many"
    ):
        await until_empty(consumer, asyncio.Event(), 3.0)
