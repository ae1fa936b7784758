"""The commands of a producer: what is sent, what is refused before, and what an answer means."""

import struct
from typing import Any

import pytest

from nsq_ha.errors import RemoteProtocolError
from nsq_ha.message import Receipt
from nsq_ha.producer.messages import CheckedMessage
from nsq_ha.producer.requests import PubRequest, rich_mpub
from nsq_ha.protocol import Traced
from nsq_ha.protocol.server.answers import encode_traced

TOPIC = "orders"


def pub(body: bytes = b"body", **more: Any) -> PubRequest:  # noqa: ANN401 - the fields of a request
    return PubRequest(topic=TOPIC, limit=30.0, size=len(body), body=body, **more)


def wire(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# ---------------------------------------------------------------- requests


def test_each_kind_of_message_has_its_command() -> None:
    assert b"".join(pub().encode(3)) == b"PUB orders 3\n" + wire(b"body")
    assert b"".join(pub().encode(None)) == b"PUB orders\n" + wire(b"body")
    assert b"".join(pub(trace_id=7).encode(3)) == b"PUB_TRACE orders 3\n" + wire(struct.pack(">Q", 7) + b"body")
    assert b"".join(pub(ext=b"{}", trace_id=7).encode(3)) == b"PUB_EXT orders 3\n" + wire(b"\0\x02{}body")
    assert b"".join(pub(defer_ms=1500).encode(None)) == b"DPUB orders 1500\n" + wire(b"body")


def test_each_answer_becomes_a_receipt() -> None:
    assert pub(attempts=2).decode(b"OK", 3, "here:1") == [Receipt(TOPIC, 3, "here:1", 2)]
    stored = Traced(3 << 50 | 9, 7, 100, 34)
    receipt = Receipt(TOPIC, 3, "here:1", 2, stored.internal_id, 7, 100, 34)
    assert pub(attempts=2, trace_id=7).decode(encode_traced(stored), 3, "here:1") == [receipt]
    extended = Traced(3 << 50 | 9, 7, 100, 34 + 1 + 2 + 2)
    (receipt,) = pub(trace_id=7, ext=b"{}").decode(encode_traced(extended), 3, "here:1")
    assert receipt.raw_size == 39


def checked(body: bytes, trace_id: int | None = None, ext: bytes | None = None) -> CheckedMessage:
    return CheckedMessage(body, trace_id, ext)


def test_a_traced_batch_numbers_its_messages() -> None:
    batch = rich_mpub(TOPIC, [checked(b"a", 7), checked(b"bcd", 8), checked(b"e")], 30.0, 99)
    assert (batch.size, batch.count, batch.is_plain, batch.closes_when_refused) == (5, 3, False, False)
    assert batch.began_ns == 99
    bodies = [wire(struct.pack(">Q", trace) + body) for trace, body in ((7, b"a"), (8, b"bcd"), (0, b"e"))]
    assert b"".join(batch.encode(3)) == b"MPUB_TRACE orders 3\n" + wire(struct.pack(">i", 3) + b"".join(bodies))
    batch.attempts = 1
    first = 3 << 50 | 9
    for extra in (0, 1):  # on an extended topic each takes one byte more
        sizes = [31 + extra, 33 + extra, 31 + extra]
        answer = encode_traced(Traced(first, 0, 100, sum(sizes)))
        assert batch.decode(answer, 3, "here:1") == [
            Receipt(TOPIC, 3, "here:1", 1, first + n, trace, 100 + sum(sizes[:n]), sizes[n])
            for n, trace in enumerate((7, 8, None))
        ]


def test_a_batch_with_headers_has_no_ids() -> None:
    batch = rich_mpub(TOPIC, [checked(b"a", 7, b"{}"), checked(b"b", None, b"")], 30.0, 99)
    assert batch.closes_when_refused
    assert b"".join(batch.encode(3)).startswith(b"MPUB_EXT orders 3\n")
    assert b"".join(batch.encode(3)).count(b"{}") == 1
    receipts = [Receipt(TOPIC, 3, "here:1", 0, None, trace) for trace in (7, None)]
    assert batch.decode(b"OK", 3, "here:1") == receipts
    with pytest.raises(RemoteProtocolError, match=r"^the answer to MPUB_EXT must be OK, not b'no'$"):
        batch.decode(b"no", 3, "here:1")


# ---------------------------------------------------------------- what is checked
