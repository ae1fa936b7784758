"""The call that copies a log: both sides against the bytes of Go's own gorpc, and against each other."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.devcluster.nsqd.pulls import (
    AnswerWriter,
    Called,
    CallReader,
    StoredEntry,
    encode_stored,
    within_limits,
)
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.spark.pull.calls import Answers, Pull, Pulled, Requests
from nsq_ha.spark.pull.gob import (
    Struct,
    decode_uint,
    encode_bytes,
    encode_definition,
    encode_fields,
    encode_int,
    encode_message,
    encode_uint,
)
from tests.protocol.gorpc_bytes import ANSWERS, REQUESTS, SERVER
from tests.support.spark_rows import entries

METHOD = "NsqdCoordRpcServer.PullCommitLogsAndData"
PULLS = [Pull(topic, 1, 7, 3) for topic in ("flights", "missing", "empty", "flights")]
IDS = [(1 << 50) + 2 + number for number in range(3)]
STORED = [
    StoredEntry(IDS[0], IDS[0], 1610, 0, 1, bytes(33)),
    StoredEntry(IDS[1], IDS[1], 1643, 1, 1, b"\1" * 34),
    StoredEntry(IDS[2], IDS[2], 1677, 2, 1, b"\2" * 63),
]
MISSING = "ErrType:5 ErrCode:24 : missing topic coordinator"


def source(stream: bytes) -> Callable[[], memoryview]:
    def messages() -> Iterator[memoryview]:
        at = 0
        while at < len(stream):
            size, at = decode_uint(stream, at)
            yield memoryview(stream)[at : at + size]
            at += size
        raise RemoteProtocolError("the stream ends")

    found = messages()
    return lambda: next(found)


def test_requests_are_those_of_go() -> None:
    requests = Requests()
    assert b"".join(map(requests.encode, PULLS)) == REQUESTS


def test_answers_are_those_of_go() -> None:
    writer = AnswerWriter()
    written = [writer.answer(1, STORED), writer.refuse(2, MISSING), writer.answer(3, []), writer.answer(4, STORED)]
    assert b"".join(written) == ANSWERS


def test_the_answers_of_go_are_understood() -> None:
    answers = Answers(source(ANSWERS))
    (one, first), second, (three, third), (four, fourth) = (answers.read() for _ in range(4))
    assert (one, second, three, four) == (1, (2, MISSING), 3, 4)
    assert entries(first) == entries(fourth) == [(1610, bytes(33)), (1643, b"\1" * 34), (1677, b"\2" * 63)]
    assert entries(third) == []


def test_the_answers_of_a_real_server_are_understood() -> None:
    answers = Answers(source(SERVER))
    whole, beyond, other, none, second = (answers.read()[1] for _ in range(5))
    assert beyond == "commit log offset is out of bound"
    assert other == MISSING
    assert entries(none) == []
    times = 0x18EA767B4B89A3B7, 0x18EA767B4EED4165, 0x18EA767B4EED6DC2
    ids = [(1 << 50) + number for number in (2, 3, 4)]
    parts = [(b"first", b'{"key":"k"}'), (b"second", b"{}"), (b"third", b'{"n":"1"}')]
    stored = [
        encode_stored(time, id_, 0, body, ext, extended=True)
        for time, id_, (body, ext) in zip(times, ids, parts, strict=True)
    ]
    assert entries(whole) == [(0, stored[0]), (49, stored[1] + stored[2])]
    assert entries(second) == entries(whole)[1:]


@pytest.mark.parametrize("size", [1, 7, 100, len(REQUESTS)])
def test_the_requests_of_go_are_understood_in_pieces(size: int) -> None:
    reader = CallReader()
    called = [call for at in range(0, len(REQUESTS), size) for call in reader.feed(REQUESTS[at : at + size])]
    assert called == [Called(number, pull, METHOD) for number, pull in enumerate(PULLS, 1)]


@pytest.mark.parametrize("size", [1, 100, 2 * len(REQUESTS)])
def test_requests_before_a_wrong_one_are_found(size: int) -> None:
    reader, stream = CallReader(), REQUESTS + b"\xfd\x01\0\x01"
    called = (call for at in range(0, len(stream), size) for call in reader.feed(stream[at : at + size]))
    assert [next(called).pull for _ in PULLS] == PULLS
    with pytest.raises(RemoteProtocolError, match="a request of 65537 bytes"):
        next(called)


PARTS = st.tuples(st.integers(0, 2**40), st.binary(min_size=1, max_size=300))


@given(st.lists(PARTS, max_size=20), st.integers(1, 2**40))
def test_entries_survive(parts: list[tuple[int, bytes]], first_id: int) -> None:
    stored = [StoredEntry(first_id, first_id, offset, 3, 1, data) for offset, data in parts]
    _, answer = Answers(source(AnswerWriter().answer(1, stored))).read()
    assert entries(answer) == parts


def changed(old: bytes, new: bytes) -> bytes:
    """The first answer of Go, with some bytes replaced by as many."""
    assert len(old) == len(new)
    assert old in ANSWERS
    return ANSWERS.replace(old, new)


@pytest.mark.parametrize(
    "stream",
    [
        changed(b"dispatcherResponse\xff\x81", b"dispatcherRespons_\xff\x81"),
        changed(b"RpcPullCommitLogsRsp\xff\x83", b"RpcPullCommitLogsRs_\xff\x83"),
        changed(b"\x04Logs", b"\x04Logz"),
        changed(b"\x01\x04Logs\x01\xff\x88", b"\x01\x04Logs\x01\xff\x86"),
        changed(b"\x08DataList\x01\xff\x8a", b"\x08DataList\x01\xff\x84"),
        changed(b"[][]uint8\x01\xff\x8a\x00\x01\n", b"[][]uint8\x01\xff\x8a\x00\x01\x0c"),
        changed(b"\x07MsgSize\x01\x04", b"\x07MsgSize\x01\x06"),
        changed(b"\x06MsgCnt", b"\x06MsgNum"),
        changed(b"CommitLogData\x01\xff\x88\0\x01\xff\x86", b"CommitLogData\x01\xff\x88\0\x01\xff\x8a"),
    ],
)
def test_an_answer_of_another_version_is_refused(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the gob data has"):
        Answers(source(stream)).read()


def test_an_answer_that_is_none_is_refused() -> None:
    wire = encode_message(encode_definition(64, Struct("wireResponse", (("ID", 3), ("Response", 8), ("Error", 6)))))
    reply = encode_message(encode_definition(65, Struct("dispatcherResponse", (("Response", 8), ("Error", 6)))))
    box = b"\x19*gorpc.dispatcherResponse\xff\x82"
    nothing = encode_message(b"\xff\x80\x02", box, encode_message(b"\0"), b"\0")
    panic = encode_message(b"\xff\x80\x03\x0cPanic\nstack:\0")
    answers = Answers(source(wire + reply + panic + nothing))
    assert answers.read() == (0, "Panic")
    with pytest.raises(RemoteProtocolError, match="an answer to another call"):
        answers.read()
    with pytest.raises(RemoteProtocolError, match="no answer to a call"):
        Answers(source(wire + encode_message(b"\xff\x80\0"))).read()


FIELDS = ("MsgOffset", "MsgSize")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "a value that is cut"),
        (b"\x01\x01\x01\x02\x01\x04\0\0", "entries that are cut"),
        (b"\x01\x01\x01\x02\x01\x04\0\x01\x02\x02ab\x02ab\0", "1 entries, but the messages of 2"),
        (b"\x01\x01\x01\x02\x01\x04\0\x01\x01\x03abc\0", "messages in an entry of another size"),
        (b"\x01\x01\x01\x02\x01\x04\0\x01\x01\x02a", "messages in an entry of another size"),
        (b"\x01\x01\x01\x02\x01\xfe\xff\xfe\0\x01\x01\x02ab\0", "an entry of an impossible size"),
        (b"\x01\x01\x01\x02\x01\xf7" + bytes(9) + b"\0\0", "a number of 9 bytes"),
        (b"\x01\x01\x01\x02\0\0", "an entry without messages"),
        (b"\x01\x01\x01\x02\x01\x04\0\x01\x01\x02ab\x01\0", "entries that are cut"),
        (b"\x01\x01\x01\x02\x01\x04\0\x01\x01\x02ab\0\0", "entries that are cut"),
        (b"\x01\x01\x03\x02\0\0", "have more fields than their type"),
        (b"\x02\x01\x02ab\0", "0 entries, but the messages of 1"),
        (b"\x01" + encode_uint(10_001) + bytes(20_000), "10001 entries"),
    ],
)
def test_entries_that_do_not_fit_together_are_refused(data: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        entries(Pulled(memoryview(data), FIELDS))


WIDTHS = st.tuples(
    st.sampled_from([0, 1, 2**40]), st.sampled_from([0, 60, 2**20]), st.sampled_from([1, 63, 64, 128, 300, 40_000])
)


@given(st.lists(WIDTHS, min_size=1, max_size=60))
def test_entries_of_any_layout_are_found(numbers: list[tuple[int, int, int]]) -> None:
    fields = ("LogID", "MsgOffset", "MsgSize", "MsgNum")
    written = b"".join(
        encode_fields([(at, encode_int(number)) for at, number in enumerate((*each, 1)) if number]) for each in numbers
    )
    stored = [(offset, bytes([at]) * size) for at, (_, offset, size) in enumerate(numbers)]
    count = encode_uint(len(numbers))
    answer = encode_fields([(0, count + written), (1, count + b"".join(encode_bytes(data) for _, data in stored))])
    assert entries(Pulled(memoryview(answer), fields)) == stored


# ---------------------------------------------------------------- the server's side


@pytest.mark.parametrize(
    "stream",
    [
        b"\x01" + REQUESTS[1:],
        b"\0" + b"\xfd\x01\0\x01",
        REQUESTS.replace(b"*gorpc.dispatcherRequest", b"*gorpc.dispatcherReques_"),
        REQUESTS.replace(b"\tTopicName\x01\x0c", b"\tTopicName\x01\x06"),
        REQUESTS.replace(b"\x0eTopicPartition\x01\x04", b"\x0eTopicPartition\x01\x0c"),
        REQUESTS.replace(
            b"\x0cRpcTopicData\x01\xff\x86\0\x01\x0eStart", b"\x0cRpcTopicData\x01\xff\x82\0\x01\x0eStart"
        ),
    ],
)
def test_other_requests_are_refused(stream: bytes) -> None:
    assert stream != REQUESTS
    with pytest.raises(RemoteProtocolError, match="the gob data has"):
        list(CallReader().feed(stream))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"*consistence.RpcPullCommitLogsReq", b"*consistence.RpcPullCommitLogsRe_"),
        (b".PullCommitLogsAndData", b".PullCommitLogsAndDat_"),
        (b"\x02\x0e\x01\x01\0", b"\x02\x0e\x01\0\0"),
    ],
)
def test_calls_that_are_not_known_are_named(old: bytes, new: bytes) -> None:
    called = list(CallReader().feed(REQUESTS.replace(old, new)))
    assert [call.pull for call in called] == [None] * 4
    assert called[0].method in (METHOD, METHOD[:-1] + "_")


def test_an_answer_has_at_most_32_mib() -> None:
    half = 16 * 1024 * 1024
    assert within_limits([half, half]) == 2
    assert within_limits([half, half, 1]) == 2
    assert within_limits([2 * half + 1]) == 0
    assert within_limits([]) == 0


STORED_HEAD = "1709a0b0c0d0e0f0"


@pytest.mark.parametrize(
    ("ext", "extended", "rest"),
    [
        (None, False, "0000" + "0004000000000002" + "0000000000000007" + b"body".hex()),
        (None, True, "a000" + "0004000000000002" + "0000000000000007" + "00" + b"body".hex()),
        (b"{}", True, "a000" + "0004000000000002" + "0000000000000007" + "040002" + b"{}body".hex()),
    ],
)
def test_a_message_is_its_size_its_head_and_its_parts(ext: bytes | None, extended: bool, rest: str) -> None:
    stored = encode_stored(0x1709A0B0C0D0E0F0, (1 << 50) + 2, 7, b"body", ext, extended=extended)
    assert stored[4:].hex() == STORED_HEAD + rest
    assert int.from_bytes(stored[:4], "big") == len(stored) - 4
