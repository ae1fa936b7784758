"""The port from which nsqds copy partitions: whole entries, committed and flushed, as the real one."""

import dataclasses
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.devcluster.nsqd.node import BEYOND, CLEANED, NOT_FLUSHED, NOT_HERE, OVERFLOWED, PullError, pull
from nsq_ha.devcluster.storage.log import Draft, Log
from nsq_ha.devcluster.storage.replica import ClusterTopic, Replica, TopicOptions, TopicPartition
from nsq_ha.protocol.encoding import encode_mpub
from nsq_ha.spark.pull.calls import Answers, Pull, Pulled, Requests
from nsq_ha.spark.pull.gob import decode_uint
from tests.devcluster.probes import until
from tests.devcluster.wire import connect, pub
from tests.support.inside import nsqd_of
from tests.support.spark_rows import entries

SIZE = 30 + 1
DRAFT = Draft(b"x")


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqlookupds=1, nsqds=2, time_scale=0.02) as cluster:
        yield cluster


class Caller:
    """One connection to the port."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 5)
        self._file = self._socket.makefile("rb")
        self._requests = Requests()
        self._answers = Answers(self._message)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _message(self) -> memoryview:
        head = self._file.read(1)
        if not head:
            raise EOFError
        more = 0 if head[0] < 128 else 256 - head[0]
        size, _ = decode_uint(head + self._file.read(more), 0)
        return memoryview(self._file.read(size))

    def ask(self, topic: str, entry: int, count: int = 10, partition: int = 0) -> Pulled | str:
        self.send(self._requests.encode(Pull(topic, partition, entry, count)))
        return self.read()[1]

    def read(self) -> tuple[int, Pulled | str]:
        return self._answers.read()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> bytes:
        try:
            return self._file.read(1)
        except ConnectionResetError:
            return b""


@contextmanager
def caller(cluster: DevCluster, node: str) -> Iterator[Caller]:
    found = Caller(nsqd_of(cluster, node).copy_port)
    try:
        yield found
    finally:
        found.close()


def filled(cluster: DevCluster, topic: str, *, sync_every: int = 1) -> tuple[str, str]:
    """A topic with two PUBs and one MPUB of three; leader and follower."""
    cluster.create_topic(topic, 1, 2, sync_every=sync_every)
    leader = cluster.leader(topic)
    assert leader is not None
    bodies = [b"c", b"d", b"e"]
    with connect(cluster.nsqds[leader], pub(topic, b"a"), pub(topic, b"b"), encode_mpub(topic, 0, bodies)) as wire:
        assert [wire.answer() for _ in range(3)] == [b"OK"] * 3
    return leader, cluster.followers(topic)[0]


def bodies(answer: Pulled | str) -> list[tuple[int, bytes]]:
    return [(offset, data[30::SIZE]) for offset, data in entries(answer)]


def can_read(port: Caller) -> bool:
    return isinstance(port.ask("orders", 0), Pulled)


def test_leader_and_follower_send_whole_entries(cluster: DevCluster) -> None:
    for node in filled(cluster, "orders"):
        with caller(cluster, node) as port:
            until(partial(can_read, port))  # a follower flushes seldom
            everything = [(0, b"a"), (SIZE, b"b"), (2 * SIZE, b"cde")]
            assert bodies(port.ask("orders", 0)) == everything
            assert bodies(port.ask("orders", 1, 1)) == everything[1:2]
            assert bodies(port.ask("orders", 3)) == []
            assert port.ask("orders", 4) == BEYOND
            assert port.ask("orders", 0, partition=1) == port.ask("others", 0) == NOT_HERE
            assert bodies(port.ask("orders", 2)) == everything[2:]


def test_another_call_is_refused_and_other_bytes_end_the_connection(cluster: DevCluster) -> None:
    leader, _ = filled(cluster, "calls")
    with caller(cluster, leader) as port:
        request = Requests().encode(Pull("calls", 0, 0, 1))
        port.send(request.replace(b".PullCommitLogsAndData", b".GetLastCommitLogIDxxx"))
        found = port.read()
        assert found == (1, "gorpc.Dispatcher: unknown method [NsqdCoordRpcServer.GetLastCommitLogIDxxx]")
        port.send(b"\1\0")
        assert port.end() == b""
    with caller(cluster, leader) as port:
        port.send(b"GET / HTTP/1.1\r\n\r\n")
        assert port.end() == b""


# ---------------------------------------------------------------- the log


def replica(change: Callable[[Log], None]) -> Replica:
    """A replica with the batches [0], [1, 2], [3], changed."""
    topic = ClusterTopic("orders", TopicOptions(partitions=1, replicas=1))
    found = Replica(TopicPartition(topic, 0), None)  # type: ignore[arg-type]  # it is not asked
    log = found.log
    for place in (0, 0, 1, 0):
        log.append(DRAFT, 1, place)
    log.commit()
    log.flush()
    change(log)
    return found


def places(found: Replica, entry: int, count: int = 10) -> list[tuple[int, int]]:
    return [(each.offset // SIZE, each.count) for each in pull(found, entry, count)]


def test_pending_records_are_not_sent() -> None:
    found = replica(lambda _: None)
    found.log.append(DRAFT, 1)
    assert places(found, 0) == [(0, 1), (1, 2), (3, 1)]
    assert places(found, 3) == []
    with pytest.raises(PullError, match=BEYOND):
        pull(found, 4, 1)
    found.log.cut_pending()
    assert found.log.entries == [0, 1, 3]


def test_unflushed_entries_are_not_sent() -> None:
    def change(log: Log) -> None:
        log.append(DRAFT, 1)
        log.append(DRAFT, 1)
        log.commit()

    found = replica(change)
    assert places(found, 1) == [(1, 2), (3, 1)]
    with pytest.raises(PullError, match=NOT_FLUSHED):
        pull(found, 3, 1)
    with pytest.raises(PullError, match=OVERFLOWED):
        pull(found, 4, 1)


def test_cleaned_entries_are_not_sent_not_even_the_rest_of_one() -> None:
    found = replica(lambda log: log.clean(2))
    assert places(found, 2) == [(3, 1)]
    with pytest.raises(PullError, match=CLEANED):
        pull(found, 1, 1)


def test_entries_older_than_an_upgrade_are_sent_as_they_are_stored() -> None:
    found = replica(lambda _: None)
    found.update_options(dataclasses.replace(found.options, extended=True))
    found.log.append(DRAFT, 1)
    found.log.commit()
    found.log.flush()
    sent = pull(found, 0, 10)
    assert [len(each.data) for each in sent] == [SIZE, 2 * SIZE, SIZE, SIZE + 1]
    assert [each.offset for each in sent] == [0, SIZE, 3 * SIZE, 4 * SIZE]
