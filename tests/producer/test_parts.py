"""The parts of a producer, each alone: what is sent, where it goes, and what comes back."""

from __future__ import annotations

import asyncio
import logging
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha import ProducerConfig
from nsq_ha.engine.shared import Connections
from nsq_ha.errors import (
    ConfigError,
    ConnectionLostError,
    LookupUnavailableError,
    RemoteProtocolError,
)
from nsq_ha.message import Receipt
from nsq_ha.policy.lane import Lane
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.choice import PartitionChoice, Repartition
from nsq_ha.producer.limits import PendingPublish, PendingPublishes
from nsq_ha.producer.outcomes import OutageLog, Outcomes
from nsq_ha.producer.requests import (
    CheckedMessage,
    PubRequest,
    check_defer,
    check_kind,
    encode_run,
    plain_mpub,
    rich_mpub,
)
from nsq_ha.protocol import Traced
from nsq_ha.protocol.encoding import GATHERED_BYTES
from nsq_ha.protocol.server.answers import encode_traced
from tests.support.waiting import dawdle

TOPIC = "orders"


def now() -> float:
    return asyncio.get_running_loop().time()


def future() -> asyncio.Future[list[Receipt]]:
    return asyncio.get_running_loop().create_future()


def pub(body: bytes = b"body", **more: Any) -> PubRequest:  # noqa: ANN401 - the fields of a request
    return PubRequest(topic=TOPIC, future=future(), size=len(body), body=body, **more)


def view_of(*nodes: Node, leaderless: int = 0, **meta: Any) -> TopicView:  # noqa: ANN401 - TopicMeta's fields
    number = meta.pop("partition_num", len(nodes) + leaderless)
    leaders = dict(enumerate(nodes, leaderless))
    return TopicView(TOPIC, TopicMeta(number, **meta), leaders, complete=not leaderless, exists=True)


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


async def test_a_plain_batch() -> None:
    batch = plain_mpub(TOPIC, [b"a", b"bcd"], future, 9)
    assert (batch.size, batch.count, batch.is_plain, batch.closes_when_refused, batch.keys) == (4, 2, True, False, ())
    assert batch.encode(3) == b"MPUB orders 3\n" + wire(struct.pack(">i", 2) + wire(b"a") + wire(b"bcd"))
    assert batch.receipts(b"OK", 3, "here:1") == [Receipt(TOPIC, 3, "here:1", 0)] * 2
    with pytest.raises(RemoteProtocolError, match=r"^the answer to MPUB must be OK, not b'no'$"):
        batch.receipts(b"no", 3, "here:1")


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


async def test_a_run_is_the_commands_one_after_the_other() -> None:
    plain, traced, batch = pub(), pub(trace_id=7, is_plain=False), plain_mpub(TOPIC, [b"a"], future, 9)
    for run in ([plain], [traced], [batch], [plain, plain], [plain, traced], [batch, plain]):
        for partition in (3, None):
            requests: list[PendingPublish] = list(run)
            assert encode_run(TOPIC, partition, requests) == b"".join(each.encode(partition) for each in requests)


async def test_a_run_of_large_bodies_is_not_copied() -> None:
    body = b"x" * GATHERED_BYTES
    large, batch = pub(body), plain_mpub(TOPIC, [body] * 2, future, len(body))
    runs: dict[int, list[PendingPublish]] = {1: [large], 2: [large, large], 4: [batch, batch]}
    for copies, run in runs.items():
        parts = encode_run(TOPIC, 3, run)
        assert sum(part is body for part in parts) == copies
        assert b"".join(parts) == b"".join(each.encode(3) for each in run)  # type: ignore[arg-type]
    mixed: list[PendingPublish] = [batch, large, pub(trace_id=7, is_plain=False)]
    assert b"".join(encode_run(TOPIC, 3, mixed)) == b"".join(each.encode(3) for each in mixed)  # type: ignore[arg-type]


# ---------------------------------------------------------------- what is checked


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (checked(b"abc"), 9),
        (checked(b"abc", 0), 17),
        (checked(b"abc", 1, b"{}"), 19),
        (checked(b"abc", None, b"{}"), 11),
    ],
)
def test_the_bytes_of_a_message_in_a_batch(message: CheckedMessage, size: int) -> None:
    assert message.wire_bytes == size


@pytest.mark.parametrize(
    ("meta", "given", "text"),
    [
        (
            TopicMeta(1),
            (None, b"{}", None),
            "topic 'orders' accepts no headers or tags: create it extended (nsq-ha topic create --extended)",
        ),
        (
            TopicMeta(1, is_partitioned=False),
            (7, None, None),
            "trace_id= and trace= need the partitioned server: publish without them",
        ),
        (
            TopicMeta(1),
            (None, None, 10),
            (
                "defer= needs plain nsqd: the partitioned server cannot delay a message. Publish it later, or let the"
                " consumer requeue it with a delay"
            ),
        ),
    ],
)
def test_what_a_topic_does_not_take_is_refused(meta: TopicMeta, given: tuple[Any, Any, Any], text: str) -> None:
    view = TopicView(TOPIC, meta, {}, complete=True, exists=True)
    with pytest.raises(ConfigError) as caught:
        check_kind(view, *given)
    assert str(caught.value) == text
    check_kind(view, None, None)
    check_kind(TopicView(TOPIC, None, {}, complete=True, exists=True), *given)
    check_kind(TopicView(TOPIC, TopicMeta(1, extend_support=True), {}, complete=True, exists=True), 7, b"{}")
    check_kind(TopicView(TOPIC, TopicMeta(1, is_partitioned=False), {}, complete=True, exists=True), None, None, 10)


@pytest.mark.parametrize("defer", [-0.1, 9223372036.9, float("inf"), True, "1"])
def test_a_delay_is_a_number_of_seconds(defer: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check_defer(defer, checked(b"x"))
    assert str(caught.value) == f"defer must be a number of seconds, 0..9223372036, not {defer!r}"


def test_a_delay_in_milliseconds() -> None:
    assert [check_defer(each, checked(b"x")) for each in (None, 0, 0.0015, 1, 3600.0)] == [None, 0, 2, 1000, 3_600_000]
    for message in (checked(b"x", 0), checked(b"x", None, b"{}")):
        with pytest.raises(ConfigError) as caught:
            check_defer(1, message)
        assert str(caught.value) == (
            "defer= cannot be combined with a trace, headers or a tag: plain nsqd knows none of them"
        )
        assert check_defer(None, message) is None


# ---------------------------------------------------------------- batches


# ---------------------------------------------------------------- the choice of a partition


class FakeSender:
    """A sender of which a test says how it is."""

    def __init__(self, load: int = 0, trouble: Exception | None = None, *, probes: bool = False) -> None:
        self.load = load
        self.trouble = trouble
        self.probes = probes
        self.link = SimpleNamespace(connection=object())

    def may_probe(self) -> bool:
        return self.probes


class Count:
    """A number of partitions, in place of a Repartition."""

    def __init__(self, used: int = 0) -> None:
        self.count = SimpleNamespace(used=used)


def choice_of(
    senders: dict[int, Any],
    view: TopicView,
    count: Count | None = None,
    **options: Any,  # noqa: ANN401 - of a producer
) -> PartitionChoice:
    config = ProducerConfig(lookupd=("http://a:1",), **options)
    choice = PartitionChoice(
        TOPIC,
        config,
        count or Count(),  # type: ignore[arg-type]
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


async def test_a_key_chooses_among_the_partitions_in_use() -> None:
    count, view = Count(), view_of(*NODES)
    choice = choice_of({}, view, count, sharding=int)
    assert choice.partition_for("7", None) == 3
    count.count.used = 2
    choice.follow(view)
    assert choice.partition_for("7", None) == 1
    for wrong in (-1, True, 1.5, None):
        bad = choice_of({}, view, sharding=lambda _, number=wrong: number)
        with pytest.raises(ConfigError) as caught:
            bad.partition_for("k", None)
        assert str(caught.value) == f"sharding function must return an int of 0 or more, not {wrong!r}"
    assert choice_of({}, view, sharding=lambda _: 0).partition_for("k", None) == 0


async def test_what_a_topic_does_not_offer_is_refused() -> None:
    with pytest.raises(LookupUnavailableError, match=r"^no nsqlookupd named a partition of topic 'orders'$"):
        choice_of({}, TopicView(TOPIC, None, {}, complete=False, exists=True))
    ordered = choice_of({}, view_of(*NODES, ordered=True))
    text = r"^topic 'orders' is ordered: give key= or partition=$"
    with pytest.raises(ConfigError, match=text):
        ordered.any_partition()
    with pytest.raises(ConfigError, match=text):
        ordered.bound_to(None, None)
    assert ordered.bound_to(None, 1) == 1
    plain = choice_of({}, view_of(*NODES, is_partitioned=False))
    assert plain.bound_to(None, None) is None
    for key, partition in (("k", None), (None, 1)):
        with pytest.raises(ConfigError) as caught:
            plain.bound_to(key, partition)
        assert str(caught.value) == (
            "key= and partition= need the partitioned server: plain nsqd has no partitions and no order. Publish"
            " without them"
        )


def free(choice: PartitionChoice, count: int) -> list[int]:
    return [choice.any_partition() for _ in range(count)]


async def test_messages_without_key_take_turns_over_what_accepts_writes() -> None:
    choice = choice_of({}, view_of(*NODES[:2], leaderless=1))
    assert free(choice, 5) == [2, 1, 2, 1, 2]
    assert choice.routes == (1, 2)
    choice.follow(view_of(leaderless=3))
    assert free(choice, 3) == [0, 1, 2]  # none: each waits for its leader


async def test_only_partitions_in_use_get_messages_without_key() -> None:
    count, view = Count(2), view_of(*NODES)
    choice = choice_of({}, view, count)
    assert set(free(choice, 6)) == {0, 1}
    count.count.used = 3
    choice.follow(view)
    assert set(free(choice, 6)) == {0, 1, 2}


async def test_the_less_loaded_of_two_is_chosen_where_that_is_asked_for_or_the_cluster_is_plain() -> None:
    senders = {0: FakeSender(5), 1: FakeSender(3), 2: FakeSender(9)}
    assert free(choice_of(senders, view_of(*NODES[:3]), strategy="least_loaded"), 3) == [1, 0, 1]
    assert free(choice_of(senders, view_of(*NODES[:3], is_partitioned=False)), 3) == [1, 0, 1]
    assert free(choice_of(senders, view_of(*NODES[:3])), 3) == [1, 2, 0]
    assert free(choice_of({1: FakeSender(1)}, view_of(*NODES[:2]), strategy="least_loaded"), 2) == [0, 0]
    equal = {number: FakeSender(3) for number in range(3)}
    assert free(choice_of(equal, view_of(*NODES[:3]), strategy="least_loaded"), 3) == [1, 2, 0]


async def test_a_partition_in_trouble_is_left_out_and_probed() -> None:
    ill = FakeSender(trouble=OSError())
    senders: dict[int, Any] = {1: ill, 2: FakeSender()}
    choice = choice_of(senders, view_of(*NODES[:3]))
    assert (choice.is_healthy(0), choice.is_healthy(1), choice.is_healthy(2)) == (True, False, True)
    assert set(free(choice, 6)) == {0, 2}
    ill.probes = True
    assert 1 in free(choice, 3)  # when its turn comes
    assert {choice.other_partition(0) for _ in range(6)} == {2}  # a moved one probes nothing
    for number in (0, 2):
        senders[number] = FakeSender(trouble=OSError())
    assert {choice.other_partition(0) for _ in range(6)} == {1, 2}
    assert set(free(choice, 6)) == {0, 1, 2}  # none is better than another


# ---------------------------------------------------------------- a change of the number of partitions


def repartition_of() -> Repartition:
    return Repartition(TOPIC, ProducerConfig(lookupd=("http://a:1",), lookup_interval=0.05))


async def changed(repartition: Repartition, *, is_partitioned: bool = True) -> None:
    """Let the number grow from 2 to 3."""
    repartition.view_changed(view_of(*NODES[:2], is_partitioned=is_partitioned))
    assert (repartition.count.used, repartition.is_calm) == (2, True)
    repartition.view_changed(view_of(*NODES[:3], is_partitioned=is_partitioned))
    assert (repartition.count.used, repartition.is_calm) == (2, False)
    if is_partitioned:
        repartition.take()
        assert repartition.count.used == 2
        await dawdle(1.0)
    repartition.take()
    assert (repartition.count.used, repartition.is_calm) == (3, True)


async def test_a_change_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    await changed(repartition_of())
    assert caplog.messages == ["orders: the number of partitions changed from 2 to 3, so keys move"]


# ---------------------------------------------------------------- pauses and stalls


# ---------------------------------------------------------------- outages


async def test_an_outage_is_a_warning_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = OutageLog(TOPIC, 3)
    assert not log.is_on
    log.failed(100.0, ConnectionLostError("lost"))
    assert log.is_on
    assert caplog.messages == ["orders-3: lost"]
    log.failed(105.0, ConnectionLostError("lost again"))
    log.recovered(107.0, "10.0.0.1:4150")
    assert not log.is_on
    log.failed(108.0, ConnectionLostError("lost"))
    log.recovered(109.0, "10.0.0.1:4150")
    assert caplog.messages[1:] == [
        "orders-3: nothing published for 5 s (2 failures): lost again; publishes wait up to their time limit",
        "orders-3: publishing works again after 7 s (2 failures)",
        "orders-3: lost",
    ]
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [(vars(record)["topic"], vars(record)["partition"]) for record in warnings] == [(TOPIC, 3)] * 2


async def test_the_end_of_an_outage_names_the_plain_nsqd(caplog: pytest.LogCaptureFixture) -> None:
    log = OutageLog(TOPIC, None)
    log.failed(100.0, ConnectionLostError("connection to 10.0.0.1:4150 lost"))
    log.failed(105.0, ConnectionLostError("connection to 10.0.0.1:4150 lost"))
    log.recovered(107.0, "10.0.0.1:4150")
    assert caplog.messages[-1] == "orders: publishing to nsqd 10.0.0.1:4150 works again after 7 s (2 failures)"


# ---------------------------------------------------------------- outcomes and bytes


class Partition:
    """The lane, bytes and outcomes of one partition."""

    def __init__(self, pending: PendingPublishes) -> None:
        self.pending = pending
        self.lane: Lane[PendingPublish] = Lane()
        self.expired: list[PendingPublish] = []
        self.outcomes = Outcomes(self.lane, TOPIC, 3, pending)
        self.outcomes.connected("here:1")

    def expire(self, request: PendingPublish) -> None:
        self.expired.append(request)

    def give_up(self, request: PendingPublish) -> None:
        self.lane.give_up(request)

    def submit(self, request: PendingPublish) -> None:
        request.holder = self
        self.lane.submit(request)

    def queue(self, *requests: PendingPublish, timeout: float | None = None) -> None:
        for request in requests:
            self.pending.add(request, timeout)
            self.submit(request)

    def write(self) -> None:
        self.lane.take(now(), 100)


@pytest.fixture
async def part() -> Partition:
    return Partition(PendingPublishes(30.0))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("first", ["ghost", "moved"])
async def test_a_message_that_two_nsqds_acknowledge_is_counted_once(
    part: Partition, first: str, *, is_late: bool
) -> None:
    other = Partition(part.pending)
    moved, batch = pub(), plain_mpub(TOPIC, [b"a", b"b"], future, 9)
    part.queue(moved, batch)
    part.write()
    for request in part.lane.divert(now()):
        other.lane.submit(request)
    other.write()
    if is_late:
        moved.future.cancel()
    for each in (part, other) if first == "ghost" else (other, part):
        each.outcomes.all_stored(2)
    assert part.outcomes.counts.published + other.outcomes.counts.published == 3


async def test_a_batch_that_is_acknowledged_late_counts_as_its_messages(part: Partition) -> None:
    requests = [plain_mpub(TOPIC, [b"a", b"b"], future, 9), pub()]
    part.queue(*requests)
    part.write()
    part.outcomes.fail_all(ConnectionLostError("late"))
    part.outcomes.all_stored(2)
    counts = part.outcomes.counts
    assert (counts.failed, counts.uncertain, counts.published) == (3, 3, 3)
    assert all(request.future.exception() for request in requests)


async def test_each_publish_expires_at_its_own_time_once(part: Partition) -> None:
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
