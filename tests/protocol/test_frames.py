"""Frames of any chunking."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.frames import Frame, FrameDecoder, FrameType, encode_frame

frames = st.builds(Frame, st.sampled_from(FrameType), st.binary(max_size=40))


def test_a_frame_byte_for_byte() -> None:
    assert encode_frame(FrameType.ERROR, b"E_X ") == b"\0\0\0\x08\0\0\0\1E_X "
    assert encode_frame(FrameType.MESSAGE, b"") == b"\0\0\0\4\0\0\0\2"


@given(st.lists(frames), st.data())
def test_frames_do_not_depend_on_how_the_stream_was_cut(sent: list[Frame], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(*frame) for frame in sent)
    cuts = data.draw(st.lists(st.integers(0, len(stream))).map(sorted))
    pieces = [stream[a:b] for a, b in itertools.pairwise([0, *cuts, len(stream)])]
    decoder = FrameDecoder(max_frame_bytes=1024)
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == sent


@pytest.mark.parametrize("size", [0, 3, -1, -(2**31), 1025, 2**28, 2**31 - 1])
def test_a_size_is_judged_before_the_rest_comes(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"frame announces {size} bytes"):
        FrameDecoder(max_frame_bytes=1024).feed(struct.pack(">i", size))


@pytest.mark.parametrize("kind", [-1, 3, 2**31 - 1])
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"frame type {kind} is unknown"):
        FrameDecoder(max_frame_bytes=1024).feed(struct.pack(">ii", 4, kind))


def test_the_port_of_an_nsqlookupd_is_recognised() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        FrameDecoder(max_frame_bytes=1024).feed(b"\0\0\0\x0eE_BAD_PROTOCOL")
    assert str(caught.value) == (
        "the server is not an nsqd, perhaps the TCP port of an nsqlookupd. Give nsqd's TCP port, which is 4150 by"
        " default, or nsqlookupd's HTTP address as lookupd="
    )
