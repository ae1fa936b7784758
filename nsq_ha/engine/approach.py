"""The turns in which a client's connections are opened, by ``policy.approaches``.

The invariants: each attempt that begins ends, or its connection does, and both are recorded. Addresses take turns, so
an nsqd that is down and leads many partitions does not delay the others.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from nsq_ha.errors import AuthError, NsqError
from nsq_ha.policy.approaches import FEW, PROOFS, Approaches, Attempt, Trust

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.engine.connection import Connection
    from nsq_ha.policy.topology import Node


class Approach:
    """Opens the connections of one client."""

    def __init__(self) -> None:
        self._policy = Approaches()
        self._is_authorized = False  # the cluster has accepted a secret of this client
        # By address, in the order of their turns; those of each address in theirs.
        self._waiting: dict[str, dict[asyncio.Future[Attempt], Node]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._asking: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by host

    def asking(self, node: Node) -> asyncio.Semaphore:
        """Return what bounds the requests to the HTTP of a host, whose ports a lookup names as it likes."""
        return self._asking.setdefault(node.host, asyncio.Semaphore(FEW))

    async def open(self, node: Node, opening: Callable[[], Coroutine[Any, Any, Connection]]) -> Connection:
        """Open a connection when it has its turn; at once if ``node`` is known to be well.

        Args:
            node: The nsqd.
            opening: Opens the connection.

        Raises:
            NsqError: It could not be opened.
        """
        attempt = await self._turn(node)
        try:
            connection = await opening()
        except BaseException as error:
            self._ended(attempt, is_fault=isinstance(error, NsqError))
            if isinstance(error, AuthError) and self._is_authorized:
                error.retriable = True  # the auth server may be away, which nsqd does not tell from a wrong secret
            raise
        self._is_authorized |= connection.identity.auth_required
        proof = self._policy.opened(attempt, _now())
        self._wake()
        if proof is not None:
            asyncio.get_running_loop().call_later(proof, self._look, attempt, connection)
        connection.when_ended(lambda: self._ended(attempt, is_fault=connection.was_ended_by_peer))
        return connection

    async def _turn(self, node: Node) -> Attempt:
        now = _now()
        wait = self._policy.wait(node.address, node.host, now)
        if wait == 0:
            return self._policy.begin(node.address, node.host, now)
        turn: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(node.address, {})[turn] = node
        if wait is not None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)
        try:
            return await turn
        except asyncio.CancelledError:
            self._waiting.get(node.address, {}).pop(turn, None)
            if turn.done() and not turn.cancelled():  # it got its turn at the same moment
                self._ended(turn.result(), is_fault=False)
            raise

    def _look(self, attempt: Attempt, connection: Connection) -> None:
        """Trust the address again if a connection to it has lasted, and leaves no request unanswered."""
        if not connection.is_open:
            return
        again = PROOFS[0] if connection.is_unanswered else self._policy.proven(attempt, _now())
        if again is None:
            self._wake()
        else:
            asyncio.get_running_loop().call_later(again, self._look, attempt, connection)

    def _ended(self, attempt: Attempt, *, is_fault: bool) -> None:
        self._policy.ended(attempt, _now(), is_fault=is_fault)
        self._wake()

    def _wake(self) -> None:
        """Let those begin who may, and look again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now, soonest = _now(), None
        for address, turns in tuple(self._waiting.items()):
            wait: float | None = 0.0
            while turns and (wait := self._policy.wait(address, next(iter(turns.values())).host, now)) == 0:
                turn, node = next(iter(turns.items()))
                del turns[turn]
                if not turn.done():
                    turn.set_result(self._policy.begin(address, node.host, now))
                    self._waiting[address] = self._waiting.pop(address)
                if self._policy.trust(address) is Trust.DOUBTED:
                    break  # the next one is another address's
            if not turns:
                del self._waiting[address]
            elif wait is not None:
                soonest = wait if soonest is None else min(soonest, wait)
        if soonest is not None:
            self._timer = asyncio.get_running_loop().call_later(soonest, self._wake)


def _now() -> float:
    return asyncio.get_running_loop().time()
