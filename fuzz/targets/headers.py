"""Extension headers and dead letters, which any publisher writes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from fuzz import seeds
from fuzz.target import Target
from fuzz.targets.connection import SOURCE
from nsq_ha.dead_letters import DeadLetter
from nsq_ha.dead_letters.provenance import Provenance
from nsq_ha.dead_letters.writing import PREFIX, forms
from nsq_ha.errors import BodyError, ConfigError, DeadLetterError, MessageRefusedError, RemoteProtocolError
from nsq_ha.message import Message, OutgoingMessage
from nsq_ha.options.ext_filter import ExtFilter
from nsq_ha.policy.skipping import Skipping
from nsq_ha.producer.messages import check_message
from nsq_ha.protocol.ext_filter import decoded, path_of, text_at
from nsq_ha.protocol.server.headers import tag_of, trace_id_of
from nsq_ha.spark.read.columns import COLUMNS, HEADER_ARRAY, built

_SKIPPING: Final = (
    Skipping("type", None),
    Skipping({"type": "paid", "n": 1}, None),
    Skipping(None, ExtFilter(key="type", value="paid")),
    Skipping(None, ExtFilter("regexp", "type", "^p.*d$")),
    Skipping(None, ExtFilter("glob", "type", "p*d")),
    Skipping(None, ExtFilter("all_of", pairs=(("type", "paid"), ("n", "1")), inverse=True)),
)
_ORIGIN: Final = Provenance(
    topic="orders",
    partition=1,
    channel="billing",
    nsqd="127.0.0.1:4150",
    id=bytes(range(16)),
    trace_id=7,
    attempts=3,
    timestamp_ns=2**60,
    given_up_at=datetime(2026, 1, 1, tzinfo=UTC),
    reason="failed",
    error_type="ValueError",
    error="no stock",
)


def _message(body: bytes, ext: bytes | None) -> Message:
    return Message(bytes(range(16)), body, 1, 2**60, SOURCE, 0, None, ext)


def run_headers(data: bytes) -> None:
    """All that reads an extension header: server, filters, messages, Spark's columns."""
    for read in (trace_id_of, tag_of):
        try:
            read(data)
        except MessageRefusedError as error:
            str(error)
    header = decoded(data)
    for path in ("type", "a.b", path_of("a.b*c"), "\\"):
        text_at(header, path)
    for skipping in _SKIPPING:
        assert skipping.why(data) is None or skipping.why(data)
    message = _message(b"paid", data)
    try:
        assert all(not name.startswith("##") for name in message.headers)
        assert message.tag is None or isinstance(message.tag, str)
    except RemoteProtocolError as error:
        str(error)
    _columns(message)


def _columns(message: Message) -> None:
    for column in (*COLUMNS.values(), HEADER_ARRAY):
        assert len(built(column, [message])) == 1


def run_letters(data: bytes) -> None:
    """A message of a dead-letter topic; and a message that is given up, there and back."""
    size = int.from_bytes(data[:2], "big")
    ext, body = data[2 : 2 + size] or None, data[2 + size :]
    _letter(_message(body, ext))
    given_up = _message(body, ext)
    try:
        written = list(forms(given_up, _ORIGIN, takes_headers=True))
    except DeadLetterError:
        return
    for form in written:
        try:
            sent = check_message(OutgoingMessage(form.body or b"x", headers=form.headers, tag=form.tag), None, 2**24)
        except ConfigError:  # too large: a consumer tries the next form
            continue
        letter = _letter(_message(form.body, sent.ext))
        if letter is not None and not form.lacks:
            assert letter.body == body
            assert letter.provenance == _ORIGIN
    try:
        given_up.json()
    except BodyError as error:
        str(error)


def _letter(message: Message) -> DeadLetter | None:
    try:
        letter = DeadLetter.of(message)
    except DeadLetterError as error:
        str(error)
        return None
    earlier: DeadLetter | None = letter
    while earlier is not None:
        earlier = earlier.previous
    try:
        letter.outgoing()
    except DeadLetterError as error:
        str(error)
    return letter


def seeds_of_headers() -> Iterator[bytes]:
    """Yield the recorded headers, and some that other programs could write."""
    yield from seeds.ext_headers()
    yield from (b"{}", b"null", b'{"type":"paid","n":1}', b'{"a":{"b":["x",{"c":"d"}]}}', b'{"##trace_id":"12"}')
    yield from (
        b'{"\\ud800":"\\udfff"}',
        b'{"a":1e999}',
        b'{"a":1,"a":[2]}',
        b"[" * 3000,
        b'{"##client_dispatch_tag":"t"}',
    )


def seeds_of_letters() -> Iterator[bytes]:
    """Yield dead letters of both forms."""
    for ext in (None, b'{"type":"paid"}', b'{"nsq-ha-dead-letter-previous":"[{}]"}', b"no json"):
        for form in forms(_message(b"body", ext), _ORIGIN, takes_headers=True):
            sent = check_message(OutgoingMessage(form.body, headers=form.headers, tag=form.tag), None).ext or b""
            yield len(sent).to_bytes(2, "big") + sent + form.body
            if form.headers:
                wrong = json.dumps({**form.headers, f"{PREFIX}ext": 5}).encode()
                yield len(wrong).to_bytes(2, "big") + wrong + form.body


TARGETS: Final = (
    Target("headers", "the extension header of a message", run_headers, seeds_of_headers),
    Target("letters", "a message of a dead-letter topic, and one that is given up", run_letters, seeds_of_letters),
)
