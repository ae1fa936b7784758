"""Handing out what arrived, one message at a time.

The invariant: it asks nothing that costs something for each message; which
event loop runs is asked once, where an iteration begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    import asyncio
    from collections import deque
    from collections.abc import Callable

    from nsq_ha.message import Message


class Owner(Protocol):
    """Whose messages they are."""

    def next_arrival(self) -> asyncio.Future[None]:
        """Return what to await until there may be a message; raises StopAsyncIteration where none comes any more."""

    async def may_be_handled(self, message: Message) -> bool:
        """Tell whether a message that was tried often is to be handed out."""


class Messages:
    """An iterator over a consumer's messages.

    Attributes:
        fine_below: A message with fewer attempts needs no further thought.
    """

    __slots__ = ("_check_loop", "_inbox", "_owner", "fine_below")

    def __init__(self, inbox: deque[Message], fine_below: int, owner: Owner, check_loop: Callable[[], None]) -> None:
        """Prepare.

        Args:
            inbox: What arrived and is not handed out.
            fine_below: A message with fewer attempts needs no further thought.
            owner: Asked about the others, and what to wait for.
            check_loop: Raises where another event loop runs than the owner's.
        """
        self._check_loop = check_loop
        self._inbox = inbox
        self.fine_below = fine_below
        self._owner = owner

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        inbox = self._inbox
        while True:
            while inbox:
                message = inbox.popleft()
                if message.attempts < self.fine_below or await self._owner.may_be_handled(message):
                    return message
            waiter = self._owner.next_arrival()
            try:
                await waiter
            except RuntimeError:  # asking each time which loop runs would cost more than the rest
                waiter.cancel()
                self._check_loop()
                raise
