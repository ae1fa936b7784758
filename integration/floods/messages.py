"""Messages that are damaged, odd or too many, and extended ones."""

from typing import Final

from integration.floods.case import CONSUMER, GOOD, Case, Data
from integration.floods.frames import message
from nsq_ha.protocol import Layout
from nsq_ha.protocol.frames import FrameType, encode_frame
from tests.support.nsqd import message_data, message_id


def odd(**fields: object) -> Data:
    """Return a message with odd fields."""

    def data(layout: Layout) -> bytes:
        parts: dict[str, object] = {"body": b"odd", "id": message_id(2)} | fields
        return encode_frame(FrameType.MESSAGE, message_data(layout=layout, **parts))  # type: ignore[arg-type]

    return data


def raw(data: bytes) -> bytes:
    """Return a message frame of bytes."""
    return encode_frame(FrameType.MESSAGE, data)


def times(count: int, body: bytes, *, same: bool = False) -> Data:
    """Return many messages, whatever RDY is."""
    return lambda layout: b"".join(message(layout, body, 2 if same else 2 + number) for number in range(count))


_MESSAGES: Final[dict[str, Data]] = {
    **{f"{size} bytes": raw(bytes(size)) for size in (0, 1, 9, 25, 26, 27, 37)},
    "an empty body": odd(body=b""),
    "attempts 0": odd(attempts=0),
    "attempts 65535": odd(attempts=65535),
    "time 0": odd(timestamp_ns=0),
    "time negative": odd(timestamp_ns=-(2**63)),
    "time 2^63-1": odd(timestamp_ns=2**63 - 1),
    "id of zeros": odd(id=bytes(16)),
    "id with newlines": odd(id=b"\n" * 16),
    "id of another partition": odd(id=message_id(2, partition=900)),
    "offset 2^64-1": odd(offset=2**64 - 1),
    "a body that is no text": odd(body=bytes(range(256))),
    "a body of 8 MiB": odd(body=bytes(8 * 1024 * 1024)),
    "the same id 200 times": times(200, b"same", same=True),
    "5,000 beyond RDY": times(5000, b"x"),
    "50 of 200 KB beyond RDY": times(50, bytes(200_000)),
}

_JSON: Final = {
    "not JSON": b"{x",
    "empty": b"",
    "an array": b"[]",
    "null": b"null",
    "deep": b'{"a":' * 10_000,
    "deep in an unknown field": b'{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "not UTF-8": b'{"##trace_id":"\xff"}',
    "trace id a text": b'{"##trace_id":"many"}',
    "trace id a number": b'{"##trace_id":7}',
    "trace id an array": b'{"##trace_id":[1]}',
    "tag a number": b'{"##client_dispatch_tag":7}',
    "unknown codec": b'{"nsq.client.compress":"9"}',
    "codec a number": b'{"nsq.client.compress":1}',
    "size negative": b'{"nsq.client.compress":"1","nsq.msg.size":"-1"}',
    "size no number": b'{"nsq.client.compress":"2","nsq.msg.size":"x"}',
    "size 10^18": b'{"nsq.client.compress":"3","nsq.msg.size":"1000000000000000000"}',
    "size of 5,000 digits": b'{"nsq.client.compress":"1","nsq.msg.size":"' + b"9" * 5000 + b'"}',
    "gzip that is none": b'{"nsq.client.compress":"1"}',
    "snappy that is none": b'{"nsq.client.compress":"2"}',
    "LZ4 that is none": b'{"nsq.client.compress":"3","nsq.msg.size":"100"}',
}


def _extended(ext: bytes) -> Data:
    """Return a message with a header, and a good one after it, which must still come."""
    return lambda layout: b"".join(
        encode_frame(FrameType.MESSAGE, message_data(body, message_id(number), layout=layout, ext=each))
        for number, body, each in ((2, b"odd", ext), (3, GOOD, b"{}"))
    )


def _cut(layout: Layout) -> bytes:
    whole = message_data(b"odd", message_id(2), layout=layout, ext=b"{}")
    at = whole.index(b"{}")
    return raw(whole[: at - 2] + b"\xff\xff" + whole[at:]) + raw(whole[: at - 3]) + raw(whole[: at - 3] + b"\x09")


CASES: Final = (
    *(
        Case(
            group="messages",
            name=name,
            data=data,
            clients=CONSUMER,
        )
        for name, data in _MESSAGES.items()
    ),
    *(
        Case(
            group="extended messages",
            name=f"header {name}",
            data=_extended(ext),
            clients=CONSUMER,
            extended=True,
            has_good=True,
        )
        for name, ext in _JSON.items()
    ),
    Case(
        group="extended messages",
        name="header longer than the message, none, of an unknown version",
        data=_cut,
        clients=CONSUMER,
        extended=True,
    ),
)
