"""What a peer may do wrong, and what that ends."""

import struct
from collections.abc import Callable

import pytest

from nsq_ha.errors import (
    SERVER_ERRORS,
    RemoteProtocolError,
)
from nsq_ha.protocol import ClientProtocol, Command, Layout, Pub, Received, Sub
from nsq_ha.protocol.commands import Auth
from nsq_ha.protocol.frames import FrameDecoder
from nsq_ha.protocol.refusals import PUBLISH_REFUSALS, read_error, refuses_publish
from nsq_ha.protocol.state import ConnectionState
from tests.protocol.fakes import (
    HEARTBEAT_FRAME,
    LARGEST,
    OK_FRAME,
    SOURCE,
    delivery,
    error,
    identified,
    message_frame,
    response,
    subscribed,
    summary,
)


def answers(received: Received) -> list[str]:
    return [answer.decode() if isinstance(answer, bytes) else str(answer) for answer in received.answers]


@pytest.mark.parametrize(
    ("request_of", "answer"),
    [
        (Pub("t", 0, b"a"), b""),
        (Pub("t", 0, b"a"), b"KO"),
        (Pub("t", 0, b"a"), b"OK "),
        (Pub("t", 0, b"a"), b"OK" + bytes(27)),
        (Pub("t", 0, b"a"), b"NO" + bytes(28)),
        (Pub("t", 0, b"a"), b"CLOSE_WAIT"),
        (Sub("t", "c", 0), b""),
        (Sub("t", "c", 0), b"OK" + bytes(28)),
        (Auth(b"s"), b"OK"),
        (Auth(b"s"), b""),
        (None, b"OK"),
        (None, b"CLOSE_WAIT"),
        (None, b""),
    ],
)
def test_an_answer_that_does_not_fit_ends_the_connection(request_of: Command | None, answer: bytes) -> None:
    protocol = identified()
    if isinstance(request_of, Sub):
        protocol.subscribe_to(SOURCE, Layout.PLAIN)
    if request_of is not None:
        protocol.send(request_of)
    with pytest.raises(RemoteProtocolError, match=r"is not an answer to|answers no request"):
        protocol.receive(response(answer))
    assert protocol.state is ConnectionState.CLOSED


def test_two_answers_to_one_command() -> None:
    protocol = identified()
    protocol.send(Pub("t", 0, b"a"))
    with pytest.raises(RemoteProtocolError, match="answers no request"):
        protocol.receive(OK_FRAME * 2)
    assert answers(protocol.received) == ["OK"]


@pytest.mark.parametrize("expected", [1, 20, 33, 64])
def test_a_run_of_answers_ends_where_the_requests_end(expected: int) -> None:
    protocol = identified()
    protocol.expect_publish(expected)
    with pytest.raises(RemoteProtocolError, match="answers no request"):
        protocol.receive(OK_FRAME * 100)
    assert (len(protocol.received.answers), protocol.awaiting) == (expected, 0)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (error(b"E_INVALID what"), "unexpected error frame 'E_INVALID what'"),
        (error(b"E_FIN_FAILED x"), "unexpected error frame 'E_FIN_FAILED x'"),
        (error(b""), "nsqd sent an empty error frame"),
        (message_frame(bytes(30)), "nsqd sent a message on a connection that is not subscribed"),
    ],
)
def test_what_a_producer_never_gets(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        identified().receive(data)


@pytest.mark.parametrize("size", [0, 1, 2, 3, -1, -(2**31), LARGEST + 1, 2**28, 2**31 - 1])
@pytest.mark.parametrize("make", [identified, subscribed])
def test_a_size_is_judged_before_anything_is_reserved(make: Callable[[], ClientProtocol], size: int) -> None:
    head = struct.pack(">i", size)
    for rest in (b"", b"\0\0", b"\0\0\0\2", bytes(200)):
        with pytest.raises(RemoteProtocolError, match=f"frame announces {size} bytes"):
            make().receive(head + rest)


@pytest.mark.parametrize(
    ("data", "port"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "this is an HTTP port"),
        (b"\x15\x03\x03\x00\x02\x02\x28" + bytes(20), "this is an HTTPS port"),
        (b"\x15\x03\x01\x00\x02\x02\x28", "this is an HTTPS port"),
        (b"\0\0\0\x0eE_BAD_PROTOCOL", "the TCP port of an nsqlookupd"),
    ],
)
def test_the_port_of_another_server_is_recognised(data: bytes, port: str) -> None:
    with pytest.raises(RemoteProtocolError, match=port):
        identified().receive(data)
    with pytest.raises(RemoteProtocolError, match=port):
        FrameDecoder(max_frame_bytes=1024).feed(data)


@pytest.mark.parametrize("kind", [-1, 3, 2**31 - 1, -(2**31)])
def test_an_unknown_type_is_refused_before_its_data_comes(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"frame type {kind} is unknown"):
        subscribed().receive(struct.pack(">ii", 1000, kind))


def test_a_frame_of_just_the_limit_is_taken() -> None:
    frame = delivery(bytes(LARGEST - 30))
    assert len(frame) == LARGEST + 4
    [got] = subscribed().receive(frame).messages
    assert len(got.body) == LARGEST - 30


def test_what_came_before_a_fault_is_good() -> None:
    protocol = subscribed()
    with pytest.raises(RemoteProtocolError):
        protocol.receive(delivery(b"first") + HEARTBEAT_FRAME + b"\0\0\0\0")
    assert [got.body for got in protocol.received.messages] == [b"first"]
    assert protocol.received.heartbeats == 1
    # The fault is told once.
    assert summary([protocol.receive(b"\0\0\0\0")]) == ([], [], [], [], [0])


def test_a_large_error_text_is_cut_and_need_not_be_text() -> None:
    protocol = identified()
    protocol.expect_publish()
    [answer] = protocol.receive(error(b"E_INVALID " + b"\xff" * (LARGEST - 100))).answers
    assert not isinstance(answer, bytes)
    assert answer.code == "E_INVALID"
    assert 4000 < len(answer.detail) < 4100


def test_a_false_size_swallows_heartbeats_and_they_are_counted() -> None:
    protocol = identified()
    protocol.receive(HEARTBEAT_FRAME)
    assert protocol.swallowed_heartbeats() == 0
    protocol.receive(b"\0\0\1\0\0\0\0\0" + HEARTBEAT_FRAME[:9])
    assert protocol.swallowed_heartbeats() == 0
    protocol.receive(HEARTBEAT_FRAME[9:] + HEARTBEAT_FRAME)
    assert protocol.swallowed_heartbeats() == 2


@pytest.mark.parametrize(
    ("text", "refuses"),
    [
        (b"E_FAILED_ON_NOT_LEADER ", True),
        (b"E_MPUB_FAILED exiting", True),
        (b"E_MPUB_FAILED MPUB failed exiting", True),
        (b"E_MPUB_FAILED MPUB failed write /data/orders.diskqueue.000000.dat: no space left on device", False),
        (b"E_DPUB_FAILED DPUB failed exiting", True),
        (b"too much client connections: 10", True),
        (b"E_UNAUTHORIZED AUTH failed", True),
        (b"E_SOMETHING_NEW of a later server", False),
        (b"E_SUB_ORDER_IS_MUST ", False),
        (b"E_FIN_FAILED FIN", False),
        (b" E_PUB_FAILED behind a blank", False),
    ],
)
def test_only_some_errors_say_that_a_publish_was_not_stored(text: bytes, refuses: bool) -> None:
    assert refuses_publish(read_error(text)) is refuses


def test_what_refuses_a_publish_is_a_known_code() -> None:
    assert SERVER_ERRORS.keys() >= PUBLISH_REFUSALS
