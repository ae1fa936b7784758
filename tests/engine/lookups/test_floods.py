"""Answers of many megabytes that are rejected: errors that somebody keeps do not keep them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator

import pytest

from nsq_ha.admin.description import Stats, partition_stats
from nsq_ha.admin.nsqd_http import NsqdHttp
from nsq_ha.engine import answers
from nsq_ha.engine.body import MOST_OBJECTS, MOST_VALUES, Body, decode_json
from nsq_ha.engine.http import MAX_BODY_BYTES
from nsq_ha.engine.lookupd import LookupClient
from nsq_ha.errors import NsqError, RemoteProtocolError
from nsq_ha.policy.topology import Node
from tests.engine.lookups.loopback import Fake, http_answer

Question = Callable[[LookupClient, NsqdHttp], Awaitable[object]]

QUESTIONS: dict[str, Question] = {
    "lookup": lambda lookupd, _: lookupd.lookup("orders"),
    "lists": lambda lookupd, _: lookupd.list_lookupd(),
    "topics": lambda lookupd, _: lookupd.topics(),
    "stats": lambda _, nsqd: nsqd.stats("orders"),
    "unfinished": lambda _, nsqd: nsqd.unfinished("orders", "billing"),
    "message": lambda _, nsqd: nsqd.message_get("orders", 0, "count", 1),
}
ANSWERS = {
    "too long": (b" " * (MAX_BODY_BYTES + 1), 200),
    "of another shape": (b"[" + b"1," * (MAX_BODY_BYTES // 2 - 2) + b"1]", 200),
    "a refusal": (b"x" * MAX_BODY_BYTES, 500),
    "a wrapped refusal": (b'{"status_code":500,"status_txt":"' + b"x" * (MAX_BODY_BYTES - 100) + b'","data":1}', 200),
}
KEPT = 4


@pytest.fixture
def without_gc() -> Iterator[None]:
    """Whether a cycle is collected in time is luck: here none is."""
    gc.collect()
    gc.disable()
    tracemalloc.start(1)
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.mark.few(every=5)
@pytest.mark.usefixtures("without_gc")
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
async def test_errors_that_are_kept_keep_no_answers(
    question: Question, answer: tuple[bytes, int], serve: Callable[[], Awaitable[Fake]]
) -> None:
    fake = await serve()
    content = http_answer(*answer)

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(content)

    fake.behave = behave
    kept: list[NsqError] = []
    node = Node("127.0.0.1", 1, fake.port)
    async with LookupClient(fake.url, timeout=10.0) as lookupd, NsqdHttp(node, timeout=10.0) as nsqd:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(KEPT):
            with pytest.raises(NsqError) as caught:
                await question(lookupd, nsqd)
            kept.append(caught.value)
            del caught
        after = tracemalloc.get_traced_memory()[0]
    assert len(kept) == KEPT
    assert after - before < MAX_BODY_BYTES * 1.5, (after - before) / KEPT / MAX_BODY_BYTES


def lookup(body: Body) -> object:
    return answers.decode_lookup(body, "http://127.0.0.1:4161")


def stats(body: Body) -> object:
    return partition_stats(decode_json(body.data, Stats))


READERS: dict[str, tuple[Callable[[Body], object], bytes, bytes]] = {
    "partitions": (lookup, b'{"partitions":{%s}}', b'"%d":{"a":1}'),
    "nsqds of a topic": (lookup, b'{"producers":[%s]}', b'{"broadcast_address":"a","tcp_port":%d}'),
    "channels": (lookup, b'{"partitions":{"0":{}},"channels":[%s]}', b'"channel%09d"'),
    "nsqds": (answers.decode_nodes, b'{"producers":[%s]}', b'{"broadcast_address":"a","tcp_port":%d}'),
    "partitions of one nsqd": (
        answers.decode_nodes,
        b'{"producers":[{"broadcast_address":"a","tcp_port":1,"partitions":{%s}}]}',
        b'"t%d":["1"]',
    ),
    "topics": (answers.decode_topics, b'{"topics":[%s]}', b'"t%d"'),
    "settings of topics": (answers.decode_topics, b'{"meta_info":[%s]}', b'{"topic_name":"t%d"}'),
    "topics of statistics": (stats, b'{"topics":[%s]}', b'{"topic_name":"%d"}'),
    "channels of statistics": (stats, b'{"topics":[{"topic_name":"t","channels":[%s]}]}', b'{"channel_name":"%d"}'),
    "clients of statistics": (
        stats,
        b'{"topics":[{"topic_name":"t","channels":[{"channel_name":"c","clients":[%s]}]}]}',
        b'{"ready_count":%d}',
    ),
}
MEMORY = 48 * 1024 * 1024
"""Of 64 MiB what the answer itself leaves, which is read and unwrapped before."""


@pytest.mark.few(every=4)  # of each count some
@pytest.mark.parametrize("count", [30_000, MOST_OBJECTS - 10, MOST_VALUES - 10])
@pytest.mark.parametrize(("read", "whole", "one"), READERS.values(), ids=READERS)
def test_the_smallest_values_cost_little(read: Callable[[Body], object], whole: bytes, one: bytes, count: int) -> None:
    body = Body(200, whole % b",".join(one % number for number in range(count)))
    gc.collect()
    tracemalloc.start(1)
    try:
        with contextlib.suppress(RemoteProtocolError):
            read(body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY, peak / 2**20
