"""The wire log: what it shows of a connection, and that it does nothing while it is off."""

import logging

import pytest

from nsq_ha import ClientConfig
from nsq_ha.engine.connection import Connection
from nsq_ha.protocol import Identity, Pub
from nsq_ha.protocol.commands import Auth
from nsq_ha.protocol.encoding import encode_pub
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
    assert shown[0].startswith("> IDENTIFY and ")
    assert shown[1].endswith(" bytes of the handshake")
    assert shown[2:] == [
        "> SUB_ADVANCED orders ch 0",
        "< response b'OK'",
        "> RDY 5",
        "> NOP",
        f"< message {'0' * 15}2{'0' * 16}, attempt 1: 5 bytes",
        "< heartbeat",
        "> NOP",
    ]


async def test_clients_name_the_connection_that_they_use(wire: pytest.LogCaptureFixture) -> None:
    wire.set_level(logging.DEBUG, logger="nsq_ha")
    async with Stage() as stage, stage.consumer(), stage.producer() as producer:
        await producer.publish(TOPIC, b"x", key="k")
    for said, sent in (("subscribed to orders-0 over ", "SUB_ADVANCED"), ("orders-0: connected over ", "PUB")):
        (name,) = [message.removeprefix(said) for message in wire.messages if message.startswith(said)]
        assert sent in [line.removeprefix("> ").split()[0] for line in lines(wire, name)]


async def test_no_line_has_a_control_character_or_a_body(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture) -> None:
    async with subscribed(nsqd) as link:
        link.connection.write_now(b"FIN \x1b[2J\x85\xff" + bytes(9) + b"\nFIN more")
        link.peer.write(error("E_FIN_FAILED \x1b[31mred\x85\n"))
        link.peer.message(b"a body\n")
        await link.recorder.until(lambda: link.recorder.messages and link.recorder.refusals)
    shown = lines(wire, link.connection.name)
    assert all(line.isprintable() for line in shown)
    assert r"> FIN \x1b[2J\x85\xff" + r"\x00" * 9 + " and 8 bytes" in shown
    assert any(line.startswith(r"< error E_FIN_FAILED \x1b[31mred") for line in shown)
    assert "a body" not in wire.text


@pytest.mark.parametrize("answer", [None, error(f"E_AUTH_FAILED {SECRET}"), error("E_AUTH_FAILED open+sesame+4711")])
async def test_no_secret_is_shown(nsqd: FakeNsqd, wire: pytest.LogCaptureFixture, answer: bytes | None) -> None:
    wire.set_level(logging.DEBUG)
    nsqd.identity = Identity(auth_required=True, version=f"1.0 {SECRET}")
    if answer is not None:
        nsqd.script = instead(Auth, answer)
        with pytest.raises(Exception, match="E_AUTH_FAILED"):
            await Connection.open(ClientConfig(auth_secret=SECRET), nsqd.node, Recorder().callbacks)
    else:
        async with linked(nsqd, ClientConfig(auth_secret=SECRET)) as link:
            link.connection.write_publishes(encode_pub("orders", 0, f"know {SECRET}".encode()), 1)
            await nsqd.until(lambda: link.peer.of(Pub))
    assert "> AUTH and 20 bytes" in wire.text
    assert "4711" not in wire.text
