"""The connections before the one that a sender writes to: they are kept until what was written to them is answered.

Owns them, and what is due with the one that is written to. What is done when is
``policy.tls_renewal``'s; which publishes are unanswered where, ``policy.lane``'s.

The invariant: publishes are unanswered on one of them at most, the newest.
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
    """Of one sender."""

    def __init__(
        self,
        lane: Lane[Outgoing],
        *,
        stored: Callable[[int], None],
        answers: Callable[[list[bytes | ServerError]], None],
        refusals: Callable[[list[ServerError]], None],
        lost: Callable[[NsqError], None],
    ) -> None:
        """Prepare.

        Args:
            lane: The sender's.
            stored: Takes answers that are all ``OK``, to what was set apart.
            answers: Takes other answers to it.
            refusals: Takes errors that answer nothing.
            lost: Called when what was set apart is answered by nobody any more.
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
        """The one on which publishes may be unanswered. None when there is none."""
        return self._answering.connection if self._answering is not None else None

    def act(self, connection: Connection, *, is_used: bool) -> Act:
        """Return what is to be done now with the connection that is written to."""
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
        """Keep a connection whose place another one has taken, for the answers that still come."""
        self._lane.set_apart()

        def use(_: float) -> Use:
            return Use.ANSWERING if self._answering is retired and self._lane.unanswered_apart else Use.DONE

        retired = Retired(connection, lifetime, self._callbacks, use=use, on_end=self._ended)
        self._retired.add(retired)
        self._answering = retired

    def answered(self) -> None:
        """Note that answers came to what was set apart."""
        if self._answering is not None:
            self._answering.changed()

    def forget(self, reason: NsqError) -> None:
        """Leave the one on which publishes are unanswered; whoever calls this does what follows for them."""
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
