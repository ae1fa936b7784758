"""Replace a subscription's connection before nsqd stops writing to it.

This module decides when to try. ``policy.tls_renewal`` holds the rules, and
``consumer.subscription`` replaces the connection.

The invariant: connections without a limited lifetime cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from nsq_ha.errors import NsqError
from nsq_ha.policy.backoff import delay_after
from nsq_ha.policy.tls_renewal import ACTS, Act, Use
from nsq_ha.transport.pausing import pause

if TYPE_CHECKING:
    from nsq_ha.config import Backoff
    from nsq_ha.policy.tls_renewal import Lifetime

log = logging.getLogger("nsq_ha.consumer")


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
    """Watches the connection of one subscription."""

    def __init__(self, owner: Owner, backoff: Backoff, name: str) -> None:
        """Create it; ``name`` is the subscription's, for logs."""
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
