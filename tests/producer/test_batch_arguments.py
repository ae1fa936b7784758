"""What is no topic, batch, header or time limit is refused before anything is sent."""

from typing import Any

import pytest

from nsq_ha import OutgoingMessage
from nsq_ha.errors import ConfigError
from nsq_ha.producer.messages import check_message
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES
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


async def test_an_int_key_that_python_does_not_print_is_refused_whatever_hashes_it(stage: Stage) -> None:
    """Its error was the ValueError of Python: the key orders publishes by its text, too."""
    async with stage.producer(sharding=abs) as producer:
        with pytest.raises(ConfigError, match="14000 bits"):
            await producer.publish(TOPIC, b"x", key=2**50_000)
        with pytest.raises(ConfigError, match=r"message 1: .* 14000 bits"):
            await producer.publish_many(TOPIC, [b"x", OutgoingMessage(b"x", key=2**50_000)])
    assert stage.nsqd.commands == []


LONG_TAG = "tag must be a str of 1..100 bytes"
BOTH = "key= and partition= both choose the partition: give only one of them (see also sharding=)"


@pytest.mark.parametrize(
    ("fields", "trace_id", "text"),
    [
        ({"body": "text"}, None, "a body must be bytes, not str: encode it first"),
        ({"body": bytearray(b"x")}, None, "a body must be bytes, not bytearray: convert it with bytes()"),
        ({"body": b""}, None, "a body must not be empty: nsqd refuses empty messages"),
        ({"key": True}, None, "a key must be str, bytes or int, not bool"),
        ({"key": 1.5}, None, "a key must be str, bytes or int, not float"),
        ({"key": "k", "partition": 0}, None, BOTH),
        ({"headers": ["a"]}, None, "headers must be a mapping, not list"),
        ({"headers": {1: 2}}, None, "the name of a header must be a str, not 1"),
        (
            {"headers": {"##x": 1}},
            None,
            "header '##x': the server reserves names that begin with ##; use tag= and trace_id=",
        ),
        ({"tag": ""}, None, LONG_TAG),
        ({"tag": "é" * 51}, None, LONG_TAG),
        ({"tag": 5}, None, LONG_TAG),
        (
            {"headers": {"a": float("nan")}},
            None,
            "headers cannot be encoded as JSON: Out of range float values are not JSON compliant",
        ),
        ({"headers": {"a": "x" * 70_000}}, None, "headers take 70008 bytes as JSON, but the limit is 65535"),
        ({}, -1, "trace_id must be an unsigned 64-bit int, not -1"),
        ({}, 2**64, f"trace_id must be an unsigned 64-bit int, not {2**64}"),
        ({}, True, "trace_id must be an unsigned 64-bit int, not True"),
        ({}, "7", "trace_id must be an unsigned 64-bit int, not '7'"),
        # Python prints no number of so many digits.
        pytest.param({}, 10**5000, "trace_id must be an unsigned 64-bit int, not a int", id="digits"),
    ],
)
def test_what_is_no_message_is_refused(fields: dict[str, Any], trace_id: Any, text: str) -> None:  # noqa: ANN401
    with pytest.raises(ConfigError) as refused:
        check_message(OutgoingMessage(**{"body": b"x", **fields}), trace_id)
    assert str(refused.value).startswith(text)


def test_a_message_is_as_large_as_the_server_takes() -> None:
    assert check_message(OutgoingMessage(bytes(MAX_MESSAGE_BYTES)), None).trace_id is None
    with pytest.raises(ConfigError, match=f"^a message of {MAX_MESSAGE_BYTES + 1} bytes, trace id and headers inc"):
        check_message(OutgoingMessage(bytes(MAX_MESSAGE_BYTES - 7)), 1)
    assert check_message(OutgoingMessage(bytes(3_000_000)), 1, 3_000_008).trace_id == 1
    ext = check_message(OutgoingMessage(b"x", headers={"a": 1}), 1).ext or b""
    body = bytes(3_000_000 - 2 - len(ext))
    assert check_message(OutgoingMessage(body, headers={"a": 1}), 1, 3_000_000).ext == ext
    with pytest.raises(ConfigError, match=r"^a message of 3000000 bytes"):
        check_message(OutgoingMessage(body, headers={"a": 1}), 1, 2_999_999)
    with pytest.raises(ConfigError) as refused:
        check_message(OutgoingMessage(bytes(3_000_000)), 1, 3_000_007)
    assert str(refused.value) == (
        "a message of 3000008 bytes, trace id and headers included, exceeds max_message_bytes=3000007: split it; or"
        " raise max_message_bytes if nsqd accepts more, as its --max-msg-size says"
    )


async def test_a_topic_without_headers_refuses_them(stage: Stage) -> None:
    text = f"topic '{TOPIC}' accepts no headers or tags: create it extended (nsq-ha topic create --extended)"
    async with stage.producer() as producer:
        for fields in ({"headers": {"a": 1}}, {"tag": "blue"}):
            with pytest.raises(ConfigError) as refused:
                await producer.publish(TOPIC, b"x", **fields)
            assert str(refused.value) == text
    assert stage.nsqd.commands == []
