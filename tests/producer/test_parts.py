"""The parts of a producer, each alone: what is sent, where it goes, and what comes back."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha import ProducerConfig
from nsq_ha.engine.shared import Connections
from nsq_ha.errors import (
    ConfigError,
    RemoteProtocolError,
)
from nsq_ha.message import Receipt
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.choice import PartitionChoice
from nsq_ha.producer.limits import PendingPublish, PendingPublishes
from nsq_ha.producer.requests import (
    CheckedMessage,
    PubRequest,
    rich_mpub,
)
from nsq_ha.protocol import Traced
from nsq_ha.protocol.server.answers import encode_traced
from tests.support.waiting import dawdle

TOPIC = "orders"


def now() -> float:
    return asyncio.get_running_loop().time()


def future() -> asyncio.Future[list[Receipt]]:
    return asyncio.get_running_loop().create_future()


def pub(body: bytes = b"body", **more: Any) -> PubRequest:  # noqa: ANN401 - the fields of a request
    return PubRequest(topic=TOPIC, future=future(), size=len(body), body=body, **more)


def view_of(*nodes: Node, **meta: Any) -> TopicView:  # noqa: ANN401 - TopicMeta's fields
    return TopicView(TOPIC, TopicMeta(len(nodes), **meta), dict(enumerate(nodes)), complete=True, exists=True)


def wire(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


# ---------------------------------------------------------------- requests


async def test_each_kind_of_message_has_its_command() -> None:
    assert pub().encode(3) == b"PUB orders 3\n" + wire(b"body")
    assert pub().encode(None) == b"PUB orders\n" + wire(b"body")
    assert pub(trace_id=7).encode(3) == b"PUB_TRACE orders 3\n" + wire(struct.pack(">Q", 7) + b"body")
    assert pub(ext=b"{}", trace_id=7).encode(3) == b"PUB_EXT orders 3\n" + wire(b"\0\x02{}body")
    assert pub(defer_ms=1500).encode(None) == b"DPUB orders 1500\n" + wire(b"body")


async def test_each_answer_becomes_a_receipt() -> None:
    assert pub(attempts=2).receipts(b"OK", 3, "here:1") == [Receipt(TOPIC, 3, "here:1", 2)]
    stored = Traced(3 << 50 | 9, 7, 100, 34)
    receipt = Receipt(TOPIC, 3, "here:1", 2, stored.internal_id, 7, 100, 34)
    assert pub(attempts=2, trace_id=7).receipts(encode_traced(stored), 3, "here:1") == [receipt]
    extended = Traced(3 << 50 | 9, 7, 100, 34 + 1 + 2 + 2)
    (receipt,) = pub(trace_id=7, ext=b"{}").receipts(encode_traced(extended), 3, "here:1")
    assert receipt.raw_size == 39


def checked(body: bytes, trace_id: int | None = None, ext: bytes | None = None) -> CheckedMessage:
    return CheckedMessage(body, trace_id, ext)


async def test_a_traced_batch_numbers_its_messages() -> None:
    batch = rich_mpub(TOPIC, [checked(b"a", 7), checked(b"bcd", 8), checked(b"e")], future(), 99)
    assert (batch.size, batch.count, batch.is_plain, batch.closes_when_refused) == (5, 3, False, False)
    assert batch.began_ns == 99
    bodies = [wire(struct.pack(">Q", trace) + body) for trace, body in ((7, b"a"), (8, b"bcd"), (0, b"e"))]
    assert batch.encode(3) == b"MPUB_TRACE orders 3\n" + wire(struct.pack(">i", 3) + b"".join(bodies))
    batch.attempts = 1
    first = 3 << 50 | 9
    for extra in (0, 1):  # on an extended topic each takes one byte more
        sizes = [31 + extra, 33 + extra, 31 + extra]
        answer = encode_traced(Traced(first, 0, 100, sum(sizes)))
        assert batch.receipts(answer, 3, "here:1") == [
            Receipt(TOPIC, 3, "here:1", 1, first + n, trace, 100 + sum(sizes[:n]), sizes[n])
            for n, trace in enumerate((7, 8, None))
        ]


async def test_a_batch_with_headers_has_no_ids() -> None:
    batch = rich_mpub(TOPIC, [checked(b"a", 7, b"{}"), checked(b"b", None, b"")], future(), 99)
    assert batch.closes_when_refused
    assert batch.encode(3).startswith(b"MPUB_EXT orders 3\n")
    assert batch.encode(3).count(b"{}") == 1
    receipts = [Receipt(TOPIC, 3, "here:1", 0, None, trace) for trace in (7, None)]
    assert batch.receipts(b"OK", 3, "here:1") == receipts
    with pytest.raises(RemoteProtocolError, match=r"^the answer to MPUB_EXT must be OK, not b'no'$"):
        batch.receipts(b"no", 3, "here:1")


# ---------------------------------------------------------------- the choice of a partition


class FakeSender:
    """A sender of which a test says how it is."""

    trouble = None

    def __init__(self, load: int) -> None:
        self.load = load
        self.link = SimpleNamespace(connection=object())


def choice_of(
    senders: dict[int, Any],
    view: TopicView,
    **options: Any,  # noqa: ANN401 - of a producer
) -> PartitionChoice:
    config = ProducerConfig(lookupd=("http://a:1",), **options)
    choice = PartitionChoice(
        TOPIC,
        config,
        SimpleNamespace(count=SimpleNamespace(used=0)),  # type: ignore[arg-type]
        senders,
        connections=Connections(config),
        try_to_connect=lambda _: None,
    )
    choice._turn = 0
    choice.follow(view)
    return choice


NODES = tuple(Node(f"10.0.0.{number}", 4150, 4151) for number in range(4))


async def test_a_partition_that_is_named_is_used_if_it_exists() -> None:
    choice = choice_of({}, view_of(*NODES))
    assert [choice.partition_for(None, each) for each in (0, 3)] == [0, 3]
    for wrong in (-1, 4):
        with pytest.raises(ConfigError) as caught:
            choice.partition_for(None, wrong)
        assert str(caught.value) == f"partition {wrong} of 'orders' does not exist: it has 4 (0..3)"


def free(choice: PartitionChoice, count: int) -> list[int]:
    return [choice.any_partition() for _ in range(count)]


async def test_the_less_loaded_of_two_is_chosen_where_that_is_asked_for_or_the_cluster_is_plain() -> None:
    senders = {0: FakeSender(5), 1: FakeSender(3), 2: FakeSender(9)}
    assert free(choice_of(senders, view_of(*NODES[:3]), strategy="least_loaded"), 3) == [1, 0, 1]
    assert free(choice_of(senders, view_of(*NODES[:3], is_partitioned=False)), 3) == [1, 0, 1]
    assert free(choice_of(senders, view_of(*NODES[:3])), 3) == [1, 2, 0]
    assert free(choice_of({1: FakeSender(1)}, view_of(*NODES[:2]), strategy="least_loaded"), 2) == [0, 0]
    equal = {number: FakeSender(3) for number in range(3)}
    assert free(choice_of(equal, view_of(*NODES[:3]), strategy="least_loaded"), 3) == [1, 2, 0]


# ---------------------------------------------------------------- time limits


class Partition:
    """Keeps what expires."""

    def __init__(self) -> None:
        self.pending = PendingPublishes(30.0)
        self.expired: list[PendingPublish] = []

    def expire(self, request: PendingPublish) -> None:
        self.expired.append(request)

    def give_up(self, request: PendingPublish) -> None: ...

    def queue(self, request: PendingPublish, timeout: float | None = None) -> None:
        request.holder = self
        self.pending.add(request, timeout)


async def test_each_publish_expires_at_its_own_time_once() -> None:
    part = Partition()
    usual, quick_one, unplaced = pub(), pub(), pub()
    part.queue(usual)
    part.queue(quick_one, timeout=2.0)
    part.pending.add(unplaced, 1.0)
    began = now()
    assert usual.timer is None
    assert quick_one.timer is not None
    assert usual.deadline == pytest.approx(began + 30.0, abs=0.01)
    await dawdle(1.9)
    assert part.expired == []
    await dawdle(0.2)
    assert part.expired == [quick_one]
    part.pending.let_go(quick_one)
    part.pending.let_go(unplaced)
    await dawdle(27.8)
    assert part.expired == [quick_one]
    await dawdle(0.2)
    assert part.expired == [quick_one, usual]
