"""A start position that the server never takes is told, not tried for ever."""

import asyncio
from typing import Any

import pytest

from nsq_ha import Consumer, Producer, StartFrom, TlsConfig
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import InvalidCommandError, TlsRequiredError
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import LIMIT, message_id
from tests.support.stage import Stage

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


# ------------------------------------------------------------ nsqds that take nothing but TLS

TLS = TlsConfig(ca_file=CA_FILE, server_name="localhost")


def tls_cluster() -> DevCluster:
    return DevCluster(nsqlookupds=1, nsqds=1, tls=server_context(), tls_required=True)


async def create(cluster: DevCluster, partitions: int, *, ordered: bool = False) -> None:
    await asyncio.to_thread(cluster.create_topic, "history", partitions, 1, ordered=ordered)


async def test_a_position_goes_with_sub_where_http_is_refused_and_the_nsqd_leads_one_partition() -> None:
    """It used to never subscribe, since plain HTTP is refused there."""
    with tls_cluster() as cluster:
        await create(cluster, 1)
        async with Producer(lookupd=cluster.lookupd, tls=TLS) as producer:
            for number in range(3):
                await producer.publish("history", b"%d" % number)
        options: dict[str, Any] = {"lookupd": cluster.lookupd, "tls": TLS, "start_from": StartFrom.beginning()}
        async with asyncio.timeout(LIMIT), Consumer("history", "audit", **options) as consumer:
            bodies: set[bytes] = set()
            while len(bodies) < 3:
                message = await anext(consumer)
                bodies.add(message.body)
                message.finish()
    assert bodies == {b"0", b"1", b"2"}


@pytest.mark.parametrize(("partitions", "ordered"), [(2, False), (1, True)])
async def test_elsewhere_that_is_refused_at_once(partitions: int, ordered: bool) -> None:
    with tls_cluster() as cluster:
        await create(cluster, partitions, ordered=ordered)
        with pytest.raises(
            TlsRequiredError, match=r"start_from cannot be applied to history-\d: nsqd .* -tls-required"
        ):
            async with Consumer("history", "audit", lookupd=cluster.lookupd, tls=TLS, start_from=StartFrom.beginning()):
                pytest.fail("entered")


async def test_without_tls_the_error_says_what_to_give() -> None:
    with tls_cluster() as cluster:
        await create(cluster, 1)
        with pytest.raises(TlsRequiredError, match="give tls="):
            async with Consumer("history", "audit", lookupd=cluster.lookupd):
                pytest.fail("entered")


async def test_messages_of_another_partition_end_a_connection_that_was_positioned_by_sub(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await stage.nsqd.subscriber()
        consumer._subscriptions[0]._start.is_checked = True
        peer.message(b"foreign", message_id(2, partition=1))
        again = await stage.nsqd.subscriber(1)
        again.message(b"ours", message_id(3))
        message = await anext(consumer)
        message.finish()
    assert message.body == b"ours"
