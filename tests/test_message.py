"""What a message shows and how it is answered, without any connection."""

import json
from typing import Any, Literal

import msgspec
import pytest

from nsq_ha import Message, OutgoingMessage, Receipt
from nsq_ha.base.identity import partition_of
from nsq_ha.errors import BodyError, ConfigError, LocalProtocolError, RemoteProtocolError
from tests.support.nsqd import NoSource


class Source:
    """Notes the answers."""

    topic = "orders"
    channel = "billing"
    partition = 3
    nsqd = "127.0.0.1:4150"

    def __init__(self) -> None:
        self.answers: list[tuple[str, Message, float | None]] = []

    def finish(self, message: Message) -> None:
        self.answers.append(("finish", message, None))

    def requeue(self, message: Message, delay: float | None) -> None:
        self.answers.append(("requeue", message, delay))

    def touch(self, message: Message) -> None:
        self.answers.append(("touch", message, None))


ID = (3 << 50 | 77).to_bytes(8, "big") + (2**64 - 1).to_bytes(8, "big")


def message(ext: bytes | None = None) -> Message:
    return Message(ID, b"paid", 2, 1_700_000_000_000_000_000, Source(), 66, 34, ext)


def answers(message: Message) -> list[tuple[str, float | None]]:
    source = message.source
    assert isinstance(source, Source)
    assert all(answered is message for _, answered, _ in source.answers)
    return [(name, delay) for name, _, delay in source.answers]


def test_what_it_shows() -> None:
    one = message()
    assert (one.topic, one.partition, one.nsqd) == ("orders", 3, "127.0.0.1:4150")
    assert (one.body, one.attempts, one.timestamp_ns) == (b"paid", 2, 1_700_000_000_000_000_000)
    assert (one.id, one.internal_id, one.trace_id) == (ID, 3 << 50 | 77, 2**64 - 1)
    assert (one.offset, one.raw_size) == (66, 34)
    assert partition_of(one.internal_id) == 3


def test_its_text_does_not_show_the_body() -> None:
    text = repr(message())
    assert "paid" not in text
    for part in ("orders-3", "attempts=2", "4 bytes", hex(3 << 50 | 77)):
        assert part in text


def test_without_a_header() -> None:
    for ext in (None, b""):
        assert (message(ext).headers, message(ext).tag) == ({}, None)


def test_the_servers_own_keys_are_no_headers() -> None:
    ext = json.dumps({"a": 1, "##client_dispatch_tag": "blue", "##trace_id": "7", "##later": 1}).encode()
    one = message(ext)
    assert one.headers == {"a": 1}
    assert one.tag == "blue"


def test_a_tag_that_is_no_text_is_none() -> None:
    assert message(b'{"##client_dispatch_tag":7}').tag is None


@pytest.mark.parametrize("ext", [b"{", b"[]", b"null", b"7", b"\xff", b"[" * 200_000])
def test_a_header_that_is_no_object(ext: bytes) -> None:
    one = message(ext)
    with pytest.raises(RemoteProtocolError, match="extension header"):
        assert one.headers
    with pytest.raises(RemoteProtocolError, match="extension header"):
        assert one.tag
    one.finish()
    assert answers(one) == [("finish", None)]


@pytest.mark.parametrize("delay", [None, 0, 0.5, 900, 9223372036])
def test_requeue_passes_the_delay_on(delay: float | None) -> None:
    one = message()
    one.requeue(delay)
    assert answers(one) == [("requeue", delay)]


@pytest.mark.parametrize("delay", [-1, -0.001, float("inf"), float("nan"), 1e13, 9223372037])
def test_a_delay_that_is_none_answers_nothing(delay: float) -> None:
    one = message()
    with pytest.raises(ValueError, match="delay"):
        one.requeue(delay)
    one.finish()
    assert answers(one) == [("finish", None)]


@pytest.mark.parametrize("first", ["finish", "requeue"])
@pytest.mark.parametrize("second", ["finish", "requeue", "touch"])
def test_it_is_answered_once(first: str, second: str) -> None:
    one = message()
    one.touch()
    one.touch()
    getattr(one, first)()
    assert one.answered
    with pytest.raises(LocalProtocolError, match=rf"{second}\(\) of .* finished or requeued before"):
        getattr(one, second)()
    assert [name for name, _ in answers(one)] == ["touch", "touch", first]


async def test_a_block_that_ends_well_finishes() -> None:
    async with message() as one:
        assert not one.answered
    assert answers(one) == [("finish", None)]


async def test_a_block_that_fails_requeues_by_policy() -> None:
    one = message()
    with pytest.raises(KeyError):
        async with one:
            raise KeyError("x")
    assert answers(one) == [("requeue", None)]


async def finish_and_fail(one: Message) -> None:
    async with one:
        one.finish()
        raise KeyError("x")


async def test_a_block_that_answers_is_left_alone() -> None:
    one, other = message(), message()
    async with one:
        one.requeue(5)
    with pytest.raises(KeyError):
        await finish_and_fail(other)
    assert answers(one) == [("requeue", 5)]
    assert answers(other) == [("finish", None)]


def test_receipts_are_values() -> None:
    receipt = Receipt("orders", 3, "127.0.0.1:4150")
    assert receipt == Receipt("orders", 3, "127.0.0.1:4150", 1)
    assert (receipt.attempts, receipt.internal_id, receipt.offset) == (1, None, None)
    with pytest.raises(AttributeError):
        receipt.attempts = 2  # type: ignore[misc]


def test_outgoing_messages_have_nothing_but_a_body_by_default() -> None:
    outgoing = OutgoingMessage(b"x")
    assert (outgoing.key, outgoing.partition, outgoing.trace_id, outgoing.headers, outgoing.tag) == (None,) * 5


def test_an_id_of_upstream_holds_no_trace_id() -> None:
    upstream = Message(b"0c1d2e3f40516273", b"x", 1, 1, NoSource())
    assert (upstream.internal_id, upstream.trace_id) == (0x0C1D2E3F40516273, 0)
    largest = Message((1023 << 50).to_bytes(8, "big") + b"01234567", b"x", 1, 1, NoSource())
    assert (largest.internal_id, largest.trace_id) == (1023 << 50, int.from_bytes(b"01234567", "big"))


def test_a_block_in_a_thread_finishes_it_or_requeues_it() -> None:
    good, failed, answered = message(), message(), message()
    with good as same:
        assert same is good
    with pytest.raises(ValueError, match="not now"), failed:
        raise ValueError("not now")
    with answered:
        answered.requeue(3.0)
    assert (answers(good), answers(failed)) == ([("finish", None)], [("requeue", None)])
    assert answers(answered) == [("requeue", 3.0)]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_ends_with_the_program_leaves_it_to_the_consumer(kind: type[BaseException]) -> None:
    one = message()
    with pytest.raises(kind), one:
        raise kind
    assert not one.answered
    assert answers(one) == []


class Order(msgspec.Struct):
    """A body that a handler expects."""

    number: int
    items: list[dict[str, float]] = []


def with_body(body: bytes) -> Message:
    return Message(ID, body, 1, 0, Source())


def test_json_without_a_type_gives_python_objects() -> None:
    value = with_body(b'{"a": [1, 2.5, null, true, "x", 123456789012345678901234567890]}').json()
    assert value == {"a": [1, 2.5, None, True, "x", 123456789012345678901234567890]}


def test_json_with_a_type_gives_that_type() -> None:
    order: Order = with_body(b'{"number": 7, "items": [{"price": 1.5}]}').json(Order)
    assert order == Order(7, [{"price": 1.5}])
    numbers: list[int] = with_body(b"[1, 2]").json(type=list[int])
    assert numbers == [1, 2]
    assert with_body(b"null").json(int | None) is None


def test_what_a_set_cannot_hold_is_an_error_of_the_body() -> None:
    """It was one of the program, for a body that anybody may publish."""
    with pytest.raises(BodyError, match="does not match set: unhashable type"):
        with_body(b"[[1]]").json(set)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (b'{"number": "7"}', "$.number", "does not match Order: Expected `int`, got `str` - at `$.number`"),
        (b'{"number": 7, "items": [{"price": "x"}]}', "$.items[0][...]", "Expected `float`, got `str`"),
        (b"{}", None, "does not match Order: Object missing required field `number`"),
        (b"[]", None, "Expected `object`, got `array`"),
        (b"{", None, "is not JSON: Input data was truncated"),
        (b"", None, "is not JSON: Input data was truncated"),
        (b"paid", None, "is not JSON: JSON is malformed"),
        (b'"\xff"', None, "is not JSON: "),
        (b"[" * 100_000, None, "is not JSON: "),
    ],
)
def test_an_error_of_json_names_field_and_message(body: bytes, field: str | None, said: str) -> None:
    kind = Order if b"{" in body or body == b"[]" else object
    with pytest.raises(BodyError) as caught:
        with_body(body).json(kind if kind is Order else list[object] if body[:1] == b"[" else str)
    error = caught.value
    assert said in str(error)
    assert str(error).startswith("body of message 0xc00000000004d of orders-3 ")
    assert (error.topic, error.partition, error.message_id, error.field) == ("orders", 3, 3 << 50 | 77, field)
    assert isinstance(error, ValueError)
    assert not error.retriable


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    pass


class One(msgspec.Struct, tag="one"):
    pass


class Two(msgspec.Struct, tag="two"):
    pass


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (rb'{"\n\u001b[2J\u202e ERROR forged": 1}', Strict),
        (rb'{"type": "\n\u001b[2J\u202e ERROR forged"}', One | Two),
        (rb'"\n\u001b[2J\u202e ERROR forged"', Literal["one"]),
    ],
)
def test_what_a_body_says_forges_no_log_line(body: bytes, kind: Any) -> None:  # noqa: ANN401 - any type
    """msgspec quotes names of fields and tags as they came."""
    with pytest.raises(BodyError) as caught:
        with_body(body).json(kind)
    assert str(caught.value).isprintable()
    assert caught.value.reason.isprintable()
    assert "ERROR forged" in str(caught.value)


def test_an_error_of_json_does_not_repeat_a_megabyte() -> None:
    with pytest.raises(BodyError) as caught:
        with_body(b'{"%s": 1}' % (b"x" * 1_000_000)).json(Strict)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).endswith("x...")


def test_the_key_of_a_mapping_can_be_the_wrong_field() -> None:
    with pytest.raises(BodyError) as caught:
        with_body(b'{"x": 1}').json(dict[int, int])
    assert caught.value.field == "$"
    assert "does not match dict[int, int]: " in str(caught.value)


def test_json_refuses_what_is_no_type() -> None:
    with pytest.raises(ConfigError, match=r"json\(type=\.\.\.\): Type .* is not supported"):
        with_body(b"{}").json(7)
    text = r"^json\(type='Order'\): give the type itself, not its name: write json\(Order\)$"
    with pytest.raises(ConfigError, match=text):
        with_body(b"{}").json("Order")
