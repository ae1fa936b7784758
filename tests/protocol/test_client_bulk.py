"""Large bodies and runs of answers: the short ways give what the long way gives."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol import ClientProtocol, Layout
from nsq_ha.protocol.commands import Identify
from nsq_ha.protocol.encoding import (
    GATHERED_BYTES,
    encode_mpub,
    encode_pub,
    gather_bodies,
    gather_mpub_of,
    gather_pubs,
)
from nsq_ha.protocol.frames import HEARTBEAT, OK
from tests.protocol.fakes import delivery, error, identified, response, seen, subscribed

LARGE = 3000


def bulky(layout: Layout = Layout.PLAIN) -> ClientProtocol:
    """Return a subscribed connection whose last message was large."""
    protocol = subscribed(layout)
    assert [len(m.body) for m in protocol.receive(delivery(b"x" * LARGE, layout)).messages] == [LARGE]
    return protocol


def feed(protocol: ClientProtocol, stream: bytes, cuts: list[int]) -> tuple[list[tuple[object, ...]], int, list[str]]:
    pieces = [stream[a:b] for a, b in pairwise([0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)])]
    found = [protocol.receive(memoryview(bytearray(piece))) for piece in pieces]
    messages = [seen(message) for received in found for message in received.messages]
    return messages, sum(r.heartbeats for r in found), [e.code for r in found for e in r.refusals]


@given(
    sizes=st.lists(st.sampled_from([1, 100, LARGE, 2 * LARGE]), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 20000), max_size=12),
    layout=st.sampled_from(list(Layout)),
)
def test_large_messages_do_not_depend_on_how_the_stream_was_cut(
    sizes: list[int], cuts: list[int], layout: Layout
) -> None:
    ext = b'{"k":1}' if layout in (Layout.EXT, Layout.EXT_DETAIL) else None
    frames = [delivery(bytes([65 + n]) * size, layout, ext=ext) for n, size in enumerate(sizes)]
    stream = b"".join(frames) + response(HEARTBEAT) + error(b"E_FIN_FAILED gone") + frames[0]
    at_once = feed(subscribed(layout), stream, [])
    assert feed(bulky(layout), stream, cuts) == at_once
    assert len(at_once[0]) == len(sizes) + 1


def test_bodies_are_bytes_of_their_own() -> None:
    protocol = bulky()
    buffer = bytearray(delivery(b"y" * LARGE) + delivery(b"z" * LARGE)[:100])
    [message] = protocol.receive(memoryview(buffer)).messages
    buffer[:] = bytes(len(buffer))
    assert type(message.body) is bytes
    assert message.body == b"y" * LARGE


def test_a_frame_after_a_large_one_may_come_in_crumbs() -> None:
    protocol = bulky()
    messages, _, _ = feed(protocol, delivery(b"y" * LARGE) + delivery(b"z"), [3, 6, 7, LARGE])
    assert len(messages) == 2


def test_a_fault_behind_a_large_message_ends_the_connection() -> None:
    protocol = bulky()
    with pytest.raises(RemoteProtocolError):
        protocol.receive(delivery(b"y" * LARGE) + b"\xff\xff\xff\xff")
    assert [len(message.body) for message in protocol.received.messages] == [LARGE]


def test_an_answer_on_a_connection_that_reads_nothing_is_read_the_long_way() -> None:
    protocol = identified()
    protocol._is_bulky = True
    protocol.expect_publish()
    assert protocol.receive(response(OK) + response(HEARTBEAT)).answers == [OK]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 64, 100, 1000])
def test_a_read_of_nothing_but_oks_answers_as_many_publishes(count: int) -> None:
    protocol = identified()
    protocol.expect_publish(count + 1)
    assert protocol.receive(response(OK) * count).answers == [OK] * count
    assert protocol.awaiting == 1
    with pytest.raises(RemoteProtocolError):
        protocol.receive(response(OK) * 2)


def test_publishes_can_be_counted_by_the_caller() -> None:
    protocol = identified()
    protocol.expect_publish(5)
    assert protocol.receive(response(OK) * 2).answers == [OK] * 2
    assert not protocol.is_idle
    assert (protocol.take_publishes(), protocol.awaiting, protocol.is_idle) == (3, 0, True)
    assert protocol.take_publishes() == 0
    protocol.expect_publish(3)  # as soon as something else arrives
    assert protocol.receive(response(HEARTBEAT) + response(OK) * 3).answers == [OK] * 3
    assert protocol.is_idle


def test_not_behind_an_unfinished_frame_nor_while_another_answer_is_due() -> None:
    protocol = identified()
    protocol.expect_publish(2)
    protocol.receive(response(OK)[:5])
    assert (protocol.take_publishes(), protocol.awaiting, protocol.is_idle) == (0, 2, False)
    assert protocol.receive(response(OK)[5:]).answers == [OK]
    assert protocol.take_publishes() == 1
    protocol = ClientProtocol(max_frame_bytes=1000)
    protocol.send(Identify(b"{}"))
    assert (protocol.take_publishes(), protocol.awaiting) == (0, 1)


@pytest.mark.parametrize("sizes", [(1, 200, 1), (GATHERED_BYTES,) * 3, (GATHERED_BYTES * 3, 1, 7)])
def test_gathered_publishes_are_the_same_bytes(sizes: tuple[int, ...]) -> None:
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    parts = gather_pubs("orders", 3, bodies)
    assert b"".join(parts) == b"".join(encode_pub("orders", 3, body) for body in bodies)
    is_large = sum(sizes) >= GATHERED_BYTES * len(sizes)
    assert [part for part in parts if any(part is body for body in bodies)] == (bodies if is_large else [])
    batch = gather_mpub_of("orders", None, len(bodies), gather_bodies(bodies, max(sizes)))
    assert b"".join(batch) == encode_mpub("orders", None, bodies)
    assert len(batch) == (1 + 2 * len(bodies) if is_large else 1)


@pytest.mark.parametrize("data", [OK, HEARTBEAT, b"CLOSE_WAIT"])
def test_an_error_frame_that_holds_a_response_is_damage(data: bytes) -> None:
    protocol = identified()
    protocol.expect_publish()
    with pytest.raises(RemoteProtocolError, match="is not an error"):
        protocol.receive(error(data))
