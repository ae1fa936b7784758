"""The server's reading of a stream: order of checks, pauses, what is malformed, bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import LocalProtocolError
from nsq_ha.protocol import Finish, Mpub, Pub, Ready, Requeue, Sub, SubAdvanced, SubOrdered, Touch
from nsq_ha.protocol.commands import Auth, Identify, MpubTrace, Nop, PubTrace
from nsq_ha.protocol.encoding import MAGIC, encode_mpub, encode_mpub_trace, encode_pub_trace
from nsq_ha.protocol.server.command_lines import Announced, Malformed, forbidden_now, refusal
from nsq_ha.protocol.server.decoder import CommandDecoder, Event, PublishHeader, decode_commands
from nsq_ha.protocol.server.stream import MAX_LINE_BYTES, Limits
from tests.protocol.fakes import ID, events, fresh, only, size

# ---------------------------------------------------------------- the magic, and lines


def test_the_magic_comes_first() -> None:
    decoder = CommandDecoder()
    assert events(decoder, MAGIC[:3]) == []
    assert events(decoder, MAGIC[3:] + b"NOP\n") == [Nop()]
    assert events(CommandDecoder(), b"  V1NOP\n") == [Malformed(b"", b"E_BAD_PROTOCOL")]


def test_nothing_follows_a_fatal_answer() -> None:
    decoder = fresh()
    assert len(events(decoder, b"BOGUS\nNOP\n")) == 1
    assert events(decoder, b"NOP\n") == []
    assert decoder.take_buffered() == b""


def test_a_line_without_an_end_closes_without_an_answer() -> None:
    decoder = fresh()
    assert events(decoder, b"x" * (MAX_LINE_BYTES - 1)) == []
    assert events(decoder, b"x") == [Malformed(b"", b"")]
    assert events(fresh(), b"x" * MAX_LINE_BYTES + b"\n") == [Malformed(b"", b"")]
    assert events(fresh(), b"FIN \n" + b"x" * MAX_LINE_BYTES) == [Malformed(b"", b"")]


def test_a_carriage_return_before_the_newline_is_dropped() -> None:
    assert only(b"NOP\r\n") == Nop()
    assert only(b"RDY 5\r\n") == Ready(5)


@pytest.mark.parametrize(
    ("line", "words"),
    [(b"\n", "[[]]"), (b"nop\n", "[[110 111 112]]"), (b" NOP\n", "[[] [78 79 80]]"), (b"FI\n", "[[70 73]]")],
)
def test_an_unknown_command_is_told_byte_for_byte(line: bytes, words: str) -> None:
    answer = only(line)
    assert isinstance(answer, Malformed)
    assert answer.data == f"E_INVALID invalid command {words}".encode()
    assert (answer.fatal, answer.early) == (True, True)


# ---------------------------------------------------------------- ids


@pytest.mark.parametrize("newline_at", range(16))
def test_an_id_may_hold_a_newline_anywhere(newline_at: int) -> None:
    message_id = b"\x01" * newline_at + b"\n" + b"\x01" * (15 - newline_at)
    assert decode_commands(b"FIN %b\nREQ %b 15\nTOUCH %b\nNOP\n" % (message_id, message_id, message_id)) == [
        Finish(message_id),
        Requeue(message_id, 15),
        Touch(message_id),
        Nop(),
    ]


def test_a_short_answer_swallows_what_follows_it() -> None:
    assert decode_commands(b"FIN short\nxxxxxxxxxxyz\nNOP\n") == [Finish(b"short\nxxxxxxxxxx"), Nop()]
    assert decode_commands(b"TOUCH short\n0123456789xNOP\n") == [Touch(b"short\n0123456789"), Nop()]
    for word, kind in ((b"FIN ", Finish), (b"TOUCH ", Touch)):
        assert decode_commands(word + b"0123456789abcdef and more\nNOP\n") == [kind(b"0123456789abcdef"), Nop()]


@pytest.mark.parametrize(("internal", "legal"), [(0, False), (1, True), (2**63 - 1, True), (2**63, False)])
def test_the_internal_id_of_a_fin_is_positive(internal: int, legal: bool) -> None:
    message_id = internal.to_bytes(8, "big") + bytes(8)
    answer = only(b"FIN " + message_id + b"\n")
    assert answer == (Finish(message_id) if legal else Malformed(b"FIN", b"E_INVALID Invalid Message ID"))


@pytest.mark.parametrize(
    ("word", "delay_ms"),
    [(b"0", 0), (b"", 0), (b"007", 7), (b"9223372036855", 0), (str(2**64 + 5).encode(), 5)],
)
def test_a_delay_wraps_as_the_servers_clock_does(word: bytes, delay_ms: int) -> None:
    assert only(b"REQ " + ID + b" " + word + b"\n") == Requeue(ID, delay_ms)


def test_a_requeue_needs_a_delay() -> None:
    assert only(b"REQ " + ID + b"\n") == Malformed(b"REQ", b"E_INVALID REQ insufficient number of params")
    assert only(b"REQ " + ID + b" -1\n") == Malformed(b"REQ", b"E_INVALID REQ could not parse timeout " + ID + b", -1")


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"RDY\n", Ready(1)),
        (b"RDY \n", Ready(0)),
        (b"RDY 2500 more\n", Ready(2500)),
        (b"RDY 2501\n", Malformed(b"RDY", b"E_INVALID RDY count 2501 out of range 0-2500")),
        (b"RDY +1\n", Malformed(b"RDY", b"E_INVALID RDY could not parse count +1")),
        (
            b"RDY 18446744073709551615\n",
            Malformed(b"RDY", b"E_INVALID RDY count -1 out of range 0-2500"),
        ),
    ],
)
def test_ready_counts(line: bytes, event: Event) -> None:
    assert only(line) == event


# ---------------------------------------------------------------- subscriptions


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (b"SUB t c\n", Sub("t", "c", None)),
        (b"SUB t c -1\n", Sub("t", "c", None)),
        (b"SUB t c +3\n", Sub("t", "c", 3)),
        (b"SUB t c -2\n", Sub("t", "c", -2)),
        (b"SUB t c x y\n", Sub("t", "c", None)),
        (b"SUB_ORDERED t c 3\n", SubOrdered("t", "c", 3)),
        (b"SUB_ADVANCED t c 3 \n", SubAdvanced("t", "c", None)),
        (b"SUB_ADVANCED t c xyz timestamp:-5\n", SubAdvanced("t", "c", None, "timestamp:-5")),
        (b"SUB t\n", refusal(b"SUB", "E_INVALID", "SUB insufficient number of parameters")),
        (b"SUB t! c! x\n", refusal(b"SUB", "E_BAD_TOPIC", 'SUB topic name "t!" is not valid')),
        (b"SUB \xff c x\n", refusal(b"SUB", "E_BAD_TOPIC", 'SUB topic name "\\xff" is not valid')),
        (b"SUB t c! x\n", refusal(b"SUB", "E_BAD_CHANNEL", 'SUB channel name "c!" is not valid')),
        (
            b"SUB t c x\n",
            refusal(
                b"SUB", "E_BAD_PARTITION", 'topic partition is not valid: strconv.Atoi: parsing "x": invalid syntax'
            ),
        ),
        (
            b"SUB_ADVANCED t! c 0 when:1\n",
            refusal(b"SUB_ADVANCED", "E_INVALID", "invalid consume offset:when:1", early=True),
        ),
    ],
    ids=range(14),
)
def test_subscriptions(line: bytes, event: Event) -> None:
    assert only(line) == event


def test_what_the_state_forbids_is_named_by_its_command() -> None:
    assert forbidden_now(b"CLS").data == b"E_INVALID cannot CLS in current state"
    assert forbidden_now(b"SUB_ORDERED").data == b"E_INVALID cannot SUB in current state"


def test_a_start_position_is_type_and_number() -> None:
    for start in (b"timestamp", b"timestamp:1:2", b":1"):
        answer = only(b"SUB_ADVANCED t c 0 " + start + b"\n")
        assert answer == refusal(b"SUB_ADVANCED", "E_INVALID", b"invalid consume offset:" + start, early=True)
    answer = only(b"SUB_ADVANCED t c 0 timestamp:x\n")
    text = 'strconv.ParseInt: parsing "x": invalid syntax'
    assert answer == refusal(b"SUB_ADVANCED", "E_INVALID", text, early=True)


# ---------------------------------------------------------------- commands with a body


def test_identify_pauses_before_its_size() -> None:
    decoder = fresh()
    assert events(decoder, b"IDENTIFY ignored words\n") == [Announced(b"IDENTIFY")]
    assert events(decoder, size(2) + b"{") == []
    assert events(decoder, b"}\x16\x03") == [Identify(b"{}")]
    assert decoder.take_buffered() == b"\x16\x03"
    assert events(decoder, b"NOP\n") == [Nop()]


def test_what_follows_an_identify_can_be_taken_before_it_is_read() -> None:
    decoder = fresh()
    decoder.feed(b"IDENTIFY\n" + size(2) + b"{}\x16\x03\x01")
    assert [decoder.next_event(), decoder.next_event()] == [Announced(b"IDENTIFY"), Identify(b"{}")]
    assert decoder.take_buffered() == b"\x16\x03\x01"
    assert decoder.next_event() is None


def test_auth_has_no_words() -> None:
    assert only(b"AUTH\n" + size(1) + b"s") == Auth(b"s")
    assert events(fresh(), b"AUTH\n" + size(1) + b"s") == [Announced(b"AUTH"), Auth(b"s")]
    assert events(fresh(), b"AUTH x\n") == [
        Announced(b"AUTH"),
        refusal(b"AUTH", "E_INVALID", "AUTH invalid number of parameters"),
    ]


@pytest.mark.parametrize(("announced", "text"), [(0, "invalid body size 0"), (-5, "invalid body size -5")])
def test_a_body_has_a_size(announced: int, text: str) -> None:
    for word in (b"IDENTIFY", b"AUTH"):
        [_, answer] = events(fresh(), word + b"\n" + size(announced))
        assert answer == refusal(word, "E_BAD_BODY", f"{word.decode()} {text}")
    for word in (b"PUB", b"MPUB_EXT"):
        assert events(fresh(), word + b" t\n" + size(announced)) == [refusal(word, "E_BAD_BODY", text)]


def test_limits_are_judged_on_the_size_word_alone() -> None:
    limits = Limits(max_message_bytes=10, max_body_bytes=100, max_ready_count=5)
    assert events(fresh(limits), b"PUB t\n" + size(11)) == [refusal(b"PUB", "E_BAD_MESSAGE", "message too big 11 > 10")]
    assert events(fresh(limits), b"MPUB t\n" + size(101)) == [refusal(b"MPUB", "E_BAD_BODY", "body too big 101 > 100")]
    assert events(fresh(limits), b"AUTH\n" + size(101))[1:] == [
        refusal(b"AUTH", "E_BAD_BODY", "AUTH body too big 101 > 100")
    ]
    assert events(fresh(limits), b"RDY 6\n") == [refusal(b"RDY", "E_INVALID", "RDY count 6 out of range 0-5")]


def test_a_publish_pauses_between_its_size_and_its_body() -> None:
    decoder = fresh()
    assert events(decoder, b"PUB t 3\n" + size(2)[:3]) == []
    assert events(decoder, size(2)[3:]) == [PublishHeader(b"PUB", "t", 3, 2)]
    with pytest.raises(LocalProtocolError, match="must be accepted"):
        decoder.next_event()
    decoder.accept(extended=False)
    assert events(decoder, b"ab") == [Pub("t", 3, b"ab")]


@pytest.mark.parametrize(
    ("line", "partition"), [(b"PUB t", None), (b"PUB t -1", None), (b"PUB t 5 x", None), (b"PUB t -2", -2)]
)
def test_the_partition_word_counts_only_as_the_last_one(line: bytes, partition: int | None) -> None:
    assert only(line + b"\n" + size(1) + b"a") == Pub("t", partition, b"a")


def test_trace_ids_stand_before_the_bodies() -> None:
    assert only(encode_pub_trace("t", 0, 7, b"a")) == PubTrace("t", 0, 7, b"a")
    traced = ((1, b"a"), (2, b"bc"))
    assert only(encode_mpub_trace("t", 0, traced)) == MpubTrace("t", 0, traced)


def test_a_bad_partition_is_told_before_the_size_is_read() -> None:
    text = 'topic partition is not valid: strconv.Atoi: parsing "x": invalid syntax'
    assert events(fresh(), b"PUB t x\n") == [refusal(b"PUB", "E_BAD_PARTITION", text)]
    assert events(fresh(), b"MPUB\n") == [refusal(b"MPUB", "E_INVALID", "insufficient number of parameters")]


def test_a_name_that_is_no_text_survives() -> None:
    event = only(b"PUB t\xff\n" + size(1) + b"a")
    assert event == Pub("t\udcff", None, b"a")


# ---------------------------------------------------------------- memory, and garbage


def test_a_batch_that_lies_about_its_size_has_a_bound() -> None:
    decoder = fresh(Limits(max_message_bytes=100, max_body_bytes=1000))
    [header] = events(decoder, b"MPUB t\n" + size(10) + size(150))
    assert isinstance(header, PublishHeader)
    decoder.accept(extended=True)
    read: list[Event] = []
    for _ in range(11):
        read += events(decoder, size(100) + bytes(100))
    assert read == [refusal(b"MPUB", "E_BAD_BODY", "MPUB body too big 1100 > 1000")]


def test_nothing_is_reserved_for_what_is_only_announced() -> None:
    decoder = fresh()
    [header] = events(decoder, b"PUB t\n" + size(1_000_000))
    assert isinstance(header, PublishHeader)
    decoder.accept(extended=True)
    assert events(decoder, b"x") == []
    assert decoder.take_buffered() == b"x"


def test_what_was_read_is_forgotten() -> None:
    decoder = fresh()
    for _ in range(1000):
        assert events(decoder, b"NOP\n" * 10 + b"NO")[-1] == Nop()
        assert events(decoder, b"P\n") == [Nop()]
    assert decoder.take_buffered() == b""


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"PUB t\n", b"MPUB t\n", b"FIN ", b"IDENTIFY\n", size(9)])))
def test_random_bytes_raise_nothing(pieces: list[bytes]) -> None:
    decoder = fresh()
    for piece in pieces:
        for event in events(decoder, piece):
            if isinstance(event, PublishHeader):
                decoder.accept(extended=True)
    assert len(decoder.take_buffered()) <= sum(map(len, pieces))


@given(st.binary(max_size=200), st.integers(1, 7))
def test_events_do_not_depend_on_how_the_stream_was_cut(garbage: bytes, step: int) -> None:
    stream = b"PUB t 0\n" + size(3) + b"a\nb" + encode_mpub("t", 0, [b"x", b"yz"]) + garbage
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]

    def read(given_pieces: list[bytes]) -> list[Event]:
        decoder = fresh()
        found: list[Event] = []
        for piece in given_pieces:
            new = events(decoder, piece)
            while new:
                found += new
                if isinstance(new[-1], PublishHeader):
                    decoder.accept(extended=True)
                new = events(decoder)
        return found

    whole = read([stream])
    assert read(pieces) == whole
    assert Mpub("t", 0, (b"x", b"yz")) in whole
