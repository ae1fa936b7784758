"""Compressed connections and compressed bodies."""

from __future__ import annotations

import random
import zlib
from typing import Final

from integration.floods.case import CONSUMER, GOOD, Case, Data, Moment
from integration.floods.frames import message
from nsq_ha import Compression
from nsq_ha.protocol import Identity, Layout
from nsq_ha.protocol.body_codec import compress_body
from nsq_ha.protocol.compression import SnappyCodec
from nsq_ha.protocol.frames import FrameType, encode_frame
from nsq_ha.protocol.server.answers import encode_identity
from tests.support.nsqd import OK, message_data, message_id, response

_CODECS: Final = {"deflate": Compression.DEFLATE, "snappy": Compression.SNAPPY}


def _packed(codec: str, data: bytes) -> bytes:
    if codec == "snappy":
        return SnappyCodec().compress(data)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def _hello(codec: str) -> bytes:
    return response(encode_identity(Identity(deflate=codec == "deflate", snappy=codec == "snappy")))


def _after(head: bytes, data: Data) -> Data:
    return head + data if isinstance(data, bytes) else lambda layout: head + data(layout)


def _flipped(data: bytes) -> bytes:
    return data[:20] + bytes((data[20] ^ 0x55,)) + data[21:]


def _streams(codec: str) -> dict[str, Data]:
    whole = _packed(codec, random.Random(3).randbytes(500))
    return {
        "random bytes": random.Random(2).randbytes(50_000),
        "zeros": bytes(50_000),
        "nothing more": b"",
        "plain text": OK * 100,
        "damaged": _flipped(whole),
        "cut": whole[:-8],
        "20 MB of zeros": _packed(codec, OK + bytes(20_000_000)),
        "a message of 20 MB": lambda layout: _packed(codec, OK * 2 + message(layout, bytes(20_000_000))),
    }


def _body(body: bytes, number: str, size: int | None) -> Data:
    ext = f'{{"nsq.client.compress":"{number}"' + (f',"nsq.msg.size":"{size}"}}' if size is not None else "}")

    def data(layout: Layout) -> bytes:
        bad = [(body, message_id(number), ext.encode()) for number in range(2, 6)]
        return b"".join(
            encode_frame(FrameType.MESSAGE, message_data(each, number, layout=layout, ext=header))
            for each, number, header in [*bad, (GOOD, message_id(6), b"{}")]
        )

    return data


def _bodies() -> dict[str, Data]:
    found: dict[str, Data] = {}
    large = bytes(20_000_000)
    for codec, number in (("gzip", "1"), ("snappy", "2"), ("lz4", "3")):
        packed, _ = compress_body(b"a body " * 1000, codec)
        bomb, _ = compress_body(large, codec)
        found |= {
            f"{codec}, damaged": _body(_flipped(packed), number, 7000),
            f"{codec}, cut": _body(packed[:-9], number, 7000),
            f"{codec}, a false size": _body(packed, number, 3),
            f"{codec}, no size": _body(packed, number, None),
            f"{codec}, expands to 20 MB": _body(bomb, number, len(large)),
            f"{codec}, 20 MB said to be 10 bytes": _body(bomb, number, 10),
        }
    return found


CASES: Final = (
    *(
        Case(
            group="compressed connections",
            name=f"{codec}, {name}",
            data=_after(_hello(codec), data),
            moment=Moment.HELLO,
            options={"compression": compression},
        )
        for codec, compression in _CODECS.items()
        for name, data in _streams(codec).items()
    ),
    *(
        Case(
            group="compressed bodies",
            name=name,
            data=data,
            clients=CONSUMER,
            extended=True,
            has_good=True,
            options={"max_decompressed_bytes": 1_000_000},
        )
        for name, data in _bodies().items()
    ),
)
