"""Extension headers as the server reads them."""

import pytest

from nsq_ha.errors import MessageRefusedError
from nsq_ha.protocol.server.headers import tag_of, trace_id_of


@pytest.mark.parametrize(
    ("header", "trace_id"),
    [
        (b"{}", None),
        (b'{"k":"v"}', None),
        (b'["##trace_id"]', None),
        (b"7", None),
        (b'{"##trace_id":"7"}', 7),
        (b'{"##trace_id":"18446744073709551615"}', 2**64 - 1),
        (b'{"##trace_id":"0000000000000000000000000007"}', 7),
        (b'{"##trace_id":"' + b"0" * 10_000 + b'7"}', 7),
        (b'{"##trace_id":"1","##trace_id":"2"}', 1),
        (b' \n{"a":{"##trace_id":"1"}}', None),
        (b'{"k":"\xff"}', None),
    ],
)
def test_the_trace_id_of_a_header(header: bytes, trace_id: int | None) -> None:
    assert trace_id_of(header) == trace_id


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b"", "E_INVALID_JSON_HEADER"),
        (b" ", "E_INVALID_JSON_HEADER"),
        (b"nope", "E_INVALID_JSON_HEADER"),
        (b"{nope", "E_INVALID_JSON_HEADER"),
        (b'{"a":1', "E_INVALID_JSON_HEADER"),
        (b"[" * 100_000, "E_INVALID_JSON_HEADER"),
        (b'{"##trace_id":7}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":null}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":""}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":"-1"}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":"+1"}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":"0x1"}', "INVALID_TRACE_ID"),
        (b'{"##trace_id":"18446744073709551616"}', "INVALID_TRACE_ID"),
        ('{"##trace_id":"\u0661"}'.encode(), "INVALID_TRACE_ID"),
        (b'{"##trace_id":"' + b"1" * 10_000 + b'"}', "INVALID_TRACE_ID"),
    ],
    ids=range(15),
)
def test_a_header_that_the_server_refuses(header: bytes, code: str) -> None:
    with pytest.raises(MessageRefusedError) as raised:
        trace_id_of(header)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (b"", 'cannot parse JSON: cannot parse empty string; unparsed tail: ""'),
        (
            b"{ nope",
            'cannot parse JSON: cannot parse object: cannot find opening \'"" for object key; unparsed tail: "nope"',
        ),
        (b"[]\x18\xb9\xe8", 'unexpected tail: "\\x18\\xb9\\xe8"'),
        (b"{} " + b"a" * 81, f'unexpected tail: "{"a" * 40}...{"a" * 40}"'),
        (b"{} " + b"a" * 80, f'unexpected tail: "{"a" * 80}"'),
        (b"nope", 'cannot parse JSON: unparsed tail: "nope"'),
        (b" nope ", 'cannot parse JSON: unparsed tail: "nope "'),
        (b"\x0bnope", 'cannot parse JSON: unparsed tail: "\\x0bnope"'),
        (b'{"a":1', 'cannot parse JSON: unparsed tail: "{\\"a\\":1"'),
    ],
)
def test_a_fault_in_the_json_is_told_in_the_servers_words(header: bytes, text: str) -> None:
    with pytest.raises(MessageRefusedError) as raised:
        trace_id_of(header)
    assert raised.value.detail == f"fail to parse json header:{text}"


@pytest.mark.parametrize(
    ("header", "tag"),
    [
        (b'{"##client_dispatch_tag":"blue"}', "blue"),
        (b'{"##client_dispatch_tag":"a","##client_dispatch_tag":"b"}', "a"),
        (b'{"##client_dispatch_tag":7}', ""),
        (b"{}", ""),
        (b'["##client_dispatch_tag"]', ""),
        (b"{", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_the_tag_of_a_header(header: bytes, tag: str) -> None:
    assert tag_of(header) == tag
