"""How upstream's nsqd reads a stream; its answers are recorded in ``tests/vectors/plain``."""

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.protocol import commands
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.server.command_lines import Announced, Malformed
from nsq_ha.protocol.server.identify import PLAIN_LIMITS
from nsq_ha.protocol.server.plain_decoder import DeferredPub, PlainDecoder, PlainEvent, TopicNamed
from nsq_ha.protocol.server.stream import Limits
from tests.protocol.fakes import ID, size

HEX_ID = b"0123456789abcdef"


def events(data: bytes, limits: Limits | None = None) -> list[PlainEvent]:
    small = replace(PLAIN_LIMITS, max_message_bytes=10, max_body_bytes=40, max_line_bytes=100)
    decoder = PlainDecoder(limits or small, magic=False)
    decoder.feed(data)
    return taken(decoder)


def taken(decoder: PlainDecoder) -> list[PlainEvent]:
    found: list[PlainEvent] = []
    while (event := decoder.next_event()) is not None:
        found.append(event)
    return found


def only(data: bytes) -> PlainEvent:
    (event,) = events(data)
    return event


@pytest.mark.parametrize(
    ("data", "command"),
    [
        (b"NOP\n", commands.Nop()),
        (b"NOP\r\n", commands.Nop()),
        (b"CLS more words\n", commands.Close()),
        (b"RDY\n", commands.Ready(1)),
        (b"RDY \n", commands.Ready(0)),
        (b"RDY 2500 more\n", commands.Ready(2500)),
        (b"SUB t c\n", commands.Sub("t", "c", None)),
        (b"SUB t#ephemeral c 0 more\n", commands.Sub("t#ephemeral", "c", None)),
        (b"FIN " + HEX_ID + b"\n", commands.Finish(HEX_ID)),
        (b"TOUCH " + HEX_ID + b" more\n", commands.Touch(HEX_ID)),
        (b"REQ " + HEX_ID + b" 15\n", commands.Requeue(HEX_ID, 15)),
        (b"REQ " + HEX_ID + b" 3600001\n", commands.Requeue(HEX_ID, 3_600_000)),
        (b"REQ " + HEX_ID + b" 9223372036855\n", commands.Requeue(HEX_ID, 0)),  # wraps below zero
        (b"PUB t\n" + size(1) + b"x", commands.Pub("t", None, b"x")),
        (b"PUB t 0 more\n" + size(10) + b"x" * 10, commands.Pub("t", None, b"x" * 10)),
        (b"DPUB t 3600000\n" + size(1) + b"x", DeferredPub(b"DPUB", "t", 3_600_000, b"x")),
    ],
)
def test_a_legal_command(data: bytes, command: PlainEvent) -> None:
    assert only(data) == command


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"BOGUS 1\n", b"E_INVALID invalid command BOGUS"),
        (b"RDY x\n", b"E_INVALID RDY could not parse count x"),
        (b"RDY 2501\n", b"E_INVALID RDY count 2501 out of range 0-2500"),
        (b"RDY 18446744073709551615\n", b"E_INVALID RDY count -1 out of range 0-2500"),
        (b"SUB t\n", b"E_INVALID SUB insufficient number of parameters"),
        (b"SUB a/b c\n", b'E_BAD_TOPIC SUB topic name "a/b" is not valid'),
        (b"SUB a \xff\n", b'E_BAD_CHANNEL SUB channel name "\\xff" is not valid'),
        (b"FIN\n", b"E_INVALID FIN insufficient number of params"),
        (b"FIN x\n", b"E_INVALID invalid message ID"),
        (b"TOUCH x\n", b"E_INVALID invalid message ID"),
        (b"REQ " + HEX_ID + b"\n", b"E_INVALID REQ insufficient number of params"),
        (b"REQ x 0\n", b"E_INVALID invalid message ID"),
        (b"REQ " + HEX_ID + b" -1\n", b"E_INVALID REQ could not parse timeout -1"),
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"PUB a/b\n", b'E_BAD_TOPIC PUB topic name "a/b" is not valid'),
        (b"PUB t\n" + size(0), b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n" + size(11), b"E_BAD_MESSAGE PUB message too big 11 > 10"),
        (b"MPUB a/b\n", b'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "a/b" is not valid'),
        (b"DPUB t\n", b"E_INVALID DPUB insufficient number of parameters"),
        (b"DPUB t x\n", b"E_INVALID DPUB could not parse timeout x"),
        (b"DPUB t 3600001\n", b"E_INVALID DPUB timeout 3600001 out of range 0-3600000"),
    ],
)
def test_a_refusal(data: bytes, answer: bytes) -> None:
    event = only(data + b"\0NOP\n")
    assert isinstance(event, Malformed)
    assert (event.data, event.fatal) == (answer, True)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (size(0), b"E_BAD_BODY MPUB invalid body size 0"),
        (size(41), b"E_BAD_BODY MPUB body too big 41 > 40"),
        (size(4) + size(0), b"E_BAD_BODY MPUB invalid message count 0"),
        (size(4) + size(8), b"E_BAD_BODY MPUB invalid message count 8"),
        (size(4) + size(1) + size(0), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
        (size(4) + size(1) + size(11), b"E_BAD_MESSAGE MPUB message too big 11 > 10"),
        (size(4) + size(5) + (size(10) + b"x" * 10) * 5, b"E_BAD_BODY MPUB body too big 50 > 40"),
    ],
)
def test_a_refused_batch_names_its_topic_first(content: bytes, answer: bytes) -> None:
    named, refused = events(b"MPUB t\n" + content)
    assert named == TopicNamed(b"MPUB", "t")
    assert isinstance(refused, Malformed)
    assert refused.data == answer


def test_a_batch_may_have_another_size_than_it_says() -> None:
    batch = b"MPUB t\n" + size(5) + size(2) + size(1) + b"a" + size(2) + b"bc"
    assert events(batch) == [TopicNamed(b"MPUB", "t"), commands.Mpub("t", None, (b"a", b"bc"))]


def test_bodies_of_identify_and_auth_come_after_their_lines() -> None:
    said = b"IDENTIFY more\n" + size(2) + b"{}AUTH\n" + size(1) + b"x"
    assert events(said) == [Announced(b"IDENTIFY"), commands.Identify(b"{}"), Announced(b"AUTH"), commands.Auth(b"x")]


def test_the_magic_comes_first() -> None:
    decoder = PlainDecoder()
    decoder.feed(MAGIC + b"NOP\n")
    assert taken(decoder) == [commands.Nop()]
    decoder = PlainDecoder()
    decoder.feed(b"  V1NOP\n")
    assert taken(decoder) == [Malformed(b"", b"E_BAD_PROTOCOL")]


def test_a_line_that_is_too_long_ends_without_an_answer() -> None:
    assert events(b"x" * 100) == [Malformed(b"", b"")]
    assert events(b"x" * 99) == []


def test_after_cls_no_rdy_ends_the_session() -> None:
    decoder = PlainDecoder(magic=False)
    decoder.after_close = True
    decoder.feed(b"RDY x\nNOP\nBOGUS\nNOP\n")
    read = taken(decoder)
    assert read[1] == commands.Nop()
    assert [getattr(event, "word", b"") for event in read] == [b"RDY", b"NOP", b"BOGUS"]


def test_an_id_with_a_newline_is_no_id_here() -> None:
    assert ID != HEX_ID
    first, *_ = events(b"FIN " + b"\n" * 16 + b"\n")
    assert first == Malformed(b"FIN", b"E_INVALID invalid message ID")


@given(st.binary(max_size=80), st.integers(0, 80))
def test_pieces_give_the_same_events(data: bytes, cut: int) -> None:
    decoder = PlainDecoder(magic=False)
    decoder.feed(data[:cut])
    first = taken(decoder)
    decoder.feed(data[cut:])
    whole = PlainDecoder(magic=False)
    whole.feed(data)
    assert first + taken(decoder) == taken(whole)


def test_sizes_are_signed() -> None:
    refused = only(b"PUB t\n" + struct.pack(">i", -1))
    assert isinstance(refused, Malformed)
    assert refused.data == b"E_BAD_MESSAGE PUB invalid message body size -1"
