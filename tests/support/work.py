"""The two ways to consume, for tests that hold for both."""

from collections.abc import Awaitable, Callable

from nsq_ha import Consumer, Message


async def work(consumer: Consumer, handle: Callable[[Message], Awaitable[None]], *, iterates: bool) -> None:
    """Handle all messages, by iteration or by ``run``."""
    if not iterates:
        await consumer.run(handle)
        return
    async for message in consumer:
        await handle(message)
        message.finish()
