"""Handing out what arrived, one message at a time.

The invariant: it asks nothing that costs something for each message; which
event loop runs is asked once, where an iteration begins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
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
        fine_below: A message with fewer attempts needs no check.
        held: The message handed out last. None while the task waits for the next one.
    """

    __slots__ = ("__weakref__", "_check_loop", "_inbox", "_owner", "fine_below", "held")

    def __init__(self, inbox: deque[Message], fine_below: int, owner: Owner, check_loop: Callable[[], None]) -> None:
        """Prepare.

        Args:
            inbox: What arrived and is not handed out.
            fine_below: A message with fewer attempts needs no check.
            owner: Asked about the others, and what to wait for.
            check_loop: Raises where another event loop runs than the owner's.
        """
        self._check_loop = check_loop
        self._inbox = inbox
        self.fine_below = fine_below
        self._owner = owner
        self.held: Message | None = None

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def take_now(self) -> Message | None:
        """Return the next message, or None if that takes more than a look at it."""
        inbox = self._inbox
        if inbox and inbox[0].attempts < self.fine_below:
            return inbox.popleft()
        return None

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        inbox = self._inbox
        while True:
            while inbox:
                message = inbox.popleft()
                if message.attempts >= self.fine_below:
                    self.held = None
                    if not await self._owner.may_be_handled(message):
                        continue
                self.held = message
                return message
            self.held = None
            waiter = self._owner.next_arrival()
            try:
                await waiter
            except RuntimeError:  # asking each time which loop runs would cost more than the rest
                waiter.cancel()
                self._check_loop()
                raise


class Iterations:
    """One iterator per task, so that the message of a task that fails is known."""

    def __init__(self, inbox: deque[Message], fine_below: int, owner: Owner, check_loop: Callable[[], None]) -> None:
        """Take the same arguments as :class:`Messages`."""
        self._inbox = inbox
        self._fine_below = fine_below
        self._owner = owner
        self._check_loop = check_loop
        self._all: WeakSet[Messages] = WeakSet()
        self._by_task: WeakKeyDictionary[asyncio.Task[object], Messages] = WeakKeyDictionary()

    @property
    def fine_below(self) -> int:
        """A message with fewer attempts needs no check; the same for all iterators."""
        return self._fine_below

    @fine_below.setter
    def fine_below(self, attempts: int) -> None:
        self._fine_below = attempts
        for iterator in self._all:
            iterator.fine_below = attempts

    def new(self) -> Messages:
        """Return an iterator whose caller answers messages itself."""
        iterator = Messages(self._inbox, self._fine_below, self._owner, self._check_loop)
        self._all.add(iterator)
        return iterator

    def of_task(self) -> Messages:
        """Return the current task's iterator."""
        task = asyncio.current_task()
        if task is None:
            return self.new()
        found = self._by_task.get(task)
        if found is None:
            found = self._by_task[task] = self.new()
        return found

    def held(self) -> Message | None:
        """Return the current task's unanswered message, or None."""
        task = asyncio.current_task()
        found = self._by_task.get(task) if task is not None else None
        message = found.held if found is not None else None
        return message if message is not None and not message.answered else None

    def forget(self) -> None:
        """Drop references; the garbage collector does not look inside messages, so it finds no cycle."""
        for iterator in self._all:
            iterator.held = None
