"""Hand out messages in batches.

The invariant: a message is in a batch that the application got, or with the consumer. A batch that is being filled goes
back to the consumer if the task is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, overload

from nsq_ha.checks import is_number, is_whole, shown
from nsq_ha.consumer.delivery import source_of
from nsq_ha.errors import ConfigError, NsqError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from nsq_ha.consumer.inbox import ConsumerInbox, Messages
    from nsq_ha.message import Message

MOST_MESSAGES: Final = 1_000_000

LONGEST_WAIT: Final = 86_400.0

_WHY: Final = "the wait for the rest of its batch was cancelled"


class Batch(Sequence["Message"]):
    """Messages that were handed out together.

    Answer them one by one, or all at once. ``async with batch:``, or ``with batch:`` in threads, finishes all at the
    end of the block, and requeues all after an exception; it leaves alone those that were answered in the block.

    Args:
        messages: The messages.

    Attributes:
        messages: The messages, in the order in which they arrived.
    """

    __slots__ = ("messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages: tuple[Message, ...] = tuple(messages)

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...

    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """Return one message or several."""
        return self.messages[index]

    def finish(self) -> None:
        """Finish all messages that are not answered, see :meth:`Message.finish() <nsq_ha.Message.finish>`."""
        for message in self._open():
            message.finish()

    def requeue(self, delay: float | None = None) -> None:
        """Requeue all messages that are not answered, see :meth:`Message.requeue() <nsq_ha.Message.requeue>`.

        Args:
            delay: Seconds until the redelivery. None uses the consumer's ``requeue_backoff``, and makes it pause.

        Raises:
            ConfigError: ``delay`` is not a number, is negative or too large. The messages stay unanswered.
        """
        for message in self._open():
            message.requeue(delay)

    def touch(self) -> None:
        """Restart the message timeout of all messages that are not answered."""
        for message in self._open():
            message.touch()

    def _open(self) -> list[Message]:
        # Those that the library gave back warn that an answer comes too late.
        return [each for each in self.messages if not each.answered or hasattr(each.source, "returned")]

    def __enter__(self) -> Self:
        """Return the batch; for threads, see :mod:`nsq_ha.sync`."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer all messages, as the end of ``with message:`` does."""
        for message in self.messages:
            message.__exit__(kind, error, trace)

    async def __aenter__(self) -> Self:
        """Return the batch; at the end of the block it is finished, or requeued after an exception."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer all messages, as the end of ``async with message:`` does."""
        for message in self.messages:
            await message.__aexit__(kind, error, trace)

    def __repr__(self) -> str:
        """Show the number of messages."""
        return f"<Batch of {len(self.messages)} messages>"


class Batches(AsyncIterator[Batch]):
    """An iterator over batches.

    Args:
        messages: Returns the current task's iterator over messages.
        inbox: The consumer's.
        max_messages: Most messages of a batch.
        max_wait: Seconds to wait for more after the first message.
    """

    def __init__(
        self, messages: Callable[[], Messages], inbox: ConsumerInbox, max_messages: int, max_wait: float
    ) -> None:
        self._messages = messages
        self._inbox = inbox
        self._most = max_messages
        self._wait = max_wait

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def __anext__(self) -> Coroutine[Any, Any, Batch]:
        """Return an awaitable for the next batch. Cancelling it loses no message.

        Raises:
            StopAsyncIteration: The consumer was closed.
        """
        # Not a coroutine function: the messages belong to the task that calls this, see Consumer.__anext__.
        return self._next(self._messages())

    async def _next(self, messages: Messages) -> Batch:
        while True:
            taken = [await anext(messages)]
            await self._fill(messages, taken)
            alive = [message for message in taken if source_of(message).is_alive]
            if alive:  # else their connection was lost, and nsqd delivers them again
                return Batch(alive)

    async def _fill(self, messages: Messages, taken: list[Message]) -> None:
        try:
            async with asyncio.timeout(self._wait):
                while len(taken) < self._most and not self._inbox.is_exhausted():
                    taken.append(await anext(messages))
        except (TimeoutError, StopAsyncIteration, NsqError):  # the next call raises the last two again
            return
        except BaseException:
            for message in reversed(taken):
                self._inbox.ledger.take_back(message, _WHY)
            raise


def check_batches(max_messages: object, max_wait: object) -> None:
    """Check the arguments of ``batches``.

    Raises:
        ConfigError: One is wrong.
    """
    if not is_whole(max_messages) or not 1 <= max_messages <= MOST_MESSAGES:
        raise ConfigError(f"max_messages must be an int of 1..{MOST_MESSAGES}, not {shown(max_messages)}")
    if not is_number(max_wait) or not 0 <= max_wait <= LONGEST_WAIT:
        raise ConfigError(f"max_wait must be 0..{LONGEST_WAIT:g} seconds, not {shown(max_wait)}")
