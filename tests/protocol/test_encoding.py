"""Bytes of what is sent once a message."""

import array
from collections.abc import Callable
from typing import Any

import pytest

from nsq_ha.errors import ConfigError
from nsq_ha.protocol.encoding import (
    MAX_DELAY_MS,
    MAX_EXT_BYTES,
    MAX_SIZE,
    MAX_TRACE_ID,
    encode_dpub,
    encode_fin,
    encode_fins,
    encode_mpub,
    encode_mpub_ext,
    encode_mpub_trace,
    encode_pub,
    encode_pub_ext,
    encode_pub_trace,
    encode_ready,
    encode_req,
    encode_touch,
    gather_bodies,
)
from tests.protocol.fakes import ID

WRONG: Any = "text"
Publish = Callable[[str, int | None, bytes], bytes]

PUBLISHES: dict[str, Publish] = {
    "PUB": encode_pub,
    "PUB_TRACE": lambda topic, partition, body: encode_pub_trace(topic, partition, 7, body),
    "PUB_EXT": lambda topic, partition, body: encode_pub_ext(topic, partition, b"{}", body),
    "MPUB": lambda topic, partition, body: encode_mpub(topic, partition, [body]),
    "MPUB_TRACE": lambda topic, partition, body: encode_mpub_trace(topic, partition, [(7, body)]),
    "MPUB_EXT": lambda topic, partition, body: encode_mpub_ext(topic, partition, [(b"{}", body)]),
}
BESIDES = {"PUB": 0, "PUB_TRACE": 8, "PUB_EXT": 4, "MPUB": 0, "MPUB_TRACE": 8, "MPUB_EXT": 4}
"""Bytes that count for the size of the message besides its body."""

every_publish = pytest.mark.parametrize("word", PUBLISHES)


def test_layouts_byte_for_byte() -> None:
    assert encode_pub("t", 3, b"ab") == b"PUB t 3\n\0\0\0\2ab"
    assert encode_dpub("t", 250, b"ab") == b"DPUB t 250\n\0\0\0\2ab"
    assert encode_pub_trace("t", 3, 0x0102, b"ab") == b"PUB_TRACE t 3\n\0\0\0\x0a\0\0\0\0\0\0\1\2ab"
    assert encode_pub_ext("t", 3, b"{}", b"ab") == b"PUB_EXT t 3\n\0\0\0\6\0\2{}ab"
    assert encode_mpub("t", 3, [b"a", b"bc"]) == b"MPUB t 3\n\0\0\0\x0f\0\0\0\2\0\0\0\1a\0\0\0\2bc"
    assert encode_mpub_trace("t", 3, [(1, b"a")]) == b"MPUB_TRACE t 3\n\0\0\0\x11\0\0\0\1\0\0\0\x09\0\0\0\0\0\0\0\1a"
    assert encode_mpub_ext("t", 3, [(b"", b"a"), (b"{}", b"b")]) == (
        b"MPUB_EXT t 3\n\0\0\0\x14\0\0\0\2\0\0\0\3\0\0a\0\0\0\5\0\2{}b"
    )
    assert encode_fin(ID) == b"FIN " + ID + b"\n"
    assert encode_fins([ID, ID[::-1]]) == encode_fin(ID) + encode_fin(ID[::-1])
    assert encode_req(ID, 1500) == b"REQ " + ID + b" 1500\n"
    assert encode_touch(ID) == b"TOUCH " + ID + b"\n"
    assert encode_ready(0) == b"RDY 0\n"


@every_publish
def test_without_a_partition_the_word_is_left_out(word: str) -> None:
    assert PUBLISHES[word]("t", None, b"a").startswith(word.encode() + b" t\n")


@every_publish
@pytest.mark.parametrize("topic", ["", "a" * 65, "a b", "a\n", "a/b", "é", "#ephemeral"])
def test_a_name_never_breaks_out_of_its_line(word: str, topic: str) -> None:
    with pytest.raises(ConfigError, match="topic"):
        PUBLISHES[word](topic, 0, b"a")


@every_publish
@pytest.mark.parametrize("partition", [-1, 1024, "0", 1.5])
def test_a_partition_is_a_number_of_ten_bits(word: str, partition: int) -> None:
    with pytest.raises(ConfigError, match="partition"):
        PUBLISHES[word]("t", partition, b"a")


@every_publish
def test_a_buffer_counts_in_bytes_not_in_items(word: str) -> None:
    numbers = memoryview(array.array("i", [1, 2]))
    publish = PUBLISHES[word]
    # Type checkers want bytes; at run time a buffer is taken for its bytes.
    buffers: list[Any] = [numbers, bytearray(b"ab")]
    for buffer in buffers:
        assert publish("t", 0, buffer) == publish("t", 0, bytes(buffer))


@every_publish
def test_a_body_is_from_one_byte_to_what_a_size_word_holds(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr("nsq_ha.protocol.encoding.MAX_SIZE", 1000)
    # A batch has size words of its own.
    largest = 1000 - BESIDES[word] - (8 if word.startswith("M") else 0)
    publish = PUBLISHES[word]
    assert len(publish("t", 0, bytes(largest))) > largest
    with pytest.raises(ConfigError, match=r"must have (1\.\.|at most )\d+ bytes"):
        publish("t", 0, bytes(largest + 1))
    with pytest.raises(ConfigError, match=f"1..{1000 - BESIDES[word]} bytes, not 0"):
        publish("t", 0, b"")


@pytest.mark.parametrize("trace_id", [-1, MAX_TRACE_ID + 1, "7", None, True])
def test_a_trace_id_is_unsigned_64_bit(trace_id: int) -> None:
    with pytest.raises(ConfigError, match="trace id"):
        encode_pub_trace("t", 0, trace_id, b"a")
    with pytest.raises(ConfigError, match="trace id"):
        encode_mpub_trace("t", 0, [(trace_id, b"a")])


def test_the_largest_trace_id_fits() -> None:
    assert encode_pub_trace("t", 0, MAX_TRACE_ID, b"a").endswith(b"\xff" * 8 + b"a")


def test_an_extension_header_has_at_most_16_bits_of_length() -> None:
    assert encode_pub_ext("t", 0, bytes(MAX_EXT_BYTES), b"a").endswith(b"a")
    with pytest.raises(ConfigError, match="extension header must have at most 65535 bytes"):
        encode_pub_ext("t", 0, bytes(MAX_EXT_BYTES + 1), b"a")
    with pytest.raises(ConfigError, match="extension header must have at most 65535 bytes"):
        encode_mpub_ext("t", 0, [(bytes(MAX_EXT_BYTES + 1), b"a")])


def test_a_batch_keeps_to_its_size_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nsq_ha.protocol.encoding.MAX_SIZE", 1000)
    room = 1000 - 4 - 2 * (4 + 100)
    full = encode_mpub("t", 0, [bytes(100), bytes(100), bytes(room - 4)])
    assert len(full) == len(b"MPUB t 0\n") + 4 + 1000
    with pytest.raises(ConfigError, match="at most 1000 bytes with its size words, not 1001"):
        encode_mpub("t", 0, [bytes(100), bytes(100), bytes(room - 3)])


def test_bodies_keep_to_the_limit_of_the_caller() -> None:
    assert len(gather_bodies([bytes(10), bytes(11)], 11)[0]) == 29
    with pytest.raises(ConfigError, match=r"^message body must have 1\.\.10 bytes, not 11$"):
        gather_bodies([bytes(10), bytes(11)], 10)


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_many_fins_are_the_same_bytes_as_one_by_one(count: int) -> None:
    ids = [number.to_bytes(8, "big") + ID[8:] for number in range(count)]
    assert encode_fins(ids) == b"".join(map(encode_fin, ids))


@pytest.mark.parametrize("message_id", [b"", b"a" * 15, b"a" * 17])
def test_an_id_has_16_bytes(message_id: bytes) -> None:
    with pytest.raises(ConfigError, match=f"must have 16 bytes, not {len(message_id)}"):
        encode_fins([ID, message_id, ID])
    for encode in (encode_fin, encode_touch, lambda given: encode_req(given, 0)):
        with pytest.raises(ConfigError, match="message id must have 16 bytes"):
            encode(message_id)


@pytest.mark.parametrize("delay_ms", [-1, 0.5, MAX_DELAY_MS + 1, True, "1"])
def test_a_delay_is_whole_milliseconds(delay_ms: int) -> None:
    with pytest.raises(ConfigError, match="delay"):
        encode_req(ID, delay_ms)


@pytest.mark.parametrize("count", [-1, 2**31, 1.0, False, "1"])
def test_a_ready_count_is_a_natural_number(count: int) -> None:
    with pytest.raises(ConfigError, match="ready count"):
        encode_ready(count)


LARGEST, TRACED_LIMIT = MAX_SIZE, MAX_SIZE - 8


@pytest.mark.parametrize(
    ("encode", "text"),
    [
        (lambda: encode_pub("t", 0, WRONG), "message body must be bytes, not str"),
        (lambda: encode_pub_trace("t", 0, 7, WRONG), "message body must be bytes, not str"),
        (lambda: encode_pub_ext("t", 0, b"{}", WRONG), "message body must be bytes, not str"),
        (lambda: encode_pub_ext("t", 0, WRONG, b"a"), "extension header must be bytes, not str"),
        (lambda: encode_pub_ext("t", 0, b"", b"a"), "PUB_EXT needs an extension header; {} is the smallest"),
        (lambda: encode_mpub("t", 0, [b"a", WRONG]), "message body must be bytes, not str"),
        (lambda: gather_bodies([b"a", WRONG], 9), "message bodies must all be bytes"),
        (lambda: encode_mpub_trace("t", 0, [(7, WRONG)]), "message body must be bytes, not str"),
        (lambda: encode_mpub_ext("t", 0, [(b"{}", WRONG)]), "message body must be bytes, not str"),
        (lambda: encode_mpub_ext("t", 0, [(WRONG, b"a")]), "extension header must be bytes, not str"),
        (lambda: encode_pub("t", 0, b""), f"message body must have 1..{LARGEST} bytes, not 0"),
        (lambda: encode_pub_trace("t", 0, 7, b""), f"traced message body must have 1..{TRACED_LIMIT} bytes, not 0"),
        (lambda: encode_mpub("t", 0, [b""]), f"message body must have 1..{LARGEST} bytes, not 0"),
        (lambda: encode_dpub("t", 0, b""), f"message body must have 1..{LARGEST} bytes, not 0"),
        (
            lambda: encode_mpub_trace("t", 0, [(7, b"")]),
            f"traced message body must have 1..{TRACED_LIMIT} bytes, not 0",
        ),
        (
            lambda: encode_pub_ext("t", 0, b"{}", b""),
            f"message body must have 1..{LARGEST - 4} bytes, not 0",
        ),
        (lambda: encode_mpub("t", 0, []), "a batch must have at least one message"),
        (lambda: encode_pub_trace("t", 0, -1, b"a"), "trace id must be an unsigned 64 bit int, not -1"),
    ],
)
def test_why_a_publish_is_refused(encode: Callable[[], bytes], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        encode()
    assert str(refused.value) == text


@pytest.mark.parametrize("delay", [-1, MAX_DELAY_MS + 1, 1.5, True, None])
def test_a_delay_that_overflows_is_refused(delay: Any) -> None:  # noqa: ANN401 - anything
    with pytest.raises(ConfigError, match=rf"an int of 0\.\.{MAX_DELAY_MS} ms"):
        encode_dpub("t", delay, b"x")
    assert encode_dpub("t", 86_400_000, b"x").startswith(b"DPUB t 86400000\n")
