"""Opens the connections of one client, as often as ``policy.connect_limit`` allows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from nsq_ha.errors import AuthError, NsqError
from nsq_ha.policy.connect_limit import PROOF

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.engine.connection import Connection
    from nsq_ha.policy.connect_limit import ConnectLimit
    from nsq_ha.policy.topology import Node

AT_ONCE: Final = 16
"""Connections to an nsqd that are opened at the same time: it may hang, and lead a thousand partitions."""


class ConnectLimiter:
    """Opens the connections of one client."""

    def __init__(self) -> None:
        self._is_authorized = False  # the cluster has accepted a secret of this client
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def slots(self, node: Node) -> asyncio.Semaphore:
        """Return what bounds the connections to an nsqd that are being opened, and the requests that go with them."""
        return self._slots.setdefault(node.address, asyncio.Semaphore(AT_ONCE))

    async def open(
        self, node: Node, limit: ConnectLimit, opening: Callable[[], Coroutine[Any, Any, Connection]]
    ) -> Connection:
        """Open a connection; at once unless the nsqd fails. Its owner calls :func:`ended` at its end.

        Args:
            node: The nsqd.
            limit: What its owner knows of how often it may be connected to.
            opening: Opens the connection.

        Raises:
            NsqError: It could not be opened.
        """
        now = asyncio.get_running_loop().time
        async with self.slots(node):
            while (wait := limit.wait(now())) > 0:  # noqa: ASYNC110 - time passes, too
                await asyncio.sleep(min(wait, PROOF))  # another connection may show that it works
            limit.begin(now())
            try:
                connection = await opening()
            except NsqError as error:
                limit.failed(0.0)
                if isinstance(error, AuthError) and self._is_authorized:
                    error.retriable = True  # the auth server may be away, which nsqd does not tell from a wrong secret
                raise
        self._is_authorized |= connection.identity.auth_required
        limit.opened(now())
        return connection


def ended(connection: Connection, limit: ConnectLimit) -> None:
    """Record the end of a connection to an nsqd with this limit."""
    if connection.was_ended_by_peer:
        limit.failed(asyncio.get_running_loop().time() - connection.opened_at)
