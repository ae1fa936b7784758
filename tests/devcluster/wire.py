"""A client that knows nothing: bytes out, frames in, for tests of the cluster's own behaviour."""

import json
import select
import socket
import ssl
import struct
from typing import Self

from nsq_ha.protocol.compression import Codec
from nsq_ha.protocol.encoding import MAGIC
from nsq_ha.protocol.frames import FrameType

LIMIT = 30.0
"""Seconds in which whatever is expected has to come."""


class Closed(Exception):  # noqa: N818 - the server's doing, not an error
    """The server closed the connection."""


class Wire:
    """One raw connection to an nsqd."""

    def __init__(self, address: str, start: bytes = b"") -> None:
        host, _, port = address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), LIMIT)
        self.codec: Codec | None = None
        self._buffer = bytearray()
        try:
            self.send(start)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data if self.codec is None else self.codec.compress(data))

    def secure(self) -> None:
        """Switch to TLS without looking at the certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        self.socket = context.wrap_socket(self.socket)

    def compress(self, codec: Codec) -> None:
        """Switch to compression; what was read already is compressed too."""
        self.codec = codec
        rest, self._buffer = bytes(self._buffer), bytearray()
        self._buffer += b"".join(codec.pieces(rest))

    def frame(self, limit: float = LIMIT) -> tuple[FrameType, bytes]:
        """Read one frame; Closed when the server closed, TimeoutError when nothing comes."""
        while len(self._buffer) < 4 or len(self._buffer) < 4 + self._size():
            self._read(limit)
        end = 4 + self._size()
        kind, data = FrameType(self._buffer[7]), bytes(self._buffer[8:end])
        del self._buffer[:end]
        return kind, data

    def answer(self, limit: float = LIMIT) -> bytes:
        """Read the next frame that is no heartbeat and no message."""
        while True:
            kind, data = self.frame(limit)
            if kind is not FrameType.MESSAGE and data != b"_heartbeat_":
                return data

    def message(self, limit: float = LIMIT) -> bytes:
        """Read the next message's data, answering heartbeats."""
        while True:
            kind, data = self.frame(limit)
            if kind is FrameType.MESSAGE:
                return data
            if data == b"_heartbeat_":
                self.send(b"NOP\n")

    def is_quiet(self, seconds: float) -> bool:
        """Whether nothing comes for so long, not even the end."""
        if self._buffer:
            return False
        return not select.select([self.socket], [], [], seconds)[0]

    def ends(self, limit: float = LIMIT) -> bool:
        """Whether the server closes, with nothing said before."""
        try:
            self.frame(limit)
        except Closed:
            return True
        return False

    def _size(self) -> int:
        size: int = struct.unpack_from(">i", self._buffer)[0]
        return size

    def _read(self, limit: float) -> None:
        self.socket.settimeout(limit)
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise Closed
        self._buffer += data if self.codec is None else b"".join(self.codec.pieces(data))


def connect(address: str, *commands: bytes) -> Wire:
    """Open a connection and write commands behind the magic."""
    return Wire(address, MAGIC + b"".join(commands))


def identify(**fields: object) -> bytes:
    """IDENTIFY with these fields, in the shape of the wire."""
    body = json.dumps({"feature_negotiation": True, **fields}).encode()
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def pub(topic: str, body: bytes, partition: int = 0) -> bytes:
    """PUB."""
    return f"PUB {topic} {partition}\n".encode() + struct.pack(">i", len(body)) + body


def message_id(data: bytes) -> bytes:
    """The 16 id bytes of a message's data."""
    return data[10:26]


def attempts(data: bytes) -> int:
    """Attempts of a message's data."""
    return int.from_bytes(data[8:10], "big")
