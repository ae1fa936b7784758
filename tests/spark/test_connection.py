"""TLS, compression and AUTH between Spark's tasks and the nsqds, reading and writing."""

import dataclasses
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import (
    AuthError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.options.types import Compression, TlsConfig
from nsq_ha.policy import tls_renewal
from nsq_ha.policy.topology import Node
from nsq_ha.protocol.compression import DeflateCodec
from nsq_ha.protocol.encoding import encode_mpub
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.spark import connection as connection_module
from nsq_ha.spark.cluster import BlockingCluster
from nsq_ha.spark.connection import BlockingConnection, ConnectionExpiredError, Wire
from nsq_ha.spark.options import ConnectionOptions, ReadOptions, WriteOptions
from nsq_ha.spark.plan.batch_planner import plan
from nsq_ha.spark.read.range_reader import RangeReader
from nsq_ha.spark.write.partition_writer import EncodedMpub, PartitionWriter
from tests.spark.test_replay import ScriptedNsqd
from tests.support.certificates import CA_FILE, server_context
from tests.support.spark_rows import delivered

TLS = {"tls": "true", "tlsCaFile": CA_FILE}
OK = encode_frame(FrameType.RESPONSE, b"OK")
IDENTIFIED = encode_frame(FrameType.RESPONSE, b"{}")


@pytest.fixture(scope="module")
def secured() -> Iterator[DevCluster]:
    with DevCluster(nsqds=1, nsqlookupds=1, tls=server_context(), time_scale=0.02) as cluster:
        yield cluster


def batches(topic: str, bodies: list[bytes], size: int) -> Iterator[EncodedMpub]:
    for start in range(0, len(bodies), size):
        lot = bodies[start : start + size]
        yield EncodedMpub(encode_mpub(topic, 0, lot), len(lot), sum(map(len, lot)))


def written_and_read(cluster: DevCluster, topic: str, bodies: list[bytes], **more: str) -> list[bytes]:
    given = {"lookupd": cluster.lookupd[0], "topic": topic, "fetchTimeout": "2s", "fetchRetries": "1", **more}
    with BlockingCluster(tuple(cluster.lookupd)) as asked:
        writer = PartitionWriter(topic, 0, WriteOptions.parse({**given, "publishTimeout": "20s"}), asked)
        try:
            for batch in batches(topic, bodies, 100):
                writer.send(batch)
            writer.settle()
        finally:
            writer.close()
        assert writer.written.rows == len(bodies)
        assert writer.written.doubtful == 0
        options = ReadOptions.parse(given)
        (part,) = plan(options, asked)
        reader = RangeReader(part, options, asked)
        found = [row.body for rows in delivered(reader) for row in rows]
        assert reader.opened == 1
        return found


@pytest.mark.parametrize("compression", ["none", "snappy", "deflate"])
@pytest.mark.parametrize("tls", [{}, TLS], ids=["plain", "tls"])
def test_every_layer_carries_rows_both_ways(secured: DevCluster, tls: dict[str, str], compression: str) -> None:
    chance = random.Random(7)
    topic = secured.create_topic(f"layers_{compression}_{len(tls)}", 1, 1)
    # What compresses well, what does not, and what is larger than one read.
    bodies = [b"%04d" % number + b"x" * 400 for number in range(600)]
    bodies += [chance.randbytes(size) for size in (1, 1000, 70_000, 300_000)] + [bytes(900_000)]
    assert written_and_read(secured, topic, bodies, compression=compression, **tls) == bodies


def test_a_certificate_of_nobody_we_trust_is_refused(secured: DevCluster) -> None:
    topic = secured.create_topic("untrusted", 1, 1)
    with pytest.raises(
        ConnectError, match=r"TLS with nsqd .* failed.*; if nsqd's .* self-signed .* give tlsCaFile with"
    ):
        opened(secured, topic, tls="true")
    with pytest.raises(ConnectError, match=r"TLS with nsqd .* failed.*; give tlsServerName, the name that"):
        opened(secured, topic, tlsServerName="elsewhere.example", **TLS)
    with pytest.raises(ConfigError, match=r"^tls: tlsKeyFile '/nowhere/key.pem' cannot be used: No such file"):
        opened(secured, topic, tlsCertFile=CA_FILE, tlsKeyFile="/nowhere/key.pem", **TLS)
    opened(secured, topic, tls="true", tlsVerify="false")


def opened(cluster: DevCluster, topic: str, **more: str) -> None:
    access = ReadOptions.parse({"lookupd": cluster.lookupd[0], "topic": topic, **more}).connection
    with BlockingCluster(tuple(cluster.lookupd)) as asked:
        connection = BlockingConnection(asked.view(topic).leaders[0], access)
    try:
        assert connection.open().tls_v1 is (access.tls is not None)
    finally:
        connection.close()


def test_a_server_without_tls_is_named_with_the_remedy(dev_cluster: DevCluster) -> None:
    topic = dev_cluster.create_topic("no_tls", 1)
    with pytest.raises(ConnectError, match="does not offer TLS: turn TLS on at the nsqd, or set tls=false"):
        opened(dev_cluster, topic, **TLS)


# ---------------------------------------------------------------- AUTH


def answers(text: bytes, kind: FrameType = FrameType.RESPONSE) -> bytes:
    return encode_frame(kind, text)


ASKS = answers(b'{"max_rdy_count":2500,"auth_required":true}')
WELCOME = answers(b'{"identity":"spark","permission_count":1}')


@pytest.fixture
def nsqd(request: pytest.FixtureRequest) -> Iterator[ScriptedNsqd]:
    scripted = ScriptedNsqd(request.param)
    yield scripted
    scripted.end()


@pytest.mark.parametrize("nsqd", [[(b"}", ASKS), (b"AUTH\n\x00\x00\x00\x06secret", WELCOME)]], indirect=True)
def test_a_secret_is_given_where_it_is_asked_for(nsqd: ScriptedNsqd) -> None:
    connection = BlockingConnection(nsqd.node, ConnectionOptions(auth_secret="secret"))
    try:
        assert connection.open().auth_required
    finally:
        connection.close()


@pytest.mark.parametrize("nsqd", [[(b"}", IDENTIFIED)]], indirect=True)
def test_a_secret_is_kept_from_servers_that_do_not_ask(nsqd: ScriptedNsqd) -> None:
    connection = BlockingConnection(nsqd.node, ConnectionOptions(auth_secret="secret"))
    connection.open()
    connection.close()
    nsqd.end()
    assert b"secret" not in nsqd.heard


@pytest.mark.parametrize(
    ("nsqd", "secret", "kind", "said"),
    [
        ([(b"}", ASKS)], None, AuthError, "requires AUTH: set option 'authSecret'"),
        (
            [(b"}", ASKS), (b"AUTH", answers(b"E_AUTH_FAILED no", FrameType.ERROR))],
            "wrong",
            AuthError,
            "E_AUTH_FAILED",
        ),
        ([(b"}", ASKS), (b"AUTH", answers(b"[]"))], "secret", RemoteProtocolError, "AUTH"),
    ],
    indirect=["nsqd"],
    ids=["none", "wrong", "nonsense"],
)
def test_a_refused_secret_is_reported(nsqd: ScriptedNsqd, secret: str | None, kind: type[Exception], said: str) -> None:
    connection = BlockingConnection(nsqd.node, ConnectionOptions(auth_secret=secret))
    with pytest.raises(kind, match=said):
        connection.open()
    connection.close()


@pytest.mark.parametrize("nsqd", [[(b"}", answers(b'{"tls_v1":true}') + answers(b"OK") * 3)]], indirect=True)
def test_plaintext_behind_the_answer_that_agrees_on_tls_ends_the_connection(nsqd: ScriptedNsqd) -> None:
    connection = BlockingConnection(nsqd.node, ConnectionOptions(tls=TlsConfig(verify=False)))
    with pytest.raises(RemoteProtocolError, match="before TLS began"):
        connection.open()
    connection.close()


HALF_A_BLOCK = b"\xff\x06\x00\x00sNaPpY\x01\x09"


@pytest.mark.parametrize("nsqd", [[(b"}", answers(b'{"snappy":true}') + HALF_A_BLOCK)]], indirect=True)
def test_half_a_compressed_block_is_waited_for_within_the_limit(
    nsqd: ScriptedNsqd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT", 0.3)
    connection = BlockingConnection(nsqd.node, ConnectionOptions(compression=Compression.SNAPPY))
    with pytest.raises(ResponseTimeoutError, match="sent nothing in time"):
        connection.open()
    connection.close()


def test_empty_compressed_blocks_end_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = BlockingConnection(Node("127.0.0.1", 4150, 1), ConnectionOptions(compression=Compression.DEFLATE))
    began = time.monotonic()

    def receive(_wire: object, _wait: float) -> bytes:
        assert time.monotonic() - began < 5.0
        return b"\x00\x00\x00\xff\xff"  # a stored block without a byte

    monkeypatch.setattr(connection_module.Wire, "receive", receive)
    monkeypatch.setattr(connection, "_codec", DeflateCodec())
    with pytest.raises(ResponseTimeoutError, match="sent only parts of compressed data in time"):
        connection.read(began + 0.2)


class TestLimitedTls:
    """An nsqd that cannot write to a TLS connection for ever, as the partitioned one."""

    LIMIT = 1.5

    @pytest.fixture
    def limited(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[DevCluster]:
        monkeypatch.setattr(tls_renewal, "WRITES_FOR", self.LIMIT)
        tls = server_context()
        with DevCluster(nsqds=1, nsqlookupds=1, tls=tls, time_scale=0.02, tls_write_deadline=self.LIMIT) as cluster:
            yield cluster

    def test_a_task_that_takes_longer_goes_on_over_other_connections(self, limited: DevCluster) -> None:
        topic = limited.create_topic("limited", 1, 1)
        given = {"lookupd": limited.lookupd[0], "topic": topic, **TLS}
        bodies = [b"%04d" % number for number in range(900)]
        with BlockingCluster(tuple(limited.lookupd)) as asked:
            writer = PartitionWriter(topic, 0, WriteOptions.parse({**given, "publishTimeout": "20s"}), asked)
            try:
                for batch in batches(topic, bodies, 300):
                    writer.send(batch)
                    writer.settle()
                    time.sleep(self.LIMIT)  # as a task that prepares its next rows
            finally:
                writer.close()
            assert (writer.written.rows, writer.written.doubtful) == (len(bodies), 0)
            options = dataclasses.replace(ReadOptions.parse(given), arrow_batch_rows=300)
            (part,) = plan(options, asked)
            reader = RangeReader(part, options, asked)
            found = []
            for rows in delivered(reader):
                found += [row.body for row in rows]
                time.sleep(self.LIMIT)  # as a task that works on its rows
        assert found == bodies
        assert reader.opened > 1

    def test_a_wait_ends_with_the_time_of_the_connection(self, limited: DevCluster) -> None:
        given = {"lookupd": limited.lookupd[0], "topic": "limited", **TLS}
        link = BlockingConnection(_node(limited), ReadOptions.parse(given).connection)
        link.open()
        assert not link.is_late
        with pytest.raises(ConnectionExpiredError, match="can no longer write"):
            link.receive(time.monotonic() + 30.0)
        assert link.is_late
        with pytest.raises(ConnectionExpiredError):
            link.receive(time.monotonic() + 30.0)
        link.close()


def _node(cluster: DevCluster) -> Node:
    host, _, port = next(iter(cluster.nsqds.values())).rpartition(":")
    return Node(host, int(port), 1)


# ---------------------------------------------------------------- slow networks


@pytest.mark.parametrize(("limit", "is_tls"), [(10.0, False), (10.0, True), (0.5, False)])
def test_a_large_batch_may_take_long_as_long_as_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, limit: float, *, is_tls: bool
) -> None:
    """Connecting and sending all of it had the same limit: on a slow network each attempt failed, and was in doubt."""
    monkeypatch.setattr(connection_module, "CONNECT_TIMEOUT", 0.4)
    monkeypatch.setattr(connection_module, "_SEND_TIMEOUT", limit)
    data, received = random.Random(7).randbytes(1 << 20), bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        wire = Wire("127.0.0.1", server.getsockname()[1], "nsqd")
        wire.connect()
        ours = wire._connected()  # noqa: SLF001 - a system may take all of it at once
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
        accepted, _ = server.accept()
        taken = server_context().wrap_socket(accepted, True, do_handshake_on_connect=False) if is_tls else accepted

        def read_slowly() -> None:
            while len(received) < len(data) and (part := taken.recv(1 << 15)):
                received.extend(part)
                threading.Event().wait(len(part) / 400_000)  # what the test is about

        reading = threading.Thread(target=read_slowly, daemon=True)
        reading.start()
        if is_tls:
            wire.start_tls(ssl.create_default_context(cafile=CA_FILE), "localhost")
        try:
            if limit > 1.0:
                wire.send(data)
                reading.join(10.0)  # closing with unread data, as of TLS, would lose what is on its way
            else:
                with pytest.raises(ConnectionLostError, match="bytes were not sent in time"):
                    wire.send(data)
        finally:
            wire.close()
            reading.join(10.0)
            taken.close()
    assert (received == data) is (limit > 1.0)
