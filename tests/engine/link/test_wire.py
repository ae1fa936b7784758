"""The wire log: what it shows of a connection, and that it does nothing while it is off."""

import logging
import sys

import pytest

from nsq_ha import ClientConfig, Compression, TlsConfig
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.errors import ConnectError
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Identity, Pub
from nsq_ha.protocol.commands import Auth
from nsq_ha.protocol.encoding import encode_pub
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import FakeNsqd, error, instead, response
from tests.support.recorder import Recorder, linked, subscribed
from tests.support.stage import TOPIC, Stage

SECRET = "open sesame 4711"


@pytest.fixture
def wire(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="nsq_ha.wire")
    return caplog


def lines(wire: pytest.LogCaptureFixture, name: str) -> list[str]:
    """Return the lines of one connection, without its name."""
    found = [record.getMessage() for record in wire.records if record.name == "nsq_ha.wire"]
    assert all(line.startswith("c") and line.isprintable() for line in found)
    return [line.removeprefix(f"{name} ") for line in found if line.startswith(f"{name} ")]


async def test_a_connection_from_its_beginning_to_its_end(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture) -> None:
    async with subscribed(nsqd) as link:
        link.connection.write(b"RDY 5\n")
        link.connection.write_now(b"NOP\n")
        await nsqd.until(lambda: link.peer.ready == 5)
        link.peer.message(b"paid\n")
        await link.recorder.until(lambda: link.recorder.messages)
        link.peer.write(response(b"_heartbeat_"))
        await nsqd.until(lambda: link.peer.nops == 2)
        link.connection.close()
        await link.lost()
    shown = lines(wire, link.connection.name)
    assert shown[:2] == [": connecting", ": connected"]
    assert shown[2].startswith("> IDENTIFY b'{")
    assert shown[3:6:2] == [": NEW -> IDENTIFYING", ": IDENTIFYING -> READY"]
    assert shown[4].startswith("< response b'{")
    assert shown[6:16] == [
        "> SUB_ADVANCED orders ch 0",
        ": READY -> SUBSCRIBING",
        "< response b'OK'",
        ": SUBSCRIBING -> SUBSCRIBED",
        "> RDY 5",
        "> NOP",
        rf"< message {'0' * 15}2{'0' * 16}, attempt 1: 5 bytes b'paid\n'",
        "< heartbeat",
        "> NOP",
        ": closing",
    ]
    assert shown[16:18] == [": SUBSCRIBED -> CLOSED", ": ended: closed by this client"]


async def test_every_connection_has_an_id(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture) -> None:
    wire.set_level(logging.DEBUG, logger="nsq_ha.connection")
    async with linked(nsqd) as one, linked(nsqd) as other:
        assert one.connection.name != other.connection.name
        assert one.connection.name.endswith(f" {nsqd.node.address}")
        for link in (one, other):
            link.connection.write_publishes(encode_pub("orders", 0, b"x"), 1)
            await link.recorder.until(lambda: link.recorder.answers)  # noqa: B023 - awaited here
    for link in (one, other):
        assert lines(wire, link.connection.name).count("> PUB orders 0: 1 bytes b'x'") == 1
        assert f"{link.connection.name}: connection ended: the test is over" in wire.text


async def test_clients_name_the_connection_that_they_use(wire: pytest.LogCaptureFixture) -> None:
    wire.set_level(logging.DEBUG, logger="nsq_ha")
    async with Stage() as stage, stage.consumer(), stage.producer() as producer:
        await producer.publish(TOPIC, b"x", key="k")
    for said, sent in (("subscribed to orders-0 over ", "SUB_ADVANCED"), ("orders-0: connected over ", "PUB")):
        (name,) = [message.removeprefix(said) for message in wire.messages if message.startswith(said)]
        assert sent in [line.removeprefix("> ").split()[0] for line in lines(wire, name)]


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.DEFLATE])
async def test_it_shows_what_is_inside_the_layers(
    nsqd: FakeNsqd, compression: Compression, wire: pytest.LogCaptureFixture
) -> None:
    # The scripted nsqd cannot compress: what it is sent after the answer is enough here.
    snappy = compression is Compression.SNAPPY
    nsqd.identity = Identity(snappy=snappy, deflate=not snappy)
    with pytest.raises(ConnectError):
        await Connection.open(
            ClientConfig(compression=compression, connect_timeout=0.1), nsqd.node, Recorder().callbacks
        )
    assert f": starting {'Snappy' if snappy else 'Deflate'}Codec" in wire.text
    assert ": IDENTIFYING -> UPGRADING" in wire.text


async def test_it_shows_tls(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture) -> None:
    nsqd.tls = server_context()
    async with linked(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE))) as link:
        link.connection.write_publishes(encode_pub("orders", 0, b"paid"), 1)
        await link.recorder.until(lambda: link.recorder.answers)
    shown = lines(wire, link.connection.name)
    began = shown.index(": starting TLS")
    assert shown[began - 1 : began + 6] == [
        ": IDENTIFYING -> UPGRADING",
        ": starting TLS",
        ": TLS started",
        "< response b'OK'",
        ": UPGRADING -> READY",
        "> PUB orders 0: 4 bytes b'paid'",
        "< response b'OK'",
    ]


async def test_a_failed_attempt_is_shown(wire: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConnectError):
        await Connection.open(ClientConfig(), Node("127.0.0.1", 1, 0), Recorder().callbacks)
    assert ": not connected: cannot connect to 127.0.0.1:1" in wire.text


@pytest.mark.parametrize("answer", [None, error(f"E_AUTH_FAILED {SECRET}"), error("E_AUTH_FAILED open+sesame+4711")])
async def test_no_secret_is_shown(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture, answer: bytes | None) -> None:
    wire.set_level(logging.DEBUG)
    nsqd.identity = Identity(auth_required=True, version=f"1.0 {SECRET}")
    if answer is not None:
        nsqd.script = instead(Auth, answer)
        with pytest.raises(Exception, match="not shown"):
            await Connection.open(ClientConfig(auth_secret=SECRET), nsqd.node, Recorder().callbacks)
    else:
        async with linked(nsqd, ClientConfig(auth_secret=SECRET)) as link:
            link.connection.write_publishes(encode_pub("orders", 0, f"know {SECRET}".encode()), 1)
            await nsqd.until(lambda: link.peer.of(Pub))
    assert "> AUTH, the secret is not shown" in wire.text
    assert "4711" not in wire.text


async def test_while_it_is_off_nothing_of_it_is_loaded(
    nsqd: FakeNsqd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nsq_ha.engine.wire", None)
    caplog.set_level(logging.INFO, logger="nsq_ha.wire")
    async with linked(nsqd) as link:
        assert type(link.connection._stream) is TcpStream
