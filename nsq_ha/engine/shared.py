"""Connections to one nsqd that several senders share, since the n-th answer belongs to the n-th request, whoever asked.

A producer of a plain cluster needs one connection for each nsqd, for all topics. The invariant: an answer goes to the
sender that wrote the request. If a sender gives up a request that is unanswered, the connection ends for all: later
answers would be taken for its own.

Source: server protocol, publishing: requests on one connection are answered in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.waiting import while_wanted
from nsq_ha.errors import ConnectError, ConnectionLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.errors import NsqError, ServerError
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import Node


class Share:
    """One sender's part of a shared connection; it has the methods of :class:`Connection` that a sender uses.

    Attributes:
        node: The nsqd.
        name: The connection's.
        lifetime: None: connections with a limited lifetime are not shared.
        callbacks: Those of the sender.
        trunk: What all shares of the connection have in common.
        connection: The shared one.
        resume: Called when the socket has space again.
    """

    __slots__ = ("_ended", "callbacks", "connection", "lifetime", "name", "node", "resume", "trunk")

    def __init__(self, trunk: Trunk, connection: Connection, callbacks: Callbacks) -> None:
        self.node: Node = connection.node
        self.name: str = connection.name
        self.lifetime: None = None
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
    def answered_at(self) -> float:
        """When nsqd last answered a request of any sender, in the loop's time."""
        return self.trunk.answered_at

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
        self._unanswered: deque[tuple[Share, int]] = deque()
        self.answered_at: float = 0.0
        self.ask_at: float = 0.0
        self._clock = asyncio.get_running_loop().time
        self._over = over
        self._connection: Connection | None = None
        self._waiting = 0
        callbacks = Callbacks(self._lost, answers=self._answers, refusals=self._refusals, stored=self._stored)
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
        finally:
            self._waiting -= 1
            if not self._waiting and not self._shares and not self._opened.done():
                self._over()
                self._opened.cancel()
        if not connection.is_open:
            raise ConnectionLostError(f"the connection to {connection.node.address} was lost")
        share = Share(self, connection, callbacks)
        self._shares[share] = None
        return share

    def expects(self, share: Share, count: int) -> None:
        """Record that ``share`` writes ``count`` requests."""
        self._unanswered.append((share, count))

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
            self._connection.close()
            self._connection.when_ended(lambda: share.end(reason))
            return
        asyncio.get_running_loop().call_soon(share.end, reason)

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
        unanswered = self._unanswered
        self.answered_at = self._clock()
        while count and unanswered:
            share, asked = unanswered[0]
            taken = min(asked, count)
            if taken == asked:
                unanswered.popleft()
            else:
                unanswered[0] = (share, asked - taken)
            count -= taken
            stored = share.callbacks.stored
            if stored is not None:
                stored(taken)
            else:
                share.callbacks.answers([b"OK"] * taken)

    def _answers(self, answers: list[bytes | ServerError]) -> None:
        unanswered, begin = self._unanswered, 0
        self.answered_at = self._clock()
        while begin < len(answers) and unanswered:
            share, asked = unanswered[0]
            taken = min(asked, len(answers) - begin)
            if taken == asked:
                unanswered.popleft()
            else:
                unanswered[0] = (share, asked - taken)
            share.callbacks.answers(answers[begin : begin + taken])
            begin += taken

    def _refusals(self, refusals: list[ServerError]) -> None:
        share = self._unanswered[0][0] if self._unanswered else next(iter(self._shares), None)
        if share is not None:
            share.callbacks.refusals(refusals)

    def _lost(self, reason: NsqError) -> None:
        self._over()
        shares, self._shares = self._shares, {}
        self._unanswered.clear()
        for share in shares:
            share.end(reason)


class SharedConnections:
    """The shared connections of one producer, one for each nsqd.

    Args:
        config: The producer's options.
        take: Takes a place among the open connections; returns False if there is none.
        give_back: Frees the place.
    """

    def __init__(
        self, config: ProducerConfig, take: Callable[[], Awaitable[bool]], give_back: Callable[[], None]
    ) -> None:
        self._config = config
        self._take = take
        self._give_back = give_back
        self._trunks: dict[str, Trunk] = {}

    def has(self, node: Node) -> bool:
        """Return whether a sender may join a connection to ``node``."""
        return node.address in self._trunks

    async def open(
        self, node: Node, callbacks: Callbacks, *, news: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> Share:
        """Return a share of the connection to ``node``; open it if there is none.

        Args and errors are those of :func:`nsq_ha.engine.waiting.open_while`.
        """
        trunk = self._trunks.get(node.address)
        if trunk is None:
            trunk = self._trunks[node.address] = Trunk(
                lambda answers: self._open(node, answers), lambda: self._forget(node.address, trunk)
            )
        return await while_wanted(trunk.join(callbacks), node, news=news, is_wanted=is_wanted)

    async def _open(self, node: Node, callbacks: Callbacks) -> Connection:
        if not await self._take():
            raise ConnectError(
                f"cannot connect to {node.address}: max_connections={self._config.max_connections} connections are open"
                " and none is idle. Raise max_connections"
            )
        try:
            connection = await Connection.open(self._config, node, callbacks)
        except BaseException:
            self._give_back()
            raise
        connection.when_ended(self._give_back)
        return connection

    def _forget(self, address: str, trunk: Trunk | None) -> None:
        if self._trunks.get(address) is trunk:
            del self._trunks[address]


def _nothing() -> None:
    pass
