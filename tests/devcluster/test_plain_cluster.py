"""The plain cluster: registration, faults, and what a restart keeps."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from nsq_ha.devcluster import ChangeRefusedError, DevCluster
from nsq_ha.devcluster.nsqd.connection import ServerConnection
from nsq_ha.devcluster.storage.queues import MEMORY_MESSAGES, default_node_id
from tests.devcluster.clock import Clock, held
from tests.devcluster.probes import LIMIT, until
from tests.devcluster.wire import Closed, Wire, connect, identify, message_id
from tests.support import web
from tests.support.inside import nsqd_of, plain_of

LARGE = b"x" * 1_000_000


@pytest.fixture
def cluster() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqds=2, time_scale=0.02) as cluster:
        yield cluster


def pub(topic: str, body: bytes) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body


def mpub(topic: str, *bodies: bytes) -> bytes:
    content = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    content = struct.pack(">i", len(bodies)) + content
    return f"MPUB {topic}\n".encode() + struct.pack(">i", len(content)) + content


def dpub(topic: str, delay: str, body: bytes) -> bytes:
    return f"DPUB {topic} {delay}\n".encode() + struct.pack(">i", len(body)) + body


def lookup(cluster: DevCluster, topic: str, lookupd: int = 0) -> set[str] | None:
    """The TCP addresses of a topic's nsqds; None for an unknown topic."""
    url = f"{cluster.lookupd[lookupd]}/lookup"
    answer = web.get(url, params={"topic": topic}, timeout=LIMIT)
    if answer.status_code == 404:
        return None
    return {f"{peer['broadcast_address']}:{peer['tcp_port']}" for peer in answer.json()["producers"]}


def post(cluster: DevCluster, node: str, path: str) -> None:
    assert web.post(cluster.http_address(node) + path, timeout=LIMIT).status_code == 200


def stats(cluster: DevCluster, node: str, topic: str) -> dict[str, Any]:
    url = f"{cluster.http_address(node)}/stats?format=json&topic={topic}"
    found: dict[str, Any] = web.get(url, timeout=LIMIT).json()["topics"][0]
    return found


def bodies(wire: Wire, count: int) -> set[bytes]:
    return {wire.message()[26:] for _ in range(count)}


def publish(address: str, *commands: bytes) -> None:
    with connect(address) as wire:
        for command in commands:
            wire.send(command)
            assert wire.answer() == b"OK"


def subscribe(address: str, topic: str, channel: str = "ch", ready: int = 1, **fields: object) -> Wire:
    wire = connect(address, identify(**fields) if fields else b"")
    if fields:
        wire.answer()
    wire.send(f"SUB {topic} {channel}\nRDY {ready}\n".encode())
    assert wire.answer() == b"OK"
    return wire


# ---------------------------------------------------------------- registration


def test_what_publishers_and_consumers_name_is_created_and_registered_everywhere(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    assert lookup(cluster, "t") is None
    publish(address, pub("t", b"one"))
    for number in range(2):
        assert lookup(cluster, "t", number) == {address}
    with subscribe(cluster.nsqds["nsqd-1"], "t"):
        assert lookup(cluster, "t") == set(cluster.nsqds.values())
        assert web.get(f"{cluster.lookupd[1]}/channels?topic=t").json() == {"channels": ["ch"]}


def test_a_new_topic_gets_the_channels_that_the_nsqlookupds_know(cluster: DevCluster) -> None:
    with subscribe(cluster.nsqds["nsqd-0"], "t"), subscribe(cluster.nsqds["nsqd-0"], "t", "e#ephemeral"):
        publish(cluster.nsqds["nsqd-1"], pub("t", b"one"))
        assert [channel["channel_name"] for channel in stats(cluster, "nsqd-1", "t")["channels"]] == ["ch"]
        assert stats(cluster, "nsqd-1", "t")["channels"][0]["depth"] == 1


def test_lists_have_no_order(cluster: DevCluster) -> None:
    for name in "abcdefgh":
        post(cluster, "nsqd-0", f"/topic/create?topic={name}")
    seen = [tuple(web.get(f"{cluster.lookupd[0]}/topics").json()["topics"]) for _ in range(5)]
    assert len(set(seen)) > 1
    assert {tuple(sorted(each)) for each in seen} == {tuple("abcdefgh")}


def test_a_killed_nsqd_is_not_listed_and_comes_back_with_its_topics(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    cluster.kill("nsqd-0")
    assert lookup(cluster, "t") == {cluster.nsqds["nsqd-1"]}
    cluster.kill("nsqd-1")
    assert lookup(cluster, "t") == set()  # the topic is still known
    cluster.start("nsqd-0")
    assert lookup(cluster, "t") == {cluster.nsqds["nsqd-0"]}


@pytest.mark.slow
def test_a_frozen_nsqd_stays_listed_until_it_is_inactive(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    cluster.freeze("nsqd-0")
    assert lookup(cluster, "t") == set(cluster.nsqds.values())
    until(lambda: lookup(cluster, "t") == {cluster.nsqds["nsqd-1"]})
    cluster.thaw("nsqd-0")
    until(lambda: lookup(cluster, "t") == set(cluster.nsqds.values()))


def test_a_restarted_nsqlookupd_learns_by_the_next_ping(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    cluster.kill("nsqlookupd-0")
    with pytest.raises(httpx.ConnectError):
        lookup(cluster, "t")
    cluster.start("nsqlookupd-0")
    until(lambda: lookup(cluster, "t") == set(cluster.nsqds.values()))


def test_a_frozen_nsqlookupd_learns_later_what_it_missed(cluster: DevCluster) -> None:
    cluster.freeze("nsqlookupd-0")
    cluster.create_topic("t")
    cluster.thaw("nsqlookupd-0")
    until(lambda: lookup(cluster, "t") == set(cluster.nsqds.values()))
    cluster.freeze("nsqlookupd-0")
    cluster.kill("nsqd-0")
    cluster.thaw("nsqlookupd-0")
    assert lookup(cluster, "t") == {cluster.nsqds["nsqd-1"]}


def test_a_cut_nsqlookupd_is_told_again(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    cluster.cut("nsqlookupd-0")
    until(lambda: lookup(cluster, "t") == set(cluster.nsqds.values()))


def test_a_tombstone_ends(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    node = cluster.http_address("nsqd-0").removeprefix("http://")
    with held(cluster):
        post(cluster, "nsqlookupd-0", f"/topic/tombstone?topic=t&node={node}")
        assert lookup(cluster, "t") == {cluster.nsqds["nsqd-1"]}
        assert lookup(cluster, "t", 1) == set(cluster.nsqds.values())  # each nsqlookupd has its own
    until(lambda: lookup(cluster, "t") == set(cluster.nsqds.values()))


def test_deleting_a_topic_ends_it_everywhere(cluster: DevCluster) -> None:
    cluster.create_topic("t")
    with subscribe(cluster.nsqds["nsqd-0"], "t") as wire:
        cluster.delete_topic("t")
        with pytest.raises(Closed):
            wire.frame()
    assert lookup(cluster, "t") is None
    with pytest.raises(ChangeRefusedError, match="no nsqd has a topic 't'"):
        cluster.delete_topic("t")


def test_what_only_a_partitioned_cluster_has_is_refused(cluster: DevCluster) -> None:
    with pytest.raises(ValueError, match="no partitions"):
        cluster.create_topic("t", 2)
    with pytest.raises(ValueError, match="no partitions"):
        cluster.leader("t")
    with pytest.raises(ValueError, match="refuse writes"):
        cluster.refuse_writes("nsqd-0")


# ---------------------------------------------------------------- messages


def test_a_stopped_nsqd_keeps_all_messages(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    publish(address, pub("lonely", b"kept"))
    post(cluster, "nsqd-0", "/channel/create?topic=lonely&channel=c")
    post(cluster, "nsqd-0", "/topic/create?topic=t")
    post(cluster, "nsqd-0", "/channel/create?topic=t&channel=ch")
    publish(address, mpub("t", b"a", b"b"), dpub("t", "3600000", b"deferred"))
    post(cluster, "nsqd-0", "/channel/pause?topic=lonely&channel=c")
    with subscribe(address, "t") as wire:
        wire.message()
        cluster.stop("nsqd-0")
        with pytest.raises(Closed):
            wire.message()
    cluster.start("nsqd-0")
    with subscribe(address, "t", ready=3) as wire:  # delays are lost
        messages = [wire.message() for _ in range(3)]
    assert {message[26:] for message in messages} == {b"a", b"b", b"deferred"}
    assert sorted(message[9] for message in messages) == [1, 1, 2]
    assert stats(cluster, "nsqd-0", "lonely")["channels"][0]["paused"] is True
    assert stats(cluster, "nsqd-0", "lonely")["channels"][0]["depth"] == 1


def test_a_killed_nsqd_loses_what_was_in_memory(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    post(cluster, "nsqd-0", "/topic/create?topic=t")
    post(cluster, "nsqd-0", "/channel/create?topic=t&channel=ch")
    many = [b"%d" % number for number in range(MEMORY_MESSAGES + 5)]
    publish(address, mpub("t", *many))
    channel = stats(cluster, "nsqd-0", "t")["channels"][0]
    assert (channel["depth"], channel["backend_depth"]) == (MEMORY_MESSAGES + 5, 5)
    cluster.kill("nsqd-0")
    cluster.start("nsqd-0")
    with subscribe(address, "t", ready=10) as wire:
        assert bodies(wire, 5) == set(many[-5:])
        assert wire.is_quiet(0.1)


def test_memory_and_backend_are_read_in_no_order(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    many = [b"%05d" % number for number in range(MEMORY_MESSAGES + 50)]
    publish(address, mpub("t", *many))
    with subscribe(address, "t", ready=2500) as wire:
        first = [wire.message()[26:] for _ in range(200)]
    assert first != sorted(first)
    assert len(set(first)) == 200


def test_sampling_loses_the_other_messages(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    with subscribe(address, "t", ready=1000, sample_rate=10) as wire:
        publish(address, mpub("t", *[b"%d" % number for number in range(500)]))
        until(lambda: stats(cluster, "nsqd-0", "t")["channels"][0]["depth"] == 0)
        channel = stats(cluster, "nsqd-0", "t")["channels"][0]
        assert 0 < channel["in_flight_count"] < 250
        assert len(bodies(wire, channel["in_flight_count"])) == channel["in_flight_count"]


def test_an_ephemeral_topic_ends_with_its_last_channel(cluster: DevCluster) -> None:
    with subscribe(cluster.nsqds["nsqd-0"], "t#ephemeral", "c#ephemeral"):
        assert lookup(cluster, "t#ephemeral") == {cluster.nsqds["nsqd-0"]}
    until(lambda: lookup(cluster, "t#ephemeral") is None)


def test_an_ephemeral_channel_is_lost_when_the_process_ends(cluster: DevCluster) -> None:
    with subscribe(cluster.nsqds["nsqd-0"], "t", "c#ephemeral"):
        cluster.stop("nsqd-0")
    cluster.start("nsqd-0")
    assert stats(cluster, "nsqd-0", "t")["channels"] == []


def test_gathering_waits_for_a_reason_when_its_time_is_off(cluster: DevCluster) -> None:
    address = cluster.nsqds["nsqd-0"]
    with subscribe(address, "t", ready=2, output_buffer_timeout=-1) as wire:
        publish(address, pub("t", b"one"))
        assert wire.is_quiet(0.1)
        publish(address, pub("t", b"two"))
        assert bodies(wire, 2) == {b"one", b"two"}  # it can take no more


# ---------------------------------------------------------------- ids


def ids(cluster: DevCluster, node: str, *topics: str) -> list[list[int]]:
    """Publish four messages to each topic of a node, and return the ids that it gave."""
    address = cluster.nsqds[node]
    found = []
    for topic in topics:
        publish(address, mpub(topic, b"a", b"b", b"c", b"d"))
        with subscribe(address, topic, ready=4) as wire:
            found.append(sorted(int(message_id(wire.message()), 16) for _ in range(4)))
    return found


def test_nsqds_of_one_host_give_equal_ids(cluster: DevCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq_ha.devcluster.storage.queues.now", lambda: 1288834974288 + 77)
    first, second = (ids(cluster, node, "t", "u") for node in ("nsqd-0", "nsqd-1"))
    assert first == second
    # Each topic counts for itself, so ids of one nsqd are equal, too.
    assert first[0] == first[1]
    assert first[0] == [77 << 22 | default_node_id() << 12 | sequence for sequence in range(4)]


def test_the_host_gives_the_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen with real nsqds on a host of this name."""
    monkeypatch.setattr("socket.gethostname", lambda: "vm")
    assert default_node_id() == 617


# ---------------------------------------------------------------- clients that do not read


@contextlib.contextmanager
def full_client(*, plain: bool) -> Iterator[tuple[str, str, Clock, Wire, ServerConnection]]:
    """A consumer to which 32 MB are written that it does not read.

    Yields the nsqd's address, what a publish names, the cluster's clock, the client, and the connection at the nsqd.
    """
    with DevCluster(plain=plain, nsqds=1, time_scale=0.02) as cluster:
        address = cluster.nsqds["nsqd-0"]
        cluster.create_topic("t", replicas=1)
        name = "t" if plain else "t 0"
        with held(cluster) as clock, connect(address, identify(heartbeat_interval=1000)) as wire:
            wire.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # its NOPs come at once
            wire.answer()
            wire.send(f"SUB t c{'' if plain else ' 0'}\nRDY 100\n".encode())
            assert wire.answer() == b"OK"
            for _ in range(8):
                publish(address, mpub(name, *[LARGE] * 4))
            nsqd = plain_of(cluster).nsqds[0] if plain else nsqd_of(cluster, "nsqd-0")
            (connection,) = (each for each in nsqd.connections if each.settings.heartbeat_interval == 1000)
            clock.until(lambda: connection.is_full)
            yield address, name, clock, wire, connection


@pytest.mark.parametrize("plain", [True, False])
def test_a_client_that_does_not_read(plain: bool) -> None:
    """Seen with real nsqds: upstream's never writes again, the partitioned one goes on where it was."""
    with full_client(plain=plain) as (address, name, clock, wire, _):
        for _ in range(8):  # four intervals
            wire.send(b"NOP\n")
            clock.move(0.5)
        seen = [len(wire.message()) for _ in range(32)]
        assert seen == [26 + len(LARGE)] * 32
        publish(address, mpub(name, b"later"))
        clock.move(1.1)
        if plain:
            assert wire.is_quiet(0.1)
            wire.send(b"BOGUS\n")
            assert wire.ends()
        else:
            assert wire.message()[26:] == b"later"


@pytest.mark.parametrize("plain", [True, False])
def test_a_client_that_neither_reads_nor_writes_is_cut(plain: bool) -> None:
    with full_client(plain=plain) as (_, _, clock, _, connection):
        for _ in range(8):
            clock.move(0.5)
        assert not connection.is_consumer
