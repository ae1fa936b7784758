"""Detect a server that delivers clearly more than requested.

RDY limits the messages in flight. A server that ignores it fills the client's
memory as fast as the network allows, so its connection is closed.

What a correct server may do, and what the limit therefore allows:

=====================================================  ===========================================
it is given RDY n                                      n messages in flight
RDY was lowered, its earlier messages are unanswered   the most that was ever granted
a message times out at the server, and another comes   as many again, after each ``msg_timeout``
an answer and a message pass each other                a margin of a quarter, at least 16 messages
=====================================================  ===========================================

This counts messages. If RDY was high for small messages, the same number of large
ones would be gigabytes, so RDY is lowered when large ones arrive
(``policy.ready``). Bodies that still arrive beyond the lowered RDY are limited in
bytes:

=====================================================  ===========================================
they were on their way when RDY was lowered            what sockets and networks hold, a few MiB
a message times out at the server, and another comes   RDY n more, after each ``msg_timeout``
=====================================================  ===========================================

Source: server protocol 7, 8.
"""

from __future__ import annotations

from typing import Final

LEAST_MARGIN: Final = 16
"""Number of messages above the granted ones that is always tolerated."""

MARGIN_BYTES: Final = 64 * 1024 * 1024
"""Tolerated bytes of bodies beyond the current RDY: more than sockets and networks hold."""

SHORTEST_TIMEOUT: Final = 1.0
"""Seconds. A shorter message timeout would allow a server any number of messages."""


class Granted:
    """The RDY granted to one connection, and how much the server may deliver.

    Args:
        now: The time.
        msg_timeout: Seconds after which the server requeues an unanswered message.

    Attributes:
        ceiling: With more messages in flight, call :meth:`is_overrun`.
        most: The largest RDY so far.
        ready: The current RDY. With more messages in flight, call :meth:`is_outweighed`.
    """

    __slots__ = (
        "_at_start",
        "_beyond",
        "_msg_timeout",
        "_start",
        "_timed_out",
        "_weighed_from",
        "ceiling",
        "most",
        "ready",
    )

    def __init__(self, now: float, msg_timeout: float) -> None:
        self.most: int = 0
        self.ready: int = 0
        self._beyond = self._timed_out = 0
        self._weighed_from = now
        self._msg_timeout = max(msg_timeout, SHORTEST_TIMEOUT)
        self._start = now
        self._at_start = 0
        self.ceiling: int = LEAST_MARGIN

    def grant(self, ready: int) -> None:
        """Record an RDY; a lower one does not revoke messages already on their way."""
        self.ready = ready
        if ready > self.most:
            self.most = ready
            self._set_ceiling()

    def is_overrun(self, now: float, before: int, in_flight: int) -> bool:
        """Return whether more messages are in flight than a correct server would send.

        Args:
            now: The time.
            before: Messages in flight before the last read.
            in_flight: Messages in flight now.
        """
        if in_flight > self.ceiling and now - self._start >= self._msg_timeout:
            # All messages in flight may have timed out at the server, which may then deliver as many again.
            self._start, self._at_start = now, before
            self._set_ceiling()
        return in_flight > self.ceiling

    def is_outweighed(self, now: float, before: int, in_flight: int, body_bytes: int) -> bool:
        """Return whether the bodies beyond the current RDY have more bytes than a correct server would send.

        Args:
            now: The time.
            before: Messages in flight before the last read.
            in_flight: Messages in flight now.
            body_bytes: Bytes of the bodies of the last read.
        """
        if in_flight > self._timed_out + self.ready and now - self._weighed_from >= self._msg_timeout:
            # As in is_overrun(): all may have timed out.
            self._weighed_from, self._timed_out = now, before
        allowed = self._timed_out + self.ready
        if before <= allowed:
            self._beyond = 0
        if in_flight <= allowed:
            return False
        self._beyond += body_bytes
        return self._beyond > MARGIN_BYTES

    def _set_ceiling(self) -> None:
        self.ceiling = self._at_start + self.most + max(LEAST_MARGIN, self.most // 4)
