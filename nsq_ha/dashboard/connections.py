"""The browsers' connections: half-sent requests and unread answers do not lock others out.

The server answers 503 above a number of connections, and does not end those that send nothing. So a connection has
``REQUEST_LIMIT`` seconds to send a whole request, and ``UNREAD_LIMIT`` to read on. Few may be without a whole request:
``MAX_OF_ADDRESS`` from one address, ``MAX_UNFINISHED`` altogether. One more ends the one that has waited longest, so a
new one always gets its turn.
"""

from __future__ import annotations

import asyncio
import ipaddress
from typing import TYPE_CHECKING, Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import uvicorn
    from uvicorn.server import ServerState

REQUEST_LIMIT: Final = 10.0
"""Seconds from the beginning of a connection, or the end of an answer, to the end of the next request."""

UNREAD_LIMIT: Final = 30.0
"""Seconds for which an answer may wait for a client that does not read it."""

MAX_OF_ADDRESS: Final = 30
"""Connections of one address without a whole request. A browser opens up to six, and a proxy has those of several."""

MAX_UNFINISHED: Final = 100
"""Connections of all addresses without a whole request."""

MAX_CONNECTIONS: Final = 300
"""Connections of all kinds; above it, requests are answered with 503."""


def network_of(host: str) -> str:
    """Return what counts as one address: a host of IPv6 usually has a whole network of /64."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if found.version == 6:
        return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False))
    return str(found)


class BrowserConnection(H11Protocol):
    """One connection; uvicorn makes it."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    @property
    def unfinished_until(self) -> float | None:
        """When it ends if its request is not whole then, in the loop's time. None while a request is answered."""
        return None if self._late is None else self._late.when()

    @property
    def address(self) -> str:
        """Where it comes from."""
        return network_of(self.client[0]) if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all waiting."""
        self._end_late()
        self._end_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Wait until the client reads on."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(UNREAD_LIMIT, self.end)

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._end_unread()

    def end(self) -> None:
        """Close the connection at once, for whoever waits for a place."""
        self._end_late()
        self.connections.discard(self)
        self.transport.abort()

    def _follow(self) -> None:
        """Start or end the wait for a whole request, by what the parser has seen of it."""
        if self.conn.their_state not in {h11.IDLE, h11.SEND_BODY} or self.transport.is_closing():
            self._end_late()
        elif self._late is None:
            self._late = self.loop.call_later(REQUEST_LIMIT, self.end)
            self._make_room()

    def _end_late(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _make_room(self) -> None:
        waiting = [
            (until, each)
            for each in self.connections
            if isinstance(each, BrowserConnection) and (until := each.unfinished_until) is not None
        ]
        for most, crowd in (
            (MAX_OF_ADDRESS, [found for found in waiting if found[1].address == self.address]),
            (MAX_UNFINISHED, waiting),
        ):
            if len(crowd) > most:
                min(crowd, key=lambda found: found[0])[1].end()
                return
