"""Dead letters: written in each form, read again, and published to where they came from."""

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import Message, OutgoingMessage, Producer
from nsq_ha.base.redaction import conceal
from nsq_ha.dead_letters import DeadLetter, DeadLetterError, Provenance, replay
from nsq_ha.dead_letters.provenance import MAX_ERROR, Failure
from nsq_ha.dead_letters.writing import LetterForm, forms
from nsq_ha.message import TAG_KEY
from nsq_ha.producer.messages import check_message
from tests.support.nsqd import message_id

NOW = 1_790_000_000.25
WHY = Failure.of("failed", ValueError("no stock"))
ID = message_id(7, 3, 9)


class Source:
    """Says where a message came from."""

    def __init__(self, topic: str = "orders", channel: str = "billing", partition: int = 3) -> None:
        self.topic, self.channel, self.partition, self.nsqd = topic, channel, partition, "here:4150"

    def finish(self, message: Message) -> None: ...
    def requeue(self, message: Message, delay: float | None) -> None: ...
    def touch(self, message: Message) -> None: ...


def message(
    body: bytes = b"body", ext: bytes | None = None, *, source: Source | None = None, number: bytes = ID
) -> Message:
    return Message(number, body, 5, 1_789_999_000_000_000_001, source or Source(), ext=ext)


def written(one: Message, *, takes_headers: bool | None = True, why: Failure = WHY) -> list[LetterForm]:
    return [*forms(one, Provenance.of(one, why, NOW), takes_headers=takes_headers)]


def arrived(form: LetterForm, topic: str = "dead") -> Message:
    """Return the message that a consumer of the dead-letter topic gets."""
    checked = check_message(OutgoingMessage(form.body, headers=form.headers, tag=form.tag), None)
    return message(checked.body, checked.ext, source=Source(topic, "look", 0), number=message_id(1, 0, 9))


def headers_of(**values: object) -> bytes:
    return json.dumps(values).encode()


# ---------------------------------------------------------------- there and back


BODIES = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.sampled_from([b"nsq-dead-letter/1 {}\n", b"nsq-dead-letter/2 ", b"\n", b"\x00\xff\n\n"]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.one_of(
    st.text(max_size=10).filter(lambda name: not name.startswith("##")),
    st.sampled_from(["dead_letter_", "dead_letter_topic", "dead_letter_previous", "dead_letter_version"]),
)
TAGS = st.none() | st.text(min_size=1, max_size=20)


@given(BODIES, st.dictionaries(NAMES, VALUES, max_size=4), TAGS, st.booleans())
def test_all_that_a_message_has_comes_back(
    body: bytes, headers: dict[str, object], tag: str | None, takes_headers: bool
) -> None:
    ext = json.dumps(headers | ({} if tag is None else {TAG_KEY: tag})).encode() if headers or tag else None
    form = written(message(body, ext), takes_headers=takes_headers)[0]
    letter = DeadLetter.of(arrived(form))
    assert (letter.body, letter.headers, letter.tag, letter.ext) == (body, headers, tag, None)
    assert letter.format == ("headers" if takes_headers else "envelope")
    assert arrived(form).tag == (tag if takes_headers else None)


@given(st.binary(min_size=1, max_size=100).filter(lambda ext: not ext.startswith(b"{")))
def test_a_header_that_cannot_be_published_comes_back_byte_for_byte(ext: bytes) -> None:
    for takes_headers in (True, False):
        letter = DeadLetter.of(arrived(written(message(b"x", ext), takes_headers=takes_headers)[0]))
        assert (letter.body, letter.headers, letter.tag, letter.ext) == (b"x", {}, None, ext)


@pytest.mark.parametrize(
    "ext",
    [
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"##later":1}',
        b'{"##client_dispatch_tag":7}',
        b'{"##client_dispatch_tag":""}',
        b'{"##client_dispatch_tag":"%s"}' % (b"x" * 101),
        b"[" * 200_000,
        b"\xff\x00",
    ],
)
def test_so_does_one_that_a_producer_would_refuse(ext: bytes) -> None:
    short = ext[:20_000]
    letter = DeadLetter.of(arrived(written(message(b"x", short))[0]))
    assert letter.ext == short
    with pytest.raises(DeadLetterError, match="extension header of this dead letter"):
        letter.outgoing()


@pytest.mark.parametrize("takes_headers", [True, False])
def test_it_says_where_it_comes_from_and_why_it_failed(takes_headers: bool) -> None:
    origin = DeadLetter.of(arrived(written(message(), takes_headers=takes_headers)[0])).provenance
    assert origin == Provenance(
        topic="orders",
        partition=3,
        channel="billing",
        nsqd="here:4150",
        id=ID,
        trace_id=9,
        attempts=5,
        timestamp_ns=1_789_999_000_000_000_001,
        given_up_at=datetime.fromtimestamp(NOW, UTC),
        reason="failed",
        error_type="ValueError",
        error="no stock",
    )


@pytest.mark.parametrize("takes_headers", [True, False])
def test_a_message_of_a_plain_nsqd_has_no_partition(takes_headers: bool) -> None:
    one = message(number=b"0ad7f5d2d3c00abc")
    origin = DeadLetter.of(arrived(written(one, takes_headers=takes_headers)[0])).provenance
    assert (origin.partition, origin.trace_id, origin.id) == (None, 0, b"0ad7f5d2d3c00abc")


def test_an_error_that_is_not_known_is_none() -> None:
    for reason in ("requeued", "redelivered"):
        origin = DeadLetter.of(arrived(written(message(), why=Failure(reason))[0])).provenance
        assert (origin.reason, origin.error_type, origin.error) == (reason, None, None)


def test_the_forms_are_as_documented() -> None:
    fields = {
        "topic": "orders",
        "partition": "3",
        "channel": "billing",
        "nsqd": "here:4150",
        "id": ID.hex(),
        "trace_id": "9",
        "attempts": "5",
        "timestamp_ns": "1789999000000000001",
        "given_up_at": "2026-09-21T14:13:20.250000+00:00",
        "reason": "failed",
        "error_type": "ValueError",
        "error": "no stock",
    }
    one = message(b"a\nb", headers_of(a=1, **{TAG_KEY: "blue", "##trace_id": "9"}))
    assert written(one)[0] == LetterForm(
        b"a\nb", {"a": 1, "dead_letter_version": "1"} | {f"dead_letter_{k}": v for k, v in fields.items()}, "blue"
    )
    line, _, body = written(one, takes_headers=False)[0].body.partition(b"\n")
    assert line.startswith(b"nsq-dead-letter/1 {")
    assert json.loads(line.removeprefix(b"nsq-dead-letter/1 ")) == fields | {
        "headers": {"a": 1},
        "tag": "blue",
        "size": "3",
    }
    assert body == b"a\nb"
    assert line.isascii()


# ---------------------------------------------------------------- which form


def kinds(forms_: list[LetterForm]) -> list[str]:
    """Name forms: headers, envelope, bare, each with what it lacks."""
    found = []
    for form in forms_:
        has_headers = form.headers is not None and "dead_letter_version" in form.headers
        kind = "headers" if has_headers else "envelope" if form.body.startswith(b"nsq-dead-letter/1") else "bare"
        found.append(f"{kind} without {form.lacks}" if form.lacks else kind)
    return found


TEXT, ALL = "the text of the error", "its origin and the reason"
HEADERS = ["headers", f"headers without {TEXT}"]
ENVELOPE = ["envelope", f"envelope without {TEXT}"]
BARE = [f"bare without {ALL}"]


@pytest.mark.parametrize(
    ("takes_headers", "expected"),
    [(True, HEADERS + ENVELOPE + BARE), (None, HEADERS + ENVELOPE + BARE), (False, ENVELOPE + BARE)],
)
def test_the_forms_to_try(takes_headers: bool | None, expected: list[str]) -> None:
    assert kinds(written(message(), takes_headers=takes_headers)) == expected


def test_headers_are_never_lost() -> None:
    one = message(b"x", headers_of(a=1))
    assert kinds(written(one, takes_headers=False)) == ENVELOPE
    assert kinds(written(one, takes_headers=True))[-1:] == BARE
    assert written(one, takes_headers=True)[-1].headers == {"a": 1}


def test_without_a_text_there_is_none_to_leave_out() -> None:
    assert kinds(written(message(), why=Failure("redelivered"))) == ["headers", "envelope", *BARE]


def test_a_tag_goes_where_tags_are_accepted() -> None:
    one = message(b"x", headers_of(**{TAG_KEY: "blue"}))
    for takes_headers, tag in ((True, "blue"), (False, None), (None, None)):
        envelope = next(form for form in written(one, takes_headers=takes_headers) if form.headers is None)
        assert envelope.tag == tag


# ---------------------------------------------------------------- errors of the application


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_what_is_said_of_an_error() -> None:
    name = f"{__name__}.UnshowableError"
    assert Failure.of("failed", UnshowableError()) == ("failed", name, "(its text cannot be shown)")
    assert Failure.of("requeued", None) == ("requeued", None, None)
    assert Failure.of("failed", KeyError("a")) == ("failed", "KeyError", "'a'")
    assert Failure.of("failed", ValueError("\ud800")).error == "\\ud800"
    shown = [str(Failure.of("failed", error)) for error in (ValueError("no"), ValueError(), None)]
    assert shown == ["ValueError: no", "ValueError", "failed"]


def test_its_text_is_bounded_and_has_no_secrets() -> None:
    long = Failure.of("failed", ValueError("x" * 5000)).error
    assert long is not None
    assert (len(long), long[-4:]) == (MAX_ERROR, "x...")
    conceal("open sesame")
    text = Failure.of("failed", ValueError("y" * (MAX_ERROR - 8) + "open sesame")).error
    assert text == "y" * (MAX_ERROR - 8) + "***"


# ---------------------------------------------------------------- dead letters of dead letters


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_dead_letter_of_a_dead_letter(first: bool, second: bool) -> None:
    inner = arrived(written(message(b"x", headers_of(a=1)), takes_headers=first)[0])
    outer = DeadLetter.of(arrived(written(inner, takes_headers=second, why=Failure("requeued"))[0], "deader"))
    assert (outer.provenance.topic, outer.provenance.channel, outer.provenance.reason) == ("dead", "look", "requeued")
    assert outer.body == inner.body
    assert outer.previous == DeadLetter.of(inner)
    assert outer.previous is not None
    assert outer.previous.provenance.topic == "orders"
    assert outer.previous.previous is None


def test_one_that_goes_round_and_round_stays_small() -> None:
    one = message(b"x", headers_of(a=1))
    for round_ in range(30):
        one = arrived(written(one, why=Failure.of("failed", ValueError('"' * 500)))[0], f"dead{round_}")
    assert one.ext is not None
    assert len(one.ext) < 40_000
    letters = [DeadLetter.of(one)]
    while (previous := letters[-1].previous) is not None:
        letters.append(previous)
    assert [letter.provenance.topic for letter in letters] == [f"dead{round_}" for round_ in range(28, 17, -1)]
    assert letters[0].body == b"x"
    assert letters[-1].headers == {"a": 1}


# ---------------------------------------------------------------- what is none


@pytest.mark.parametrize(
    ("body", "ext", "text"),
    [
        (b"x", None, "is no dead letter: it has neither headers dead_letter_... nor an envelope."),
        (b"x", b"[", "is no dead letter"),
        (b"x", headers_of(dead_letter_topic="a"), "is no dead letter"),
        (b"x", headers_of(dead_letter_version="2"), "version '2', but this program reads '1'"),
        (b"x", headers_of(dead_letter_version=1), "version 1, but this program reads '1'"),
        (b"x", headers_of(dead_letter_version="1"), "its field id is missing"),
        (b"nsq-dead-letter/2 {}\nx", None, "version '2', but this program reads '1'"),
        (b"nsq-dead-letter/\xff {}\nx", None, "version '"),
        (b"nsq-dead-letter/1 {}", None, "its envelope ends within the first line"),
        (b"nsq-dead-letter/1\nx", None, "its envelope ends within the first line"),
        (b"nsq-dead-letter/1 []\nx", None, "its envelope is not a JSON object"),
        (b"nsq-dead-letter/1 {\nx", None, "its envelope is not a JSON object"),
        (b"nsq-dead-letter/1 \xff\nx", None, "its envelope is not a JSON object"),
        (b'nsq-dead-letter/1 {"size":"2"}\nx', None, "its body has 1 bytes, but the envelope says '2'"),
        (b'nsq-dead-letter/1 {"size":"1","headers":[]}\nx', None, "headers are not a JSON object"),
        (b'nsq-dead-letter/1 {"size":"1","tag":1}\nx', None, "its tag no text"),
        (
            b'nsq-dead-letter/1 {"topic":"orders","id":"0000000000000000","size":"1"}\nx',
            None,
            "missing required field `channel`",
        ),
    ],
)
def test_what_is_no_dead_letter_says_why(body: bytes, ext: bytes | None, text: str) -> None:
    with pytest.raises(DeadLetterError) as caught:
        DeadLetter.of(message(body, ext))
    assert text in str(caught.value)
    assert "<Message orders-3" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", 7),
        ("partition", "three"),
        ("id", "0g"),
        ("id", "00"),
        ("trace_id", ""),
        ("attempts", "1.5"),
        ("timestamp_ns", "now"),
        ("given_up_at", "2026-01-01T00:00:00"),
        ("given_up_at", "yesterday"),
        ("given_up_at", "0001-01-01T00:00:00+14:00"),
        ("given_up_at", "9999-12-31T23:59:59-14:00"),
        ("reason", "boredom"),
        ("error", 7),
        ("error_type", []),
        ("ext", "*"),
        ("ext", 7),
    ],
)
def test_a_damaged_field_is_named(field: str, value: object) -> None:
    form = written(message())[0]
    assert form.headers is not None
    damaged = form._replace(headers={**form.headers, f"dead_letter_{field}": value})
    with pytest.raises(DeadLetterError, match=rf"is a damaged dead letter: .*\b{field}\b"):
        DeadLetter.of(arrived(damaged))


def test_fields_of_later_versions_are_ignored() -> None:
    form = written(message())[0]
    assert form.headers is not None
    more = form._replace(headers={**form.headers, "dead_letter_mood": "sad"})
    assert DeadLetter.of(arrived(more)) == DeadLetter.of(arrived(form))


def test_a_header_may_be_nested_as_deep_as_python_reads() -> None:
    """Its publisher chooses how deep. The envelope has one level more, and what has no form is never given up."""
    for depth in range(500, 1000):
        ext = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        for form in written(message(ext=ext), takes_headers=False):
            letter = DeadLetter.of(arrived(form))
            assert letter.body == b"body"
            assert (letter.ext == ext) is not bool(letter.headers)


# ---------------------------------------------------------------- replay


class Publisher:
    """Takes what is published."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes, dict[str, Any]]] = []

    def publish(self, topic: str, body: bytes, **options: Any) -> int:  # noqa: ANN401 - Producer.publish's
        self.published.append((topic, body, options))
        return 7


def letter_of(one: Message) -> DeadLetter:
    return DeadLetter.of(arrived(written(one)[0]))


def test_a_replay_publishes_to_where_it_came_from() -> None:
    producer = Publisher()
    letter = letter_of(message(b"x", headers_of(a=1, **{TAG_KEY: "blue"})))
    assert replay(producer, letter) == 7
    more = {"trace_id": 9, "headers": {"a": 1}, "tag": "blue"}
    assert producer.published == [("orders", b"x", {"partition": 3, **more})]
    replay(producer, letter, key="k")
    replay(producer, letter, partition=1)
    replay(producer, letter, topic="other")
    assert [(topic, options) for topic, _, options in producer.published[1:]] == [
        ("orders", {"key": "k", **more}),
        ("orders", {"partition": 1, **more}),
        ("other", more),
    ]


def test_a_replay_to_a_plain_cluster_gives_nothing_that_it_does_not_know() -> None:
    producer = Publisher()
    replay(producer, letter_of(message(b"x", number=b"0ad7f5d2d3c00abc")))
    assert producer.published == [("orders", b"x", {})]


def test_as_an_outgoing_message() -> None:
    assert letter_of(message(b"x", headers_of(a=1))).outgoing() == OutgoingMessage(
        b"x", partition=3, trace_id=9, headers={"a": 1}
    )
    assert letter_of(message(b"x")).outgoing().headers is None


async def test_a_producer_is_what_a_replay_asks_for() -> None:
    # mypy reads this file: the call is the test.
    producer = Producer(lookupd="127.0.0.1:4161")
    waiting = replay(producer, letter_of(message()))
    waiting.close()


def test_base64_is_as_documented() -> None:
    form = written(message(b"x", b"\xff"))[0]
    assert form.headers is not None
    assert form.headers["dead_letter_ext"] == base64.b64encode(b"\xff").decode()
