"""Writing to one partition against a scripted nsqd: order, retries, and what is counted as doubtful."""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from nsq_ha.errors import AuthError, MessageRefusedError, NoLeaderError, NsqError, PublishError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Traced
from nsq_ha.protocol.encoding import encode_mpub
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_traced
from nsq_ha.spark.options import WriteOptions
from nsq_ha.spark.write import partition_writer
from nsq_ha.spark.write.partition_writer import EncodedMpub, PartitionWriter, PartitionWritten
from tests.spark.test_replay import OK, ScriptedNsqd, error

IDENTIFIED = encode_frame(FrameType.RESPONSE, b"{}")
OPTIONS = WriteOptions(lookupd=("http://127.0.0.1:4161",), topic="flights", publish_timeout=10.0)
HANDSHAKE = (b"}", IDENTIFIED)


@dataclass
class Leaders:
    """Who leads, one after the other; the last one stays. None is nobody."""

    nodes: list[Node | None] = field(default_factory=list)
    asked: int = 0

    def leader(self, topic: str, partition: int, known: Node | None) -> tuple[Node, None]:
        self.asked += 1
        node = self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]
        if node is None:
            raise NoLeaderError(f"{topic}-{partition} has no leader")
        return node, None


Start = Callable[..., ScriptedNsqd]


@pytest.fixture
def nsqd() -> Iterator[Start]:
    begun: list[ScriptedNsqd] = []

    def start(*script: tuple[bytes, bytes], close: bool = False) -> ScriptedNsqd:
        begun.append(ScriptedNsqd(list(script), close))
        return begun[-1]

    yield start
    for each in begun:
        each.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_writer, "_RETRY", Backoff(initial=0.001, maximum=0.001))


def response(data: bytes) -> bytes:
    return encode_frame(FrameType.RESPONSE, data)


def batch(*bodies: bytes) -> EncodedMpub:
    return EncodedMpub(encode_mpub("flights", 3, bodies), len(bodies), sum(map(len, bodies)))


def traced(*bodies: bytes) -> EncodedMpub:
    return dataclasses.replace(batch(*bodies), traced=True)


def writer(leaders: Leaders, options: WriteOptions = OPTIONS) -> PartitionWriter:
    return PartitionWriter("flights", 3, options, leaders)  # type: ignore[arg-type]


def write(written: PartitionWriter, *batches: EncodedMpub) -> PartitionWritten:
    try:
        for each in batches:
            written.send(each)
        written.settle()
    finally:
        written.close()
    return written.written


def test_batches_go_one_after_the_other_over_one_connection(nsqd: Start) -> None:
    server = nsqd(HANDSHAKE, (b"one", OK), (b"two", OK))
    leaders = Leaders([server.node])
    assert write(writer(leaders), batch(b"one", b"1"), batch(b"two")) == PartitionWritten(rows=3, size=7)
    assert leaders.asked == 1
    assert server.heard.index(b"one") < server.heard.index(b"two")


def test_the_planned_leader_comes_first_and_nobody_is_asked_until_it_fails(nsqd: Start) -> None:
    planned = nsqd(HANDSHAKE, (b"one", OK), (b"two", error(b"E_FAILED_ON_NOT_LEADER moved")))
    after = nsqd(HANDSHAKE, (b"two", OK))
    leaders = Leaders([after.node])
    writing = PartitionWriter("flights", 3, OPTIONS, leaders, planned.node)  # type: ignore[arg-type]
    writing.send(batch(b"one"))
    writing.settle()
    assert leaders.asked == 0
    assert write(writing, batch(b"two")) == PartitionWritten(rows=2, size=6)
    assert leaders.asked == 1


def test_the_second_batch_waits_for_the_answer_to_the_first(nsqd: Start) -> None:
    server = nsqd(HANDSHAKE, (b"one", error(b"E_FAILED_ON_NOT_WRITABLE no")), close=True)
    after = nsqd(HANDSHAKE, (b"one", OK), (b"two", OK))
    assert write(writer(Leaders([server.node, after.node])), batch(b"one"), batch(b"two")).rows == 2
    assert b"two" not in server.heard


def test_a_late_refusal_leaves_doubt(nsqd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_writer, "PROMPT_REFUSAL", 0.0)
    before = nsqd(HANDSHAKE, (b"one", error(b"E_FAILED_ON_NOT_WRITABLE no")))
    after = nsqd(HANDSHAKE, (b"one", OK))
    found = write(writer(Leaders([before.node, after.node])), batch(b"one", b"uno"))
    assert found == PartitionWritten(rows=2, size=6, doubtful=2)


def test_a_lost_connection_leaves_what_was_sent_in_doubt(nsqd: Start) -> None:
    before = nsqd(HANDSHAKE, (b"one", b""), close=True)
    after = nsqd(HANDSHAKE, (b"one", OK))
    found = write(writer(Leaders([before.node, after.node])), batch(b"one", b"uno"))
    assert found == PartitionWritten(rows=2, size=6, doubtful=2)


def test_a_connection_that_nsqd_ended_meanwhile_leaves_no_doubt(nsqd: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_writer, "_IDLE", 0.0)
    before = nsqd(HANDSHAKE, (b"one", OK), close=True)
    after = nsqd(HANDSHAKE, (b"two", OK))
    writing = writer(Leaders([before.node, after.node]))
    writing.send(batch(b"one"))
    writing.settle()
    before.end()
    assert write(writing, batch(b"two")) == PartitionWritten(rows=2, size=6)


def test_patience_ends_with_what_is_known(nsqd: Start) -> None:
    options = WriteOptions(lookupd=OPTIONS.lookupd, topic="flights", publish_timeout=0.05)
    with pytest.raises(PublishError, match="no leader") as caught:
        write(writer(Leaders([None]), options), batch(b"one"))
    assert (caught.value.maybe_stored, caught.value.partition) == (False, 3)


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (((b"}", IDENTIFIED), (b"one", error(b"E_BAD_MESSAGE too big"))), MessageRefusedError),
        (((b"}", error(b"E_AUTH_FAILED no")),), AuthError),
    ],
)
def test_what_no_retry_cures_comes_at_once(
    nsqd: Start, script: tuple[tuple[bytes, bytes], ...], kind: type[NsqError]
) -> None:
    leaders = Leaders([nsqd(*script).node])
    with pytest.raises(kind):
        write(writer(leaders), batch(b"one"))
    assert leaders.asked == 1


def test_traced_answers_that_fit_are_not_in_doubt(nsqd: Start) -> None:
    def answer(offset: int, size: int) -> bytes:
        return response(encode_traced(Traced(3 << 50 | 5, 0, offset, size)))

    server = nsqd(HANDSHAKE, (b"one", answer(120, 33)), (b"two", answer(200, 34)))
    found = write(writer(Leaders([server.node])), traced(b"one"), traced(b"two"))
    assert found == PartitionWritten(rows=2, size=6)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        response(encode_traced(Traced(3 << 50 | 1, 5, 4096, 64))),
        response(encode_traced(Traced(2 << 50 | 1, 0, 4096, 64))),
        response(encode_traced(Traced(3 << 50 | 1, 0, 4096, 63))),
    ],
    ids=["plain", "trace id", "partition", "size"],
)
def test_an_answer_to_another_batch_is_in_doubt_and_tried_over_a_new_connection(nsqd: Start, answer: bytes) -> None:
    fits = response(encode_traced(Traced(3 << 50 | 1, 0, 4096, 64)))
    wrong, right = nsqd(HANDSHAKE, (b"one", answer)), nsqd(HANDSHAKE, (b"one", fits))
    found = write(writer(Leaders([wrong.node, right.node])), traced(b"one", b"1"))
    assert found == PartitionWritten(rows=2, size=4, doubtful=2)


def test_a_traced_answer_to_a_plain_batch_is_in_doubt(nsqd: Start) -> None:
    answer = response(encode_traced(Traced(3 << 50 | 1, 0, 4096, 64)))
    wrong, right = nsqd(HANDSHAKE, (b"one", answer)), nsqd(HANDSHAKE, (b"one", OK))
    found = write(writer(Leaders([wrong.node, right.node])), batch(b"one", b"1"))
    assert found == PartitionWritten(rows=2, size=4, doubtful=2)
