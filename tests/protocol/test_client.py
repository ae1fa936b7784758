"""One client connection: whose answer is whose, where layers end, what ends it all."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_ha.errors import (
    ConfigError,
    LocalProtocolError,
    NotInFlightError,
    NotLeaderError,
    RemoteProtocolError,
    TopicNotExistError,
)
from nsq_ha.protocol import (
    MAGIC,
    Auth,
    ClientProtocol,
    Close,
    Command,
    DamagedMessage,
    DeflateCodec,
    Finish,
    Identify,
    InternalCreateTopic,
    Layout,
    Mpub,
    Nop,
    Pub,
    PubTrace,
    Ready,
    Received,
    Request,
    Requeue,
    State,
    Sub,
    SubAdvanced,
    SubOrdered,
    Touch,
    Traced,
    encode_traced,
)
from tests.protocol.fakes import (
    HEARTBEAT_FRAME,
    ID,
    LARGEST,
    OK_FRAME,
    SOURCE,
    delivery,
    error,
    identified,
    message,
    message_frame,
    response,
    seen,
    subscribed,
    summary,
)

TRACED_FRAME = response(encode_traced(Traced(1, 2, 3, 4)))
NOT_LEADER = error(b"E_FAILED_ON_NOT_LEADER ")


def answers(received: Received) -> list[str]:
    return [answer.decode() if isinstance(answer, bytes) else str(answer) for answer in received.answers]


def refusals(received: Received) -> list[str]:
    return [str(refusal) for refusal in received.refusals]


# ---------------------------------------------------------------- the beginning


def test_the_magic_stands_before_the_first_command() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    assert protocol.send(Identify(b"{}")) == MAGIC + b"IDENTIFY\n\0\0\0\2{}"
    assert (protocol.state, protocol.awaiting) == (State.IDENTIFYING, 1)
    assert answers(protocol.receive(response(b'{"max_rdy_count":1}'))) == ['{"max_rdy_count":1}']
    assert (protocol.state, protocol.awaiting) == (State.READY, 0)


@pytest.mark.parametrize("command", [Nop(), Pub("t", 0, b"a"), Sub("t", "c", 0), Auth(b"s"), Ready(1)])
def test_nothing_comes_before_identify(command: Command) -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    with pytest.raises(LocalProtocolError, match="not allowed while NEW"):
        protocol.send(command)
    assert (protocol.state, protocol.awaiting) == (State.NEW, 0)


def test_a_command_that_cannot_be_encoded_is_not_noted() -> None:
    protocol = identified()
    with pytest.raises(ConfigError):
        protocol.send(Pub("a b", 0, b"a"))
    assert (protocol.state, protocol.awaiting) == (State.READY, 0)


def test_a_command_of_the_server_alone_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="InternalCreateTopic is no command of a client"):
        identified().send(InternalCreateTopic("t", 0))


def test_a_subscription_wants_its_source_first() -> None:
    protocol = identified()
    with pytest.raises(LocalProtocolError, match="subscribe_to"):
        protocol.send(Sub("t", "c", 0))
    assert protocol.state is State.READY
    with pytest.raises(LocalProtocolError, match="SEND_SUBSCRIBE"):
        subscribed().subscribe_to(SOURCE, Layout.PLAIN)


@pytest.mark.parametrize("command", [Sub("t", "c", 0), SubOrdered("t", "c", 0), SubAdvanced("t", "c", 0)])
def test_every_kind_of_subscription_waits_for_its_ok(command: Command) -> None:
    protocol = identified()
    protocol.subscribe_to(SOURCE, Layout.PLAIN)
    assert protocol.send(command) == command.encode()
    assert protocol.state is State.SUBSCRIBING
    with pytest.raises(RemoteProtocolError, match="RECV_MESSAGE is not allowed while SUBSCRIBING"):
        protocol.receive(delivery())


def test_authentication() -> None:
    protocol = identified()
    protocol.send(Auth(b"secret"))
    assert protocol.awaiting == 1
    assert answers(protocol.receive(response(b'{"identity":"me"}'))) == ['{"identity":"me"}']
    assert protocol.state is State.READY


def test_authentication_and_upgrades_wait_for_earlier_answers() -> None:
    protocol = identified()
    protocol.send(Pub("t", 0, b"a"))
    with pytest.raises(LocalProtocolError, match="must be answered first"):
        protocol.send(Auth(b"secret"))
    with pytest.raises(LocalProtocolError, match="must be answered first"):
        protocol.expect_upgrade()
    assert (protocol.state, protocol.awaiting) == (State.READY, 1)


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
    assert answers(received) == [refused.decode().strip()]
    assert (protocol.state, protocol.awaiting, received.heartbeats) == (State.CLOSED, 0, 0)
    # What still comes is ignored; nothing may be sent.
    assert summary([protocol.receive(OK_FRAME)]) == ([], [], [], [], [0])
    with pytest.raises(LocalProtocolError, match="while CLOSED"):
        protocol.send(Nop())


def test_an_error_can_be_the_answer_to_identify() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    assert answers(protocol.receive(error(b"too much client connections"))) == ["too much client connections"]
    assert protocol.state is State.CLOSED


# ---------------------------------------------------------------- layers


def test_bytes_after_the_identify_answer_belong_to_the_next_layer() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    received = protocol.receive(OK_FRAME + b"\x16\x03\x01 no frame at all")
    assert answers(received) == ["OK"]
    assert summary([protocol.receive(b" nor this")]) == ([], [], [], [], [0])
    assert protocol.take_trailing() == b"\x16\x03\x01 no frame at all nor this"
    assert protocol.receive(HEARTBEAT_FRAME).heartbeats == 1


def test_without_a_layer_what_follows_is_read_as_it_is() -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    protocol.receive(OK_FRAME + HEARTBEAT_FRAME + OK_FRAME[:3])
    assert protocol.receive(protocol.take_trailing()).heartbeats == 1
    protocol.send(Pub("t", 0, b"a"))
    assert answers(protocol.receive(OK_FRAME[3:])) == ["OK"]


def test_each_upgrade_is_confirmed_inside_its_layer() -> None:
    protocol = identified()
    protocol.expect_upgrade()  # TLS
    codec = DeflateCodec()
    server = DeflateCodec()
    received = protocol.receive(OK_FRAME + server.compress(OK_FRAME + HEARTBEAT_FRAME))
    assert (answers(received), protocol.state) == (["OK"], State.READY)
    trailing = protocol.take_trailing()
    protocol.expect_upgrade()  # deflate inside it
    assert answers(protocol.receive(codec.decompress(trailing))) == ["OK"]
    assert protocol.receive(protocol.take_trailing()).heartbeats == 1
    assert protocol.awaiting == 0


def test_an_upgrade_is_confirmed_by_ok_alone() -> None:
    protocol = identified()
    protocol.expect_upgrade()
    with pytest.raises(RemoteProtocolError, match="no answer to UPGRADE"):
        protocol.receive(response(b'{"identity":1}'))


def test_nothing_is_held_back_while_no_layer_ends() -> None:
    with pytest.raises(LocalProtocolError, match="nothing is held back"):
        identified().take_trailing()


def test_what_is_held_back_has_a_bound() -> None:
    protocol = ClientProtocol(max_frame_bytes=1024)
    protocol.send(Identify(b"{}"))
    protocol.receive(OK_FRAME)
    protocol.receive(bytes(1024))
    with pytest.raises(RemoteProtocolError, match="before the next layer was set up"):
        protocol.receive(b"x")
    assert protocol.state is State.CLOSED


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
    assert (protocol.awaiting, protocol.state) == (0, State.READY)


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


def test_a_message_never_answers_a_request() -> None:
    protocol = subscribed()
    protocol.send(Pub("t", 0, b"a"))
    received = protocol.receive(delivery() + OK_FRAME + delivery())
    assert (len(received.messages), answers(received), protocol.awaiting) == (2, ["OK"], 0)


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
    assert protocol.state is State.SUBSCRIBED


def test_an_error_to_a_publish_leaves_the_rest_in_order() -> None:
    protocol = identified()
    protocol.expect_publish(3)
    received = protocol.receive(OK_FRAME + error(b"E_TOPIC_NOT_EXIST ") + OK_FRAME)
    assert answers(received) == ["OK", "E_TOPIC_NOT_EXIST", "OK"]
    assert isinstance(received.answers[1], TopicNotExistError)


def test_publishing_while_a_subscription_is_outstanding() -> None:
    protocol = identified()
    protocol.expect_publish()
    protocol.subscribe_to(SOURCE, Layout.PLAIN)
    protocol.send(Sub("t", "c", 0))
    protocol.expect_publish()
    received = protocol.receive(OK_FRAME + OK_FRAME + delivery() + OK_FRAME)
    assert (answers(received), len(received.messages)) == (["OK"] * 3, 1)
    assert protocol.state is State.SUBSCRIBED


def test_closing_a_consumer() -> None:
    protocol = subscribed()
    for command in (Ready(5), Finish(ID), Requeue(ID, 0), Touch(ID), Nop()):
        assert protocol.send(command) == command.encode()
    assert protocol.awaiting == 0
    protocol.send(Close())
    received = protocol.receive(delivery() + response(b"CLOSE_WAIT"))
    assert (len(received.messages), answers(received)) == (1, ["CLOSE_WAIT"])
    assert protocol.state is State.DRAINING
    assert protocol.send(Finish(ID)) == Finish(ID).encode()
    with pytest.raises(LocalProtocolError):
        protocol.send(Close())


def test_a_close_that_is_refused_is_the_end() -> None:
    protocol = subscribed()
    protocol.send(Close())
    assert answers(protocol.receive(NOT_LEADER)) == ["E_FAILED_ON_NOT_LEADER"]
    assert protocol.state is State.CLOSED


def test_the_end_of_the_stream_tells_what_was_left_unanswered() -> None:
    protocol = subscribed()
    protocol.expect_publish(2)
    protocol.send(Close())
    protocol.receive(OK_FRAME[:5])
    assert protocol.end_of_stream() == [Request.PUBLISH, Request.PUBLISH, Request.CLOSE]
    assert (protocol.state, protocol.awaiting) == (State.CLOSED, 0)
    assert protocol.end_of_stream() == []


# ---------------------------------------------------------------- what does not fit


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
    with pytest.raises(RemoteProtocolError, match=r"is no answer to|answers no request"):
        protocol.receive(response(answer))
    assert protocol.state is State.CLOSED


@pytest.mark.parametrize("answer", [b"", b"KO", b"[]", b"null", b"OK!", b"CLOSE_WAIT"])
def test_identify_is_answered_by_json_or_ok(answer: bytes) -> None:
    protocol = ClientProtocol(max_frame_bytes=LARGEST)
    protocol.send(Identify(b"{}"))
    with pytest.raises(RemoteProtocolError, match="no answer to IDENTIFY"):
        protocol.receive(response(answer))


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
        (error(b"E_INVALID what"), "'E_INVALID what' came out of place"),
        (error(b"E_FIN_FAILED x"), "'E_FIN_FAILED x' came out of place"),
        (error(b""), "error frame is empty"),
        (message_frame(bytes(30)), "RECV_MESSAGE is not allowed while READY"),
    ],
)
def test_what_a_producer_never_gets(data: bytes, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=text):
        identified().receive(data)


def test_a_closed_wait_that_was_not_asked_for() -> None:
    with pytest.raises(RemoteProtocolError, match="answers no request"):
        subscribed().receive(response(b"CLOSE_WAIT"))


@pytest.mark.parametrize("size", [0, 1, 2, 3, -1, -(2**31), LARGEST + 1, 2**28, 2**31 - 1])
@pytest.mark.parametrize("make", [identified, subscribed])
def test_a_size_is_judged_before_anything_is_reserved(make: Callable[[], ClientProtocol], size: int) -> None:
    head = struct.pack(">i", size)
    for rest in (b"", b"\0\0", b"\0\0\0\2", bytes(200)):
        with pytest.raises(RemoteProtocolError, match=f"frame announces {size} bytes"):
            make().receive(head + rest)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x03\x00\x02\x02\x28" + bytes(20)])
def test_other_protocols_are_told_by_their_size(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="more than the limit"):
        identified().receive(data)


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


def test_thousands_of_heartbeats() -> None:
    assert identified().receive(HEARTBEAT_FRAME * 10_000).heartbeats == 10_000


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("ext", [None, b"", b'{"k":"v"}', b"\n" * 300])
def test_a_message_of_each_layout(layout: Layout, ext: bytes | None) -> None:
    received = subscribed(layout).receive(delivery(b"first", layout, ext=ext) + delivery(b"", layout) + HEARTBEAT_FRAME)
    first, second = received.messages
    expected = message(b"first", ext=ext if layout.ext else None)
    if not layout.detail:
        expected.offset = expected.raw_size = None
    assert seen(first) == seen(expected)
    assert (second.body, second.ext, received.heartbeats) == (b"", None, 1)
    assert first.source is SOURCE


@pytest.mark.parametrize(
    "head",
    [
        (-1, 0, bytes(16)),
        (2**63 - 1, 65535, b"\n" * 16),
        (-(2**63), 1, b"\xff" * 16),
    ],
)
def test_numbers_of_any_size_are_taken(head: tuple[int, int, bytes]) -> None:
    [got] = subscribed().receive(message_frame(struct.pack(">qH16s", *head) + b"\xff\xfe")).messages
    assert (got.timestamp_ns, got.attempts, got.id, got.body) == (*head, b"\xff\xfe")


def test_the_same_message_many_times_is_the_callers_to_judge() -> None:
    assert len(subscribed().receive(delivery() * 200).messages) == 200


@pytest.mark.parametrize("size", [0, 1, 25])
@pytest.mark.parametrize("layout", Layout)
def test_a_message_without_a_whole_head_ends_the_connection(layout: Layout, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="less than the head"):
        subscribed(layout).receive(message_frame(bytes(size)) + delivery(b"x" * 50, layout))


@pytest.mark.parametrize(
    ("layout", "rest", "parts"),
    [
        (Layout.DETAIL, b"", "offset and raw size"),
        (Layout.DETAIL, bytes(11), "offset and raw size"),
        (Layout.EXT, b"", "extension header"),
        (Layout.EXT, b"\4", "extension header"),
        (Layout.EXT, b"\4\0", "extension header"),
        (Layout.EXT, b"\4\xff\xffbody", "extension header"),
        (Layout.EXT_DETAIL, b"", "extension header and offset and raw size"),
        (Layout.EXT_DETAIL, b"\0" + bytes(11), "extension header and offset and raw size"),
        (Layout.EXT_DETAIL, b"\4\0\2{}" + bytes(11), "extension header and offset and raw size"),
    ],
)
def test_a_good_message_after_a_damaged_one_still_comes(layout: Layout, rest: bytes, parts: str) -> None:
    head = struct.pack(">qH16s", 5, 7, ID)
    received = subscribed(layout).receive(message_frame(head + rest) + delivery(b"good", layout))
    reason = f"message of {26 + len(rest)} bytes is cut inside its {parts}"
    assert received.damaged == [DamagedMessage(ID, 7, 5, reason)]
    assert [got.body for got in received.messages] == [b"good"]


def test_the_bodies_are_copies() -> None:
    buffer = bytearray(delivery(b"first"))
    [got] = subscribed().receive(memoryview(buffer)).messages
    buffer[:] = bytes(len(buffer))
    assert got.body == b"first"


def test_a_tail_that_waits_is_a_copy() -> None:
    protocol = subscribed()
    buffer = bytearray(delivery(b"first"))
    protocol.receive(memoryview(buffer)[:20])
    rest = bytes(buffer[20:])
    buffer[:] = bytes(len(buffer))
    assert [got.body for got in protocol.receive(rest).messages] == [b"first"]


def test_a_huge_frame_in_small_pieces_is_put_together_once() -> None:
    frame = delivery(bytes(900_000))
    protocol = subscribed()
    found = [protocol.receive(frame[at : at + 1000]) for at in range(0, len(frame), 1000)]
    assert [len(received.messages) for received in found] == [0] * (len(found) - 1) + [1]
    assert len(protocol._tail) == 0


# ---------------------------------------------------------------- any chunking, and garbage

pieces_of = {
    "message": delivery(b"m" * 3),
    "empty": delivery(b""),
    "ok": OK_FRAME,
    "traced": TRACED_FRAME,
    "heartbeat": HEARTBEAT_FRAME,
    "failed": error(b"E_FIN_FAILED x"),
    "not leader": NOT_LEADER,
    "close": response(b"CLOSE_WAIT"),
    "damaged": message_frame(bytes(26)),
    "short": message_frame(bytes(20)),
    "bad size": b"\0\0\0\1",
    "unknown": struct.pack(">ii", 4, 9),
}


@given(
    st.sampled_from(Layout),
    st.lists(st.sampled_from(sorted(pieces_of)), max_size=12),
    st.integers(0, 40),
    st.data(),
)
@example(Layout.PLAIN, ["ok"] * 40 + ["message", "ok"], 41, None)
def test_what_is_received_does_not_depend_on_how_the_stream_was_cut(
    layout: Layout, sent: list[str], publishes: int, data: st.DataObject | None
) -> None:
    stream = b"".join(pieces_of[name] for name in sent)
    cuts = range(len(stream)) if data is None else data.draw(st.lists(st.integers(0, len(stream))).map(sorted))

    def read(pieces: list[bytes]) -> tuple[object, ...]:
        protocol = subscribed(layout)
        if publishes:
            protocol.expect_publish(publishes)
        found: list[Received] = []
        fault = ""
        for piece in pieces:
            try:
                protocol.receive(piece)
            except RemoteProtocolError as problem:
                fault = str(problem)
            found.append(protocol.received)
        return summary(found), fault, protocol.state, protocol.awaiting

    assert read([stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]) == read([stream])


@given(
    st.sampled_from(Layout),
    st.booleans(),
    st.lists(st.binary(max_size=60) | st.sampled_from(sorted(pieces_of.values())), max_size=8),
)
def test_garbage_raises_documented_errors_and_memory_is_bounded(
    layout: Layout, consumes: bool, garbage: list[bytes]
) -> None:
    protocol = subscribed(layout, 1024) if consumes else identified(1024)
    protocol.expect_publish(2)
    for piece in garbage:
        try:
            protocol.receive(piece)
        except RemoteProtocolError:
            assert protocol.state is State.CLOSED
        assert len(protocol._tail) <= 1024 + 4
    assert protocol.end_of_stream()[2:] == []


@given(st.integers(0, 8 * len(delivery(b"paid", Layout.EXT_DETAIL, ext=b"{}")) - 1), st.integers(1, 30))
def test_a_flipped_bit_is_survived(flipped: int, step: int) -> None:
    stream = bytearray(delivery(b"paid", Layout.EXT_DETAIL, ext=b"{}") * 3)
    stream[flipped // 8] ^= 1 << flipped % 8
    protocol = subscribed(Layout.EXT_DETAIL, 4096)
    with_messages = 0
    for at in range(0, len(stream), step):
        try:
            received = protocol.receive(bytes(stream[at : at + step]))
        except RemoteProtocolError:
            return
        with_messages += len(received.messages) + len(received.damaged)
    assert with_messages <= 3
