"""The JSON that answers IDENTIFY."""

from __future__ import annotations

from typing import Final

from integration.floods.case import Case, Moment
from tests.support.nsqd import response

_JSON: Final = {
    "cut": b'{"max_rdy_count":25',
    "null": b"null",
    "a number": b"7",
    "a text": b'"OK"',
    "bad UTF-8": b'{"version":"\xff\xfe"}',
    "100,000 brackets": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep in an unknown field": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "wrong types": b'{"max_rdy_count":"many","tls_v1":7,"version":[],"msg_timeout":{}}',
    "max_rdy_count 0": b'{"max_rdy_count":0}',
    "max_rdy_count negative": b'{"max_rdy_count":-5}',
    "max_rdy_count huge": b'{"max_rdy_count":1e300}',
    "msg_timeout 0": b'{"msg_timeout":0,"max_msg_timeout":0}',
    "msg_timeout negative": b'{"msg_timeout":-1}',
    "TLS not asked for": b'{"tls_v1":true}',
    "deflate not asked for": b'{"deflate":true}',
    "snappy not asked for": b'{"snappy":true}',
    "two compressions": b'{"deflate":true,"snappy":true}',
    "AUTH asked for": b'{"auth_required":true}',
}

CASES: Final = tuple(
    Case(
        group="IDENTIFY's JSON",
        name=name,
        data=response(data),
        moment=Moment.HELLO,
        ends=name == "AUTH asked for",
    )
    for name, data in _JSON.items()
)
