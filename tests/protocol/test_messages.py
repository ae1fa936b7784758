"""Message layouts, and the answer to a traced publish."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Message
from nsq_ha.protocol import Layout, Traced, decode_traced, layout_for
from nsq_ha.protocol.messages import check_traced, damage_of, reader_for, traced_size
from nsq_ha.protocol.server.answers import encode_traced
from tests.protocol.fakes import ID, SOURCE, decode_message, delivery, message, message_frame, response, seen
from tests.support.message_frames import encode_message

HEAD = struct.pack(">qH16s", 5, 2, ID)
unsigned = st.integers(0, 2**64 - 1)
every_layout = pytest.mark.parametrize("layout", Layout)


@st.composite
def messages(draw: st.DrawFn, layout: Layout) -> Message:
    body, ext = draw(st.binary(max_size=50)), draw(st.none() | st.binary(max_size=40)) if layout.ext else None
    least = 30 + len(body) + (0 if ext is None else 3 + len(ext))
    return Message(
        draw(st.binary(min_size=16, max_size=16)),
        body,
        draw(st.integers(0, 65535)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        SOURCE,
        draw(unsigned) if layout.detail else None,
        draw(st.just(0) | st.integers(least, 2**32 - 1)) if layout.detail else None,
        ext,
    )


@every_layout
def test_what_is_encoded_decodes_to_itself(layout: Layout) -> None:
    @given(messages(layout))
    def check(sent: Message) -> None:
        assert seen(decode_message(encode_message(sent, layout), layout, SOURCE)) == seen(sent)

    check()


def test_layouts_byte_for_byte() -> None:
    body, detail = b"paid", struct.pack(">QI", 4096, 130)
    sent = message(body, ext=b"{}")
    sent.timestamp_ns, sent.attempts, sent.raw_size = 5, 2, 130
    assert encode_message(sent, Layout.PLAIN) == HEAD + body
    assert encode_message(sent, Layout.DETAIL) == HEAD + detail + body
    assert encode_message(sent, Layout.EXT) == HEAD + b"\4\0\2{}" + body
    assert encode_message(sent, Layout.EXT_DETAIL) == HEAD + b"\4\0\2{}" + detail + body
    sent.ext = None
    assert encode_message(sent, Layout.EXT) == HEAD + b"\0" + body


def test_the_command_and_the_topic_fix_the_layout() -> None:
    assert layout_for(detail=False, ext=False) is Layout.PLAIN
    assert layout_for(detail=False, ext=True) is Layout.EXT
    assert layout_for(detail=True, ext=False) is Layout.DETAIL
    assert layout_for(detail=True, ext=True) is Layout.EXT_DETAIL
    assert (Layout.EXT.ext, Layout.EXT.detail) == (True, False)


@pytest.mark.parametrize("version", [1, 2, 4, 255])
def test_every_nonzero_version_of_the_ext_part_has_a_length(version: int) -> None:
    data = HEAD + bytes((version,)) + b"\0\3tag" + b"body"
    got = decode_message(data, Layout.EXT, SOURCE)
    assert (got.ext, got.body) == (b"tag", b"body")
    assert encode_message(got, Layout.EXT, ext_version=version) == data


@pytest.mark.parametrize("length", [255, 256, 65_535])
@pytest.mark.parametrize("layout", [Layout.EXT, Layout.EXT_DETAIL])
def test_a_header_may_be_as_long_as_its_two_bytes_of_length_say(layout: Layout, length: int) -> None:
    sent = message(b"paid", ext=b"x" * length)
    sent.raw_size = 0
    got = decode_message(encode_message(sent, layout), layout, SOURCE)
    assert (got.ext, got.body) == (sent.ext, sent.body)


def test_an_ext_part_of_version_0_is_one_byte() -> None:
    got = decode_message(HEAD + b"\0" + b"\0\3body", Layout.EXT, SOURCE)
    assert (got.ext, got.body) == (None, b"\0\3body")


def test_an_empty_header_is_not_no_header() -> None:
    assert decode_message(HEAD + b"\4\0\0body", Layout.EXT, SOURCE).ext == b""


@pytest.mark.parametrize(
    ("layout", "ext"), [(Layout.DETAIL, None), (Layout.EXT_DETAIL, None), (Layout.EXT_DETAIL, b'{"k":1}')]
)
def test_a_frame_whose_size_grew_to_the_end_of_a_later_one_is_not_a_message(layout: Layout, ext: bytes | None) -> None:
    """Frames have no checksum: without the size in the log the two frames behind it would be its body."""
    frames = delivery(b"one", layout, ext=ext) + delivery(b"two", layout) + delivery(b"three", layout)
    grown = (len(frames) - 4).to_bytes(4, "big") + frames[4:]
    sink: list[Message] = []
    assert (reader_for(layout)(grown, 0, 1024, SOURCE, sink), sink) == (0, [])
    with pytest.raises(RemoteProtocolError, match=r"has \d+ bytes, but the message has \d+ in the log"):
        damage_of(grown[8:], layout)


def test_a_message_stored_before_its_topic_was_extended_is_a_byte_longer_than_in_the_log() -> None:
    old = message(b"old")
    assert old.raw_size == 33
    data = encode_message(old, Layout.EXT_DETAIL)
    assert decode_message(data, Layout.EXT_DETAIL, SOURCE).body == b"old"
    old.raw_size = 32
    with pytest.raises(RemoteProtocolError, match="but the message has 32 in the log"):
        decode_message(encode_message(old, Layout.EXT_DETAIL), Layout.EXT_DETAIL, SOURCE)


@every_layout
@pytest.mark.parametrize("size", [0, 25])
def test_a_message_shorter_than_its_head_is_refused(layout: Layout, size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"message frame has {size} bytes"):
        decode_message(bytes(size), layout, SOURCE)


@given(st.builds(Traced, unsigned, unsigned, unsigned, st.integers(0, 2**32 - 1)))
def test_a_traced_answer_decodes_to_itself(traced: Traced) -> None:
    data = encode_traced(traced)
    assert len(data) == 30
    assert decode_traced(data) == traced


@every_layout
@pytest.mark.parametrize(
    "following", [b"", response(b"OK" * 30), delivery()[:-1], message_frame(HEAD[:-1]) + bytes(99)]
)
def test_a_reader_stops_at_what_is_no_whole_sound_message(layout: Layout, following: bytes) -> None:
    good = delivery(b"a", layout) + delivery(b"", layout)
    sink: list[Message] = []
    assert reader_for(layout)(b"skipped" + good + following, 7, 1024, SOURCE, sink) == 7 + len(good)
    assert [got.body for got in sink] == [b"a", b""]
    assert reader_for(layout)(good, 0, 29, SOURCE, sink) == 0  # over the limit


@pytest.mark.parametrize("data", [b"", b"OK", b"OK" + bytes(27), b"OK" + bytes(29), b"KO" + bytes(28)])
def test_a_traced_answer_is_30_bytes_that_begin_with_ok(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="traced publish"):
        decode_traced(data)


@pytest.mark.parametrize(
    ("traced", "wrong"),
    [
        (Traced(3 << 50 | 1, 9, 0, 40), None),
        (Traced(3 << 50 | 1, 9, 0, 41), None),
        (Traced(3 << 50 | 1, 8, 0, 40), "trace id 8 instead of 9"),
        (Traced(2 << 50 | 1, 9, 0, 40), "partition 2 instead of 3"),
        (Traced(3 << 50 | 1 << 63, 9, 0, 40), "partition 8195 instead of 3"),
        (Traced(3 << 50 | 1, 9, 0, 42), "42 bytes instead of 40 or 41"),
    ],
)
def test_a_traced_answer_is_compared_with_its_publish(traced: Traced, wrong: str | None) -> None:
    if wrong is None:
        check_traced(traced, trace_id=9, partition=3, sizes=(40, 41))
        return
    with pytest.raises(RemoteProtocolError, match=wrong):
        check_traced(traced, trace_id=9, partition=3, sizes=(40, 41))


@given(st.binary(min_size=1), st.none() | st.binary(max_size=300))
def test_the_size_on_disk_is_known(body: bytes, ext: bytes | None) -> None:
    message = Message(ID, body, 1, 1, SOURCE, None, None, ext)
    plain, extended = traced_size(len(body), None if ext is None else len(ext))
    assert plain == 4 + len(encode_message(message, Layout.PLAIN))
    assert extended == 4 + len(encode_message(message, Layout.EXT))
