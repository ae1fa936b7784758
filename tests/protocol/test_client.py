"""One client connection: whose answer is whose, where layers end, what ends it all."""

import pytest

from nsq_ha.errors import (
    ConfigError,
    LocalProtocolError,
    NotInFlightError,
    NotLeaderError,
    RemoteProtocolError,
)
from nsq_ha.protocol import (
    ClientProtocol,
    Close,
    Command,
    Finish,
    Layout,
    Mpub,
    Pub,
    Ready,
    Received,
    Requeue,
    Sub,
    Touch,
)
from nsq_ha.protocol.commands import Auth, Identify, Nop, PubTrace
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.state import ConnectionState
from tests.protocol.fakes import (
    HEARTBEAT_FRAME,
    ID,
    LARGEST,
    NOT_LEADER,
    OK_FRAME,
    SOURCE,
    TRACED_FRAME,
    delivery,
    error,
    identified,
    response,
    subscribed,
    summary,
)


def answers(received: Received) -> list[str]:
    return [answer.decode() if isinstance(answer, bytes) else str(answer) for answer in received.answers]


def refusals(received: Received) -> list[str]:
    return [str(refusal) for refusal in received.refusals]


# ---------------------------------------------------------------- the beginning


def test_the_magic_stands_before_the_first_command() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    assert protocol.send(Identify(b"{}")) == MAGIC + b"IDENTIFY\n\0\0\0\2{}"
    assert (protocol.state, protocol.awaiting) == (ConnectionState.IDENTIFYING, 1)
    assert answers(protocol.receive(response(b'{"max_rdy_count":1}'))) == ['{"max_rdy_count":1}']
    assert (protocol.state, protocol.awaiting) == (ConnectionState.READY, 0)


def test_no_publish_is_expected_before_identify() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    with pytest.raises(LocalProtocolError, match="cannot be sent before IDENTIFY"):
        protocol.expect_publish()
    assert (protocol.state, protocol.awaiting) == (ConnectionState.NEW, 0)


@pytest.mark.parametrize("command", [Nop(), Pub("t", 0, b"a"), Sub("t", "c", 0), Auth(b"s"), Ready(1)])
def test_nothing_comes_before_identify(command: Command) -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    with pytest.raises(LocalProtocolError, match="cannot be sent before IDENTIFY"):
        protocol.send(command)
    assert (protocol.state, protocol.awaiting) == (ConnectionState.NEW, 0)


def test_a_command_that_cannot_be_encoded_is_not_noted() -> None:
    protocol = identified()
    with pytest.raises(ConfigError):
        protocol.send(Pub("a b", 0, b"a"))
    assert (protocol.state, protocol.awaiting) == (ConnectionState.READY, 0)


def test_a_subscription_wants_its_source_first() -> None:
    protocol = identified()
    with pytest.raises(LocalProtocolError, match="subscribe_to"):
        protocol.send(Sub("t", "c", 0))
    assert protocol.state is ConnectionState.READY
    with pytest.raises(LocalProtocolError, match="SUB cannot be sent"):
        subscribed().subscribe_to(SOURCE, Layout.PLAIN)


def test_the_buffer_of_an_answer_may_be_reused() -> None:
    protocol = ClientProtocol(max_frame_bytes=1024)
    protocol.send(Identify(b"{}"))
    buffer = bytearray(OK_FRAME)
    received = protocol.receive(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert received.answers == [b"OK"]


def test_authentication_and_upgrades_wait_for_earlier_answers() -> None:
    protocol = identified()
    protocol.send(Pub("t", 0, b"a"))
    with pytest.raises(LocalProtocolError, match="must be answered first"):
        protocol.send(Auth(b"secret"))
    with pytest.raises(LocalProtocolError, match="must be answered first"):
        protocol.expect_upgrade("tls")
    assert (protocol.state, protocol.awaiting) == (ConnectionState.READY, 1)


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (Auth(b"s"), b"E_AUTH_FAILED AUTH failed"),
        (Sub("t", "c", 0), b"E_TOPIC_NOT_EXIST "),
    ],
)
def test_a_refused_beginning_is_the_end(command: Command, refused: bytes) -> None:
    protocol = identified()
    if isinstance(command, Sub):
        protocol.subscribe_to(SOURCE, Layout.PLAIN)
    protocol.send(command)
    received = protocol.receive(error(refused) + HEARTBEAT_FRAME)
    (answer,) = answers(received)
    assert answer.startswith(refused.decode().strip())
    assert (protocol.state, protocol.awaiting, received.heartbeats) == (ConnectionState.CLOSED, 0, 0)
    # What still comes is ignored; nothing may be sent.
    assert summary([protocol.receive(OK_FRAME)]) == ([], [], [], [], [0])
    with pytest.raises(LocalProtocolError, match="after the end of the connection"):
        protocol.send(Nop())


# ---------------------------------------------------------------- layers


@pytest.mark.parametrize("late", [False, True], ids=["in the same read", "in a later read"])
@pytest.mark.parametrize("injected", [OK_FRAME * 11, HEARTBEAT_FRAME, b"\x00", b"\x16\x03\x03"])
def test_nothing_that_came_before_tls_is_read_as_if_it_had_come_inside(injected: bytes, late: bool) -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    protocol.receive(OK_FRAME if late else OK_FRAME + injected)
    if late:
        protocol.receive(injected)
    with pytest.raises(RemoteProtocolError, match=r"before TLS began"):
        protocol.expect_upgrade("tls")
    assert protocol.state is ConnectionState.CLOSED
    assert summary([protocol.receive(OK_FRAME)]) == ([], [], [], [], [0])


def test_an_upgrade_comes_right_behind_the_end_of_a_layer() -> None:
    with pytest.raises(LocalProtocolError, match="neither to IDENTIFY nor to an upgrade"):
        identified().expect_upgrade("snappy")


def test_what_is_held_back_has_a_bound() -> None:
    protocol = ClientProtocol(max_frame_bytes=1024)
    protocol.send(Identify(b"{}"))
    protocol.receive(OK_FRAME)
    protocol.receive(bytes(1024))
    with pytest.raises(RemoteProtocolError, match="before the next layer was set up"):
        protocol.receive(b"x")
    assert protocol.state is ConnectionState.CLOSED


# ---------------------------------------------------------------- whose answer


def test_answers_belong_to_requests_in_their_order() -> None:
    protocol = identified()
    protocol.send(Pub("t", 0, b"a"))
    protocol.send(PubTrace("t", 0, 7, b"b"))
    protocol.send(Mpub("t", 0, (b"c",)))
    assert protocol.awaiting == 3
    received = protocol.receive(OK_FRAME + TRACED_FRAME + NOT_LEADER)
    assert received.answers[:2] == [b"OK", TRACED_FRAME[8:]]
    assert isinstance(received.answers[2], NotLeaderError)
    assert (protocol.awaiting, protocol.state) == (0, ConnectionState.READY)


def test_publishes_that_the_caller_writes_are_counted() -> None:
    protocol = identified()
    protocol.expect_publish(100)
    protocol.expect_publish()
    assert protocol.awaiting == 101
    assert len(protocol.receive(OK_FRAME * 70).answers) == 70
    received = protocol.receive(OK_FRAME * 30 + NOT_LEADER)
    assert answers(received) == ["OK"] * 30 + ["E_FAILED_ON_NOT_LEADER"]
    assert protocol.awaiting == 0


def test_a_heartbeat_never_answers_a_request() -> None:
    protocol = identified()
    protocol.expect_publish(2)
    received = protocol.receive(OK_FRAME + HEARTBEAT_FRAME * 3)
    assert (answers(received), received.heartbeats, protocol.awaiting) == (["OK"], 3, 1)


def test_a_lone_heartbeat_of_an_idle_subscription_leaves_nothing() -> None:
    protocol = subscribed()
    assert [protocol.receive(data).heartbeats for data in (HEARTBEAT_FRAME, memoryview(HEARTBEAT_FRAME))] == [1, 1]
    assert protocol.state is ConnectionState.SUBSCRIBED
    assert len(protocol.receive(delivery()).messages) == 1


def test_a_heartbeat_inside_a_body_is_none() -> None:
    protocol = subscribed()
    frame = delivery(body=HEARTBEAT_FRAME)
    protocol.receive(frame[: -len(HEARTBEAT_FRAME)])
    received = protocol.receive(HEARTBEAT_FRAME)
    assert (received.heartbeats, [bytes(message.body) for message in received.messages]) == (0, [HEARTBEAT_FRAME])


@pytest.mark.parametrize("code", [b"E_FIN_FAILED", b"E_REQ_FAILED", b"E_TOUCH_FAILED"])
def test_a_failed_fin_req_or_touch_never_answers_a_request(code: bytes) -> None:
    protocol = subscribed()
    protocol.send(Pub("t", 0, b"a"))
    received = protocol.receive(error(code + b" FIN [0 0] failed") + OK_FRAME)
    assert refusals(received) == [code.decode() + " FIN [0 0] failed"]
    assert isinstance(received.refusals[0], NotInFlightError)
    assert (answers(received), protocol.awaiting) == (["OK"], 0)


def test_an_error_without_a_request_on_a_consumer_is_a_refusal() -> None:
    protocol = subscribed()
    received = protocol.receive(NOT_LEADER)
    assert (answers(received), refusals(received)) == ([], ["E_FAILED_ON_NOT_LEADER"])
    assert protocol.state is ConnectionState.SUBSCRIBED


def test_closing_a_consumer() -> None:
    protocol = subscribed()
    for command in (Ready(5), Finish(ID), Requeue(ID, 0), Touch(ID), Nop()):
        assert protocol.send(command) == command.encode()
    assert protocol.awaiting == 0
    protocol.send(Close())
    received = protocol.receive(delivery() + response(b"CLOSE_WAIT"))
    assert (len(received.messages), answers(received)) == (1, ["CLOSE_WAIT"])
    assert protocol.state is ConnectionState.DRAINING
    assert protocol.send(Finish(ID)) == Finish(ID).encode()
    with pytest.raises(LocalProtocolError):
        protocol.send(Close())
