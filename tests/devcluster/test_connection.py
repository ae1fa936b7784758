"""One connection: layers that fail, readers that are slow, bytes that mean nothing."""

from collections.abc import Iterator

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.protocol.compression import SnappyCodec
from tests.devcluster.clock import held
from tests.devcluster.probes import until
from tests.devcluster.wire import attempts, connect, identify, pub
from tests.support.certificates import server_context


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(nsqds=1, nsqlookupds=1, tls=server_context()) as cluster:
        cluster.create_topic("orders", 1, 1)
        for topic in ("pings", "sampled", "gathered"):
            cluster.create_topic(topic, 1, 1)
        yield cluster


@pytest.fixture
def address(cluster: DevCluster) -> str:
    return cluster.nsqds["nsqd-0"]


def alive(address: str) -> bool:
    with connect(address, pub("pings", b"x")) as wire:
        return wire.answer() == b"OK"


def test_a_handshake_that_is_none_ends_the_connection(address: str) -> None:
    with connect(address, identify(tls_v1=True)) as wire:
        wire.answer()
        wire.send(b"GET / HTTP/1.0\r\n\r\n" * 10)
        until(lambda: not wire.is_quiet(0.1))
    assert alive(address)


def test_no_heartbeat_comes_into_a_handshake(address: str, cluster: DevCluster) -> None:
    with connect(address, identify(tls_v1=True, heartbeat_interval=1000)) as wire:
        wire.answer()
        with held(cluster) as clock:
            clock.move(1.5)
            assert wire.is_quiet(0.2)
        wire.secure()
        assert wire.answer() == b"OK"


@pytest.mark.parametrize("fields", [{"tls_v1": True}, {"snappy": True}], ids=["tls", "snappy"])
def test_commands_before_the_next_layer_are_not_done(address: str, fields: dict[str, bool]) -> None:
    with connect(address, identify(**fields), pub("pings", b"injected"), b"NO_SUCH_COMMAND\n") as wire:
        assert wire.answer().startswith(b"{")
        if "tls_v1" in fields:
            wire.secure()
        else:
            wire.compress(SnappyCodec())
        assert wire.answer() == b"OK"
        wire.send(pub("pings", b"inside"))
        assert wire.answer() == b"OK"
        assert wire.is_quiet(0.2)


def test_damaged_compression_ends_the_connection(address: str) -> None:
    with connect(address, identify(snappy=True)) as wire:
        wire.answer()
        wire.socket.sendall(b"\x00\x05\x00\x00nonsense")
        wire.compress(SnappyCodec())
        assert wire.answer() == b"OK"
        assert wire.ends()
    assert alive(address)


def test_a_line_without_end_is_cut(address: str) -> None:
    with connect(address) as wire:
        wire.send(b"x" * 70_000)
        assert wire.ends()


def test_gathered_messages_come_together_when_the_time_is_over(address: str, cluster: DevCluster) -> None:
    start = identify(output_buffer_timeout=300, output_buffer_size=65536)
    with connect(address, start, b"SUB gathered slowly 0\nRDY 10\n") as wire:
        wire.answer()
        assert wire.answer() == b"OK"
        with held(cluster), connect(address, pub("gathered", b"a")) as publishing:
            assert publishing.answer() == b"OK"
            assert wire.is_quiet(0.1)
            publishing.send(pub("gathered", b"b"))
            assert publishing.answer() == b"OK"
        first, second = wire.message(), wire.message()
        assert (first[26:], second[26:]) == (b"a", b"b")
        assert attempts(first) == 1
