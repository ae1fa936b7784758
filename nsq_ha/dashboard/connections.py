"""The browsers' connections: half-sent requests do not lock others out.

The server answers 503 above a number of connections, and does not end those that send nothing. So few may be without a
whole request: one more ends the one that has waited longest, so a new one always gets its turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

MAX_UNFINISHED: Final = 100
"""Connections without a whole request."""

MAX_CONNECTIONS: Final = 300
"""Connections of all kinds; above it, requests are answered with 503."""


class BrowserConnection(H11Protocol):
    """One connection; uvicorn makes it.

    Attributes:
        waits_since: When it began to wait for a whole request, in the loop's time. None while one is answered.
    """

    waits_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._follow()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def _follow(self) -> None:
        """Take notice of what the parser has seen of the request, and end another connection if too many wait."""
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY} or self.transport.is_closing():
            self.waits_since = None
        elif self.waits_since is None:
            self.waits_since = self.loop.time()
            waiting = {
                each: each.waits_since
                for each in self.connections
                if isinstance(each, BrowserConnection) and each.waits_since is not None
            }
            if len(waiting) > MAX_UNFINISHED:
                first = min(waiting, key=waiting.__getitem__)
                self.connections.discard(first)
                first.transport.abort()
