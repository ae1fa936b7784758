"""Ask the cluster once per interval, whatever the number of browsers, and tell those that wait.

The invariants: two polls never overlap, and nothing that a server sends ends the polling.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from nsq_ha.admin.causes import prepare
from nsq_ha.admin.reading import Reading
from nsq_ha.base.threads import in_thread
from nsq_ha.base.unexpected import log_traceback

if TYPE_CHECKING:
    from nsq_ha.admin import AdminClient
    from nsq_ha.dashboard.history import History

log: Final = logging.getLogger("nsq_ha.dashboard")

_KEPT: Final = 3
"""Intervals for which a topic is watched after somebody looked at it."""


class Poller:
    """Reads the cluster again and again.

    Args:
        admin: Asks the cluster.
        history: Takes the readings.
        interval: Seconds from the beginning of a poll to that of the next.
        limit: Seconds for one poll.
    """

    def __init__(self, admin: AdminClient, history: History, *, interval: float, limit: float) -> None:
        self._admin = admin
        self._history = history
        self._interval = interval
        self._limit = limit
        self._watched: dict[str, float] = {}
        self._clients_until = 0.0
        self._next = asyncio.Event()
        self.count: int = 0
        self.is_closed: bool = False

    def watch(self, topic: str | None = None, *, clients: bool = False) -> None:
        """Read more in the next polls: details of a topic, the connections of channels."""
        until = time.time() + _KEPT * max(self._interval, 1.0)
        if topic is not None:
            self._watched[topic] = until
        if clients:
            self._clients_until = until

    async def changed(self) -> bool:
        """Wait for the next reading. Return False if there will be none."""
        if not self.is_closed:
            await self._next.wait()
        return not self.is_closed

    def close(self) -> None:
        """Wake all that wait for a reading: there will be none."""
        self.is_closed = True
        self._next.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - servers send anything, and the dashboard must go on
                log_traceback(log, f"a poll of the cluster failed unexpectedly: {error!r}", error)
            await asyncio.sleep(max(0.1, began + self._interval - loop.time()))

    async def once(self) -> None:
        """Poll once, add the reading to the history, and wake all that wait."""
        now = time.time()
        self._watched = {topic: until for topic, until in self._watched.items() if until >= now}
        reading = await self._admin.look(
            self._history.latest or Reading(now),
            topics=self._watched,
            clients=now < self._clients_until,
            timeout=self._limit,
        )
        await in_thread(partial(prepare, reading))
        self._history.add(reading)
        self.count += 1
        self._next.set()
        self._next = asyncio.Event()
        if self.is_closed:
            self._next.set()
