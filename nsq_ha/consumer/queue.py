"""Messages that arrived and wait, and the tasks that wait for messages.

A single waiting task is resumed inside the call that brings messages (``nsq_ha.base.resuming``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from nsq_ha.base.resuming import complete
from nsq_ha.policy.backlog import Ages

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Message


class MessageQueue:
    """The messages of one consumer that were not handed out, the oldest first.

    Attributes:
        messages: The messages. Empty from :meth:`close` on.
        unseen: The same, and those that arrive after :meth:`close`: nobody will get them.
        ages: Their arrival times.
        fine_below: A message with fewer attempts needs no check when it is handed out, if it is no suspect.
        suspects: Ids of messages of which a copy may come that its attempts do not reveal. The check then compares
            identities.
    """

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.unseen: deque[Message] = self.messages
        self.ages: Ages = Ages()
        self.fine_below: int = 0
        self.suspects: set[bytes] = set()
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def is_next_fine(self) -> bool:
        """Whether there is a message that needs no check."""
        messages = self.messages
        return bool(messages) and messages[0].attempts < self.fine_below and messages[0].id not in self.suspects

    def next_arrived_at(self) -> float:
        """Return when the message that was just taken from the head arrived."""
        return self.ages.head(len(self.messages) + 1)

    def put_back(self, message: Message, arrived_at: float) -> None:
        """Put a message that was taken but not handed out back at the head."""
        self.messages.appendleft(message)
        self.ages.put_back(arrived_at, len(self.messages))

    def remove(self, is_unwanted: Callable[[Message], bool]) -> list[Message]:
        """Remove and return some messages."""
        removed = [message for message in self.unseen if is_unwanted(message)]
        if removed:
            before = len(self.unseen)
            kept = [message for message in self.unseen if not is_unwanted(message)]
            self.unseen.clear()
            self.unseen.extend(kept)
            if self.unseen is self.messages:
                self.ages.removed(before, len(kept))
        return removed

    def close(self, parked: list[Message]) -> None:
        """Hand out nothing more; ``parked`` are messages that would have been handed out before the others."""
        self.unseen = deque((*parked, *self.messages))
        self.messages.clear()

    # -- tasks that wait

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for the next message."""
        return any(not waiter.done() for waiter in self._waiters)

    def arrival(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """Return a future of ``loop`` that the next :meth:`wake` or :meth:`wake_now` completes; then check again.

        Cancelling it loses nothing.
        """
        if self._waiters:  # remove cancelled ones; otherwise they would pile up while nothing arrives
            self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        waiter = loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def wake(self) -> None:
        """Resume all waiters in the next turn of the loop."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wake_now(self) -> None:
        """Resume the only waiter inside this call if no task is running; else resume all in the next turn."""
        waiters = self._waiters
        if not waiters:
            return
        first = waiters[0]
        if len(waiters) > 1 or first.done():
            self.wake()
            return
        waiters.clear()
        complete(first)
