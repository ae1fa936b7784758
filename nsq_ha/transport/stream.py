"""The bytes to and from one nsqd, as a connection sees them: what every transport has to do.

``tcp`` moves them over a socket, ``wire`` logs them on their way. Another transport, or a fake in memory, implements
:class:`Stream` and is given to ``Connection`` by an :data:`OpenStream`.

The invariant: ``on_lost`` is called exactly once for each stream that was opened, whatever ended it, and nothing is
received after it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

    from nsq_ha.errors import NsqError
    from nsq_ha.protocol.compression import Codec

Receiver = Callable[[bytes | memoryview], None]
"""Takes what was read, decrypted and decompressed; it may not keep a memoryview. If it raises, the stream ends."""

OnLost = Callable[["NsqError"], None]
"""Takes the reason of the end."""


class Stream(Protocol):
    """An open stream.

    Attributes:
        receiver: Takes what is read.
        on_resume: Called when ``is_paused`` ends. None for nothing.
    """

    receiver: Receiver
    on_resume: Callable[[], None] | None

    @property
    def last_received(self) -> float:
        """The loop's time of the last read."""

    @property
    def is_paused(self) -> bool:
        """Whether the peer takes no more for now."""

    @property
    def is_closing(self) -> Callable[[], bool]:
        """Returns whether the end is decided, a little before ``on_lost``."""

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Continue inside TLS.

        Raises:
            ConnectError: The TLS handshake failed; the stream cannot be used any more.
        """

    def start_codec(self, codec: Codec) -> None:
        """Continue compressed, both ways."""

    def received(self, data: bytes) -> None:
        """Handle ``data`` as if it had been read now; for bytes that were read before a codec was started."""

    def write(self, data: bytes) -> None:
        """Buffer ``data``; it is sent with everything else that is written in this turn of the event loop.

        After the end it is dropped.
        """

    def write_now(self, data: bytes) -> None:
        """Send ``data`` after what is buffered."""

    def close(self) -> None:
        """Send what is buffered, then close; ``on_lost`` follows."""

    def abort(self, reason: NsqError | None = None) -> None:
        """End it at once; ``on_lost`` follows with ``reason``."""


OpenStream = Callable[[str, int, Receiver, OnLost], Awaitable[Stream]]
"""Connects to a host and port.

Raises:
    ConnectError: It is not reachable. Look the leader up again.
"""
