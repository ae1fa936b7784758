"""A sender's replaced connections, kept until the publishes written to them are answered.

This module owns them, and asks ``policy.tls_renewal`` what to do with the
connection in use. ``policy.lane`` knows which publishes are unanswered where.

The invariant: only the newest of them has unanswered publishes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.policy.tls_renewal import ACTS, Act, Use
from nsq_ha.transport.connection import Callbacks
from nsq_ha.transport.retired import Retired

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.errors import NsqError, ServerError
    from nsq_ha.policy.lane import Lane
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.producer.outgoing import Outgoing
    from nsq_ha.transport.connection import Connection


class Renewal:
    """The replaced connections of one sender."""

    def __init__(
        self,
        lane: Lane[Outgoing],
        *,
        stored: Callable[[int], None],
        answers: Callable[[list[bytes | ServerError]], None],
        refusals: Callable[[list[ServerError]], None],
        lost: Callable[[NsqError], None],
    ) -> None:
        """Start without any.

        Args:
            lane: The sender's.
            stored: Called for ``OK`` answers to publishes that were set apart.
            answers: Called for other answers to them.
            refusals: Called for errors that answer no publish.
            lost: Called when publishes that were set apart can no longer be answered.
        """
        self._lane = lane
        self._callbacks = Callbacks(lost, answers=answers, refusals=refusals, stored=stored)
        self._loop = asyncio.get_running_loop()
        self._retired: set[Retired] = set()
        self._answering: Retired | None = None

    def __len__(self) -> int:
        """Return how many are open."""
        return len(self._retired)

    @property
    def answering(self) -> Connection | None:
        """The one on which publishes may be unanswered, or None."""
        return self._answering.connection if self._answering is not None else None

    def act(self, connection: Connection, *, is_used: bool) -> Act:
        """Return what to do now with the connection in use."""
        lifetime = connection.lifetime
        if lifetime is None:
            return Act.USE
        return ACTS[Use.PUBLISHING if is_used else Use.UNUSED, lifetime.phase(self._loop.time())]

    def look_in(self, connection: Connection, limit: float) -> float:
        """Return the seconds after which to ask :meth:`act` again, ``limit`` at most."""
        lifetime, now = connection.lifetime, self._loop.time()
        change = lifetime.next_phase_at(now) if lifetime is not None else None
        return limit if change is None else min(limit, change - now)

    def retire(self, connection: Connection, lifetime: Lifetime) -> None:
        """Keep a replaced connection for the answers that are still outstanding."""
        self._lane.set_apart()

        def use(_: float) -> Use:
            return Use.ANSWERING if self._answering is retired and self._lane.unanswered_apart else Use.DONE

        retired = Retired(connection, lifetime, self._callbacks, use=use, on_end=self._ended)
        self._retired.add(retired)
        self._answering = retired

    def answered(self) -> None:
        """Record answers to publishes that were set apart."""
        if self._answering is not None:
            self._answering.changed()

    def forget(self, reason: NsqError) -> None:
        """Close the one with unanswered publishes; the caller handles those."""
        retired, self._answering = self._answering, None
        if retired is not None and self._lane.unanswered_apart:
            retired.abort(reason)

    def drop(self, reason: NsqError) -> None:
        """Abort them all."""
        self.forget(reason)
        for retired in list(self._retired):
            retired.abort(reason)

    async def ended(self) -> None:
        """Wait until all have ended."""
        for retired in list(self._retired):
            await retired.connection.ended()

    def _ended(self, retired: Retired, reason: NsqError) -> None:
        self._retired.discard(retired)
        if self._answering is retired:
            self._answering = None
            if self._lane.unanswered_apart:
                self._callbacks.lost(reason)
