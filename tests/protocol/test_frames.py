"""Frames of any chunking."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

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
