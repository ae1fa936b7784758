"""``nsq-ha copy``: every message arrives, in the order and with what it carried."""

import asyncio
import json
import re
import uuid
from dataclasses import replace
from typing import Any

import pytest

from nsq_ha import Message, Producer, Receipt, TopicMeta
from nsq_ha.cli.copy import Copier, CopyOptions, Route
from nsq_ha.cli.running import Progress
from nsq_ha.devcluster import DevCluster
from nsq_ha.errors import ConfigError, PublishError
from nsq_ha.message import OutgoingMessage
from tests.cli.conftest import Invoke
from tests.support.waiting import turn

OPTIONS = CopyOptions(rate=None, key_field=None, body_only=False, ignore_order=False, timeout=None)
META = TopicMeta(partition_num=4, replica=1, ordered=False, extend_support=True)


class Source:
    """Where a message of a test comes from; notes its answers."""

    topic, channel, partition, nsqd = "orders", "copy", 3, "127.0.0.1:4150"

    def __init__(self) -> None:
        self.answers: list[str] = []

    def finish(self, message: Message) -> None:
        self.answers.append(f"finish {message.body.decode()}")

    def requeue(self, message: Message, delay: float | None) -> None:
        self.answers.append(f"requeue {message.body.decode()}")

    def touch(self, message: Message) -> None: ...


# ---------------------------------------------------------------- the route


@pytest.mark.parametrize(
    ("source", "target", "given", "route"),
    [
        (META, META, {}, Route(True, None, False)),
        (replace(META, ordered=True), replace(META, ordered=True), {}, Route(True, None, False)),
        (META, replace(META, partition_num=2), {}, Route(False, None, False)),
        (
            replace(META, ordered=True),
            replace(META, partition_num=2),
            {"ignore_order": True},
            Route(False, None, False),
        ),
        (
            replace(META, ordered=True),
            replace(META, partition_num=2, ordered=True),
            {"key_field": "u"},
            Route(False, "u", False),
        ),
        (META, replace(META, extend_support=False), {"body_only": True}, Route(True, None, True)),
        (None, META, {}, Route(False, None, False)),
        (None, None, {}, Route(False, None, True)),
        (META, None, {"body_only": True}, Route(False, None, True)),
    ],
)
def test_a_route_keeps_what_the_target_can_keep(
    source: TopicMeta | None, target: TopicMeta | None, given: dict[str, Any], route: Route
) -> None:
    assert Route.between(source, target, "copies", OPTIONS._replace(**given)) == route


@pytest.mark.parametrize(
    ("source", "target", "given", "text"),
    [
        (replace(META, ordered=True), replace(META, partition_num=2), {}, "give --key-field, or create copies with as"),
        (META, replace(META, partition_num=2, ordered=True), {}, "topic 'copies' is ordered, and the source has 4"),
        (None, replace(META, ordered=True), {}, "the source has none, the target 4 partitions"),
        (META, replace(META, extend_support=False), {}, "create it extended, or give --body-only"),
        (META, None, {}, "give --body-only: the target is a plain cluster"),
        (None, None, {"key_field": "u"}, "remove --key-field"),
        (replace(META, ordered=True), None, {"body_only": True}, "give --ignore-order"),
    ],
)
def test_what_the_target_cannot_keep_is_refused(
    source: TopicMeta | None, target: TopicMeta | None, given: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        Route.between(source, target, "copies", OPTIONS._replace(**given))


def test_a_message_that_cannot_be_copied_is_named() -> None:
    message = Message(bytes(15) + b"\x07", b"x", 1, 5, Source(), ext=b"[1]")
    with pytest.raises(ConfigError, match="give --body-only"):
        Route(True, None, False).outgoing(message)
    with pytest.raises(ConfigError, match=r"^message 0x0 of orders-3: not JSON"):
        Route(False, "u", False).outgoing(message)
    assert Route(True, None, True).outgoing(message) == OutgoingMessage(b"x", None, 3)


# ---------------------------------------------------------------- answers


class FakeProducer(Producer):
    """Answers as it was asked to."""

    def __init__(self, outcomes: list[Receipt | PublishError]) -> None:
        super().__init__(nsqd="127.0.0.1:1")
        self.outcomes = outcomes

    async def publish_many(self, *_: Any, **__: Any) -> list[Receipt | PublishError]:  # noqa: ANN401
        return self.outcomes


def failure(cause: Exception | None = None, *, maybe_stored: bool = False) -> PublishError:
    error = PublishError("no answer", topic="copies", partition=1, attempts=1, maybe_stored=maybe_stored)
    error.__cause__ = cause
    return error


async def test_only_acknowledged_messages_are_finished(capsys: pytest.CaptureFixture[str]) -> None:
    source = Source()
    messages = [Message(bytes(16), body, 1, 5, source) for body in (b"a", b"b", b"c")]
    producer = FakeProducer([Receipt("copies", 1, "n"), failure(), failure(maybe_stored=True)])
    copier = Copier(producer, "copies", Route(True, None, False), Progress("x"))
    await copier.copy(messages)
    assert source.answers == ["finish a", "requeue b", "requeue c"]
    assert (copier.failed, copier.uncertain) == (2, 1)
    assert copier.summary().endswith("; 2 publishes failed and are repeated; the target may have 1 messages twice")
    errors = capsys.readouterr().err.splitlines()
    assert errors[0].endswith("; it is repeated")
    assert errors[1].endswith("; it is copied again, so the target may have it twice")


async def test_at_the_end_it_waits_for_answers_that_are_under_way() -> None:
    class Slow(FakeProducer):
        async def publish_many(self, *_: Any, **__: Any) -> list[Receipt | PublishError]:  # noqa: ANN401
            begun.set()
            await answer.wait()
            return self.outcomes

    begun, answer, source = asyncio.Event(), asyncio.Event(), Source()
    copier = Copier(Slow([Receipt("copies", 1, "n")]), "copies", Route(True, None, False), Progress("x"))
    task = asyncio.create_task(copier.copy([Message(bytes(16), b"a", 1, 5, source)]))
    await begun.wait()
    task.cancel()
    await turn()
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (source.answers, copier.uncertain) == (["finish a"], 0)


# ---------------------------------------------------------------- the command


def tailed(invoke: Invoke, topic: str, count: int) -> list[dict[str, Any]]:
    result = invoke("tail", topic, "--from", "beginning", "-n", str(count), "--json")
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_order_headers_and_traces_are_kept(cluster: DevCluster, invoke: Invoke, name: str) -> None:
    for topic in (name, f"{name}.copy"):
        cluster.create_topic(topic, 2, ordered=True, extended=True, sync_every=1)
    lines = [
        json.dumps({"body": f"m{number}", "key": number % 5, "headers": {"n": number}, "tag": "t", "trace_id": number})
        for number in range(1, 31)
    ]
    assert invoke("pub", name, "--from-tail", stdin="\n".join(lines)).exit_code == 0
    result = invoke("copy", name, f"{name}.copy", "--from", "beginning", "-n", "30")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.startswith("copied 30 messages in ")

    def parts(topic: str) -> list[list[tuple[Any, ...]]]:
        found = tailed(invoke, topic, 30)
        return [
            [(m["body"], m["headers"], m["tag"], m["trace_id"]) for m in found if m["partition"] == number]
            for number in range(2)
        ]

    assert parts(name) == parts(f"{name}.copy")
    depth = json.loads(invoke("topic", "describe", name).stdout)["depth"]
    assert depth["nsq-ha-copy"] == 0


def test_it_copies_from_a_plain_cluster_to_a_partitioned_one(
    plain: DevCluster, cluster: DevCluster, invoke: Invoke, topic: str
) -> None:
    name = f"plain_{uuid.uuid4().hex[:8]}"
    plain.create_topic(name)
    lookupd = ",".join(plain.lookupd)
    assert invoke("pub", name, stdin="a\nb\nc", lookupd=lookupd).exit_code == 0
    result = invoke("copy", name, topic, "--to-lookupd", cluster.lookupd[0], "-n", "3", "--rate", "50", lookupd=lookupd)
    assert result.exit_code == 0, result.stderr
    assert sorted(m["body"] for m in tailed(invoke, topic, 3)) == ["a", "b", "c"]


def test_a_topic_is_not_copied_to_itself(cluster: DevCluster, invoke: Invoke, topic: str) -> None:
    for to in ((), ("--to-lookupd", cluster.lookupd[0]), ("--to-lookupd", cluster.lookupd[1])):
        refused = invoke("copy", topic, topic, *to, "--idle", "0.2")
        assert refused.exit_code == 2, to
        assert "which would grow without end" in refused.stderr
