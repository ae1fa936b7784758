"""Which message is handled, tried again or given up, and how it is published: without a connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConsumerConfig, OutgoingMessage
from nsq_ha.consumer import giving_up as giving_up_module
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES, GiveUpPublisher, GivingUp
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.dead_letters.provenance import Failure
from nsq_ha.errors import ConfigError, MessageRefusedError, NotLeaderError, PublishError
from nsq_ha.message import TAG_KEY, Message
from nsq_ha.producer.requests import check_message
from tests.consumer import parts
from tests.support.nsqd import message_id
from tests.support.waiting import eventually, turn

if TYPE_CHECKING:
    from collections.abc import Mapping

DEAD: Any = {"on_give_up": "dead_letter", "dead_letter_topic": "dead"}
A = "http://10.0.0.1:4161"


class Letters:
    """Takes what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, Mapping[str, object]]] = []

    async def publish(self, topic: str, body: bytes, **options: Any) -> object:  # noqa: ANN401 - Producer.publish's
        await turn()
        self.published.append((topic, body, options))
        return None


class Source(parts.Source):
    """Keeps the answers of messages, without their numbers."""

    @property
    def said(self) -> list[object]:
        return [answer for _, answer in self.answers]


class NoBackoff:
    """Takes failures."""

    def failed(self, message: Message) -> None: ...


def policy_of(producer: object = None, **options: Any) -> GivingUp:  # noqa: ANN401 - ConsumerConfig's
    config, backoff = ConsumerConfig(lookupd=(A,), **options), NoBackoff()
    return GivingUp(config, GiveUpPublisher(config, "orders", producer), backoff)  # type: ignore[arg-type]


def message(
    attempts: int = 1,
    number: int = 2,
    *,
    body: bytes = b"body",
    **more: Any,  # noqa: ANN401 - Message's
) -> tuple[Message, Source]:
    source = Source()
    return Message(message_id(number, 3, 9), body, attempts, 7, source, **more), source


async def test_warnings_come_at_doubled_numbers_of_attempts(caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_of()
    warned = []
    for attempts in range(100):
        caplog.clear()
        one, source = message(attempts)
        assert await policy.may_be_handled(one)
        assert source.said == []
        if caplog.records:
            warned.append(attempts)
            assert caplog.messages == [f"{one!r} is redelivered again and again: this is delivery {attempts}"]
    assert warned == [10, 20, 40, 80]


async def test_a_message_is_given_up_unhandled_only_beyond_the_spare_deliveries(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = policy_of(max_attempts=2)
    one, source = message(2 + EXTRA_DELIVERIES)
    assert await policy.may_be_handled(one)
    assert (source.said, caplog.messages) == ([], [])
    one, source = message(3 + EXTRA_DELIVERIES)
    assert not await policy.may_be_handled(one)
    assert source.said == ["finish"]
    assert caplog.messages == [f"giving up {one!r} unhandled: delivery 13, max_attempts=2"]
    assert EXTRA_DELIVERIES == 10


@pytest.mark.parametrize(
    ("attempts", "said"),
    [(3, "attempt 3 of 3 failed"), (4, "delivery 4 failed, max_attempts=3")],
)
async def test_the_last_failure_is_logged_with_its_count(
    caplog: pytest.LogCaptureFixture, attempts: int, said: str
) -> None:
    policy = policy_of(max_attempts=3)
    one, source = message(attempts)
    await policy.failed(one, ValueError("no"))
    assert source.said == ["finish"]
    assert caplog.messages == [f"handler failed on {one!r}: ValueError('no')", f"giving up {one!r}: {said}"]
    assert caplog.records[0].exc_info


async def test_not_more_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up_module, "MOST_REMEMBERED", 2)
    policy = policy_of(Letters(), max_attempts=1, on_give_up="republish")
    for number in (1, 2, 3):
        assert not policy.gives_up(message(1, number)[0])
    assert [await policy.may_be_handled(message(2, number)[0]) for number in (1, 2, 3)] == [True, True, False]


async def test_a_function_may_answer_the_message_itself() -> None:
    def requeue(given: Message) -> None:
        given.requeue(4.0)

    policy = policy_of(max_attempts=1, on_give_up=requeue)
    one, source = message(1)
    await policy.failed(one, ValueError("no"))
    assert source.said == [4.0]
    policy.end_threads()


# ---------------------------------------------------------------- what is published


HEADERS = b'{"a":1,"%s":"t"}' % TAG_KEY.encode()


@pytest.mark.parametrize("ext", [None, HEADERS])
async def test_a_message_is_published_with_all_that_it_has(ext: bytes | None) -> None:
    letters = Letters()
    config = ConsumerConfig(lookupd=(A,), max_attempts=1, on_give_up="republish")
    publisher = GiveUpPublisher(config, "orders", letters)
    one, _ = message(1, ext=ext)
    await publisher.publish(one)
    more = {} if ext is None else {"headers": {"a": 1}, "tag": "t"}
    assert letters.published == [("orders", b"body", {"trace_id": 9, "partition": 3, **more})]
    untraced = Message(message_id(2, 3), b"body", 1, 7, Source())
    await publisher.publish(untraced)
    assert letters.published[1][2]["trace_id"] is None


def dying(producer: object, **options: Any) -> GiveUpPublisher:  # noqa: ANN401 - ConsumerConfig's
    config = ConsumerConfig(lookupd=(A,), max_attempts=1, **{**DEAD, **options})
    return GiveUpPublisher(config, "orders", producer)  # type: ignore[arg-type]


def letter_in(letters: Letters, number: int = 0) -> DeadLetter:
    """Return a letter that was published, as its reader gets it."""
    _, body, options = letters.published[number]
    headers: Any = options.get("headers")
    one = OutgoingMessage(body, headers=headers, tag=options.get("tag"))  # type: ignore[arg-type]
    return DeadLetter.of(message(1, ext=check_message(one, None).ext, body=body)[0])


async def test_a_publisher_of_another_kind_gets_headers() -> None:
    letters = Letters()
    await dying(letters).publish(message(1, ext=HEADERS)[0])
    letter = letter_in(letters)
    assert letter.format == "headers"
    assert (letter.headers, letter.tag, letter.provenance.reason) == ({"a": 1}, "t", "redelivered")
    assert letters.published[0][2]["trace_id"] == 9
    assert letters.published[0][2]["key"] == "orders-3"


class Limited(Letters):
    """Refuses some forms, as a producer or a server does."""

    def __init__(self, limit: int, error: BaseException, *, takes_headers: bool = True) -> None:
        super().__init__()
        self.limit = limit
        self.refusal = error
        self.takes_headers = takes_headers
        self.tried = 0

    async def publish(self, topic: str, body: bytes, **options: Any) -> object:  # noqa: ANN401 - Producer.publish's
        self.tried += 1
        size = len(body) + len(json.dumps(options.get("headers") or {}))
        if size > self.limit or (options.get("headers") and not self.takes_headers):
            raise self.refusal
        return await super().publish(topic, body, **options)


def refused(*, maybe_stored: bool = False, cause: BaseException | None = None) -> PublishError:
    error = PublishError("no", topic="dead", partition=0, attempts=1, maybe_stored=maybe_stored)
    error.__cause__ = MessageRefusedError("E_BAD_MESSAGE", "too big") if cause is None else cause
    return error


@pytest.mark.parametrize("error", [ConfigError("too large"), refused()], ids=["before", "by the server"])
async def test_what_does_not_fit_is_left_out_and_logged(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    why = Failure.of("failed", ValueError("x" * 5000))
    one = message(1)[0]
    letters = Limited(1000, error)
    await dying(letters).publish(one, why)
    assert (letter_in(letters).provenance.error_type, letter_in(letters).provenance.error) == ("ValueError", None)
    lacks = f"the dead letter of {one!r} lacks %s (ValueError: {why.error}), since the whole was refused: {error}"
    assert caplog.messages == [lacks % "the text of the error"]
    caplog.clear()
    letters = Limited(10, error)
    await dying(letters).publish(one, why)
    assert letters.published == [("dead", b"body", {"trace_id": 9, "key": "orders-3"})]
    assert caplog.messages == [lacks % "its origin and the reason"]


async def test_a_topic_that_takes_no_headers_after_all_gets_an_envelope(caplog: pytest.LogCaptureFixture) -> None:
    letters = Limited(10_000, ConfigError("no headers"), takes_headers=False)
    await dying(letters).publish(message(1, ext=HEADERS)[0], Failure.of("failed", ValueError("no")))
    assert letter_in(letters).format == "envelope"
    assert letter_in(letters).headers == {"a": 1}
    assert caplog.messages == []


async def test_headers_are_never_left_out() -> None:
    letters = Limited(10, ConfigError("too large"), takes_headers=False)
    one = message(1, ext=HEADERS)[0]
    with pytest.raises(ConfigError) as caught:
        await dying(letters).publish(one)
    assert str(caught.value) == (
        f"dead_letter_topic 'dead' accepts {one!r} in no form"
        " that keeps its headers: create it as an extended topic, or raise the server's limit (too large)"
    )


@pytest.mark.parametrize(
    "error", [refused(maybe_stored=True), refused(cause=NotLeaderError("E_FAILED_ON_NOT_LEADER")), RuntimeError("no")]
)
async def test_other_failures_try_no_other_form(error: Exception) -> None:
    letters = Limited(0, error)
    with pytest.raises(type(error)) as caught:
        await dying(letters).publish(message(1)[0])
    assert caught.value is error
    assert letters.tried == 1


async def test_a_requeue_tells_the_exception_that_is_being_handled() -> None:
    letters = Letters()
    policy = policy_of(letters, max_attempts=1, **DEAD)
    try:
        int("none")
    except ValueError:
        assert policy.gives_up(message(1)[0])
    assert policy.gives_up(message(1, 3)[0])
    await eventually(lambda: len(letters.published) == 2)
    found = {letter_in(letters, number).provenance.error for number in (0, 1)}
    assert found == {"invalid literal for int() with base 10: 'none'", None}
    assert {letter_in(letters, number).provenance.reason for number in (0, 1)} == {"requeued"}
