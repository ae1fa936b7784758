"""A replaced connection, which stays open until nothing is outstanding on it; ``engine.link`` knows what is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.connection import Connection

CLOSE_GRACE: Final = 1.0
"""Seconds that the peer gets to confirm the end of TLS."""


class Retired:
    """A replaced connection.

    Args:
        connection: The connection.
        is_outstanding: Returns whether something is outstanding on it at a given time.
        on_end: Called when the connection has ended.

    Attributes:
        connection: The connection.
    """

    def __init__(
        self, connection: Connection, *, is_outstanding: Callable[[float], bool], on_end: Callable[[], None]
    ) -> None:
        self.connection = connection
        self._is_outstanding: Callable[[float], bool] | None = is_outstanding
        self._on_end: Callable[[], None] | None = on_end
        self._loop = asyncio.get_running_loop()
        self._interval = connection.config.heartbeat_interval
        self._is_closing = False
        connection.expect_silence()
        connection.when_ended(self._ended)
        self._handle: asyncio.Handle = self._loop.call_soon(self._look)

    def changed(self) -> None:
        """Check whether anything is still outstanding; call this after each answer."""
        if not self._is_closing and not self._is_needed():
            self._handle.cancel()
            self._handle = self._loop.call_soon(self._look)

    def close(self) -> None:
        """Send buffered data and close, even if something is outstanding."""
        if not self._is_closing:
            self._is_closing = True
            self.connection.close()
            self._handle.cancel()
            self._handle = self._loop.call_later(CLOSE_GRACE, self.connection.abort, ConnectionLostError("replaced"))

    def _is_needed(self) -> bool:
        return self._is_outstanding is not None and self._is_outstanding(self._loop.time())

    def _look(self) -> None:
        if not self._is_needed():
            self.close()
            return
        self.connection.keep_alive()  # nsqd reads from it, and closes what is silent
        self._handle = self._loop.call_later(self._interval / 2, self._look)

    def _ended(self) -> None:
        self._is_closing = True
        self._handle.cancel()
        on_end, self._on_end, self._is_outstanding = self._on_end, None, None  # they lead back to this object
        if on_end is not None:
            on_end()
