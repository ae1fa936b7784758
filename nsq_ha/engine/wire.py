"""The wire log: a DEBUG line for each command and frame of a connection, and for each change of its state.

A line on the logger ``nsq_ha.wire`` begins with the connection's name, as in ``c7 127.0.0.1:4150``. Then comes ``>``
with a sent command, ``<`` with a received frame, or ``:`` with an event. ``protocol.wiretext`` formats them.

A connection uses :class:`WireStream` only if the log is on when it is opened; otherwise none of this runs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.tcp import OnLost, Receiver, TcpStream
from nsq_ha.protocol.wiretext import WireText, one_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Sequence

    from nsq_ha.errors import NsqError
    from nsq_ha.protocol import ClientProtocol
    from nsq_ha.protocol.compression import Codec

log: Final = logging.getLogger("nsq_ha.wire")


class WireLog:
    """The lines of one connection.

    Args:
        name: The connection's name.
        protocol: The connection's protocol; changes of its state are logged.
        max_frame_bytes: Maximum size of a frame.
    """

    def __init__(self, name: str, protocol: ClientProtocol, max_frame_bytes: int) -> None:
        self._name = name
        self._protocol = protocol
        self._state = protocol.state
        self._text = WireText(max_frame_bytes)

    def sent(self, data: bytes) -> None:
        """Log commands."""
        self._lines(">", self._text.sent(data))
        self.state()

    def received(self, data: bytes) -> None:
        """Log frames."""
        self._lines("<", self._text.received(data))

    def state(self) -> None:
        """Log a change of the protocol's state."""
        before, self._state = self._state, self._protocol.state
        if self._state is not before:
            log.debug("%s : %s -> %s", self._name, before.name, self._state.name)

    def note(self, text: str) -> None:
        """Log an event."""
        self.state()
        log.debug("%s : %s", self._name, one_line(text))

    def _lines(self, sign: str, texts: Iterable[str]) -> None:
        for text in texts:
            log.debug("%s %s %s", self._name, sign, text)


class WireStream(TcpStream):
    """A stream that logs its data."""

    def __init__(self, receiver: Receiver, on_lost: OnLost, wire: WireLog) -> None:
        self._wire = wire
        super().__init__(receiver, on_lost)

    @property
    def receiver(self) -> Receiver:
        """Takes the data that is read."""
        return self._logged

    @receiver.setter
    def receiver(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._wire.state()

    async def start_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Continue inside TLS."""
        self._wire.note("starting TLS")
        await super().start_tls(context, server_name)
        self._wire.note("TLS started")

    def start_codec(self, codec: Codec) -> None:
        """Compress both directions from now on."""
        self._wire.note(f"starting {type(codec).__name__}")
        super().start_codec(codec)

    def write(self, data: bytes) -> None:
        """Log ``data`` and buffer it."""
        self._wire.sent(data)
        super().write(data)

    def write_now(self, data: bytes) -> None:
        """Log ``data`` and send it."""
        self._wire.sent(data)
        super().write_now(data)

    def write_parts(self, parts: Sequence[bytes]) -> None:
        """Log the parts and send them."""
        data = b"".join(parts)
        self._wire.sent(data)
        super().write_now(data)

    def close(self) -> None:
        """Send buffered data, then close."""
        self._wire.note("closing")
        super().close()

    def abort(self, reason: NsqError | None = None) -> None:
        """End the stream at once."""
        self._wire.note(f"aborting: {reason}")
        super().abort(reason)

    def _logged(self, data: bytes | memoryview) -> None:
        self._wire.received(bytes(data))
        try:
            self._receiver(data)
        finally:
            self._wire.state()

    def lost(self, on_lost: OnLost, reason: NsqError) -> None:
        """Report the end, and log it."""
        super().lost(on_lost, reason)
        self._wire.note(f"ended: {reason}")
