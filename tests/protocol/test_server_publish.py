"""Publishes as the server reads them: headers, batches, and where it stops."""

import pytest

from nsq_ha.protocol.commands import MpubExt, Nop, PubExt
from nsq_ha.protocol.server.command_lines import Malformed
from nsq_ha.protocol.server.decoder import Event, PublishHeader
from tests.protocol.fakes import events, fresh, size


def pub_ext(ext: bytes, body: bytes = b"body") -> bytes:
    content = len(ext).to_bytes(2, "big") + ext + body
    return b"PUB_EXT t 0\n" + size(len(content)) + content


def mpub_ext(*messages: tuple[bytes, bytes]) -> bytes:
    batch = b"".join(
        size(2 + len(ext) + len(body)) + len(ext).to_bytes(2, "big") + ext + body for ext, body in messages
    )
    return b"MPUB_EXT t 0\n" + size(4 + len(batch)) + size(len(messages)) + batch


def on_a_topic(data: bytes, *, extended: bool) -> list[Event]:
    """Feed one publish and what follows it to a server whose topic is extended or not."""
    decoder = fresh()
    [header] = events(decoder, data)
    assert isinstance(header, PublishHeader)
    decoder.accept(extended=extended)
    return events(decoder)


def test_a_header_on_a_topic_that_is_not_extended() -> None:
    refused = Malformed(b"PUB_EXT", b"E_EXT_NOT_SUPPORT ext content not supported in topic t", fatal=False)
    assert on_a_topic(pub_ext(b"{}") + b"NOP\n", extended=True) == [PubExt("t", 0, b"{}", b"body"), Nop()]
    assert on_a_topic(pub_ext(b"{}") + b"NOP\n", extended=False) == [refused, Nop()]


def test_a_single_message_has_its_json_judged_before_the_topic() -> None:
    [answer, _] = on_a_topic(pub_ext(b"nope") + b"NOP\n", extended=False)
    assert isinstance(answer, Malformed)
    assert answer.data.startswith(b"E_INVALID_JSON_HEADER fail to parse json header:cannot parse JSON: ")
    assert not answer.fatal


def test_a_batch_has_the_topic_judged_before_the_json_and_stops_there() -> None:
    [answer, rest] = on_a_topic(
        mpub_ext((b"", b"fine"), (b"nope", b"x"), (b"{}", b"late")) + b"\nNOP\n", extended=False
    )
    assert answer == Malformed(b"MPUB_EXT", b"E_EXT_NOT_SUPPORT ext content not supported in topic t", fatal=False)
    # The third message is read as a command line.
    assert isinstance(rest, Malformed)
    assert rest.data.startswith(b"E_INVALID invalid command [[0 0 0 8 0 2 123 125 108")


def test_a_batch_without_headers_needs_no_extended_topic() -> None:
    assert on_a_topic(mpub_ext((b"", b"a"), (b"", b"b")), extended=False) == [
        MpubExt("t", 0, ((b"", b"a"), (b"", b"b")))
    ]


def test_a_bad_header_in_a_batch_leaves_the_connection_open() -> None:
    [answer, following] = on_a_topic(mpub_ext((b'{"##trace_id":1}', b"x")) + b"NOP\n", extended=True)
    assert answer == Malformed(b"MPUB_EXT", b"INVALID_TRACE_ID passin trace id should be string", fatal=False)
    assert following == Nop()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"PUB_TRACE t\n" + size(8) + bytes(8), "E_BAD_BODY invalid body size 8 with trace id enabled"),
        (b"PUB_EXT t\n" + size(2) + bytes(2), "E_BAD_BODY invalid body size 2 with ext json header enabled"),
        (pub_ext(b"{}", b""), "E_BAD_BODY invalid body size 4 in ext json header content length"),
        (mpub_ext((b"{}", b"")), "E_BAD_BODY invalid body size 4 in ext json header content length"),
        (b"MPUB_EXT t\n" + size(9) + size(1) + size(1) + b"x", "E_BAD_BODY invalid body size 1 in ext json"),
        (b"MPUB t\n" + size(4) + size(0), "E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + size(4) + size(-1), "E_BAD_BODY MPUB invalid message count -1"),
        (b"MPUB t\n" + size(4) + size(1048576), "E_BAD_BODY MPUB invalid message count 1048576"),
        (b"MPUB t\n" + size(8) + size(1) + size(-1), "E_BAD_MESSAGE MPUB invalid message(0) body size -1"),
        (b"MPUB t\n" + size(8) + size(1) + size(1048577), "E_BAD_MESSAGE MPUB message too big 1048577 > 1048576"),
        (
            b"MPUB_TRACE t\n" + size(8) + size(1) + size(8),
            "E_BAD_MESSAGE MPUB invalid message(0) body size 8 for tracing",
        ),
    ],
    ids=range(11),
)
def test_bodies_that_are_too_short_or_too_long(data: bytes, text: str) -> None:
    [answer] = on_a_topic(data, extended=True)
    assert isinstance(answer, Malformed)
    assert answer.fatal
    assert answer.data.decode().startswith(text)


def test_a_batch_has_as_many_messages_as_the_smallest_need_space() -> None:
    assert on_a_topic(b"MPUB t\n" + size(8) + size(1_048_575), extended=True) == []
