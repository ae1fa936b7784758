"""The interface of a stream of bytes to and from one nsqd.

``tcp`` moves the bytes over a socket, ``wire`` logs them. Another transport, or a fake in memory, implements
:class:`Stream`; an :data:`OpenStream` opens it for ``Connection``.

The invariant: ``on_lost`` is called exactly once for each opened stream, whatever ended it, and nothing is received
afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

    from nsq_ha.errors import NsqError
    from nsq_ha.protocol.compression import Codec

Receiver = Callable[[bytes | memoryview], None]
"""Takes data that was read, decrypted and decompressed; must not keep a memoryview. If it raises, the stream ends."""

OnLost = Callable[["NsqError"], None]
"""Takes the reason of the end."""


class Stream(Protocol):
    """An open stream.

    Attributes:
        receiver: Takes the data that is read.
        on_resume: Called when ``is_paused`` ends. None calls nothing.
    """

    receiver: Receiver
    on_resume: Callable[[], None] | None

    @property
    def last_received(self) -> float:
        """The loop's time of the last read."""

    @property
    def is_paused(self) -> bool:
        """Whether the peer accepts no more data for now."""

    @property
    def is_closing(self) -> Callable[[], bool]:
        """Returns whether the end is decided, shortly before ``on_lost``."""

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Continue inside TLS.

        Raises:
            ConnectError: The TLS handshake failed; the stream is unusable.
        """

    def start_codec(self, codec: Codec) -> None:
        """Compress both directions from now on."""

    def received(self, data: bytes) -> None:
        """Process ``data`` as if it had been read now; for bytes read before a codec was started."""

    def write(self, data: bytes) -> None:
        """Buffer ``data``; all data of this turn of the event loop is sent together.

        After the end it is dropped.
        """

    def write_now(self, data: bytes) -> None:
        """Send buffered data and ``data`` now."""

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Send buffered data and all parts now, in their order; large parts are not copied if possible."""

    def close(self) -> None:
        """Send buffered data, then close; ``on_lost`` follows."""

    def abort(self, reason: NsqError | None = None) -> None:
        """End the stream at once; ``on_lost`` follows with ``reason``."""


OpenStream = Callable[[str, int, Receiver, OnLost], Awaitable[Stream]]
"""Connects to a host and port.

Raises:
    ConnectError: The host is not reachable. Look the leader up again.
"""
