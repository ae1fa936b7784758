"""What streams are read into, and what the layers below and above them raise."""

import asyncio
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from nsq_ha import ClientConfig, TlsConfig
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.errors import ConnectError, ConnectionLostError
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Mpub, Pub
from nsq_ha.protocol.compression import DeflateCodec
from nsq_ha.protocol.encoding import GATHERED_BYTES, encode_pub, gather_bodies, gather_mpub_of, gather_pubs
from tests.support.certificates import CA_FILE, server_context
from tests.support.inside import tls_in_memory
from tests.support.nsqd import LIMIT, FakeNsqd
from tests.support.recorder import Recorder, linked, subscribed
from tests.support.tls import without_collector
from tests.support.waiting import eventually

pytestmark = pytest.mark.real_time  # these are about sockets

FORKED = """
import os
from nsq_ha.engine.tcp import TcpStream, _read_buffer
from nsq_ha.protocol.compression import PIECE_BYTES

buffer = _read_buffer()
buffer[:5] = b"ours!"
child = os.fork()
if not child:
    _read_buffer()[:5] = b"child"
    os._exit(0)
os.waitpid(child, 0)
print(bytes(buffer[:5]).decode(), len(buffer) == PIECE_BYTES, buffer is _read_buffer())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_process_reads_into_memory_of_its_own() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.stderr) == ("ours! True True\n", "")


# ------------------------------------------------------------ what others raise


@pytest.mark.parametrize("raised", [socket.gaierror(-2, "Name or service not known"), OSError(113, "No route to host")])
async def test_an_address_inside_a_cluster_says_what_to_set(
    raised: OSError, nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    with pytest.raises(ConnectError, match="-broadcast-address"):
        await Connection.open(ClientConfig(), nsqd.node, Recorder().callbacks)


async def test_a_connection_that_never_comes_says_what_to_set(nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    with pytest.raises(ConnectError, match=r"within connect_timeout=0.1 s; .*-broadcast-address"):
        await Connection.open(ClientConfig(connect_timeout=0.1), nsqd.node, Recorder().callbacks)


@pytest.mark.parametrize("hangs", [False, True])
async def test_an_address_given_by_hand_is_not_blamed_on_nsqds_flag(
    nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    async def fail(*_: object, **__: object) -> None:
        if hangs:
            await asyncio.get_running_loop().create_future()
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
    with pytest.raises(ConnectError, match=r"cannot connect to 127\.0\.0\.1") as raised:
        await Connection.open(ClientConfig(nsqd=("a:4150",), connect_timeout=0.1), nsqd.node, Recorder().callbacks)
    assert "broadcast" not in str(raised.value)


@pytest.mark.parametrize("host", ["a..b", "a" * 64, "a\x00b", "\ud800"])
async def test_a_name_that_no_resolver_takes_is_a_failed_connection(host: str) -> None:
    with pytest.raises(ConnectError, match="cannot connect"):
        await Connection.open(ClientConfig(), Node(host, 4150, 0), Recorder().callbacks)


async def test_an_ipv6_address_stands_in_brackets() -> None:
    with pytest.raises(ConnectError, match=r"cannot connect to \[::1\]:1: "):
        await Connection.open(ClientConfig(), Node("::1", 1, 0), Recorder().callbacks)


async def test_a_port_that_is_none_is_a_failed_connection() -> None:
    with pytest.raises(ConnectError, match=r"^cannot connect to localhost:99999: .*port must be 0-65535"):
        await Connection.open(ClientConfig(), Node("localhost", 99999, 0), Recorder().callbacks)


# ------------------------------------------------------------ the end of TLS


@pytest.mark.parametrize("closer", ["this side", "peer"])
async def test_a_stream_that_was_closed_twice_can_be_aborted(nsqd: FakeNsqd, closer: str) -> None:
    """asyncio's TLS transport forgets its connection when it is closed again: it then stays open for half a minute."""
    nsqd.tls = server_context()
    # No heartbeat may end it, either.
    async with linked(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE), heartbeat_interval=60)) as link:
        stream = link.connection._stream
        assert isinstance(stream, TcpStream)
        if closer == "peer":
            link.peer.close()
            async with asyncio.timeout(LIMIT):
                while not stream.is_closing():  # noqa: ASYNC110 - asyncio reports it nowhere
                    await asyncio.sleep(0)
        else:
            link.peer.pause()  # it does not confirm the end
            link.connection.close()
        link.connection.close()
        link.connection.abort(ConnectionLostError("enough"))
        assert str(await link.lost()) == "enough"
        for change in (stream.close, stream.abort, stream.flush):
            change()


@pytest.mark.few(2)
@pytest.mark.parametrize("end", ["close", "abort", "peer closes", "peer aborts", "bad data"])
async def test_nothing_of_a_tls_connection_stays_in_memory(nsqd: FakeNsqd, end: str) -> None:
    """What is in a cycle waits for the collector, which rarely comes: connections that nsqd can write to for five
    seconds only took 40 MiB in two minutes."""
    nsqd.tls = server_context()
    with without_collector():
        for _ in range(5):
            async with subscribed(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE))) as link:
                stream = link.connection._stream
                assert stream is not None
                stream.on_resume = link.connection.keep_alive  # it leads back to the connection
                del stream
                if end == "close":
                    link.connection.close()
                elif end == "abort":
                    link.connection.abort(ConnectionLostError("enough"))
                elif end == "peer closes":
                    link.peer.close()
                elif end == "peer aborts":
                    link.peer.abort()
                else:
                    link.peer.write(b"HTTP/1.1 400 Bad Request")
                await link.lost()
            connection = weakref.ref(link.connection)
            del link
            await eventually(lambda: not tls_in_memory())
            assert connection() is None


async def test_nothing_of_a_failed_handshake_stays_in_memory(nsqd: FakeNsqd) -> None:
    nsqd.tls = server_context()
    errors: list[ConnectError] = []
    with without_collector():
        for _ in range(5):
            try:
                await Connection.open(ClientConfig(tls=TlsConfig()), nsqd.node, Recorder().callbacks)
            except ConnectError as error:
                errors.append(error)  # as a client keeps the last one
        assert ["self-signed" in str(error) for error in errors] == [True] * 5
        await eventually(lambda: not tls_in_memory())


# ------------------------------------------------------------ parts


class SameCodec(DeflateCodec):
    """Compresses nothing."""

    def compress(self, data: bytes) -> bytes:
        return bytes(data)

    def pieces(self, data: bytes | memoryview) -> Iterator[bytes]:
        yield bytes(data)


@pytest.mark.parametrize("layer", ["tcp", "tls", "codec"])
async def test_parts_arrive_whole_and_in_order_at_a_peer_that_does_not_read(nsqd: FakeNsqd, layer: str) -> None:
    nsqd.tls = server_context() if layer == "tls" else None
    config = ClientConfig(tls=TlsConfig(ca_file=CA_FILE)) if layer == "tls" else ClientConfig()
    bodies = [bytes([number]) * (GATHERED_BYTES + number) for number in range(100)]
    batch = [bytes([number % 251]) * GATHERED_BYTES for number in range(1100)]  # more than one call can send
    async with linked(nsqd, config) as link:
        stream = link.connection._stream
        assert isinstance(stream, TcpStream)
        if layer == "codec":
            stream.start_codec(SameCodec())
        if stream._transport is not None and layer == "tcp":  # so that a part of a part stays behind
            stream._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50_000)
        link.connection.write(encode_pub("orders", 0, b"buffered before"))
        link.connection.write_publishes(gather_pubs("orders", 0, bodies), 1 + len(bodies))
        link.connection.write_publishes(encode_pub("orders", 0, b"after"), 1)
        await link.recorder.until(lambda: len(link.recorder.answers) == 2 + len(bodies))
        sent = [command.body for command in link.peer.of(Pub) if isinstance(command, Pub)]
        assert sent == [b"buffered before", *bodies, b"after"]
        link.peer.pause()
        encoded = gather_bodies(batch, GATHERED_BYTES)
        link.connection.write_publishes(gather_mpub_of("orders", 0, len(batch), encoded), 1)
        link.peer.resume()
        await link.recorder.until(lambda: len(link.recorder.answers) == 3 + len(bodies))
        (mpub,) = link.peer.of(Mpub)
        assert isinstance(mpub, Mpub)
        assert list(mpub.bodies) == batch


async def test_parts_count_as_unread(nsqd: FakeNsqd) -> None:
    async with linked(nsqd) as link:
        stream = link.connection._stream
        assert stream is not None
        link.peer.pause()
        while not stream.is_paused:
            stream.write_parts([b"NOP\n" * 10_000] * 10)
        for _ in range(3):
            stream.write_parts([b"NOP\n" * 10_000] * 10)
        assert "nsqd does not read" in str(await link.lost())
