"""Frames cut by numpy: the same messages, decisions and columns as with an object for each message."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.message import Message
from nsq_ha.protocol import Layout
from nsq_ha.protocol.encoding import encode_fins
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.messages import encode_message, reader_for
from nsq_ha.spark.read import columns as columns_module
from nsq_ha.spark.read import frames as frames_module
from nsq_ha.spark.read.chain import Chain
from nsq_ha.spark.read.frames import BATCH_BYTES, LEAST_ROOM, Frames, ReceiveBuffer, Rows, cut, joined
from tests.spark.logs import PARTITION, Source
from tests.spark.projections import ALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LARGEST: Final = 1 << 24
SOURCE: Final = Source()


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut reads of a few messages as well."""
    monkeypatch.setattr(frames_module, "FEWEST_BYTES", 4)


def message(body: bytes, offset: int, raw_size: int | None = None, **more: int) -> Message:
    number = more.get("number", offset)
    id_ = (more.get("partition", PARTITION) << PARTITION_SHIFT | number).to_bytes(8, "big") + number.to_bytes(8, "big")
    size = 30 + len(body) if raw_size is None else raw_size
    return Message(id_, body, more.get("attempts", 1), 1_357_017_300_123_456_789 + number, SOURCE, offset, size)


def log_of(bodies: Sequence[bytes], first: int = 0) -> list[Message]:
    starts = itertools.accumulate((30 + len(body) for body in bodies[:-1]), initial=first)
    return [message(body, start) for body, start in zip(bodies, starts, strict=True)]


def frame(each: Message) -> bytes:
    return encode_frame(FrameType.MESSAGE, encode_message(each, Layout.DETAIL))


def data_of(messages: Sequence[Message]) -> bytes:
    return b"".join(map(frame, messages))


def buffer_of(data: bytes) -> ReceiveBuffer:
    buffer = ReceiveBuffer()
    buffer.put(data)
    return buffer


def frames_of(messages: Sequence[Message]) -> Frames:
    frames = cut(buffer_of(data_of(messages)), LARGEST, SOURCE)
    assert frames is not None
    assert len(frames) == len(messages)
    return frames


def fields(messages: Sequence[Message] | Iterator[Message]) -> list[tuple[object, ...]]:
    return [
        (each.id, each.body, each.attempts, each.timestamp_ns, each.offset, each.raw_size, each.ext, each.source)
        for each in messages
    ]


bodies = st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12)
same_size = st.integers(1, 30).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1))
ODD: Final = {
    "heartbeat": encode_frame(FrameType.RESPONSE, b"_heartbeat_"),
    "error": encode_frame(FrameType.ERROR, b"E_FIN_FAILED FIN failed"),
    "unknown": (8).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"what",
    "huge": b"\x7f\xff\xff\xff" + bytes(60),
    "negative": b"\xff\xff\xff\xff" + bytes(60),
    "short": encode_frame(FrameType.MESSAGE, b"short"),
    "merged": frame(message(b"x" * 50, 0, 40)),
    "nothing": b"",
}


@given(st.one_of(bodies, same_size), st.sampled_from(sorted(ODD)), bodies, st.integers(0, 200))
def test_cutting_gives_what_the_reader_of_the_protocol_gives(
    before: list[bytes], odd: str, after: list[bytes], missing: int
) -> None:
    data = data_of(log_of(before)) + ODD[odd] + data_of(log_of(after))
    data = data[: len(data) - missing]
    wanted: list[Message] = []
    end = reader_for(Layout.DETAIL)(data, 0, LARGEST, SOURCE, wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "FEWEST_BYTES", 4)
        buffer = buffer_of(data)
        frames = cut(buffer, LARGEST, SOURCE)
    if frames is None:
        assert not wanted
    else:
        assert fields(iter(frames)) == fields(wanted)
        assert frames.ends[-1] == end
    assert buffer.take() == data[end:]


def test_a_frame_above_the_limit_is_left_to_the_protocol() -> None:
    log = log_of([b"a" * 10, b"b" * 40, b"c" * 10])
    frames = cut(buffer_of(data_of(log)), 42 + 39, SOURCE)
    assert frames is not None
    assert fields(frames.messages()) == fields(log[:1])


@given(st.lists(st.one_of(bodies, same_size), min_size=2, max_size=6), st.booleans())
def test_batches_outlive_the_memory_of_their_frames(lots: list[list[bytes]], are_large: bool) -> None:
    whole = log_of(list(itertools.chain.from_iterable(lots)))
    rest, buffer, batches = iter(whole), ReceiveBuffer(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "FEWEST_BYTES", 4)
        patch.setattr(frames_module, "BATCH_BYTES", 1 << 14)
        patch.setattr(frames_module, "LEAST_ROOM", 1 << 11)
        patch.setattr(columns_module, "_LARGE_BYTES", 0 if are_large else 1 << 20)
        for lot in lots:
            buffer.put(data_of(list(itertools.islice(rest, len(lot)))))
            frames = cut(buffer, LARGEST, SOURCE)
            assert frames is not None
            batches.append(ALL.batch(Rows(frames)))
            memory = buffer.memory
            buffer.renew()
            assert buffer.memory is memory
            memory[:] = bytes(len(memory))
    assert pa.Table.from_batches(batches).equals(pa.Table.from_batches([ALL.batch(whole)]))


def test_a_frame_that_is_larger_than_the_memory_gets_more() -> None:
    buffer = buffer_of(b"taken" + bytes(BATCH_BYTES))
    buffer.start += 5
    for _ in range(20):
        buffer.put(b"x" * LEAST_ROOM)
    assert buffer.take() == bytes(BATCH_BYTES) + b"x" * (20 * LEAST_ROOM)


@given(st.one_of(bodies, same_size))
def test_fins_and_ids_are_those_of_the_messages(given_bodies: list[bytes]) -> None:
    log = log_of(given_bodies)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "FEWEST_BYTES", 4)
        frames = frames_of(log)
    assert frames.fins() == encode_fins([each.id for each in log])
    assert frames.largest_body == max(map(len, given_bodies))


@given(st.lists(st.one_of(bodies, same_size), min_size=1, max_size=4))
def test_several_reads_are_joined_to_the_same_rows(lots: list[list[bytes]]) -> None:
    buffer, parts = ReceiveBuffer(), list[Frames]()
    whole = log_of(list(itertools.chain.from_iterable(lots)))
    rest = iter(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames_module, "FEWEST_BYTES", 4)
        for lot in lots:
            buffer.put(data_of(list(itertools.islice(rest, len(lot)))) + b"\x00\x00\x01")  # an unfinished frame follows
            frames = cut(buffer, LARGEST, SOURCE)
            assert frames is not None
            assert buffer.take() == b"\x00\x00\x01"
            parts.append(frames)
    assert fields(joined(parts).messages()) == fields(whole)
    rows = Rows()
    for part in parts:
        rows.add(part)
    assert ALL.batch(rows).equals(ALL.batch(whole))


def test_columns_are_those_of_the_messages() -> None:
    log = [message(b"\x00\xff", 240), message(b"b", 272, 60, attempts=65535, number=2**40), message(b"c" * 9, 332)]
    rows = Rows()
    rows.add(frames_of(log))
    batch = ALL.batch(rows)
    assert batch.equals(ALL.batch(log))
    assert batch.schema.equals(ALL.arrow_schema())
    assert batch.column("attempts").to_pylist() == [1, 32767, 1]
    assert batch.column("value").to_pylist() == [b"\x00\xff", b"b", b"c" * 9]


@given(bodies, st.data())
def test_the_chain_decides_about_frames_as_about_messages(given_bodies: list[bytes], data: st.DataObject) -> None:
    log = log_of(given_bodies, 1000)
    bounds = [1000, *(each.offset + each.raw_size for each in log if each.offset is not None and each.raw_size)]
    low, high = sorted(data.draw(st.tuples(*[st.integers(0, len(log))] * 2)))
    chains = [Chain(bounds[low], bounds[high], PARTITION) for _ in range(2)]
    rows = Rows()
    wanted: list[Message] = []
    for _ in range(data.draw(st.integers(1, 4))):
        first = data.draw(st.integers(0, len(log) - 1))
        delivered = [
            *log[first : data.draw(st.integers(first + 1, len(log)))],
            *data.draw(st.lists(st.sampled_from(log), max_size=2)),
        ]
        finished = [each.offset for each in chains[0].take(delivered, wanted)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(frames_module, "FEWEST_BYTES", 4)
            frames = frames_of(delivered)
        count = chains[1].take_frames(frames)
        if count:
            rows.add(frames.first(count))
        assert finished == [
            *frames.offsets[:count].tolist(),
            *(each.offset for each in chains[1].take(frames.messages(count), rows.messages())),
        ]
        assert chains[0].position == chains[1].position
        assert chains[0].stashed == chains[1].stashed
    assert fields(list(rows)) == fields(wanted)


def test_another_partition_and_an_end_inside_a_message_are_left_to_the_chain() -> None:
    log = log_of([b"a" * 10, b"b" * 10])
    other = message(b"c" * 10, 80, partition=PARTITION + 1)
    assert Chain(0, 120, PARTITION).take_frames(frames_of([*log, other])) == 2
    assert Chain(0, 79, PARTITION).take_frames(frames_of(log)) == 1
    assert Chain(0, 120, PARTITION).take_frames(frames_of([message(b"a", 0, 0)])) == 0
