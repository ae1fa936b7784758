import contextlib
import io
import os

from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.cli.lines import READ_BYTES, Line, Splitter, read_lines
from tests.support.waiting import turn

LIMIT = 8


def split(*chunks: bytes, limit: int = LIMIT) -> list[Line]:
    splitter = Splitter(limit)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()


async def collect(stream: io.RawIOBase | io.BufferedIOBase, limit: int = LIMIT) -> list[Line]:
    return [line async for lines in read_lines(stream, limit) for line in lines]  # type: ignore[arg-type]


@given(st.lists(st.binary(max_size=12).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_do_not_depend_on_how_the_stream_was_cut(lines: list[bytes], data: st.DataObject) -> None:
    stream = b"\n".join(lines)
    cuts = data.draw(st.lists(st.integers(0, len(stream))).map(sorted))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    expected = [line if len(line) <= LIMIT else None for line in lines]
    if lines and not lines[-1]:
        expected.pop()
    assert split(*pieces) == [Line(number, line) for number, line in enumerate(expected, 1)]


async def test_a_stream_without_descriptor_is_read() -> None:
    assert await collect(io.BytesIO(b"a\nb")) == [Line(1, b"a"), Line(2, b"b")]


async def test_a_pipe_gives_lines_as_they_come() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        lines = read_lines(stream, LIMIT)
        os.write(writing, b"a\nb")
        assert await anext(lines) == [Line(1, b"a")]
        os.write(writing, b"c\nd\n")
        assert await anext(lines) == [Line(2, b"bc"), Line(3, b"d")]
        os.close(writing)
        assert await anext(lines) == []
        assert await anext(lines, None) is None


async def test_it_reads_nothing_ahead() -> None:
    class Endless(io.RawIOBase):
        reads = 0

        def read(self, size: int = -1, /) -> bytes:
            self.reads += 1
            return b"x\n" * (READ_BYTES // 2)

    stream = Endless()
    async with contextlib.aclosing(read_lines(stream, LIMIT)) as lines:  # type: ignore[arg-type,type-var]
        assert (await anext(lines))[0] == Line(1, b"x")
        await turn(100)
        assert stream.reads == 1
