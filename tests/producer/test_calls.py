"""The calls of a producer and the plan of a batch: what is passed on, and the text of each refusal."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from nsq_ha import OutgoingMessage, ProducerConfig
from nsq_ha.errors import (
    ConfigError,
    PublishError,
    TopicNotFoundError,
)
from nsq_ha.message import Receipt
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.batch import Part, PublishBatch
from nsq_ha.producer.requests import PubRequest
from nsq_ha.protocol import Mpub, Pub
from nsq_ha.protocol.commands import PubTrace
from tests.support.inside import topics_of
from tests.support.nsqd import Peer, Publish, error
from tests.support.stage import TOPIC, Stage
from tests.support.waiting import dawdle

NODES = tuple(Node(f"10.0.0.{number}", 4150, 4151) for number in range(3))


# ---------------------------------------------------------------- the plan of a batch


class Choice:
    """Chooses the partition that a message names, or the one of its key, or any."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, object]] = []
        self.errors: dict[object, Exception] = {}

    def bound_to(self, _: object, key: Any, partition: int | None) -> int | None:  # noqa: ANN401
        self.asked.append((key, partition))
        if key in self.errors:
            raise self.errors[key]
        if partition is not None:
            return partition
        return None if key is None else int(key)


CONFIG = ProducerConfig()


class Planned:
    """A plan with all that it made."""

    def __init__(
        self,
        given: Sequence[Any],
        trace_id: int | None = None,
        config: ProducerConfig = CONFIG,
        **meta: Any,  # noqa: ANN401
    ) -> None:
        self.choice = Choice()
        view = TopicView(TOPIC, TopicMeta(3, **meta), dict(enumerate(NODES)), complete=True, exists=True)
        topic = SimpleNamespace(view=view)
        shell: Any = SimpleNamespace(machine=self.choice, clock=lambda: 0.0, use=lambda _: topic)
        self.batch = PublishBatch(
            shell,
            TOPIC,
            list(given),
            lambda each: each.trace_id if each.trace_id is not None else trace_id,
            config,
            30.0,
        )

    def parts(self) -> list[Part]:
        for _ in self.batch.check():
            pass
        return [part for part in self.batch.parts() if part is not None]


def shape(parts: list[Part]) -> list[tuple[int | None, list[int], int, bool]]:
    return [(part.request.partition, list(part.positions), part.request.count, part.request.is_plain) for part in parts]


async def test_a_batch_is_as_large_as_the_server_accepts() -> None:
    config = ProducerConfig(max_message_bytes=1000, max_batch_bytes=500)
    parts = Planned([b"x" * 100] * 9, config=config).parts()
    assert [len(part.positions) for part in parts] == [4, 4, 1]
    assert all(sum(map(len, part.request.encode(None))) <= len(b"MPUB orders\n") + 4 + 500 for part in parts)
    with pytest.raises(ConfigError, match=r"^message 1: a message of 1001 bytes, .* exceeds max_message_bytes=1000: "):
        Planned([b"x", b"x" * 1001], config=config).parts()


@pytest.mark.parametrize("trace_id", [None, 7])
async def test_a_message_that_fits_into_no_batch_is_sent_alone(trace_id: int | None) -> None:
    config = ProducerConfig(max_message_bytes=1000, max_batch_bytes=500)
    small, fits, too_large = b"s", b"f" * (500 - 8 - 8 * bool(trace_id) - 2), b"l" * 499
    messages = [small, too_large, small, fits, too_large]
    case = Planned(messages, trace_id, config)
    parts = case.parts()
    assert [list(part.positions) for part in parts] == [[0], [1], [2], [3], [4]]
    commands = [b"".join(part.request.encode(3)) for part in parts]
    assert [command.startswith(b"MPUB") for command in commands] == [True, False, True, True, False]
    assert commands[1].endswith(too_large)
    assert isinstance(parts[1].request, PubRequest)
    assert (parts[1].request.size, parts[1].request.trace_id) == (499, trace_id)


async def test_messages_are_grouped_by_partition_and_kind_in_their_order() -> None:
    message = OutgoingMessage
    given = [
        message(b"0", key="1"),
        message(b"1", partition=2),
        b"2",
        message(b"3", key="1"),
        message(b"4", key="1", trace_id=7),
        message(b"5", key="1", headers={"a": 1}),
        b"6",
        message(b"7", key="1", trace_id=8),
    ]
    case = Planned(given, extend_support=True)
    parts = case.parts()
    assert shape(parts) == [
        (1, [0, 3], 2, True),
        (1, [4], 1, False),
        (1, [5], 1, False),
        (1, [7], 1, False),
        (2, [1], 1, True),
        (None, [2, 6], 2, True),
    ]
    assert [part.request.keys for part in parts[:2]] == [(b"1",), (b"1",)]
    assert len(parts[4].request.keys) == 1
    assert parts[5].request.keys == ()
    assert [part.request.closes_when_refused for part in parts] == [False, False, True, False, False, False]
    traced: Any = parts[1].request
    assert (traced.began_ns > 0, [each.trace_id for each in traced.messages]) == (True, [7])
    assert case.choice.asked[0] == ("1", None)
    assert case.choice.asked[1] == (None, 2)


async def test_each_message_gets_the_outcome_of_its_command(stage: Stage) -> None:
    stage.lead({0: stage.nsqds[0], 1: stage.nsqds[1]})
    stage.nsqds[1].script = lambda peer, command: refuse(peer) if isinstance(command, Mpub) else False
    async with stage.producer(sharding="modulo") as producer:
        outcomes = await producer.publish_many(TOPIC, [OutgoingMessage(b"%d" % n, key=n) for n in (1, 0, 2, 3)])
    assert [type(each) for each in outcomes] == [PublishError, Receipt, Receipt, PublishError]
    assert [each.partition for each in outcomes] == [1, 0, 0, 1]


def refuse(peer: Peer) -> bool:
    peer.write(error("E_BAD_MESSAGE no"))
    return True


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("timeout", [0, -1, 86_401, "1", True, float("nan")])
async def test_a_wrong_time_limit_is_named(stage: Stage, timeout: Any) -> None:  # noqa: ANN401 - wrong on purpose
    async with stage.producer() as producer:
        for call in (
            producer.publish(TOPIC, b"x", timeout=timeout),
            producer.publish_many(TOPIC, [b"x"], timeout=timeout),
            producer.publish_many(TOPIC, [OutgoingMessage(b"x", key="k")], timeout=timeout),
        ):
            with pytest.raises(ConfigError) as caught:
                await call
            assert str(caught.value) == (
                f"timeout must be a number of seconds above 0 and up to a day, not {timeout!r}"
            )
        await producer.publish(TOPIC, b"x", timeout=86_400)


async def test_a_trace_is_asked_for_by_topic_and_by_message(stage: Stage) -> None:
    async with stage.producer(trace=[TOPIC]) as producer:
        assert producer.trace == frozenset({TOPIC})
        receipt = await producer.publish(TOPIC, b"x")
        assert receipt.trace_id
        assert receipt.trace_id < 1 << 63
        producer.trace = ["other"]
        assert (await producer.publish(TOPIC, b"x")).trace_id is None
        producer.trace = True
        assert (await producer.publish(TOPIC, b"x")).trace_id
        assert (await producer.publish(TOPIC, b"x", trace_id=5)).trace_id == 5
    kinds = [type(command) for command in stage.nsqd.commands if isinstance(command, Publish)]
    assert kinds[:3] == [PubTrace, Pub, PubTrace]


async def test_idle_topics_are_forgotten_each_by_itself(stage: Stage) -> None:
    async with stage.producer(idle_timeout=20.0) as producer:
        for topic in ("one", TOPIC, "two"):
            await producer.publish(topic, b"x")
        for _ in range(5):
            await dawdle(5.0)
            await producer.publish("one", b"x")  # the first one is in use
        assert list(topics_of(producer)) == ["one"]
        assert (await producer.publish(TOPIC, b"x")).attempts == 1
        await dawdle(30.0)
        assert list(topics_of(producer)) == []


# ---------------------------------------------------------------- a topic that cannot be used


@pytest.mark.parametrize("comes_after", [2.0, None])
async def test_an_unknown_topic_may_come_within_some_seconds(stage: Stage, comes_after: float | None) -> None:
    stage.lookupd.answer("/lookup", {"message": "Key not found"}, 404)
    loop = asyncio.get_running_loop()
    async with stage.producer() as producer:
        began = loop.time()
        task = asyncio.create_task(producer.publish(TOPIC, b"x"))
        if comes_after is not None:
            await dawdle(comes_after)
            stage.lead({0: stage.nsqd})
            assert (await task).attempts == 1
            return
        with pytest.raises(PublishError) as caught:
            await task
        assert isinstance(caught.value.__cause__, TopicNotFoundError)
        assert loop.time() - began == pytest.approx(3.0, abs=0.2)


# ---------------------------------------------------------------- a sender


# ---------------------------------------------------------------- its connection
