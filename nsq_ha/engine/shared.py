"""The connections of one producer: no more than ``max_connections``, some of them shared by many senders.

Connections to one nsqd can be shared, since the n-th answer belongs to the n-th request, whoever asked. A producer of a
plain cluster needs one for each nsqd, for all topics. Partitions have one each, and share above the limit. The
invariant: an answer goes to the sender that wrote the request. If a sender gives up a request that is unanswered, the
connection ends for all: later answers would be taken for its own.

Source: server protocol, publishing: requests on one connection are answered in order.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

from nsq_ha.engine.approach import Approach
from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.waiting import abort_opened, open_while
from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError, ServerError
from nsq_ha.policy.suspects import Suspects
from nsq_ha.policy.tls_renewal import Lifetime, Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import Node

TURN: Final = 0.25
"""Seconds that a connection may be used while an attempt waits for a place: long beside a handshake, short beside the
time limit of a publish."""


class WaitedForPlaceError(ConnectError):
    """No connection was opened, since ``max_connections`` of them were in use."""


class Share:
    """One sender's part of a shared connection; it has the methods of :class:`Connection` that a sender uses.

    Attributes:
        node: The nsqd.
        name: The connection's.
        callbacks: Those of the sender.
        trunk: What all shares of the connection have in common.
        connection: The shared one.
        resume: Called when the socket has space again.
    """

    __slots__ = ("_ended", "callbacks", "connection", "name", "node", "resume", "trunk")

    def __init__(self, trunk: Trunk, connection: Connection, callbacks: Callbacks) -> None:
        self.node: Node = connection.node
        self.name: str = connection.name
        self.callbacks: Callbacks = callbacks
        self.resume: Callable[[], None] = _nothing
        self.trunk: Trunk = trunk
        self.connection: Connection = connection
        self._ended: asyncio.Future[NsqError] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        """Whether it can be written to."""
        return not self._ended.done() and self.connection.is_open

    @property
    def is_recalled(self) -> bool:
        """Whether to leave the connection once its requests are answered."""
        return self.connection.is_recalled

    @property
    def lifetime(self) -> Lifetime | None:
        """How long nsqd can write to the connection. None if there is no limit."""
        return self.connection.lifetime

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the last heartbeat, or since connecting."""
        return self.connection.heartbeat_age

    @property
    def takes_more(self) -> bool:
        """Whether the socket has space."""
        return self.connection.takes_more

    def write_publishes(self, data: bytes | list[bytes], count: int) -> None:
        """Write ``count`` publish commands now, see :meth:`Connection.write_publishes`."""
        self.trunk.expects(self, count)
        self.connection.write_publishes(data, count)

    def on_resume(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the socket has space again."""
        self.resume = callback

    def abort(self, reason: NsqError) -> None:
        """Leave the connection; it ends for all if a request of this sender is unanswered."""
        if not self._ended.done():
            self.trunk.leave(self, reason)

    def end(self, reason: NsqError) -> None:
        """Record that the connection has ended, or that the sender has left it."""
        if not self._ended.done():
            self._ended.set_result(reason)
            self.callbacks.lost(reason)

    async def ended(self) -> NsqError:
        """Wait for the end and return its reason."""
        return await asyncio.shield(self._ended)

    async def aclose(self, timeout: float) -> None:
        """Leave the connection. For the other senders it stays open."""
        self.abort(ConnectionLostError("closed by this client"))


class Trunk:
    """One connection that senders share.

    Args:
        opening: Opens the connection with the given callbacks, for this trunk.
        over: Called when no sender may join any more.

    Attributes:
        answered_at: When nsqd last answered a request, in the loop's time.
        ask_at: When a sender may next ask over another connection whether nsqd still answers, in the loop's time.
        placed_at: When connecting began, in the loop's time. None while it waits for a place.
    """

    def __init__(self, opening: Callable[[Callbacks, Trunk], Awaitable[Connection]], over: Callable[[], None]) -> None:
        self._shares: dict[Share, None] = {}
        self._unanswered: deque[tuple[Share, int]] = deque()  # two in a row are never of the same share
        self.answered_at: float = 0.0
        self.ask_at: float = 0.0
        self._clock = asyncio.get_running_loop().time
        self._over = over
        self._connection: Connection | None = None
        self._waiting = 0
        self.placed_at: float | None = None
        callbacks = Callbacks(self._lost, answers=self._answers, stored=self._stored)
        self._opened = asyncio.ensure_future(opening(callbacks, self))
        self._opened.add_done_callback(self._has_opened)

    async def join(self, callbacks: Callbacks) -> Share:
        """Return a share of the connection, once it is open.

        Raises:
            NsqError: It could not be opened.

        If all that wait for it are cancelled, it is not opened.
        """
        self._waiting += 1
        try:
            connection = await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            if self._waiting == 1 and not self._shares:
                self._over()
                self._opened.cancel()
                self._opened.add_done_callback(abort_opened)  # it may be open, just now
            raise
        finally:
            self._waiting -= 1
        if not connection.is_open:
            raise ConnectionLostError(f"the connection to {connection.node.address} was lost")
        share = Share(self, connection, callbacks)
        self._shares[share] = None
        return share

    def expects(self, share: Share, count: int) -> None:
        """Record that ``share`` writes ``count`` requests."""
        unanswered = self._unanswered
        if unanswered and unanswered[-1][0] is share:
            count += unanswered.pop()[1]
        unanswered.append((share, count))

    def leave(self, share: Share, reason: NsqError) -> None:
        """End a share; the connection ends if a request of it is unanswered, or if nobody else uses it."""
        self._shares.pop(share, None)
        if self._connection is None:
            return
        if any(asked is share for asked, _ in self._unanswered):
            self._over()
            self._connection.abort(reason)
        elif not self._shares and not self._waiting:
            self._over()
            self._connection.when_ended(lambda: share.end(reason))
            self._connection.abort(reason)  # nsqd may be unable to confirm the end of TLS
            return
        asyncio.get_running_loop().call_soon(share.end, reason)

    @property
    def may_be_joined(self) -> bool:
        """Whether there is time left to use the connection, or it is being opened."""
        connection = self._connection
        if connection is None:
            return True
        lifetime = connection.lifetime
        return not connection.is_recalled and (lifetime is None or lifetime.phase(self._clock()) is Phase.FRESH)

    def _has_opened(self, opened: asyncio.Future[Connection]) -> None:
        if opened.cancelled() or opened.exception() is not None:
            self._over()
            return
        self._connection = connection = opened.result()
        connection.on_resume(self._resume)

    def _resume(self) -> None:
        for share in tuple(self._shares):
            share.resume()

    def _stored(self, count: int) -> None:
        self.answered_at = self._clock()
        taken: dict[Share, int] = {}
        while count and self._unanswered:
            share, own = self._next(count)
            taken[share] = taken.get(share, 0) + own
            count -= own
        # Each sender gets all its answers at once, since it writes its next requests then: else each write would be
        # as small as the one before it.
        for share, own in taken.items():
            stored = share.callbacks.stored
            if stored is not None:
                stored(own)
            else:
                share.callbacks.answers([b"OK"] * own)

    def _answers(self, answers: list[bytes | ServerError]) -> None:
        self.answered_at = self._clock()
        begin = 0
        while begin < len(answers) and self._unanswered:
            share, own = self._next(len(answers) - begin)
            share.callbacks.answers(answers[begin : begin + own])
            begin += own

    def _next(self, most: int) -> tuple[Share, int]:
        """Return whose requests are answered next, and how many of them, ``most`` at most."""
        share, asked = self._unanswered.popleft()
        if asked > most:
            self._unanswered.appendleft((share, asked - most))
        return share, min(asked, most)

    def _lost(self, reason: NsqError) -> None:
        self._over()
        shares, self._shares = self._shares, {}
        self._unanswered.clear()
        for share in shares:
            share.end(reason)


class Connections:
    """The connections of one producer.

    A connection has its place from the beginning of the attempt until its socket has closed. If none is free, attempts
    wait in their order, and connections are recalled for them: unused ones at once, others after a turn. A recalled
    connection gets the rest of its answers and closes, so that every nsqd has its turn.

    Args:
        config: The producer's options.
        recall: Recalls up to the given number of connections: unused ones, or ones in use since a time of the loop.

    Attributes:
        count: Number of places in use.
        suspects: The nsqds of a plain cluster that failed.
    """

    def __init__(self, config: ProducerConfig, recall: Callable[[int, float], object]) -> None:
        self.count: int = 0
        self.suspects: Suspects = Suspects()
        self._approach = Approach()
        self._config = config
        self._most = config.max_connections
        self._recall = recall
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._turn: asyncio.TimerHandle | None = None
        self._trunks: dict[str, Trunk] = {}

    @property
    def has_room(self) -> bool:
        """Whether a place is free."""
        return self.count < self._most

    @property
    def is_waited_for(self) -> bool:
        """Whether an attempt waits for a place."""
        return bool(self._waiting)

    def has(self, node: Node) -> bool:
        """Return whether a sender may join a connection to ``node``."""
        trunk = self._trunks.get(node.address)
        return trunk is not None and trunk.may_be_joined

    def placed_at(self, node: Node) -> float | None:
        """Return when connecting to ``node`` began, for a connection that may be joined. None if there is none."""
        trunk = self._trunks.get(node.address)
        return trunk.placed_at if trunk is not None and trunk.may_be_joined else None

    def wait_for(self, node: Node) -> WaitedForPlaceError | None:
        """Return why connecting to ``node`` must wait. None if it need not."""
        if self.has_room or self.placed_at(node) is not None:
            return None
        return WaitedForPlaceError(
            f"waited for a connection to {node.address}, since max_connections={self._most} of them were in use. Raise"
            " max_connections"
        )

    async def open(
        self, node: Node, callbacks: Callbacks, *, news: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> Connection | Share:
        """Open a connection to ``node``, or join one: always if it is plain, else if no place is free.

        Args and errors are those of :func:`nsq_ha.engine.waiting.open_while`.
        """
        if not node.is_plain and self.has_room:
            return await open_while(self._open(node, callbacks), node, news=news, is_wanted=is_wanted)
        trunk = self._trunks.get(node.address)
        if trunk is None or not trunk.may_be_joined:
            trunk = self._trunks[node.address] = Trunk(
                lambda answers, own: self._open(node, answers, own), lambda: self._forget(node.address, trunk)
            )
        return await open_while(trunk.join(callbacks), node, news=news, is_wanted=is_wanted)

    async def open_own(
        self, node: Node, callbacks: Callbacks, *, news: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> Connection:
        """Open a connection that nobody shares, if a place is free.

        Raises:
            WaitedForPlaceError: None is.
        """
        if not self.has_room:
            raise WaitedForPlaceError(f"max_connections={self._most} connections are in use")
        return await open_while(self._open(node, callbacks), node, news=news, is_wanted=is_wanted)

    async def _open(self, node: Node, callbacks: Callbacks, trunk: Trunk | None = None) -> Connection:
        return await self._approach.open(node, lambda: self._open_now(node, callbacks, trunk))

    async def _open_now(self, node: Node, callbacks: Callbacks, trunk: Trunk | None) -> Connection:
        await self.take()
        clock = asyncio.get_running_loop().time
        if trunk is not None:
            trunk.placed_at = clock()
        try:
            connection = await Connection.open(self._config, node, callbacks)
        except BaseException as error:
            self.give_back()
            if node.is_plain and isinstance(error, NsqError):
                self.suspects.failed(node.address, clock())
            raise
        self.suspects.works(node.address)
        connection.when_ended(self.give_back)
        return connection

    def _forget(self, address: str, trunk: Trunk | None) -> None:
        if self._trunks.get(address) is trunk:
            del self._trunks[address]

    async def take(self) -> None:
        """Take a place; if none is free, have a connection recalled and wait.

        Call :meth:`give_back` when the connection has ended, or could not be opened. If cancelled, no place is taken.
        """
        if self.has_room:
            self.count += 1
            return
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._waiting[place] = None
        self._recall(1, loop.time() - TURN)
        if self._turn is None:
            self._turn = loop.call_later(TURN, self._next_turn)
        try:
            await place
        except asyncio.CancelledError:
            self._waiting.pop(place, None)
            if place.done() and not place.cancelled():  # it was given the place at the same moment
                self.give_back()
            raise

    def _next_turn(self) -> None:
        """Recall connections for those who still wait."""
        self._turn = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._recall(len(self._waiting), loop.time() - TURN)
            self._turn = loop.call_later(TURN, self._next_turn)

    def give_back(self) -> None:
        """Free a place; the attempt that has waited the longest takes it."""
        while self._waiting:
            place, _ = self._waiting.popitem(last=False)
            if not place.done():
                place.set_result(None)
                return
        self.count -= 1


def _nothing() -> None:
    pass
