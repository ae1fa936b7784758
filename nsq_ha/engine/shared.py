"""The connections of one producer, some of them shared by many senders.

Connections to one nsqd can be shared, since the n-th answer belongs to the n-th request, whoever asked. A producer of a
plain cluster needs one for each nsqd, for all topics. At other nsqds, ``connections_per_nsqd`` partitions have one
each, and the others share one. The invariant: an answer goes to the sender that wrote the request. If a sender gives up
a request that is unanswered, the connection ends for all: later answers would be taken for its own.

Source: server protocol, publishing: requests on one connection are answered in order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING

from nsq_ha.engine.approach import Approach
from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.waiting import abort_opened, open_while
from nsq_ha.errors import ConnectionLostError, NsqError, ServerError
from nsq_ha.policy.suspects import Suspects
from nsq_ha.policy.tls_renewal import Lifetime, Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import Node


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
        opening: Opens the connection with the given callbacks.
        over: Called when no sender may join any more.

    Attributes:
        answered_at: When nsqd last answered a request, in the loop's time.
        ask_at: When a sender may next ask over another connection whether nsqd still answers, in the loop's time.
    """

    def __init__(self, opening: Callable[[Callbacks], Awaitable[Connection]], over: Callable[[], None]) -> None:
        self._shares: dict[Share, None] = {}
        self._unanswered: deque[tuple[Share, int]] = deque()  # two in a row are never of the same share
        self.answered_at: float = 0.0
        self.ask_at: float = 0.0
        self._clock = asyncio.get_running_loop().time
        self._over = over
        self._connection: Connection | None = None
        self._waiting = 0
        callbacks = Callbacks(self._lost, answers=self._answers, stored=self._stored)
        self._opened = asyncio.ensure_future(opening(callbacks))
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
        return lifetime is None or lifetime.phase(self._clock()) is Phase.FRESH

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

    Args:
        config: The producer's options.

    Attributes:
        suspects: The nsqds of a plain cluster that failed.
    """

    def __init__(self, config: ProducerConfig) -> None:
        self.suspects: Suspects = Suspects()
        self._approach = Approach()
        self._config = config
        self._unshared: Counter[str] = Counter()  # by address, from the beginning of an attempt to the end
        self._trunks: dict[str, Trunk] = {}

    async def open(
        self,
        node: Node,
        callbacks: Callbacks,
        *,
        replaced: Connection | Share | None,
        news: asyncio.Event,
        is_wanted: Callable[[], bool],
    ) -> Connection | Share:
        """Open a connection to ``node``, or join a shared one: always if it is plain, else above the limit.

        Args:
            node: The nsqd.
            callbacks: Those of the sender.
            replaced: The sender's connection that this one replaces; if it is not shared, this one is not, either.
            news: As for :func:`nsq_ha.engine.waiting.open_while`.
            is_wanted: The same.

        Errors are those of :func:`nsq_ha.engine.waiting.open_while`.
        """
        is_free = self._unshared[node.address] < self._config.connections_per_nsqd
        if not node.is_plain and (is_free or isinstance(replaced, Connection)):
            return await self.open_own(node, callbacks, news=news, is_wanted=is_wanted)
        trunk = self._trunks.get(node.address)
        if trunk is None or not trunk.may_be_joined:
            trunk = self._trunks[node.address] = Trunk(
                lambda answers: self._open(node, answers), lambda: self._forget(node.address, trunk)
            )
        return await open_while(trunk.join(callbacks), node, news=news, is_wanted=is_wanted)

    async def open_own(
        self, node: Node, callbacks: Callbacks, *, news: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> Connection:
        """Open a connection that nobody shares."""
        address, unshared = node.address, self._unshared
        unshared[address] += 1

        def ended() -> None:
            unshared[address] -= 1
            if not unshared[address]:
                del unshared[address]

        try:
            connection = await open_while(self._open(node, callbacks), node, news=news, is_wanted=is_wanted)
        except BaseException:
            ended()
            raise
        connection.when_ended(ended)
        return connection

    async def _open(self, node: Node, callbacks: Callbacks) -> Connection:
        return await self._approach.open(node, lambda: self._open_now(node, callbacks))

    async def _open_now(self, node: Node, callbacks: Callbacks) -> Connection:
        try:
            connection = await Connection.open(self._config, node, callbacks)
        except NsqError:
            if node.is_plain:
                self.suspects.failed(node.address, asyncio.get_running_loop().time())
            raise
        self.suspects.works(node.address)
        return connection

    def _forget(self, address: str, trunk: Trunk | None) -> None:
        if self._trunks.get(address) is trunk:
            del self._trunks[address]


def _nothing() -> None:
    pass
