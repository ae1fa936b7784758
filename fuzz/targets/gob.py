"""The call that copies a partition's log, in gob; as the client, Spark and the server read it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fuzz.target import Target, pieces
from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.devcluster.nsqd.pulls import AnswerWriter, Called, CallReader, StoredEntry, encode_stored, within_limits
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.pull.calls import ANSWER, Answers, Pull, Pulled, Requests
from nsq_ha.spark.pull.gob import Decoder, decode_uint, encode_message
from nsq_ha.spark.read.bulk.cutting import DamagedLogError, cut
from nsq_ha.spark.read.bulk.entries import entries_of

_PARTITION: Final = 1
_RANGE: Final = Range("orders", _PARTITION, 0, 2**40, None, ordered=False, extended=False)
_FIELDS: Final = ("LogID", "Epoch", "LastMsgLogID", "MsgOffset", "MsgSize", "MsgCnt", "MsgNum")


class _EndedError(Exception):
    """The stream ended."""


def _messages(data: bytes) -> Callable[[], memoryview]:
    """Return a function that reads the next message of a stream."""
    view, at = memoryview(data), 0

    def following() -> memoryview:
        nonlocal at
        if at == len(view):
            raise _EndedError
        size, start = decode_uint(view, at)
        at = start + size
        if at > len(view):
            raise _EndedError
        return view[start:at]

    return following


def run_gob(data: bytes) -> None:
    """A stream of values, of answers, or of requests."""
    how, cut_at, stream = *data[:2].ljust(2, b"\1"), data[2:]
    decoder = Decoder(_messages(stream), {ANSWER} if how & 1 else ())
    try:
        while decoder.read() is not None:
            pass
    except (RemoteProtocolError, _EndedError):
        pass
    assert len(decoder.types) <= 64
    _answers(stream)
    called = _called([stream])
    assert _called(pieces(stream, cut_at)) == called
    _again(called[0])


def _answers(stream: bytes) -> None:
    answers = Answers(_messages(stream))
    try:
        while True:
            _, answer = answers.read()
            if isinstance(answer, Pulled):
                _entries(answer)
            else:
                assert len(answer) <= 200
    except (RemoteProtocolError, _EndedError):
        pass


def _entries(answer: Pulled) -> None:
    """The messages that are cut fill their entries, if there is something to copy."""
    try:
        found = cut(answer, _RANGE)
    except (DamagedLogError, RemoteProtocolError):
        return
    if found is None:
        return
    rows, entries = found
    assert len(rows) >= entries
    assert int(rows.raw_sizes.sum()) == int(entries_of(answer).sizes.sum())
    try:
        headers, bodies = rows.parts
    except RemoteProtocolError:
        return
    assert len(headers) == len(rows)
    assert (headers <= bodies).all()
    assert (bodies <= rows.ends).all()


def _called(stream: Iterable[bytes]) -> tuple[list[Called], bool]:
    reader, found = CallReader(), list[Called]()
    for piece in stream:
        try:
            found += reader.feed(piece)
        except RemoteProtocolError:
            return found, True
    return found, False


def _again(calls: list[Called]) -> None:
    requests = Requests()
    for call in calls:
        pull = call.pull
        if pull is None or not all(0 <= number < 2**40 for number in (pull.partition, pull.entry, pull.count)):
            return
        if pull.topic.isascii():
            [(read,), is_refused] = _called([Requests().encode(pull)])
            assert read.pull == pull
            assert not is_refused
            requests.encode(pull)


def run_log(data: bytes) -> None:
    """The part of an answer that is copied: entries and their messages."""
    _entries(Pulled(memoryview(data[1:]), _FIELDS[: 1 + data[0] % 7] if data else _FIELDS))
    sizes = [size << 17 for size in data[:40]]
    assert sum(sizes[: within_limits(sizes)]) <= 32 * 1024 * 1024


def _entry(number: int, *bodies: bytes, ext: bytes | None = None) -> StoredEntry:
    first = (_PARTITION << PARTITION_SHIFT) + number
    stored = [
        encode_stored(2**60, first + each, 0, body, ext, extended=ext is not None) for each, body in enumerate(bodies)
    ]
    return StoredEntry(first, first + len(bodies) - 1, 100 * number, number, len(bodies), b"".join(stored))


def _logs() -> Iterator[list[StoredEntry]]:
    yield []
    yield [_entry(1, b"paid")]
    yield [_entry(0, b"p" * 70, ext=b'{"a":"b"}'), _entry(1, b"a", b"b" * 35), _entry(2, b"c" * 70)]
    entries, offset = [], 0
    for number in range(20):
        entry = _entry(number, b"same")
        entries.append(StoredEntry(entry.first_id, entry.last_id, offset, number, 1, entry.data))
        offset += len(entry.data)
    yield entries


def seeds_of_gob() -> Iterator[bytes]:
    """Yield requests and answers."""
    requests = Requests()
    calls = [requests.encode(Pull("orders", 1, entry, 10)) for entry in (0, 7)]
    yield b"\0\1" + calls[0] + calls[1]
    yield b"\0\3" + calls[0]
    yield b"\1\1" + calls[0][1:]
    for entries in _logs():
        writer = AnswerWriter()
        yield b"\1\1" + writer.answer(1, entries) + writer.refuse(2, "no such topic\nstack") + writer.answer(3, entries)
    yield b"\0\1" + encode_message(b"\xff\x81\x03\x01\x01\x01T\x01\xff\x82\x00\x01\x01\x01\x01A\x01\x04\x00\x00\x00")


def seeds_of_logs() -> Iterator[bytes]:
    """Yield the entries of answers, encoded."""
    for entries in _logs():
        answers = Answers(_messages(AnswerWriter().answer(1, entries)))
        _, answer = answers.read()
        assert isinstance(answer, Pulled)
        yield b"\6" + bytes(answer.data)


TARGETS: Final = (
    Target("gob", "requests and answers of the call that copies a log", run_gob, seeds_of_gob),
    Target("log", "entries of a copied log, and their messages", run_log, seeds_of_logs),
)
