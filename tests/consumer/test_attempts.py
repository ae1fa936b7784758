"""Which message is handled, tried again or given up, and how it is published: without a connection."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from nsq_ha import ConsumerConfig, OutgoingMessage, Producer
from nsq_ha.consumer import giving_up as giving_up_module
from nsq_ha.consumer.delivery import Returned, give_back
from nsq_ha.consumer.giving_up import EXTRA_DELIVERIES, GiveUpPublisher, GivingUp, checked_from
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.dead_letters.provenance import Failure
from nsq_ha.errors import ConfigError, MessageRefusedError, NotLeaderError, PublishError, TopicNotFoundError
from nsq_ha.message import TAG_KEY, Message
from nsq_ha.policy.topology import Node, TopicMeta, TopicView
from nsq_ha.producer.requests import check_message
from tests.consumer import parts
from tests.support.nsqd import message_id
from tests.support.waiting import eventually, turn

if TYPE_CHECKING:
    from collections.abc import Mapping

DEAD: Any = {"on_give_up": "dead_letter", "dead_letter_topic": "dead"}
A, B = "http://10.0.0.1:4161", "http://10.0.0.2:4161"


class Letters:
    """Takes what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, Mapping[str, object]]] = []
        self.error: BaseException | None = None

    async def publish(self, topic: str, body: bytes, **options: Any) -> object:  # noqa: ANN401 - Producer.publish's
        await turn()
        if self.error is not None:
            raise self.error
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


def first_checked(**options: Any) -> int:  # noqa: ANN401 - ConsumerConfig's
    return checked_from(ConsumerConfig(lookupd=(A,), **options))


def message(
    attempts: int = 1,
    number: int = 2,
    *,
    body: bytes = b"body",
    **more: Any,  # noqa: ANN401 - Message's
) -> tuple[Message, Source]:
    source = Source()
    return Message(message_id(number, 3, 9), body, attempts, 7, source, **more), source


async def test_messages_below_the_limits_need_no_check() -> None:
    assert first_checked() == 10
    assert first_checked(max_attempts=5) == 6


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


async def test_a_failure_before_the_last_is_a_requeue() -> None:
    for options in ({"max_attempts": 3}, {"max_attempts": None}):
        one, source = message(2)
        await policy_of(**options).failed(one, ValueError("no"))
        assert source.said == [None]
    one, source = message(3)
    one.answered = True
    await policy_of(max_attempts=3).failed(one, ValueError("no"))
    assert source.said == []
    one, source = message(3)
    source.is_alive = False
    await policy_of(max_attempts=3).failed(one, ValueError("no"))
    assert source.said == [None]  # another connection delivers it again


async def test_a_requeue_by_the_application_may_be_the_last_one() -> None:
    letters = Letters()
    policy = policy_of(letters, max_attempts=2, on_give_up="dead_letter", dead_letter_topic="dead")
    one, source = message(1)
    assert not policy.gives_up(one)
    one, source = message(2)
    one.answered = True
    assert policy.gives_up(one)
    assert (policy.is_giving_up, one.answered) == (True, True)
    await eventually(lambda: not policy.is_giving_up)
    assert source.said == ["finish"]
    assert [topic for topic, _, _ in letters.published] == ["dead"]


async def test_the_first_failure_of_a_republished_message_waits_once(caplog: pytest.LogCaptureFixture) -> None:
    letters = Letters()
    policy = policy_of(letters, max_attempts=1, on_give_up="republish")
    one, source = message(1)
    assert not policy.gives_up(one)
    assert not policy.is_giving_up
    again, source = message(2)
    assert not await policy.may_be_handled(again)
    assert source.said == ["finish"]
    assert caplog.messages == [f"giving up {again!r}, which failed before: delivery 2, max_attempts=1"]
    assert await policy.may_be_handled(message(2)[0])  # it is remembered once
    one, source = message(1)
    await policy.failed(one, ValueError("no"))
    assert source.said == [None]


async def test_not_more_are_remembered_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(giving_up_module, "MOST_REMEMBERED", 2)
    policy = policy_of(Letters(), max_attempts=1, on_give_up="republish")
    for number in (1, 2, 3):
        assert not policy.gives_up(message(1, number)[0])
    assert [await policy.may_be_handled(message(2, number)[0]) for number in (1, 2, 3)] == [True, True, False]


async def test_what_cannot_be_published_is_requeued_and_then_given_up_without_a_handler(
    caplog: pytest.LogCaptureFixture,
) -> None:
    letters = Letters()
    letters.error = RuntimeError("no room")
    policy = policy_of(letters, max_attempts=2, on_give_up="dead_letter", dead_letter_topic="dead")
    one, source = message(2)
    await policy.failed(one, ValueError("no"))
    assert source.said == [None]
    assert caplog.messages[2:] == [f"{one!r} could not be given up and will be redelivered: no room"]
    assert not policy.is_giving_up
    letters.error = None
    again, source = message(3)
    assert not await policy.may_be_handled(again)
    assert source.said == ["finish"]
    # The requeue was the library's own: it does not count as the last attempt once more.
    assert not policy.has(one)


async def test_what_is_no_exception_gives_the_message_back_at_once() -> None:
    letters = Letters()
    letters.error = KeyboardInterrupt()
    policy = policy_of(letters, max_attempts=1, on_give_up="dead_letter", dead_letter_topic="dead")
    one, source = message(1)
    with pytest.raises(KeyboardInterrupt):
        await policy.failed(one, ValueError("no"))
    assert source.said == [0]
    assert not policy.is_giving_up


async def test_giving_up_that_is_cancelled_gives_the_message_back() -> None:
    started = asyncio.Event()

    async def never(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    policy = policy_of(max_attempts=1, on_give_up=never)
    one, source = message(1)
    task = asyncio.create_task(policy.failed(one, ValueError("no")))
    await started.wait()
    assert policy.is_busy(task)
    assert not policy.is_busy(None)
    assert policy.has(one)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert source.said == [0]
    assert isinstance(one.source, Returned)
    assert one.source._why == "giving it up was cancelled"
    assert (policy.is_busy(task), policy.has(one)) == (False, False)


async def test_closing_cancels_what_is_being_given_up() -> None:
    started = asyncio.Event()

    async def never(_: Message) -> None:
        started.set()
        await asyncio.Event().wait()

    policy = policy_of(max_attempts=1, on_give_up=never)
    await policy.aclose()
    one, source = message(1)
    one.answered = True
    assert policy.gives_up(one)
    await started.wait()
    await policy.aclose()
    assert not policy.is_giving_up
    assert source.said == []


async def test_a_function_may_answer_the_message_itself() -> None:
    def requeue(given: Message) -> None:
        given.requeue(4.0)

    policy = policy_of(max_attempts=1, on_give_up=requeue)
    one, source = message(1)
    await policy.failed(one, ValueError("no"))
    assert source.said == [4.0]
    policy.end_threads()


async def test_a_message_that_has_not_failed_is_requeued_without_delay() -> None:
    reports = parts.Reports()
    one, source = message(1)
    source._ledger = reports
    give_back(one, "of a test")
    assert (source.said, reports.given_back_messages, reports.requeued_messages) == ([0], [one.id], [])
    assert isinstance(one.source, Returned)
    assert one.source._why == "of a test"
    give_back(one, "of a test")
    assert source.said == [0]


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


def plain_letters() -> Any:  # noqa: ANN401 - Letters with a producer's options
    letters: Any = Letters()
    letters.config = Producer(nsqd="127.0.0.1:4150").config
    return letters


def dying(producer: object, **options: Any) -> GiveUpPublisher:  # noqa: ANN401 - ConsumerConfig's
    config = ConsumerConfig(lookupd=(A,), max_attempts=1, **{**DEAD, **options})
    return GiveUpPublisher(config, "orders", producer)  # type: ignore[arg-type]


EXTENDED = TopicMeta(1, extend_support=True)


async def test_plain_nsqds_get_neither_key_nor_trace() -> None:
    letters = plain_letters()
    await dying(letters).publish(message(1)[0])
    assert [(topic, options) for topic, _, options in letters.published] == [("dead", {})]


def letter_in(letters: Letters, number: int = 0) -> DeadLetter:
    """Return a letter that was published, as its reader gets it."""
    _, body, options = letters.published[number]
    headers: Any = options.get("headers")
    one = OutgoingMessage(body, headers=headers, tag=options.get("tag"))  # type: ignore[arg-type]
    return DeadLetter.of(message(1, ext=check_message(one, None).ext, body=body)[0])


async def test_plain_nsqds_get_an_envelope_that_keeps_headers() -> None:
    letters = plain_letters()
    publisher = dying(letters)
    await publisher.publish(message(1, ext=HEADERS)[0], Failure.of("failed", ValueError("no")))
    letter = letter_in(letters)
    assert (letter.format, letter.body, letter.headers, letter.tag) == ("envelope", b"body", {"a": 1}, "t")
    assert (letter.provenance.topic, letter.provenance.partition, letter.provenance.channel) == ("orders", 3, "ch")
    assert (letter.provenance.error_type, letter.provenance.error) == ("ValueError", "no")
    assert letters.published[0][2] == {}


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


async def test_a_failure_is_remembered_until_the_letter_is_published() -> None:
    letters = Letters()
    letters.error = RuntimeError("no room")
    policy = policy_of(letters, max_attempts=2, **DEAD)
    await policy.failed(message(2)[0], ValueError("no stock"))
    letters.error = None
    assert not await policy.may_be_handled(message(3)[0])
    assert letter_in(letters).provenance.reason == "failed"
    assert letter_in(letters).provenance.error == "no stock"
    assert not await policy.may_be_handled(message(3 + EXTRA_DELIVERIES, 3)[0])
    assert letter_in(letters, 1).provenance.reason == "redelivered"
    assert letter_in(letters, 1).provenance.error is None


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


async def test_a_policy_that_publishes_nothing_needs_no_producer() -> None:
    for give_up in (None, "drop", lambda _: None):
        publisher = GiveUpPublisher(ConsumerConfig(lookupd=(A,), max_attempts=1, on_give_up=give_up), "orders", None)
        await publisher.check()
        await publisher.publish(message(1)[0])
    letters = Letters()
    config = ConsumerConfig(lookupd=(A,), max_attempts=1, on_give_up=lambda _: None)
    await GiveUpPublisher(config, "orders", letters).publish(message(1)[0])
    assert letters.published == []


@pytest.mark.parametrize(
    ("options", "producer", "text"),
    [
        ({"on_give_up": "republish"}, None, "on_give_up='republish' publishes: give producer="),
        (
            {"on_give_up": "drop"},
            Letters(),
            (
                "producer= would not be used, since on_give_up='drop' (the default) loses messages permanently: give"
                " on_give_up='dead_letter' or 'republish', or no producer"
            ),
        ),
        (
            {"on_give_up": "dead_letter", "dead_letter_topic": "orders"},
            Letters(),
            (
                "dead_letter_topic 'orders' is the consumer's own topic, so the consumer would read its dead letters:"
                " name another topic, or give on_give_up='republish'"
            ),
        ),
        (
            {"on_give_up": "republish"},
            Letters,
            "producer is the class Letters: give an object, as in `async with Letters(...) as producer`",
        ),
        ({"on_give_up": "republish"}, "here", "producer must be a Producer, not str"),
    ],
)
def test_a_producer_that_does_not_suit_the_policy_is_refused(
    options: dict[str, Any],
    producer: Any,  # noqa: ANN401 - wrong on purpose
    text: str,
) -> None:
    with pytest.raises(ConfigError) as caught:
        GiveUpPublisher(ConsumerConfig(lookupd=(A,), max_attempts=1, **options), "orders", producer)
    assert str(caught.value) == text


def view(*nodes: Node, exists: bool = True, note: str = "", extended: bool = False) -> TopicView:
    meta = TopicMeta(max(len(nodes), 1), extend_support=extended) if exists else None
    return TopicView("x", meta, dict(enumerate(nodes)), complete=True, exists=exists, note=note)


class Lookups:
    """Stands for directories: answers by the address that is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.views: dict[str, TopicView | None] = {}
        self.asked: list[tuple[str, str]] = []

        async def look_up(_: object, topic: str, options: Any) -> TopicView | None:  # noqa: ANN401 - a ClientConfig
            self.asked.append((options.lookupd[0], topic))
            return self.views[options.lookupd[0]]

        monkeypatch.setattr(GiveUpPublisher, "_look_up", look_up)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Lookups:
    return Lookups(monkeypatch)


ONE, TWO = Node("10.0.1.1", 4150, 4151), Node("10.0.1.2", 4150, 4151)


def publisher_at(lookupd: str, **options: Any) -> GiveUpPublisher:  # noqa: ANN401 - ConsumerConfig's
    letters: Any = Letters()
    letters.config = Producer(lookupd=lookupd).config
    return GiveUpPublisher(ConsumerConfig(lookupd=(A,), max_attempts=1, **options), "orders", letters)


async def test_the_topic_of_dead_letters_is_looked_up_where_the_producer_publishes(
    lookups: Lookups, caplog: pytest.LogCaptureFixture
) -> None:
    lookups.views = {B: view(exists=False)}
    with pytest.raises(TopicNotFoundError) as caught:
        await publisher_at(B, **DEAD).check()
    assert str(caught.value) == (
        f"dead_letter_topic 'dead' does not exist in the producer's cluster (lookupd={B}): create it there (nsq-ha"
        " topic create)"
    )
    assert lookups.asked == [(B, "dead")]
    lookups.views = {B: None}
    await publisher_at(B, **DEAD).check()
    assert caplog.messages == []
    lookups.views = {B: view(ONE, note="Topic has no channel")}
    await publisher_at(B, **DEAD).check()
    assert caplog.messages == [
        "dead_letter_topic 'dead' accepts no messages yet (Topic has no channel): subscribe to it once"
    ]


@pytest.mark.parametrize("extended", [False, True])
async def test_the_kind_of_a_topic_that_was_not_found_is_looked_up_again(lookups: Lookups, *, extended: bool) -> None:
    lookups.views = {B: None}
    publisher = publisher_at(B, **DEAD)
    await publisher.check()
    lookups.views = {B: view(ONE, extended=extended)}
    await publisher.publish(message(1)[0])
    await publisher.publish(message(1)[0])
    letters: Any = publisher._producer
    assert letter_in(letters).format == ("headers" if extended else "envelope")
    assert len(lookups.asked) == 2


async def test_republishing_to_another_cluster_is_refused(lookups: Lookups) -> None:
    publisher = publisher_at(B, on_give_up="republish")
    text = (
        "on_give_up='republish' would publish messages of topic 'orders' to another cluster: the producer's"
        f" lookupd={B} names none of its nsqds, the consumer's lookupd={A} names 10.0.1.1:4150, 10.0.1.2:4150. Give a"
        " producer of the consumer's cluster, or on_give_up='dead_letter', whose topic may be in another one"
    )
    for written in (view(exists=False), view(Node("10.0.1.3", 4150, 4151))):
        lookups.views = {A: view(TWO, ONE), B: written}
        with pytest.raises(ConfigError) as caught:
            await publisher.check()
        assert str(caught.value) == text
    assert set(lookups.asked) == {(A, "orders"), (B, "orders")}


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (view(ONE, TWO), view(TWO)),  # one node is enough
        (view(ONE), view()),
        (view(), view(TWO)),
        (None, view(TWO)),
        (view(ONE), None),
    ],
)
async def test_republishing_is_allowed_where_the_clusters_may_be_one(
    lookups: Lookups, read: TopicView | None, written: TopicView | None
) -> None:
    lookups.views = {A: read, B: written}
    await publisher_at(B, on_give_up="republish").check()
    assert len(lookups.asked) == 2


async def test_nsqlookupds_in_common_make_it_one_cluster(lookups: Lookups) -> None:
    await publisher_at(f"{B},{A}", on_give_up="republish").check()
    assert lookups.asked == []


async def test_a_delivery_that_ends_is_asked_whether_it_lives() -> None:
    delivery = parts.delivery_for(parts.Reports())
    one = Message(message_id(2, 3), b"x", 3, 7, delivery)
    assert not policy_of(max_attempts=3).gives_up(one)
