"""The same load through ``nsq_ha.sync``: a thread reads, and publishes are futures of its producer."""

import asyncio
from typing import Any

from integration.faults.load import HandlerError, Load, delivery_of
from nsq_ha import ConsumerConfig, Message, ProducerConfig, Receipt, sync


class Threaded:
    """A client for threads, entered and closed as one of asyncio; both are for its thread to wait for."""

    def __init__(self, client: sync.Producer | sync.Consumer) -> None:
        self.client = client

    @property
    def config(self) -> ProducerConfig | ConsumerConfig:
        """Its options."""
        return self.client.config

    async def __aenter__(self) -> None:
        await asyncio.to_thread(self.client.start)

    async def aclose(self) -> None:
        """Close it."""
        await asyncio.to_thread(self.client.stop)


class ThreadedLoad(Load):
    """A load whose clients are those for threads. Takes the arguments of :class:`Load`."""

    def _clients(self, producer: dict[str, Any], consumer: dict[str, Any]) -> tuple[Threaded, Threaded]:
        self._publisher = sync.Producer(lookupd=self.lookupds, **producer)
        self._reader = sync.Consumer(self.topic, self.channel, lookupd=self.lookupds, **consumer)
        self._reading: asyncio.Future[None] | None = None
        return Threaded(self._publisher), Threaded(self._reader)

    async def close(self) -> None:
        """Close both sides; the thread that reads ends with its consumer."""
        await super().close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        return await asyncio.wrap_future(self._publisher.publish_nowait(self.topic, body, key=key))

    async def _consume(self) -> None:
        await self._in_thread(handled=False)

    async def _handle(self) -> None:
        await self._in_thread(handled=True)

    async def _in_thread(self, *, handled: bool) -> None:
        loop = asyncio.get_running_loop()
        self._reading = asyncio.ensure_future(asyncio.to_thread(self._read, loop, handled=handled))
        await asyncio.shield(self._reading)

    def _read(self, loop: asyncio.AbstractEventLoop, *, handled: bool) -> None:
        def take_in_thread(message: Message) -> None:
            # The time of the thread: once finished, the next message may reach another process before the loop turns.
            key, delivery, offset = delivery_of(message)
            self.record(key, delivery, offset)
            loop.call_soon_threadsafe(self.count, key, delivery)

        def handler(message: Message) -> None:
            if self.fails(message):
                raise HandlerError
            take_in_thread(message)

        if handled:
            self._reader.run(handler, concurrency=8)
            return
        for message in self._reader:
            try:
                take_in_thread(message)
            except ValueError:  # see Load
                self.unreadable += 1
                message.requeue(0)
            else:
                message.finish()
