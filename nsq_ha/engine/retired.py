"""A replaced connection that stays open until nothing is outstanding on it.

This module decides when to close it; the owner knows what is outstanding.

The invariant: ``on_end`` is called exactly once, when the connection has ended.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.errors import ConnectionLostError
from nsq_ha.policy.tls_renewal import ACTS, Act, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.connection import Callbacks, Connection
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.tls_renewal import Lifetime

CLOSE_GRACE: Final = 1.0
"""Seconds that the peer gets to confirm the end of TLS."""

_WITNESS_INTERVALS: Final = 4


def _is_done(_: float) -> Use:
    return Use.DONE


class Retired:
    """A replaced connection.

    Args:
        connection: The connection.
        lifetime: How long nsqd can write to it.
        callbacks: Called for data that still arrives; this object replaces ``lost``.
        use: Returns what the connection is used for at a given time.
        on_end: Called with the reason when the connection has ended.

    Attributes:
        connection: The connection.
    """

    def __init__(
        self,
        connection: Connection,
        lifetime: Lifetime,
        callbacks: Callbacks,
        *,
        use: Callable[[float], Use],
        on_end: Callable[[Retired, NsqError], None],
    ) -> None:
        self.connection = connection
        self._lifetime = lifetime
        self._use = use
        self._on_end = on_end
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
        connection.retire(msgspec.structs.replace(callbacks, lost=self._lost))
        self._look_soon()

    def changed(self) -> None:
        """Check whether anything is still outstanding; call this after each answer."""
        if self._use(self._loop.time()) is Use.DONE:
            self._look_soon()

    def abort(self, reason: NsqError) -> None:
        """End the connection at once."""
        self.connection.abort(reason)

    def close(self) -> None:
        """Send buffered data and close, even if something is outstanding."""
        if not self._is_closing:
            self._is_closing = True
            self.connection.close()
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(CLOSE_GRACE, self.connection.abort, ConnectionLostError("replaced"))

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
        act = ACTS[self._use(now), self._lifetime.phase(now)]
        if act is Act.LEAVE:
            connection.abort(ConnectionLostError(f"{connection.node.address} can no longer write to this connection"))
        elif act is Act.CLOSE and not self._is_witness:
            self.close()
        else:
            connection.keep_alive()
            change = self._lifetime.next_phase_at(now)
            due = now + self._interval / 2
            self._handle = self._loop.call_at(due if change is None else min(due, change), self._look)

    def _release(self) -> None:
        server = self.connection.tls_server
        if server is not None and self._is_witness:
            server.has_witness = self._is_witness = False

    def _lost(self, reason: NsqError) -> None:
        self._release()
        if self._handle is not None:
            self._handle.cancel()
        self._use = _is_done  # the owner's function may lead back to this object
        self._on_end(self, reason)
