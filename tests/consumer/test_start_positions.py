"""Where a channel starts to read: set over HTTP or by SUB, or refused."""

import asyncio
from types import SimpleNamespace
from typing import Any, Self

import pytest

from nsq_ha import Consumer, ConsumerConfig, Producer, StartFrom, TlsConfig
from nsq_ha.admin import nsqd_http
from nsq_ha.consumer.inflight import ReadPartition, Subscription
from nsq_ha.consumer.starting import Starting
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import InvalidCommandError, TlsRequiredError
from nsq_ha.policy.topology import Node, TopicMeta
from nsq_ha.protocol import Finish, Requeue
from tests.support.certificates import CA_FILE, server_context
from tests.support.inside import partitions_of
from tests.support.nsqd import LIMIT, Peer, message_id
from tests.support.stage import Stage
from tests.support.waiting import turn

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


# ------------------------------------------------------------ what nsqd's HTTP is asked for


class Http:
    """Stands for nsqd's HTTP."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[Any, ...]] = []
        monkeypatch.setattr(nsqd_http, "NsqdHttp", self.open)

    def open(self, node: Node, *, timeout: float, local_addr: str | None) -> "Http":
        assert local_addr is None
        self.calls.append(("open", node, timeout))
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of NsqdHttp
        async def call(*arguments: object, **more: object) -> None:
            await turn()
            self.calls.append((name, *arguments, *more.items()))

        return call


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> Http:
    return Http(monkeypatch)


def starting(position: StartFrom | dict[int, StartFrom]) -> Starting:
    watch: Any = SimpleNamespace(new_partitions=None)
    config = ConsumerConfig(lookupd=("http://a:1",), lookup_timeout=0.75, start_from=position)
    shell: Any = SimpleNamespace(topic="orders", channel="ch", config=config)
    return Starting(watch, shell)


NODE = Node("10.0.0.1", 4150, 4151)
WHERE = ("orders", 3, "ch")


@pytest.mark.parametrize("by_partition", [False, True])
async def test_a_position_is_set_once_over_http(http: Http, *, by_partition: bool) -> None:
    position = StartFrom.beginning()
    start = starting({3: position} if by_partition else position)
    partition = ReadPartition(3)
    first, second = (Subscription(partition, is_ordered=False, led=(NODE, TopicMeta(4))) for _ in range(2))
    assert await start.prepare(first) is None
    assert http.calls == [("open", NODE, 0.75), ("start_channel_from", *WHERE, str(position))]
    assert (first.is_checked, first.may_repeat) == (False, True)
    partition.is_started = True
    assert await start.prepare(second) is None
    assert (len(http.calls), second.may_repeat) == (2, False)


async def test_a_new_ordered_channel_is_made_ordered_before_its_position_is_set(http: Http) -> None:
    conn = Subscription(ReadPartition(3), is_ordered=True, led=(NODE, TopicMeta(4)))
    await starting(StartFrom.beginning()).prepare(conn)
    assert [call[0] for call in http.calls] == ["open", "change_channel", "set_order", "start_channel_from"]
    assert http.calls[1:3] == [("change_channel", "create", *WHERE), ("set_order", *WHERE, ("ordered", True))]


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


POSITIONS = {
    "beginning": StartFrom.beginning(),
    "end": StartFrom.end(),
    "timestamp": StartFrom.timestamp(1),
    "count": StartFrom.count(1),
}


@pytest.mark.parametrize("position", POSITIONS)
async def test_an_empty_partition_beside_a_filled_one_is_subscribed_too(position: str) -> None:
    """Entering used to raise ``E_INVALID commit log end of file``, which nsqd answers for an empty partition."""
    with DevCluster(nsqlookupds=1, nsqds=2, tls=server_context(), tls_required=True) as cluster:
        await create(cluster, 2)
        async with (
            asyncio.timeout(LIMIT),
            Producer(lookupd=cluster.lookupd, tls=TLS) as producer,
        ):
            await producer.publish("history", b"old", partition=0)
            options: dict[str, Any] = {"lookupd": cluster.lookupd, "tls": TLS, "start_from": POSITIONS[position]}
            async with Consumer("history", "audit", **options) as consumer:
                await consumer.wait_subscribed()
                await producer.publish("history", b"new", partition=1)
                bodies = []
                while b"new" not in bodies:
                    message = await anext(consumer)
                    bodies.append(message.body)
                    message.finish()
    assert bodies.count(b"new") == 1


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
        (conn,) = partitions_of(consumer)[0].conns
        conn.is_checked = True
        peer.message(b"foreign", message_id(2, partition=1))
        again = await stage.nsqd.subscriber(1)
        again.message(b"ours", message_id(3))
        message = await anext(consumer)
        message.finish()
    assert message.body == b"ours"


# ------------------------------------------------------------ the message that was ready when the position was set


async def positioned(stage: Stage, consumer: Consumer) -> Peer:
    """Return the subscriber; it counts as the first after a position was set, which needs nsqd's HTTP otherwise."""
    peer = await stage.nsqd.subscriber()
    conn = partitions_of(consumer)[0].conn
    assert conn is not None
    conn.may_repeat = True
    return peer


async def read(consumer: Consumer, count: int) -> list[bytes]:
    bodies = []
    for _ in range(count):
        message = await anext(consumer)
        bodies.append(message.body)
        message.finish()
    return bodies


@pytest.mark.parametrize("numbers", [(5, 5, 6), (5, 2, 3, 4, 5, 6)], ids=["at once", "later"])
async def test_a_second_copy_is_left_out(stage: Stage, numbers: tuple[int, ...]) -> None:
    """It came twice to the application, with the same id and the same number of attempts."""
    async with stage.consumer() as consumer:
        peer = await positioned(stage, consumer)
        for number in numbers:
            peer.message(b"%d" % number, message_id(number))
        expected = [b"%d" % number for number in dict.fromkeys(numbers)]
        assert await read(consumer, len(expected)) == expected
        peer.message(b"7", message_id(7))
        assert await read(consumer, 1) == [b"7"]


async def test_a_copy_of_a_finished_message_is_finished(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await positioned(stage, consumer)
        peer.message(b"5", message_id(5))
        assert await read(consumer, 1) == [b"5"]
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 1)
        for number in (4, 5, 6):
            peer.message(b"%d" % number, message_id(number))
        assert await read(consumer, 2) == [b"4", b"6"]
        await stage.nsqd.until(lambda: peer.of(Finish).count(Finish(message_id(5))) == 2)


async def test_a_requeued_or_timed_out_message_is_no_copy(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await positioned(stage, consumer)
        peer.message(b"5", message_id(5))
        (await anext(consumer)).requeue(0)
        await stage.nsqd.until(lambda: peer.of(Requeue))
        peer.message(b"5", message_id(5))  # the REQ was lost when nsqd set the position
        assert await read(consumer, 1) == [b"5"]


async def test_a_message_with_more_attempts_is_no_copy(stage: Stage) -> None:
    async with stage.consumer() as consumer:
        peer = await positioned(stage, consumer)
        peer.message(b"5", message_id(5))
        first = await anext(consumer)
        peer.message(b"5", message_id(5), attempts=2)
        second = await anext(consumer)
        first.finish()
        second.finish()


async def test_a_copy_is_delivered_once_the_reader_has_passed(stage: Stage) -> None:
    """The channel was set back once more: the application reads again on purpose."""
    async with stage.consumer() as consumer:
        peer = await positioned(stage, consumer)
        for number in (5, 6):
            peer.message(b"%d" % number, message_id(number))
        assert await read(consumer, 2) == [b"5", b"6"]
        await stage.nsqd.until(lambda: len(peer.of(Finish)) == 2)
        peer.message(b"5", message_id(5))
        assert await read(consumer, 1) == [b"5"]


async def test_setting_a_position_makes_the_first_subscription_look_for_copies() -> None:
    with DevCluster(nsqlookupds=1, nsqds=1) as cluster:
        await asyncio.to_thread(cluster.create_topic, "history", 1, 1)
        async with Producer(lookupd=cluster.lookupd) as producer:
            async with Consumer("history", "audit", lookupd=cluster.lookupd):
                pass  # the channel has the first message ready from now on
            for number in range(3):
                await producer.publish("history", b"%d" % number)
        options: dict[str, Any] = {"lookupd": cluster.lookupd, "start_from": StartFrom.beginning()}
        async with asyncio.timeout(LIMIT), Consumer("history", "audit", **options) as consumer:
            assert await read(consumer, 3) == [b"0", b"1", b"2"]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.5)
