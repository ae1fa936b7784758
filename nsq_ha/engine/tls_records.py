"""What TLS may cost: records are decrypted few at a time, and must hold data.

asyncio gives TLS up to 256 KiB in one turn of the event loop. They may hold 9,700 records that change a key, which take
0.25 s, are answered, and show nothing to the code above.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from nsq_ha.errors import NsqError, RemoteProtocolError

READ_BYTES: Final = 32 * 1024
"""Maximum number of bytes of one read: enough for two records of the largest size."""

_MOST_SPARE: Final = 64 * 1024
"""Bytes that may hold no data: tickets of sessions, and a record whose end has not arrived."""

_WORTH: Final = 16
"""Encrypted bytes that one byte of data allows. The shortest frame has 10 bytes, in a record of 32 to 90."""


class Decrypted(Protocol):
    """What gets the data."""

    peer: str
    read_bytes: int

    @property
    def is_held(self) -> bool:
        """Whether what was read waits for its turn, and no more is read."""

    def abort(self, reason: NsqError | None = None) -> None:
        """End the connection at once."""


class TlsRecords(asyncio.BufferedProtocol):
    """Stands between a socket and its TLS.

    Args:
        tls: asyncio's protocol for TLS.
        stream: Gets what is decrypted.
    """

    def __init__(self, tls: asyncio.BufferedProtocol, stream: Decrypted) -> None:
        self._tls = tls
        self._stream = stream
        self._spare = _MOST_SPARE

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory to read into (called by the event loop)."""
        return memoryview(self._tls.get_buffer(sizehint))[:READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Decrypt what was read (called by the event loop)."""
        stream, before = self._stream, self._stream.read_bytes
        self._tls.buffer_updated(nbytes)
        if stream.is_held:  # it was read, and is decrypted later
            return
        self._spare = min(_MOST_SPARE, self._spare + _WORTH * (stream.read_bytes - before) - nbytes)
        if self._spare < 0:
            stream.abort(RemoteProtocolError(f"{stream.peer} sends TLS records that hold no data"))

    def eof_received(self) -> bool | None:
        """Pass on the end of what the peer sends (called by the event loop)."""
        return self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the end (called by the event loop)."""
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on that the socket is full (called by the event loop)."""
        self._tls.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the socket has space again (called by the event loop)."""
        self._tls.resume_writing()
