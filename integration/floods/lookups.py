"""Answers of an nsqlookupd."""

import asyncio
import json
from typing import Any, Final

from integration.floods.case import Behave, Case
from tests.engine.lookups.loopback import hang, http_answer, writes
from tests.support.waiting import dawdle

NOBODY: Final = 1
"""The first of the ports that refuse."""

META: Final = {"partition_num": 3, "replica": 3, "ordered": False, "extend_support": False}


def lookup(changes: dict[str, Any] | None = None, **fields: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return a lookup that names a leader which nobody can reach, with changes of its entry and other fields."""
    entry = {"broadcast_address": "127.0.0.1", "tcp_port": NOBODY, "http_port": 2, "distributed_id": "a:1:2:3"}
    content: dict[str, Any] = {
        "channels": [],
        "meta": META,
        "partitions": {"0": entry | (changes or {})},
        "producers": [entry | (changes or {})],
    }
    return json.dumps(content | fields).encode()


_ANOTHER: Final = b'{"broadcast_address": "127.0.0.1", "tcp_port": 3, "http_port": 4}'

_BODIES: Final = {
    "not JSON": b"not json",
    "HTML": b"<html><body>It works!</body></html>",
    "empty": b"",
    "cut": lookup()[:60],
    "null": b"null",
    "an array": b"[]",
    "a number": b"7",
    "null everywhere": b'{"partitions":null,"producers":null,"channels":null,"meta":null}',
    "partitions an array": b'{"partitions":[]}',
    "producers an object": b'{"producers":{}}',
    "channels a number": b'{"channels":3,"partitions":{}}',
    "bad UTF-8": b'{"channels":["\xff\xfe"],"partitions":{}}',
    "200,000 brackets": b"[" * 200_000,
    "deep objects": b'{"partitions":{"0":' * 100_000,
    "deep in an unknown field": b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "8 MB and more": b" " * (8 * 1024 * 1024 + 1),
    **{
        f"{count:,} partitions at a stranger's port": lookup(
            meta=META | {"partition_num": count},
            partitions={
                str(number): {"broadcast_address": "127.0.0.1", "tcp_port": NOBODY, "http_port": 2}
                for number in range(3, count)  # the others keep their connections
            },
        )
        for count in (500, 1024)
    },
    "1,024 nsqds that refuse": json.dumps(
        {
            "channels": [],
            "producers": [
                {"broadcast_address": "127.0.0.1", "hostname": "h", "tcp_port": NOBODY + number, "http_port": 2}
                for number in range(1024)
            ],
        }
    ).encode(),
    "a partition on two nsqds": lookup().replace(b'"partitions": {', b'"partitions": {"0": %s, ' % _ANOTHER),
    "nsqlookupds that are dead, named twice, and no entries": lookup(
        lookupdleader={"NodeIP": "127.0.0.1", "HttpPort": str(NOBODY)},
        lookupdnodes=[{"NodeIP": "127.0.0.1", "HttpPort": str(NOBODY + number)} for number in range(100)] * 2
        + [{"NodeIP": "", "HttpPort": "1"}, {"NodeIP": "a", "HttpPort": "99999"}, 7, None],
    ),
    "no partition": lookup(partitions={}, producers=[]),
    "fewer partitions than partition_num": lookup(meta=META | {"partition_num": 9}),
    "partition_num 0": lookup(meta=META | {"partition_num": 0}),
    "partition_num negative": lookup(meta=META | {"partition_num": -1}),
    "partition_num 10^9": lookup(meta=META | {"partition_num": 10**9}),
    **{
        f"partition {key!r}": lookup(partitions={key: {"broadcast_address": "127.0.0.1", "tcp_port": 1}})
        for key in ("x", "-1", "99999", "", "1.0")
    },
    **{f"port {port!r}": lookup({"tcp_port": port}) for port in (0, -1, 65536, "4150", None, 10**30)},
    **{
        f"address {address!r}": lookup({"broadcast_address": address})
        for address in ("", None, "not an address", "a\r\nHost: b", "x" * 300, "-a", "..")
    },
}
_STATUS: Final = {
    "500": (b"no", 500),
    "500 with HTML": (b"<html>", 500),
    "404": (b'{"message":"NOT_FOUND"}', 404),
    "403": (b'{"message":"no"}', 403),
    "status 204": (b"", 204),
}


async def _slowly(writer: asyncio.StreamWriter) -> None:
    """Write one byte a second."""
    for byte in http_answer(b" " * 1000):
        writer.write(bytes((byte,)))
        await dawdle(1.0)


_BEHAVES: Final[dict[str, Behave]] = {
    "silence": hang,
    "one byte a second": _slowly,
    "closed at once": writes(b""),
    "not HTTP": writes(b"\xff\x00" * 100),
    "an nsqd's answer": writes(b"\0\0\0\x06\0\0\0\0OK"),
    "a redirect to itself": writes(http_answer(b"", 302, "Location: /lookup\r\n"), close=False),
    "a redirect elsewhere": writes(http_answer(b"", 301, "Location: http://127.0.0.1:1/\r\n"), close=False),
    "headers without end": writes(b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 20_000),
    "a length that is none": writes(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}"),
    "100 MB announced": writes(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n{", close=False),
    "shorter than announced": writes(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}"),
    "more than announced": writes(http_answer(b"{}") + b"more" * 100),
    "gzip that is none": writes(http_answer(b"x" * 100, 200, "Content-Encoding: gzip\r\n"), close=False),
}

CASES: Final = (
    *(Case(group="lookups", name=name, answer=(body, 200)) for name, body in _BODIES.items()),
    *(Case(group="lookups", name=name, answer=answer) for name, answer in _STATUS.items()),
    *(Case(group="lookups", name=name, behave=behave) for name, behave in _BEHAVES.items()),
)
