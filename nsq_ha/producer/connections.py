"""The leader that one sender connects to, the connections that it has replaced, and how many a producer may open.

A replaced connection is kept until everything written to it is answered.
``policy.tls_renewal`` decides what to do; ``policy.lane`` knows which publishes
are unanswered on which connection.

The invariant: of the replaced connections only the newest may have unanswered
publishes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.connection import Callbacks
from nsq_ha.engine.retired import Retired
from nsq_ha.errors import NoLeaderError
from nsq_ha.policy.tls_renewal import ACTS, Act, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.connection import Connection
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.shared import Share
    from nsq_ha.errors import NsqError, ServerError
    from nsq_ha.policy.lane import Lane
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.policy.topology import Node, TopicView
    from nsq_ha.producer.limits import Request


_CLOSED_SHARE: Final = 32
"""One of so many connections is closed at a time at the limit, at least one in any case: looking for them takes long
with many topics."""


class ConnectionLimit:
    """The places for connections of one producer.

    A connection has its place from the beginning of the attempt until its socket has closed.

    Args:
        most: The option ``max_connections``.
        close_idle: Closes up to the given number of connections, the longest idle ones first; returns how many.

    Attributes:
        count: Number of places in use.
    """

    def __init__(self, most: int, close_idle: Callable[[int], int]) -> None:
        self.count: int = 0
        self._most = most
        self._close_idle = close_idle
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._closing = 0  # idle connections whose places are not free yet, or fewer than there are

    @property
    def has_room(self) -> bool:
        """Whether a place is free."""
        return self.count < self._most

    async def take(self) -> bool:
        """Take a place; close an idle connection if none is free, and wait until it has ended.

        Call :meth:`give_back` when the connection has ended, or could not be opened.

        Returns:
            False if no place is free and no connection is idle.

        If cancelled, no place is taken.
        """
        if self.has_room:
            self.count += 1
            return True
        if self._closing <= len(self._waiting):
            self._closing += self._close_idle(1 + self._most // _CLOSED_SHARE)
        if self._closing <= len(self._waiting):
            return False
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[place] = None
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.pop(place, None)
            if not place.cancelled():  # it was given the place at the same moment
                self.give_back()
            raise
        return True

    def give_back(self) -> None:
        """Free a place, for the one who waits the longest if any do."""
        self._closing = max(0, self._closing - 1)
        while self._waiting:
            place, _ = self._waiting.popitem(last=False)
            if not place.done():
                place.set_result(None)
                return
        self.count -= 1


class Leader:
    """The leader of one partition, according to the topic's lookups."""

    def __init__(self, watch: TopicWatch, partition: int) -> None:
        self._watch = watch
        self._partition = partition
        self._view: TopicView | None = None
        self._word: int | None = partition

    def node(self) -> Node:
        """Return the node that accepts publishes.

        Raises:
            NoLeaderError: No node accepts them.
        """
        view = self._watch.view
        node = view.publishable.get(self._partition) if view is not None else None
        if node is None:
            cause = "" if view is None else view.cause
            raise NoLeaderError(f"{self._watch.topic}-{self._partition} has no leader that accepts writes now{cause}")
        return node

    def differs(self, node: Node) -> bool:
        """Return whether another node than ``node`` is known to be the leader."""
        view = self._watch.view
        leader = view.leaders.get(self._partition) if view is not None else None
        return leader is not None and leader != node

    def word(self) -> int | None:
        """Return the partition number for commands. None on servers without partitions: commands leave it out."""
        view = self._watch.view
        if view is not self._view:
            self._view = view
            is_partitioned = view is None or view.meta is None or view.meta.is_partitioned
            self._word = self._partition if is_partitioned else None
        return self._word


class OldConnections:
    """The replaced connections of one sender.

    Args:
        lane: The sender's.
        stored: Takes the number of answers if all of them are ``OK``.
        answers: Takes other answers.
        refusals: Takes errors that answer nothing.
        lost: Called when publishes that were written to a replaced connection will get no answer.
    """

    def __init__(
        self,
        lane: Lane[Request],
        *,
        stored: Callable[[int], None],
        answers: Callable[[list[bytes | ServerError]], None],
        refusals: Callable[[list[ServerError]], None],
        lost: Callable[[NsqError], None],
    ) -> None:
        self._lane = lane
        self._callbacks = Callbacks(lost, answers=answers, refusals=refusals, stored=stored)
        self._loop = asyncio.get_running_loop()
        self._retired: set[Retired] = set()
        self._answering: Retired | None = None

    def __len__(self) -> int:
        """Return the number of open ones."""
        return len(self._retired)

    @property
    def answering(self) -> Connection | None:
        """The connection that may still answer publishes. None if there is none."""
        return self._answering.connection if self._answering is not None else None

    def act(self, connection: Connection | Share, *, is_used: bool) -> Act:
        """Return what to do with the current connection now."""
        lifetime = connection.lifetime
        if lifetime is None:
            return Act.USE
        return ACTS[Use.PUBLISHING if is_used else Use.UNUSED, lifetime.phase(self._loop.time())]

    def check_in(self, connection: Connection | Share, limit: float) -> float:
        """Return the seconds until :meth:`act` must be called again, ``limit`` at most."""
        lifetime, now = connection.lifetime, self._loop.time()
        change = lifetime.next_phase_at(now) if lifetime is not None else None
        return limit if change is None else min(limit, change - now)

    def retire(self, connection: Connection, lifetime: Lifetime) -> None:
        """Keep a replaced connection for the answers that may still arrive."""
        self._lane.set_apart()

        def use(_: float) -> Use:
            return Use.ANSWERING if self._answering is retired and self._lane.unanswered_apart else Use.DONE

        retired = Retired(connection, lifetime, self._callbacks, use=use, on_end=self._ended)
        self._retired.add(retired)
        self._answering = retired

    def answered(self) -> None:
        """Record that everything written to replaced connections is answered."""
        if self._answering is not None:
            self._answering.changed()

    def forget(self, reason: NsqError) -> None:
        """Abort the connection that has unanswered publishes; the caller handles these."""
        retired, self._answering = self._answering, None
        if retired is not None and self._lane.unanswered_apart:
            retired.abort(reason)

    def drop(self, reason: NsqError) -> None:
        """Abort all of them."""
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
