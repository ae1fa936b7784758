"""Cutting many entries with numpy: what the plain decoders give, and an error for everything else."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha.devcluster.nsqd.pulls import AnswerWriter, StoredEntry, encode_stored
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Message
from nsq_ha.spark.plan.batch_planner import Range
from nsq_ha.spark.pull.calls import ENTRY, EXT_MARK, Answers, Pulled
from nsq_ha.spark.read.bulk.cutting import DamagedLogError, StoredMessages, cut
from tests.spark.logs import Source
from tests.spark.projections import ALL, ARRAY
from tests.spark.test_pull import source
from tests.support.spark_rows import entries

PARTITION = 3
BASE = PARTITION << 50
ASKED = Range("flights", PARTITION, 0, 2**60, None, ordered=False, extended=False)


@dataclass
class Written:
    """Entries, and the messages that a subscription would deliver."""

    entries: list[StoredEntry]
    messages: list[Message]


def write(
    lots: Sequence[Sequence[tuple[bytes, bytes | None]]], *, extended: bool, offset: int = 0, first: int = 2
) -> Written:
    entries: list[StoredEntry] = []
    messages: list[Message] = []
    number = first
    for lot in lots:
        begin, parts = offset, []
        for body, ext in lot:
            id_ = BASE + number
            stored = encode_stored(1_700_000_000_123_456_789 + number, id_, number, body, ext, extended=extended)
            whole_id = id_.to_bytes(8, "big") + number.to_bytes(8, "big")
            time = 1_700_000_000_123_456_789 + number
            messages.append(
                Message(
                    whole_id, body, 1, time, Source(partition=PARTITION), offset, len(stored), ext if extended else None
                )
            )
            parts.append(stored)
            offset += len(stored)
            number += 1
        count = len(lot)
        entries.append(
            StoredEntry(BASE + number - count, BASE + number - 1, begin, number - count, count, b"".join(parts))
        )
    return Written(entries, messages)


def pulled(entries: list[StoredEntry]) -> Pulled:
    _, answer = Answers(source(AnswerWriter().answer(1, entries))).read()
    assert isinstance(answer, Pulled)
    return answer


def rows_of(answer: Pulled) -> StoredMessages:
    found = cut(answer, ASKED)
    assert found is not None
    return found[0]


def check(written: Written) -> StoredMessages:
    found = cut(pulled(written.entries), ASKED)
    assert found is not None
    rows, entries = found
    assert entries == len(written.entries)
    assert rows.offsets.tolist() == [message.offset for message in written.messages]
    assert rows.raw_sizes.tolist() == [message.raw_size for message in written.messages]
    made = ALL.batch(rows)
    assert made.equals(ALL.batch(written.messages)), made.to_pydict()
    headers = ARRAY.batch(rows)
    assert headers.equals(ARRAY.batch(written.messages)), headers.to_pydict()
    return rows


bodies = st.binary(max_size=300)
headers = st.none() | st.sampled_from([b"{}", b'{"key":"k"}', b'{"key":7,"a":{"b":1}}', b'{"a":1,"a":2}', b"\xff", b""])
lots = st.lists(st.lists(st.tuples(bodies, headers), min_size=1, max_size=5), min_size=1, max_size=40)


@given(lots, st.booleans(), st.integers(0, 2**40), st.integers(0, 2**33))
def test_any_entries_become_what_a_subscription_would_deliver(
    parts: list[list[tuple[bytes, bytes | None]]], extended: bool, offset: int, first: int
) -> None:
    check(write(parts, extended=extended, offset=offset, first=first))


def test_an_answer_without_entries_has_no_rows() -> None:
    assert cut(pulled([]), ASKED) is None


def test_old_messages_of_an_extended_topic_have_no_header() -> None:
    old = write([[(b"\4\0\2{}", None)] * 2], extended=False)
    new = write([[(b"body", b"{}"), (b"body", None)]], extended=True, offset=2 * 35, first=4)
    check(Written([*old.entries, *new.entries], [*old.messages, *new.messages]))


def entry(*messages: bytes, offset: int = 0) -> StoredEntry:
    return StoredEntry(BASE + 2, BASE + 2, offset, 0, len(messages), b"".join(messages))


def stored(body: bytes = b"body", *, size: int | None = None, id_: int = BASE + 2, tail: bytes = b"") -> bytes:
    data = encode_stored(1, id_, 0, body) + tail
    return data if size is None else size.to_bytes(4, "big") + data[4:]


def marked(part: bytes) -> bytes:
    """A message with an ext part."""
    data = encode_stored(1, BASE + 2, 0, part)
    return data[:12] + EXT_MARK.to_bytes(2, "big") + data[14:]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([entry(stored()), entry(stored(), offset=35)], "do not follow each other"),
        ([entry(stored()), entry(stored(), offset=33)], "do not follow each other"),
        ([entry(stored(), tail) for tail in (b"x", b"x" * 30)][:1], "do not fill it"),
        ([entry(stored(), b"x" * 30)], "do not fill it"),
        ([entry(stored(size=29))], "do not fill it"),
        ([entry(bytes(60))], "do not fill it"),
        ([entry(stored(size=31))], "do not fill it"),
        ([entry(stored(size=25, tail=b"x" * 30))], "do not fill it|smaller than its head"),
        ([entry(stored(b"", size=0), *[bytes(4)] * 26)], "smaller than its head|do not fill it"),
        ([entry(b"x" * 29)], "smaller than a message"),
        ([entry(stored(id_=2))], "belongs to partition 0"),
        ([entry(stored(size=4, tail=b""))], "do not fill it|smaller than its head"),
    ],
)
def test_a_damaged_log_is_refused(entries: list[StoredEntry], problem: str) -> None:
    with pytest.raises(DamagedLogError, match=problem):
        cut(pulled(entries), ASKED)


@pytest.mark.parametrize("part", [b"", b"\4", b"\4\0", b"\4\0\3ab"])
def test_a_header_longer_than_its_message_is_refused(part: bytes) -> None:
    rows = rows_of(pulled([entry(marked(part), marked(b"\4\0\2{}"))]))
    with pytest.raises(DamagedLogError, match=r"extension header|version of its header"):
        ALL.batch(rows)


REAL_FIELDS = tuple(name for name, _ in ENTRY.fields)
ANSWER = bytes(pulled(write([[(bytes(40), None)]] * 40 + [[(b"x" * 9, None)] * 70], extended=False).entries).data)


@given(st.lists(st.tuples(st.integers(0, len(ANSWER) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_refused_or_within_messages(changes: list[tuple[int, int]]) -> None:
    data = bytearray(ANSWER)
    for place, byte in changes:
        data[place] = byte
    answer = Pulled(memoryview(data), REAL_FIELDS)
    try:
        rows = rows_of(answer)
    except RemoteProtocolError:
        return
    plain = entries(answer)
    assert {offset for offset, _ in plain} <= set(rows.offsets.tolist())
    assert (np.diff(rows.offsets) == rows.raw_sizes[:-1]).all()
    assert rows.end == plain[-1][0] + len(plain[-1][1])


@given(st.integers(0, len(ANSWER) - 1))
def test_a_cut_answer_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        cut(Pulled(memoryview(ANSWER)[:size], REAL_FIELDS), ASKED)


def test_parts_of_rows_are_batches_of_their_own() -> None:
    written = write([[(b"%d" % number, None)] for number in range(50)], extended=False)
    rows = check(written)
    parts = [ALL.batch(rows.part(low, low + 10)) for low in range(0, 50, 10)]
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([ALL.batch(written.messages)]))
    assert rows.part(3, 7).end == written.messages[7].offset
