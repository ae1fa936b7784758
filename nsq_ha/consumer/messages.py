"""Hand out messages one at a time.

The invariant: no costly check for each message. The running event loop is
checked once, when an iteration begins.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, Self
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from nsq_ha.message import Message

_MANY: Final = 32
"""Messages to keep before the answered ones are removed."""


class Owner(Protocol):
    """The owner of the messages; ``consumer.inbox`` implements it."""

    def next_arrival(self) -> asyncio.Future[None]:
        """Return a future to await until there may be a message; raise StopAsyncIteration if none will come."""

    def check_iterable(self) -> None:
        """Raise ConfigError if a task may not iterate now."""

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message that needs a check."""


class Messages:
    """An iterator over a consumer's messages.

    Args:
        inbox: Messages that arrived and were not handed out.
        fine_below: A message with fewer attempts needs no check.
        owner: Checks the other messages, and returns the future to wait for.
        check_loop: Raises if the running event loop is not the owner's.
        is_of_task: One task iterates and answers, so keep track of its unanswered messages.

    Attributes:
        fine_below: A message with fewer attempts needs no check.
    """

    __slots__ = (
        "__weakref__",
        "_check_loop",
        "_inbox",
        "_is_of_task",
        "_kept",
        "_last",
        "_most",
        "_owner",
        "fine_below",
    )

    def __init__(
        self,
        inbox: deque[Message],
        fine_below: int,
        owner: Owner,
        check_loop: Callable[[], None],
        *,
        is_of_task: bool = False,
    ) -> None:
        self._check_loop = check_loop
        self._inbox = inbox
        self.fine_below: int = fine_below
        self._owner = owner
        self._is_of_task = is_of_task
        self._last: Message | None = None
        self._kept: list[Message] = []  # handed out before the last one, and unanswered when the next was requested
        self._most = _MANY

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def take_now(self) -> Message | None:
        """Return the next message. None if there is none or it needs a check."""
        inbox = self._inbox
        if inbox and inbox[0].attempts < self.fine_below:
            return inbox.popleft()
        return None

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        last = self._last
        if last is not None and not last.answered:
            self._keep(last)
        inbox = self._inbox
        while True:
            while inbox:
                message = inbox.popleft()
                if message.attempts >= self.fine_below:
                    self._last = None
                    if not await self._owner.may_be_handled(message):
                        continue
                self._last = message
                return message
            self._last = None
            if self._is_of_task:
                self._owner.check_iterable()
                if self._kept:
                    self._forget_answered()
            waiter = self._owner.next_arrival()
            try:
                await waiter
            except RuntimeError:  # checking the running loop each time would cost more than the rest
                waiter.cancel()
                self._check_loop()
                raise

    def unanswered(self) -> list[Message]:
        """Return the messages that were handed out and can still be answered."""
        return [message for message in (*self._kept, self._last) if message is not None and _is_open(message)]

    def forget(self) -> None:
        """Drop references to messages."""
        self._last = None
        self._kept = []

    def _keep(self, message: Message) -> None:
        if self._is_of_task:
            self._kept.append(message)
            if len(self._kept) > self._most:
                self._forget_answered()

    def _forget_answered(self) -> None:
        self._kept = [message for message in self._kept if _is_open(message)]
        self._most = 2 * len(self._kept) + _MANY


class Iterations:
    """One iterator per task, so that the messages of an ended task are known. Args are those of :class:`Messages`."""

    def __init__(self, inbox: deque[Message], fine_below: int, owner: Owner, check_loop: Callable[[], None]) -> None:
        self._inbox = inbox
        self._fine_below = fine_below
        self._owner = owner
        self._check_loop = check_loop
        self._all: WeakSet[Messages] = WeakSet()
        self._by_task: WeakKeyDictionary[asyncio.Task[object], Messages] = WeakKeyDictionary()
        self._orphans: list[Message] = []  # unanswered messages of tasks that have ended; nothing else may hold those
        self._most_orphans = _MANY

    @property
    def fine_below(self) -> int:
        """A message with fewer attempts needs no check; the same for all iterators."""
        return self._fine_below

    @fine_below.setter
    def fine_below(self, attempts: int) -> None:
        self._fine_below = attempts
        for iterator in self._all:
            iterator.fine_below = attempts

    def new(self, *, is_of_task: bool = False) -> Messages:
        """Return an iterator; with ``is_of_task`` it keeps track of unanswered messages."""
        iterator = Messages(self._inbox, self._fine_below, self._owner, self._check_loop, is_of_task=is_of_task)
        self._all.add(iterator)
        return iterator

    def of_task(self) -> Messages:
        """Return the current task's iterator."""
        task = asyncio.current_task()
        if task is None:
            return self.new()
        found = self._by_task.get(task)
        if found is None:
            found = self._by_task[task] = self.new(is_of_task=True)
            task.add_done_callback(self._ended)
        return found

    def _ended(self, task: asyncio.Task[object]) -> None:
        iterator = self._by_task.pop(task, None)
        if iterator is None:
            return
        self._orphans += iterator.unanswered()
        if len(self._orphans) > self._most_orphans:
            self._orphans = [message for message in self._orphans if _is_open(message)]
            self._most_orphans = 2 * len(self._orphans) + _MANY

    def tasks(self) -> list[asyncio.Task[object]]:
        """Return the tasks that iterated and have not ended."""
        return [task for task in self._by_task if not task.done()]

    def held(self) -> list[Message]:
        """Return the unanswered messages of the tasks that have not ended."""
        return [
            message for task, iterator in self._by_task.items() if not task.done() for message in iterator.unanswered()
        ]

    def is_any_held(self) -> bool:
        """Return whether a task that has not ended holds an unanswered message."""
        return any(not task.done() and iterator.unanswered() for task, iterator in self._by_task.items())

    def take(self, leaving: asyncio.Task[object] | None) -> list[Message]:
        """Remove and return the unanswered messages of ``leaving`` and of all tasks that have ended."""
        taken, self._orphans = [message for message in self._orphans if _is_open(message)], []
        for task, iterator in self._by_task.items():
            if task is leaving or task.done():
                taken += iterator.unanswered()
                iterator.forget()
        return taken

    def forget(self) -> None:
        """Drop references; the garbage collector does not look inside messages, so it finds no cycle."""
        for iterator in self._all:
            iterator.forget()
        self._orphans.clear()
        for task in self._by_task:
            task.remove_done_callback(self._ended)


def _is_open(message: Message) -> bool:
    return not message.answered and getattr(message.source, "is_alive", True)
