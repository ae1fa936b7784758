"""What a log shows of the wire, and what it never shows."""

from __future__ import annotations

import base64
import itertools
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_ha import redaction
from nsq_ha.protocol import (
    Close,
    Command,
    Finish,
    Layout,
    Mpub,
    Offer,
    Pub,
    Ready,
    Requeue,
    Sub,
    SubAdvanced,
    SubOrdered,
    Touch,
)
from nsq_ha.protocol.commands import Auth, Identify, MpubExt, MpubTrace, Nop, PubExt, PubTrace
from nsq_ha.protocol.encoding import MAGIC, encode_dpub
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.identify import Identity
from nsq_ha.protocol.server.answers import encode_identity
from nsq_ha.protocol.wiretext import WireText, one_line
from tests.protocol.fakes import (
    HEARTBEAT_FRAME,
    ID,
    LARGEST,
    OK_FRAME,
    TRACED_FRAME,
    delivery,
    error,
    message_frame,
    response,
)

SECRET = 'p"ä <ss\\wört 4711'


def text() -> WireText:
    """Return the texts of a connection that sent its magic."""
    found = WireText(LARGEST)
    assert found.sent(MAGIC) == []
    return found


def subscribed(command: Command, *, extended: bool = False) -> WireText:
    found = text()
    found.sent(Offer(extend_support=extended).command().encode())
    found.sent(command.encode())
    return found


HEX = ID.hex()
TWO = "orders 0: 2 messages, 3 bytes, the first: b'a'"


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (Identify(b'{"client_id":"me"}'), """IDENTIFY b'{"client_id":"me"}'"""),
        (Identify(b"[]"), "IDENTIFY 2 bytes that are no JSON object"),
        (Identify(b"\xff"), "IDENTIFY 1 bytes that are no JSON object"),
        (Identify(b'{"a":"\xff"}'), "IDENTIFY 9 bytes that are no JSON object"),
        (Identify(b'{"a":' + b"[" * 5000), "IDENTIFY 5005 bytes that are no JSON object"),
        (Auth(b"secret"), "AUTH, the secret is not shown"),
        (Sub("orders", "billing", 3), "SUB orders billing 3"),
        (Sub("orders", "billing", None), "SUB orders billing"),
        (SubOrdered("orders", "billing", 0), "SUB_ORDERED orders billing 0"),
        (SubAdvanced("orders", "billing", 0), "SUB_ADVANCED orders billing 0"),
        # The server ignores the partition of such a command.
        (SubAdvanced("orders", "billing", 0, "timestamp:7"), "SUB_ADVANCED orders billing timestamp:7"),
        (Ready(1_000_000), "RDY 1000000"),
        (Finish(ID), f"FIN {HEX}"),
        (Touch(ID), f"TOUCH {HEX}"),
        (Requeue(ID, 1500), f"REQ {HEX}, delay 1500 ms"),
        (Close(), "CLS"),
        (Nop(), "NOP"),
        (Pub("orders", 0, b"paid\n"), r"PUB orders 0: 5 bytes b'paid\n'"),
        (Pub("orders", None, b"paid"), "PUB orders: 4 bytes b'paid'"),
        (PubTrace("orders", 0, 7, b"paid"), "PUB_TRACE orders 0: trace id 7, 4 bytes b'paid'"),
        (PubExt("orders", 0, b'{"a":"b"}', b"paid"), """PUB_EXT orders 0: header b'{"a":"b"}', 4 bytes b'paid'"""),
        (Mpub("orders", 0, (b"a", b"bc")), f"MPUB {TWO}"),
        (MpubTrace("orders", 0, ((1, b"a"), (2, b"bc"))), f"MPUB_TRACE {TWO}"),
        (
            MpubExt("orders", 0, ((b"{}", b"a"), (b"", b"bc"))),
            f"MPUB_EXT {TWO}",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Command) else "",
)
def test_every_command_has_a_line(command: Command, line: str) -> None:
    assert text().sent(command.encode()) == [line]


def test_a_deferred_publish_has_a_line_and_so_has_what_follows() -> None:
    sent = encode_dpub("orders", 1500, b"late") + Pub("orders", None, b"paid").encode()
    assert text().sent(sent) == ["DPUB orders, delay 1500 ms: 4 bytes b'late'", "PUB orders: 4 bytes b'paid'"]


def test_a_deferred_publish_without_a_body_is_left_out() -> None:
    sent = b"DPUB orders 1500\n" + bytes(4) + Pub("orders", None, b"paid").encode()
    assert text().sent(sent) == ["PUB orders: 4 bytes b'paid'"]


def test_a_body_is_cut() -> None:
    [line] = text().sent(Pub("orders", 0, b"x" * 1000).encode())
    assert line == f"PUB orders 0: 1000 bytes b'{'x' * 64}'"


def test_a_header_and_an_identify_are_cut() -> None:
    found = subscribed(SubAdvanced("t", "c", 0), extended=True)
    assert found.received(delivery(b"paid", Layout.EXT_DETAIL, ext=b"x" * 1000)) == [
        f"message {HEX}, attempt 1: header b'{'x' * 64}', 4 bytes b'paid'"
    ]
    [line] = text().sent(Identify(json.dumps({"client_id": "x" * 100_000}).encode()).encode())
    assert 64 < len(line) < 10_000


def test_bodies_and_answers_are_cut() -> None:
    [line] = text().sent(Mpub("orders", 0, (b"x" * 1000,)).encode())
    assert line == f"MPUB orders 0: 1 messages, 1000 bytes, the first: b'{'x' * 64}'"
    assert text().received(response(b"x" * 10_000)) == [f"response b'{'x' * 1024}'"]


def test_before_a_subscription_messages_are_plain() -> None:
    assert text().received(delivery(b"paid", Layout.PLAIN)) == [f"message {HEX}, attempt 1: 4 bytes b'paid'"]


@given(st.lists(st.integers(0, 200), unique=True).map(sorted))
def test_lines_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    sent = Pub("orders", 0, b"a").encode() + Finish(ID).encode() + Mpub("orders", 1, (b"b", b"c")).encode()
    got = OK_FRAME + HEARTBEAT_FRAME + error(b"E_INVALID x")
    whole, cut = text(), text()
    pieces = [0, *cuts, 1000]
    sends = [line for a, b in itertools.pairwise(pieces) for line in cut.sent(sent[a:b])]
    reads = [line for a, b in itertools.pairwise(pieces) for line in cut.received(got[a:b])]
    assert (sends, reads) == (whole.sent(sent), whole.received(got))


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (OK_FRAME, "response b'OK'"),
        (HEARTBEAT_FRAME, "heartbeat"),
        (error(b"E_BAD_TOPIC \x1b[31mred"), r"error b'E_BAD_TOPIC \x1b[31mred'"),
        (TRACED_FRAME, "response OK, id 1, trace id 2, offset 3, 4 bytes on disk"),
        (message_frame(b"short"), "message that cannot be decoded, 5 bytes"),
        (b"HTTP/1.1 400", "12 bytes that are no frame"),
    ],
)
def test_every_frame_has_a_line(frame: bytes, line: str) -> None:
    assert text().received(frame) == [line]


@pytest.mark.parametrize(
    ("command", "extended", "layout"),
    [
        (Sub("t", "c", 0), False, Layout.PLAIN),
        (Sub("t", "c", 0), True, Layout.EXT),
        (SubAdvanced("t", "c", 0), False, Layout.DETAIL),
        (SubOrdered("t", "c", 0), True, Layout.EXT_DETAIL),
    ],
)
def test_a_message_is_read_as_it_was_subscribed_to(command: Command, extended: bool, layout: Layout) -> None:
    found = subscribed(command, extended=extended)
    header = """header b'{"k":1}', """ if extended else ""
    assert found.received(delivery(b"paid", layout, ext=b'{"k":1}' if extended else None)) == [
        f"message {HEX}, attempt 1: {header}4 bytes b'paid'"
    ]


def test_what_cannot_be_read_is_told_once_and_raises_nothing() -> None:
    found = text()
    assert found.sent(b"NONSENSE\n") == ["no command: b'NONSENSE'"]
    assert found.sent(Nop().encode()) == []
    assert found.received(b"\0\0\0\0") == ["4 bytes that are no frame"]
    assert found.received(OK_FRAME) == []


# ------------------------------------------------------------ secrets

FORMS = [
    SECRET,
    repr(SECRET)[1:-1],
    repr(SECRET.encode())[2:-1],
    json.dumps(SECRET)[1:-1],
    json.dumps(SECRET, ensure_ascii=False)[1:-1],
    json.dumps(SECRET, ensure_ascii=False)[1:-1].replace("<", r"\u003c"),
    quote(SECRET, safe=""),
    base64.b64encode(SECRET.encode()).decode(),
    base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    SECRET.encode().hex(),
    SECRET.encode().hex().upper(),
]


def shows(lines: list[str]) -> bool:
    shown = "\n".join(lines).lower()
    return "4711" in shown or any(form.lower() in shown for form in FORMS)


@pytest.mark.parametrize(
    "secret", [SECRET.encode(), SECRET.encode("utf-16"), SECRET.encode("latin-1"), bytes(range(1, 256))]
)
def test_no_secret_of_any_encoding_is_shown(secret: bytes) -> None:
    found = text()
    assert found.sent(Auth(secret).encode()) == ["AUTH, the secret is not shown"]


@pytest.mark.parametrize("kind", [FrameType.RESPONSE, FrameType.ERROR])
def test_the_answer_to_auth_is_not_shown(kind: FrameType) -> None:
    found = text()
    found.sent(Auth(b"4711").encode())
    lines = found.received(HEARTBEAT_FRAME + encode_frame(kind, b'{"identity":"4711"}') + OK_FRAME)
    assert lines == ["heartbeat", f"{kind.name.lower()} to AUTH, 19 bytes that are not shown", "response b'OK'"]


@pytest.mark.parametrize("field", ["auth_secret", "Auth", "access_token", "password", "my_secret"])
def test_fields_of_identify_that_are_named_like_secrets_are_not_shown(field: str) -> None:
    [line] = text().sent(Identify(json.dumps({"client_id": "me", field: "4711"}).encode()).encode())
    assert line == f"""IDENTIFY b'{{"client_id":"me","{field}":"***"}}'"""


@pytest.mark.parametrize("form", FORMS)
def test_a_known_secret_is_shown_nowhere(form: str) -> None:
    redaction.conceal(SECRET)
    found = subscribed(SubAdvanced("t", "c", 0), extended=True)
    data = b"x" * 50 + form.encode()
    lines = found.sent(Identify(json.dumps({"client_id": SECRET}).encode()).encode())
    lines += found.sent(Pub("orders", 0, data).encode())
    lines += found.sent(PubExt("orders", 0, json.dumps({"k": SECRET}).encode(), data).encode())
    lines += found.sent(MpubTrace("orders", 0, ((1, data),)).encode())
    lines += found.received(response(encode_identity(Identity(version=SECRET))))
    lines += found.received(error(b"E_INVALID " + data))
    lines += found.received(delivery(data, Layout.EXT_DETAIL, ext=data))
    assert len(lines) == 7
    assert not shows(lines)


@given(st.binary())
def test_no_line_has_a_control_character(data: bytes) -> None:
    found = subscribed(SubAdvanced("t", "c", 0))
    lines = found.received(error(data) + message_frame(data)) + found.sent(data) + found.sent(b"PUB a\x1b]0;\n")
    assert all(line.isprintable() for line in lines)


def test_one_line() -> None:
    assert one_line("as it is") == "as it is"
    assert one_line("a\nb\ud800") == r"a\nb\ud800"
