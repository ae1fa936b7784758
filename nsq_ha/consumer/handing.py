"""Hand out messages to tasks that iterate, and to handlers.

The invariants: a message is handed out only while its connection is open. The running event loop is checked when an
iteration begins, not for each message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

from nsq_ha.base.clock import monotonic
from nsq_ha.base.threads import in_thread
from nsq_ha.consumer.answers import CLOSED
from nsq_ha.consumer.clock import LONGEST_RUN
from nsq_ha.consumer.giving_up import checked_from
from nsq_ha.consumer.inflight import Recipient, conn_of
from nsq_ha.consumer.pause import PauseState
from nsq_ha.errors import BodyError, ConfigError
from nsq_ha.message import State
from nsq_ha.policy.redelivery import requeue_delay
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, MARK, PackedBody, packed_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.message import Message


class Messages(Recipient):
    """An iterator over a consumer's messages.

    Args:
        hands: Those of the consumer.
        is_handler: Handlers take the messages.
    """

    def __init__(self, hands: Hands, *, is_handler: bool = False) -> None:
        super().__init__(is_handler=is_handler)
        self._hands = hands
        self._take, self._queue = hands.shell.machine.take, hands.shell.machine.queue
        self._clock = hands.shell.clock

    def __aiter__(self) -> Self:
        """Iterate."""
        return self

    def take_now(self) -> Message | None:
        """Return the next message. None if there is none, or it needs time."""
        hands, now = self._hands, monotonic()
        if not self._queue or now - self._clock.turned > LONGEST_RUN:
            return None
        first = self._queue[0]
        if first.attempts >= hands.checked_from or (first.ext is not None and hands.expands and MARK in first.ext):
            return None
        return self._take(self, now)

    async def __anext__(self) -> Message:
        """Hand out the next message, see :meth:`nsq_ha.Consumer.__anext__`."""
        while (message := self.take_now()) is None:
            if self._queue:
                await self._clock.let_others_run()
                message = self._take(self, monotonic())
            if message is None:
                await self._hands.arrival(self)
            elif await self._hands.may_be_handled(message):
                return message
        return message


class Hands:
    """The tasks that take a consumer's messages, and what a message needs before it is handed out.

    Args:
        shell: The consumer's.
        check_loop: Raises if the running event loop is not the consumer's.

    Attributes:
        shell: The consumer's.
        checked_from: Number of attempts from which on a message may be given up.
        expands: Bodies may be compressed.
    """

    def __init__(self, shell: ConsumerShell, check_loop: Callable[[], None]) -> None:
        self.shell: ConsumerShell = shell
        self.checked_from: int = checked_from(shell.config)
        self.expands: bool = shell.config.decompress
        self._check_loop = check_loop
        self._by_task: WeakKeyDictionary[asyncio.Task[object], Messages] = WeakKeyDictionary()
        self._expanding_bytes = 0  # what bodies may become that are being expanded in threads

    # ------------------------------------------------------------ who takes messages

    def of_task(self) -> Messages:
        """Return the current task's iterator, so that the messages of an ended task are known.

        Raises:
            ConfigError: ``run`` takes the messages.
        """
        task = asyncio.current_task()
        if not self.shell.is_open and not self.shell.closing.is_set():
            return Messages(self)
        self.check_iterable()
        if task is None:
            return Messages(self)
        found = self._by_task.get(task)
        if found is None:
            found = self._by_task[task] = Messages(self)
            task.add_done_callback(self._ended)
        return found

    def _ended(self, task: asyncio.Task[object]) -> None:
        iterator = self._by_task.pop(task, None)
        if iterator is not None:
            iterator.is_over = True
            self.shell.changed.set()

    def leave(self, task: asyncio.Task[object] | None, *, has_failed: bool) -> None:
        """Record that ``task`` answers no more messages.

        Args:
            task: The task, which waits for the close.
            has_failed: An exception leaves the block, which counts as a failed attempt; a close does not.
        """
        iterator = None if task is None else self._by_task.get(task)
        if iterator is not None:
            iterator.is_over, iterator.has_failed = True, has_failed
        self.shell.changed.set()

    def forget(self) -> None:
        """Forget all tasks."""
        for task in tuple(self._by_task):
            task.remove_done_callback(self._ended)
        self._by_task.clear()

    def check_iterable(self) -> None:
        """Check that ``run`` does not take the messages.

        Raises:
            ConfigError: It does.
        """
        shell = self.shell
        if shell.machine.is_run and not shell.closing.is_set():
            raise ConfigError(
                f"{shell.name} cannot be iterated while run() hands its messages to a handler: iterate before or after"
                f" run(), or make another Consumer"
            )

    # ------------------------------------------------------------ what iterators ask

    def is_exhausted(self) -> bool:
        """Return whether no message will come until one is answered."""
        machine = self.shell.machine
        if machine.pause.state is PauseState.IN_TEST:
            return True
        return not machine.queue and machine.flow.is_full

    def arrival(self, taker: Recipient) -> asyncio.Future[None]:
        """Return a future that completes when there may be a message; then check again. Cancelling it loses nothing.

        Raises:
            StopAsyncIteration: The consumer was closed.
            ConfigError: ``run`` takes the messages, or another event loop runs.
        """
        shell = self.shell
        if asyncio.get_running_loop() is not shell.loop:  # not before: it would cost more than the rest
            self._check_loop()
        if not shell.is_open:
            if shell.closing.is_set() and shell.failure is None:
                raise StopAsyncIteration
            shell.check_open()
        machine = shell.machine
        if not taker.is_handler:
            self.check_iterable()
            if machine.flow.is_held and not machine.is_run:
                machine.flow.hold(monotonic(), is_held=False)
            if not machine.queue:
                machine.flow.emptied(monotonic())
        if not shell.is_due:
            shell.due()
        waiter = asyncio.get_running_loop().create_future()
        # Without cancelled ones; otherwise they would pile up while nothing arrives.
        shell.waiters = [*(each for each in shell.waiters if not each.done()), waiter]
        return waiter

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message; if not, it is answered or will be redelivered."""
        try:
            if message.attempts >= self.checked_from and not await self.shell.giving_up.may_be_handled(message):
                return False
            header = message.ext
            return not self.expands or header is None or MARK not in header or await self._expanded(message, header)
        except asyncio.CancelledError:
            self.shell.take_back(message, "the task that waited for it was cancelled")
            raise

    async def _expanded(self, message: Message, ext: bytes) -> bool:
        """Decompress the body of a message if it is compressed; return False if it counts as failed."""
        shell = self.shell
        try:
            packed = packed_body(message.body, ext, shell.config.max_decompressed_bytes)
            if packed is None:
                return True
            body = await self._expand(packed)
        except ValueError as error:
            delay = requeue_delay(shell.config, message.attempts, is_ordered=conn_of(message).is_ordered)
            failure = BodyError(
                "cannot be decompressed",
                f"it {error}",
                topic=message.topic,
                partition=message.partition,
                message_id=message.internal_id,
            )
            await shell.giving_up.unreadable(message, failure, delay)
            return False
        if shell.closing.is_set():
            shell.take_back(message, CLOSED)
            return False
        if message.answered or message.state is State.ORPHANED:  # its connection was lost meanwhile
            return False
        message.compressed = (message.body, ext)
        message.body, message.ext = body, packed.ext
        shell.machine.flow.seen(len(body), monotonic())
        shell.due()
        return True

    async def _expand(self, packed: PackedBody) -> bytes:
        """Expand a body once it has room, in a thread if it is large.

        RDY cannot limit what bodies expand to. So they wait here, as they would wait at nsqd if they were that large.
        A cancellation leaves the message to the next caller.
        """
        shell = self.shell
        while self._is_crowded(packed.bound) and not shell.closing.is_set():
            shell.is_watched = True
            shell.changed.clear()
            await shell.changed.wait()
        if packed.bound <= AT_ONCE_BYTES:
            return packed.expand()
        self._expanding_bytes += packed.bound
        try:
            return await in_thread(packed.expand)
        finally:
            self._expanding_bytes -= packed.bound

    def _is_crowded(self, more: int) -> bool:
        machine = self.shell.machine
        expanded = machine.expanded_bytes() + self._expanding_bytes
        return expanded > 0 and expanded + more > machine.flow.max_bytes

    def held_bytes(self) -> int:
        """Return the bytes of all bodies that wait here, or were handed out and are unanswered as far as is known.

        Compressed bodies count as they are, and expanded ones as they became.
        """
        return self.shell.machine.held_bytes() + self._expanding_bytes
