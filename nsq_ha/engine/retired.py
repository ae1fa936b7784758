"""A replaced connection, which stays open until nothing is outstanding on it; ``engine.link`` knows what is.

One of them may stay open longer, to find out whether nsqd writes to it later (``engine.tls_limits``).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConnectionLostError
from nsq_ha.policy.tls_renewal import ACTS, Lifetime, Renewal, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.connection import Connection

CLOSE_GRACE: Final = 1.0
"""Seconds that the peer gets to confirm the end of TLS."""

_WITNESS_INTERVALS: Final = 4


class Retired:
    """A replaced connection.

    Args:
        connection: The connection.
        lifetime: How long nsqd can write to it.
        is_outstanding: Returns whether something is outstanding on it at a given time.
        on_end: Called when the connection has ended.

    Attributes:
        connection: The connection.
    """

    def __init__(
        self,
        connection: Connection,
        lifetime: Lifetime,
        *,
        is_outstanding: Callable[[float], bool],
        on_end: Callable[[], None],
    ) -> None:
        self.connection = connection
        self._lifetime = lifetime
        self._is_outstanding: Callable[[float], bool] | None = is_outstanding
        self._on_end: Callable[[], None] | None = on_end
        self._loop = asyncio.get_running_loop()
        self._interval = connection.config.heartbeat_interval
        self._handle: asyncio.Handle | None = None
        self._is_closing = False
        server = connection.tls_server
        self._is_witness = server is not None and server.wants_witness
        # A witness without evidence by then will never have any.
        self._witness_until = lifetime.identified_at + lifetime.limit + _WITNESS_INTERVALS * self._interval
        if server is not None and self._is_witness:
            server.has_witness = True
        connection.expect_silence()
        connection.when_ended(self._ended)
        self._look_soon()

    def changed(self) -> None:
        """Check whether anything is still outstanding; call this after each answer."""
        if self._use(self._loop.time()) is Use.DONE:
            self._look_soon()

    def close(self) -> None:
        """Send buffered data and close, even if something is outstanding."""
        if not self._is_closing:
            self._is_closing = True
            self.connection.close()
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(CLOSE_GRACE, self.connection.abort, ConnectionLostError("replaced"))

    def _use(self, now: float) -> Use:
        return Use.FINISHING if self._is_outstanding is not None and self._is_outstanding(now) else Use.DONE

    def _look_soon(self) -> None:
        if self._is_closing:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_soon(self._look)

    def _look(self) -> None:
        now, connection = self._loop.time(), self.connection
        if self._is_witness and (connection.show_evidence() or now > self._witness_until):
            self._release()
        if ACTS[self._use(now), self._lifetime.phase(now)] is Renewal.CLOSE and not self._is_witness:
            self.close()
            return
        connection.keep_alive()
        change = self._lifetime.next_phase_at(now)
        due = now + self._interval / 2
        self._handle = self._loop.call_at(due if change is None else min(due, change), self._look)

    def _release(self) -> None:
        server = self.connection.tls_server
        if server is not None and self._is_witness:
            server.has_witness = self._is_witness = False

    def _ended(self) -> None:
        self._release()
        self._is_closing = True
        if self._handle is not None:
            self._handle.cancel()
        on_end, self._on_end, self._is_outstanding = self._on_end, None, None  # they lead back to this object
        if on_end is not None:
            on_end()
