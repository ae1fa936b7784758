"""The same load through ``nsq_ha.sync``: a thread reads, and publishes are futures of its producer."""

from __future__ import annotations

import asyncio
import functools
import time
from typing import TYPE_CHECKING, Any

from integration.faults.load import Load
from nsq_ha import sync

if TYPE_CHECKING:
    from nsq_ha import Receipt


class ThreadedLoad(Load):
    """A load whose clients are those for threads. Takes the arguments of :class:`Load`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._publisher = sync.Producer(lookupd=self.lookupds, **self.pace.producer_options)
        self._reader = sync.Consumer(self.topic, self.channel, lookupd=self.lookupds, **self.pace.consumer_options)

    async def start(self) -> None:
        """Subscribe, then publish."""
        await asyncio.to_thread(self._reader.start)
        await asyncio.to_thread(self._publisher.start)
        self._consuming = asyncio.create_task(asyncio.to_thread(self._read, asyncio.get_running_loop()))
        self._publishing = asyncio.create_task(self._publish())
        self._tasks.append(asyncio.create_task(self.hold_ups.watch()))

    async def close(self) -> None:
        """Close both sides."""
        self.end_new_calls()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self._reader.stop)
        await asyncio.to_thread(self._publisher.stop)
        await asyncio.gather(*self._tasks, *self._calls, return_exceptions=True)
        if self._consuming is not None:
            await self._consuming

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        return await asyncio.wrap_future(self._publisher.publish_nowait(self.topic, body, key=key))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        for message in self._reader:
            # The time of the thread: once finished, the next message may reach another process before the loop turns.
            loop.call_soon_threadsafe(functools.partial(self.take, message, time.monotonic()))
            message.finish()
