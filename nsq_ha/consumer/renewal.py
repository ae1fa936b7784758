"""Replacing the connection of one subscription before nsqd cannot write to it any more.

Owns when that is tried. What is done when is ``policy.tls_renewal``'s, how a
connection is replaced ``consumer.subscription``'s.

The invariant: nothing of this costs anything where connections may live for ever.
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
    """Whoever reads from the connection."""

    @property
    def lifetime(self) -> Lifetime | None:
        """The time of the connection that is read from. None when there is none, or it may live for ever."""

    async def replace(self, news: asyncio.Event) -> None:
        """Open another connection to the same nsqd and read from that one.

        Args:
            news: Set when it may not be wanted any more; cleared there.

        Raises:
            NsqError: It was not to be had; nothing changed.
        """

    async def run_out(self) -> None:
        """Read no more from the connection that cannot be written to much longer, and subscribe again."""


class Renewal:
    """Watches the connection of one subscription."""

    def __init__(self, owner: Owner, backoff: Backoff, name: str) -> None:
        """Prepare; ``name`` is the subscription's, for logs."""
        self._owner = owner
        self._backoff = backoff
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def changed(self) -> None:
        """Note that another connection is read from, or none."""
        self._news.set()
        if self._task is None and not self._is_stopped and self._owner.lifetime is not None:
            self._task = self._loop.create_task(self._run(), name=f"nsq_ha renewal {self._name}")

    async def stop(self) -> None:
        """Replace nothing any more; what is under way comes to its end, which is near."""
        self._is_stopped = True
        self._news.set()
        if self._task is not None:
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """End what is under way; :meth:`stop` waits for its end."""
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
