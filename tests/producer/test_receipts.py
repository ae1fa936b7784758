"""Answers to traced publishes are compared with the publishes; a mismatch ends the connection, in doubt."""

import asyncio

import pytest

from nsq_ha import OutgoingMessage, Producer, Receipt
from nsq_ha.errors import PublishError, RemoteProtocolError
from nsq_ha.protocol import Command, Traced
from nsq_ha.protocol.commands import MpubExt, MpubTrace, PubExt, PubTrace
from nsq_ha.protocol.server.answers import encode_traced
from tests.support.nsqd import OK, Holding, Peer, instead, response
from tests.support.stage import TOPIC, Stage

FIRST = 2 << 50 | 7  # of partition 2
HEADER = b'{"a":1,"##trace_id":"9"}'


def stored_as(internal_id: int, trace_id: int, raw_size: int) -> bytes:
    return response(encode_traced(Traced(internal_id, trace_id, 4096, raw_size)))


async def publish(producer: Producer, kind: str) -> Receipt:
    if kind == "batch":
        messages = [OutgoingMessage(b"body", partition=2, trace_id=9), OutgoingMessage(b"b", partition=2, trace_id=10)]
        first, second = await producer.publish_many(TOPIC, messages)
        for outcome in (first, second):
            if isinstance(outcome, PublishError):
                raise outcome
        assert isinstance(first, Receipt)
        assert isinstance(second, Receipt)
        assert (second.internal_id, second.trace_id) == ((first.internal_id or 0) + 1, 10)
        assert second.offset == (first.offset or 0) + (first.raw_size or 0)
        return first
    headers = {"a": 1} if kind == "headers" else None
    return await producer.publish(TOPIC, b"body", partition=2, trace_id=9, headers=headers)


@pytest.fixture
def of_three(stage: Stage) -> Stage:
    stage.lead(dict.fromkeys(range(3), stage.nsqd), extended=True)
    return stage


@pytest.mark.parametrize(
    ("kind", "trace_id", "size", "first"),
    [
        ("single", 9, 34, 34),
        ("single", 9, 35, 35),  # on an extended topic
        ("headers", 9, 34, 34),  # on an ordinary topic of a server that leaves them out
        ("headers", 9, 37 + len(HEADER), 37 + len(HEADER)),
        ("batch", 0, 34 + 31, 34),
        ("batch", 0, 35 + 32, 35),
    ],
)
async def test_an_answer_that_fits_is_a_receipt(
    of_three: Stage, kind: str, trace_id: int, size: int, first: int
) -> None:
    of_three.nsqd.script = instead((PubTrace, PubExt, MpubTrace), stored_as(FIRST, trace_id, size))
    async with of_three.producer() as producer:
        receipt = await publish(producer, kind)
    assert receipt == Receipt(TOPIC, 2, of_three.nsqd.node.address, 1, FIRST, 9, 4096, first)


WRONG = {
    "another trace id": ("single", stored_as(FIRST, 8, 34), "trace id 8 instead of 9"),
    "no trace id": ("single", stored_as(FIRST, 0, 34), "trace id 0 instead of 9"),
    "another partition": ("single", stored_as(1 << 50 | 7, 9, 34), "partition 1 instead of 2"),
    "no partition": ("single", stored_as(2**64 - 1, 9, 34), "partition 16383 instead of 2"),
    "another size": ("single", stored_as(FIRST, 9, 33), "33 bytes instead of 34 or 35"),
    "a plain answer": ("single", OK, "not OK and 28 bytes"),
    "with headers: another trace id": ("headers", stored_as(FIRST, 8, 37 + len(HEADER)), "trace id 8 instead of 9"),
    "with headers: another size": ("headers", stored_as(FIRST, 9, 38), "38 bytes instead of"),
    "with headers: a plain answer": ("headers", OK, "not OK and 28 bytes"),
    "batch: a trace id": ("batch", stored_as(FIRST, 9, 65), "trace id 9 instead of 0"),
    "batch: another partition": ("batch", stored_as(7, 0, 65), "partition 0 instead of 2"),
    "batch: another size": ("batch", stored_as(FIRST, 0, 66), "66 bytes instead of 65 or 67"),
    "batch: a plain answer": ("batch", OK, "not OK and 28 bytes"),
}


@pytest.mark.parametrize(("kind", "answer", "text"), WRONG.values(), ids=WRONG)
async def test_an_answer_to_another_publish_leaves_doubt_and_the_connection_is_left(
    of_three: Stage, kind: str, answer: bytes, text: str
) -> None:
    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, PubTrace | PubExt | MpubTrace) and len(of_three.nsqd.peers) == 1:
            peer.write(answer)
            return True
        return False

    of_three.nsqd.script = script
    async with of_three.producer() as producer:
        with pytest.raises(PublishError, match=text) as caught:
            await publish(producer, kind)
        assert isinstance(caught.value.__cause__, RemoteProtocolError)
        assert caught.value.maybe_stored
        assert (await producer.publish(TOPIC, b"next", partition=2)).attempts == 1
    assert len(of_three.nsqd.peers) == 2


@pytest.mark.parametrize("one_read", [True, False])
async def test_what_follows_a_misplaced_answer_is_in_doubt_too(stage: Stage, *, one_read: bool) -> None:
    holding = Holding()
    stage.nsqd.script = holding
    async with stage.producer() as producer:
        before = asyncio.create_task(producer.publish(TOPIC, b"before", key="a"))
        traced = asyncio.create_task(producer.publish(TOPIC, b"traced", key="b", trace_id=9))
        after = asyncio.create_task(producer.publish(TOPIC, b"after", key="c"))
        await stage.nsqd.until(lambda: holding.has(3))
        peer = holding.held[0][0]
        holding.held.clear()
        # One answer is lost, so that each belongs to the publish before: the traced one gets a plain OK.
        peer.write(OK * 3 if one_read else OK * 2)
        assert (await before).attempts == 1
        with pytest.raises(PublishError) as caught:
            await traced
        assert caught.value.maybe_stored
        await stage.nsqd.until(lambda: holding.has(1))
        holding.release()
        assert (await after).attempts == 2
        assert producer.stats().pending_bytes == 0
    assert len(stage.nsqd.peers) == 2


@pytest.mark.parametrize("answer", [OK, stored_as(FIRST, 0, 70)], ids=["plain", "traced"])
async def test_a_batch_with_headers_has_no_ids(of_three: Stage, answer: bytes) -> None:
    of_three.nsqd.script = instead(MpubExt, answer)
    messages = [OutgoingMessage(b"x", headers={}, partition=2, trace_id=number) for number in (8, 9)]
    async with of_three.producer() as producer:
        outcomes = await producer.publish_many(TOPIC, messages)
    if answer == OK:
        found = [(r.internal_id, r.trace_id, r.offset) for r in outcomes if isinstance(r, Receipt)]
        assert found == [(None, 8, None), (None, 9, None)]
    else:
        assert [type(outcome) for outcome in outcomes] == [PublishError] * 2
