"""What is no topic, batch, header or time limit is refused before anything is sent."""

from typing import Any

import pytest

from nsq_ha import OutgoingMessage
from nsq_ha.errors import ConfigError
from tests.support.stage import TOPIC, Stage


@pytest.mark.parametrize("messages", [None, 3, b"body", "body", {b"body": 1}])
async def test_what_is_no_batch_is_refused(stage: Stage, messages: object) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="messages must be a list"):
            await producer.publish_many(TOPIC, messages)  # type: ignore[arg-type]
    assert stage.nsqd.commands == []


@pytest.mark.parametrize("topic", [["p"], {"p": 1}, None, 5, b"p", "no name"])
@pytest.mark.parametrize("trace", [False, "traced"])
async def test_what_is_no_topic_is_refused(stage: Stage, topic: Any, trace: bool | str) -> None:  # noqa: ANN401
    async with stage.producer(trace=trace) as producer:
        with pytest.raises(ConfigError, match="topic"):
            await producer.publish(topic, b"x")
        with pytest.raises(ConfigError, match="topic"):
            await producer.publish_many(topic, [b"x"])
    assert stage.nsqd.commands == []


@pytest.mark.parametrize("headers", [{1: 2}, {None: 1}, {"a": 1, b"b": 2}])
async def test_names_of_headers_are_text(stage: Stage, headers: Any) -> None:  # noqa: ANN401
    stage.lead({0: stage.nsqd}, extended=True)
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="the name of a header must be a str"):
            await producer.publish(TOPIC, b"x", headers=headers)
    assert stage.nsqd.commands == []


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), 10**400, "5", True])
async def test_what_is_no_time_limit_is_refused(stage: Stage, timeout: object) -> None:
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            await producer.publish(TOPIC, b"x", timeout=timeout)  # type: ignore[arg-type]
    assert stage.nsqd.commands == []


async def test_a_key_and_a_partition_are_not_both_given(stage: Stage) -> None:
    """The partition used to win silently, and the key did not choose it."""
    refused = r"key= and partition= both choose the partition: give one of them"
    async with stage.producer() as producer:
        with pytest.raises(ConfigError, match=refused):
            await producer.publish(TOPIC, b"x", key="k", partition=0)
        with pytest.raises(ConfigError, match=f"1.*{refused}"):
            await producer.publish_many(TOPIC, [b"x", OutgoingMessage(b"x", key="k", partition=0)])
    assert stage.nsqd.commands == []
