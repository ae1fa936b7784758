"""Replace a subscription's connection before nsqd stops writing to it.

This module decides when to try. ``policy.tls_renewal`` holds the rules, and
``consumer.subscription`` replaces the connection.

The invariants: connections without a limited lifetime cost nothing, and a
replaced connection is closed once all its messages are answered, or nsqd has
taken the rest back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from nsq_ha.engine.retired import Retired
from nsq_ha.engine.waiting import pause
from nsq_ha.errors import NsqError
from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.tls_renewal import ACTS, Act, Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.delivery import Delivery
    from nsq_ha.engine.connection import Callbacks, Connection
    from nsq_ha.options.types import Backoff
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.policy.topology import Node

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Owner(Protocol):
    """The subscription that reads from the connection."""

    @property
    def lifetime(self) -> Lifetime | None:
        """The lifetime of the connection in use. None without a connection, or without a limit."""

    async def replace(self, news: asyncio.Event) -> None:
        """Open another connection to the same nsqd and read from that one.

        Args:
            news: Set when the connection may no longer be needed; cleared there.

        Raises:
            NsqError: No new connection could be opened; nothing changed.
        """

    async def run_out(self) -> None:
        """Stop reading from a connection that nsqd can hardly write to, and subscribe again."""


class Renewal:
    """Watches the connection of one subscription.

    Args:
        owner: The subscription.
        backoff: Pauses between attempts.
        name: The subscription's, for logs.
    """

    def __init__(self, owner: Owner, backoff: Backoff, name: str) -> None:
        self._owner = owner
        self._backoff = backoff
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def changed(self) -> None:
        """Record that the connection in use has changed, or ended."""
        self._news.set()
        if self._task is None and not self._is_stopped and self._owner.lifetime is not None:
            self._task = self._loop.create_task(self._run(), name=f"nsq_ha renewal {self._name}")

    async def stop(self) -> None:
        """Stop replacing; a replacement that has begun ends soon."""
        self._is_stopped = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Cancel a replacement that has begun; :meth:`stop` waits for its end."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        failures = 0
        while not self._is_stopped:
            lifetime, now = self._owner.lifetime, self._loop.time()
            if lifetime is None:
                await pause(self._news, None)
                continue
            change = lifetime.next_phase_at(now)
            act = ACTS[Use.READING, lifetime.phase(now)]
            if act is Act.USE:
                failures = 0
                await pause(self._news, None if change is None else change - now)
            elif act is Act.REPLACE:
                try:
                    await self._owner.replace(self._news)
                except NsqError as error:
                    log.debug("%s: its connection could not be replaced yet: %s", self._name, error)
                    failures += 1
                    left = 0.0 if change is None else max(change - self._loop.time(), 0.0)
                    await pause(self._news, min(delay_after(self._backoff, failures, random.random), left))
            else:
                await self._owner.run_out()


class Replaced:
    """The replaced connections of one subscription.

    Args:
        on_freed: Called when a message was answered.
        on_left: Called when a connection has ended.
    """

    def __init__(self, on_freed: Callable[[], None], on_left: Callable[[], None]) -> None:
        self._on_freed = on_freed
        self._on_left = on_left
        self._loop = asyncio.get_running_loop()
        self._deliveries: dict[Retired, Delivery] = {}

    @property
    def in_flight(self) -> int:
        """Number of messages delivered over them and not answered."""
        return sum(delivery.in_flight for delivery in self._deliveries.values())

    @property
    def unanswered(self) -> int:
        """Number of messages that the application has not answered."""
        return sum(delivery.in_flight - delivery.held for delivery in self._deliveries.values())

    def add(self, connection: Connection, delivery: Delivery, lifetime: Lifetime, callbacks: Callbacks) -> None:
        """Keep ``connection`` to answer the messages that came over it."""
        since, msg_timeout = self._loop.time(), connection.identity.msg_timeout / 1000

        def use(now: float) -> Use:
            # After that, nsqd has timed out its messages and refuses answers.
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
        """Close connections to nodes other than ``node``, which delivers their messages again."""
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
