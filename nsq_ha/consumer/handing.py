"""What must hold before a message is waited for, and what it needs before it is handed out.

The invariant: a message is handed out only while its connection is open.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.base.threads import in_thread
from nsq_ha.consumer.answers import CLOSED
from nsq_ha.consumer.giving_up import checked_from
from nsq_ha.consumer.inflight import conn_of
from nsq_ha.consumer.pause import PauseState
from nsq_ha.errors import BodyError, ConfigError
from nsq_ha.message import State
from nsq_ha.policy.redelivery import requeue_delay
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, MARK, PackedBody, packed_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.inflight import Recipient
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.message import Message


class Hands:
    """What comes before a message is handed out: checks, a decision to give it up, and the expansion of its body.

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
        self._expanding_bytes = 0  # what bodies may become that are being expanded in threads

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

    def is_exhausted(self) -> bool:
        """Return whether no message will come until one is answered."""
        machine = self.shell.machine
        if machine.pause.state is PauseState.IN_TEST:
            return True
        return not machine.queue and machine.flow.is_full

    def check_waits(self, taker: Recipient) -> None:
        """Check that somebody may wait for a message; a task that iterates asks for messages now.

        Raises:
            StopAsyncIteration: The consumer was closed.
            ConfigError: ``run`` takes the messages, or another event loop runs.
        """
        shell = self.shell
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
