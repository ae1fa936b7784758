"""Replaced connections of one subscription; messages that came over them are answered there.

The invariant: such a connection is closed once all its messages are answered,
or nsqd has taken the rest back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.policy.tls_renewal import Use
from nsq_ha.transport.retired import Retired

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.delivery import Delivery
    from nsq_ha.errors import NsqError
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.policy.topology import Node
    from nsq_ha.transport.connection import Callbacks, Connection


class Replaced:
    """The replaced connections of one subscription."""

    def __init__(self, on_freed: Callable[[], None], on_left: Callable[[], None]) -> None:
        """Start without any.

        Args:
            on_freed: Called when a message was answered.
            on_left: Called when a connection has ended.
        """
        self._on_freed = on_freed
        self._on_left = on_left
        self._loop = asyncio.get_running_loop()
        self._deliveries: dict[Retired, Delivery] = {}

    @property
    def in_flight(self) -> int:
        """Messages delivered over them and not answered."""
        return sum(delivery.in_flight for delivery in self._deliveries.values())

    @property
    def unanswered(self) -> int:
        """Messages that the application has not answered."""
        return sum(delivery.in_flight - delivery.held for delivery in self._deliveries.values())

    def add(self, connection: Connection, delivery: Delivery, lifetime: Lifetime, callbacks: Callbacks) -> None:
        """Keep ``connection`` for the answers to what came over it."""
        since, msg_timeout = self._loop.time(), connection.identity.msg_timeout / 1000

        def use(now: float) -> Use:
            # After that nsqd has timed out what came over it: an answer would be refused.
            is_over = now > max(since, delivery.touched_at) + msg_timeout
            return Use.FINISHING if delivery.in_flight > 0 and not is_over else Use.DONE

        def freed() -> None:
            self._on_freed()
            retired.changed()

        retired = Retired(connection, lifetime, callbacks, use=use, on_end=self._ended)
        self._deliveries[retired] = delivery
        delivery.retire(freed)

    def drop(self, reason: NsqError) -> None:
        """Close them all, and ignore later answers."""
        for retired, delivery in self._deliveries.items():
            delivery.detach()
            retired.abort(reason)

    def left_for(self, node: Node, reason: NsqError) -> None:
        """Close those to other nodes than ``node``, which delivers their messages again."""
        for retired, delivery in self._deliveries.items():
            if retired.connection.node != node:
                delivery.detach()
                retired.abort(reason)

    async def aclose(self, timeout: float) -> None:
        """Send the pending answers and close them all, within the limit."""
        deadline = self._loop.time() + timeout
        for retired, delivery in list(self._deliveries.items()):
            delivery.flush()
            retired.close()
        for retired in list(self._deliveries):
            await retired.connection.aclose(max(deadline - self._loop.time(), 0.0))

    async def ended(self) -> None:
        """Wait until all have ended."""
        for retired in list(self._deliveries):
            await retired.connection.ended()

    def _ended(self, retired: Retired, _: NsqError) -> None:
        self._deliveries.pop(retired).detach()
        self._on_left()
