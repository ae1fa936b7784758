"""Messages as a connection reads them, however the stream was cut or damaged."""

import itertools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol import DamagedMessage, Layout, Received
from nsq_ha.protocol.state import ConnectionState
from tests.protocol.fakes import (
    HEARTBEAT_FRAME,
    ID,
    NOT_LEADER,
    OK_FRAME,
    TRACED_FRAME,
    delivery,
    error,
    identified,
    message_frame,
    response,
    subscribed,
    summary,
)


@pytest.mark.parametrize("layout", Layout)
def test_a_body_that_holds_a_frame_is_a_body_wherever_it_was_cut(layout: Layout) -> None:
    inner = delivery(b"not one of the channel's", layout)
    outer = delivery(inner, layout)
    start = len(outer) - len(inner)
    for first, second in itertools.combinations_with_replacement((start - 1, start, start + 1, len(outer)), 2):
        protocol = subscribed(layout)
        pieces = outer[:first], outer[first:second], outer[second:]
        found = summary(protocol.receive(piece) for piece in pieces if piece)
        assert found == summary([subscribed(layout).receive(outer)])
        assert len(found[0]) == 1


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


def test_a_tail_that_waits_is_a_copy() -> None:
    protocol = subscribed()
    buffer = bytearray(delivery(b"first"))
    protocol.receive(memoryview(buffer)[:20])
    rest = bytes(buffer[20:])
    buffer[:] = bytes(len(buffer))
    assert [got.body for got in protocol.receive(rest).messages] == [b"first"]


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
            assert protocol.state is ConnectionState.CLOSED
        assert len(protocol._tail) <= 1024 + 4
    assert protocol.awaiting <= 2


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
