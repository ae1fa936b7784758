"""The wire log: a DEBUG line for each command and frame of a connection, and for each change of its state.

A line on the logger ``nsq_ha.wire`` begins with the connection's name, as in ``c7 127.0.0.1:4150``. Then comes ``>``
with a sent command, ``<`` with a received frame, or ``:`` with an event. ``protocol.wiretext`` formats them.

A connection uses :func:`logged` only if the log is on when it is opened; otherwise none of this runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.protocol.wiretext import WireText, one_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Sequence

    from nsq_ha.engine.stream import OnLost, OpenStream, Receiver, Stream
    from nsq_ha.errors import NsqError
    from nsq_ha.protocol import ClientProtocol
    from nsq_ha.protocol.compression import Codec

log: Final = logging.getLogger("nsq_ha.wire")


def _ignore(_: object) -> None:
    """Take what comes after the end."""


def logged(open_stream: OpenStream, name: str, protocol: ClientProtocol, max_frame_bytes: int) -> OpenStream:
    """Return ``open_stream`` with a log of all data that passes through its stream.

    Args:
        open_stream: Opens the stream.
        name: The connection's name, for the lines.
        protocol: The connection's protocol; changes of its state are logged.
        max_frame_bytes: Maximum size of a frame.
    """

    async def opened(host: str, port: int, receiver: Receiver, on_lost: OnLost) -> Stream:
        stream = WireStream(name, protocol, max_frame_bytes, receiver, on_lost)
        await stream.open(open_stream, host, port)
        return stream

    return opened


class WireStream:
    """A :class:`~nsq_ha.engine.stream.Stream` that logs the data of another one."""

    _stream: Stream

    def __init__(
        self, name: str, protocol: ClientProtocol, max_frame_bytes: int, receiver: Receiver, on_lost: OnLost
    ) -> None:
        self._receiver = receiver
        self._on_lost = on_lost
        self._name = name
        self._protocol = protocol
        self._state = protocol.state
        self._text = WireText(max_frame_bytes)

    async def open(self, open_stream: OpenStream, host: str, port: int) -> None:
        """Open the other stream."""
        self._note("connecting")
        try:
            self._stream = await open_stream(host, port, self._received, self._lost)
        except Exception as error:
            self._note(f"not connected: {error}")
            raise
        self._note("connected")

    @property
    def receiver(self) -> Receiver:
        """Takes the data that is read."""
        return self._receiver

    @receiver.setter
    def receiver(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._log_state()

    @property
    def on_resume(self) -> Callable[[], None] | None:
        """Called when ``is_paused`` ends."""
        return self._stream.on_resume

    @on_resume.setter
    def on_resume(self, callback: Callable[[], None] | None) -> None:
        self._stream.on_resume = callback

    @property
    def last_received(self) -> float:
        """The loop's time of the last read."""
        return self._stream.last_received

    @property
    def is_paused(self) -> bool:
        """Whether the peer accepts no more data for now."""
        return self._stream.is_paused

    @property
    def is_closing(self) -> Callable[[], bool]:
        """Returns whether the end is decided."""
        return self._stream.is_closing

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Continue inside TLS."""
        self._note("starting TLS")
        await self._stream.start_tls(context, server_name)
        self._note("TLS started")

    def start_codec(self, codec: Codec) -> None:
        """Compress both directions from now on."""
        self._note(f"starting {type(codec).__name__}")
        self._stream.start_codec(codec)

    def received(self, data: bytes) -> None:
        """Process ``data`` as if it had been read now."""
        self._stream.received(data)

    def write(self, data: bytes) -> None:
        """Log ``data`` and buffer it."""
        self._sent(data)
        self._stream.write(data)

    def write_now(self, data: bytes) -> None:
        """Log ``data`` and send it."""
        self._sent(data)
        self._stream.write_now(data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Log the parts and send them."""
        self._sent(b"".join(parts))
        self._stream.write_parts(parts)

    def close(self) -> None:
        """Send buffered data, then close."""
        self._note("closing")
        self._stream.close()

    def abort(self, reason: NsqError | None = None) -> None:
        """End the stream at once."""
        self._note(f"aborting: {reason}")
        self._stream.abort(reason)

    def _sent(self, data: bytes) -> None:
        self._log(">", self._text.sent(data))
        self._log_state()

    def _received(self, data: bytes | memoryview) -> None:
        self._log("<", self._text.received(bytes(data)))
        try:
            self._receiver(data)
        finally:
            self._log_state()

    def _lost(self, reason: NsqError) -> None:
        on_lost, self._on_lost, self._receiver = self._on_lost, _ignore, _ignore  # they lead back to this object
        on_lost(reason)
        self._note(f"ended: {reason}")

    def _log_state(self) -> None:
        before, self._state = self._state, self._protocol.state
        if self._state is not before:
            log.debug("%s : %s -> %s", self._name, before.name, self._state.name)

    def _log(self, sign: str, texts: Iterable[str]) -> None:
        for text in texts:
            log.debug("%s %s %s", self._name, sign, text)

    def _note(self, text: str) -> None:
        self._log_state()
        log.debug("%s : %s", self._name, one_line(text))
