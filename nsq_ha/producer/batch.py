"""Publish many messages in one call: plan the commands, queue them in order, return an outcome for each message.

The invariants: no message is queued before all are checked. A small batch is queued in one iteration of the event loop;
a large one while its topic's other publishes wait, and gives the event loop back after every ``TURN`` seconds of work.
Messages that could not be queued within the time limit were not sent, and their outcome says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from nsq_ha.base.clock import monotonic
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.policy.sharding import lane_key
from nsq_ha.producer.messages import CheckedMessage, check_accepted, check_message, compressing, in_context
from nsq_ha.producer.requests import plain_mpub, rich_mpub, single_pub
from nsq_ha.producer.state import Gate, PublishRequest

if TYPE_CHECKING:
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.producer.requests import MpubRequest
    from nsq_ha.producer.shell import ProducerShell

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one MPUB, unless ``max_batch_bytes`` is lower. A larger message gets a PUB."""
BATCH_COUNT: Final = 10_000
"""Most messages of one MPUB."""
RICH_COUNT: Final = 2_000
"""Most messages of one MPUB with traces or headers, each of which gets a receipt of its own, and most keys of one: they
are taken and released all in one go."""
STEP: Final = 1_000
"""Most messages that are checked, planned and queued without a break for other tasks."""
TURN: Final = 0.001
"""Seconds of work after which a large batch lets other tasks run."""

_SLICE: Final = 100
"""Number of messages that are processed between two looks at the clock."""
_PLAIN_BYTES: Final = 6
"""Most bytes that a plain message takes in an MPUB besides its body."""


class Part(NamedTuple):
    """One command of a batch.

    Attributes:
        request: The command; its keys are set. It is a PUB if its one message fits into no batch.
        positions: Positions of its messages in the batch.
    """

    request: PublishRequest
    positions: Sequence[int]


class _Run(msgspec.Struct, gc=False):
    """Messages in a row that go the same way: many plain bodies, or one message of any kind.

    Attributes:
        message: The first of them.
        checked: The same in its wire form.
        size: Maximum number of bytes that they take in a batch.
        bodies: The bodies. None of them for one message.
    """

    message: OutgoingMessage
    checked: CheckedMessage
    size: int
    bodies: Sequence[bytes] = ()


class _Chunk:
    """Messages of one partition and one kind that fit into one command; at least one."""

    __slots__ = ("keys", "kind", "messages", "positions", "used")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.messages: list[Any] = []  # bodies if they are plain
        self.positions: list[int] = []
        self.keys: dict[Hashable, None] = {}
        self.used = 0

    def takes(self, kind: str, size: int, count: int, room: int) -> bool:
        """Return whether more messages fit."""
        most = BATCH_COUNT if kind == "plain" else RICH_COUNT
        is_full = len(self.positions) + count > most or len(self.keys) >= RICH_COUNT
        return kind == self.kind and not is_full and self.used + size <= room


class PublishBatch:
    """One batch that needs several commands, or one that is not plain. Call :meth:`publish` once.

    Args:
        shell: The producer's.
        topic: The topic.
        messages: The messages, at least one.
        trace_id_of: Returns the id to trace a message with. None for no trace.
        config: The producer's options.
        limit: Seconds for the whole call, from now on.
        context: Headers to add on an extended topic.
    """

    def __init__(  # noqa: PLR0917 - what a call is made of
        self,
        shell: ProducerShell,
        topic: str,
        messages: Sequence[bytes | OutgoingMessage],
        trace_id_of: Callable[[OutgoingMessage], int | None],
        config: ProducerConfig,
        limit: float,
        context: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._shell, self._topic, self._name = shell, shell.use(topic), topic
        self._limit, self._deadline = limit, shell.clock() + limit
        self._given = messages
        self._trace_id_of, self._context = trace_id_of, context
        self._runs: list[_Run] = []
        self._largest, self._room = config.max_message_bytes, _room(config)
        self._compress = compressing(config, topic)
        self._queued: list[Part] = []
        self._is_small = len(messages) <= STEP
        self._turn_ends = monotonic() + TURN

    def check(self) -> Iterator[None]:
        """Check the messages, unless that is done.

        Raises:
            ConfigError: A message is not valid; the text names its position.
        """
        if self._runs:
            return
        step = 1 if self._compress is not None else _SLICE
        for start in range(0, len(self._given), step):
            some = self._given[start : start + step]
            if not self._check_plain(some):
                for position, given in enumerate(some, start):
                    message = given if isinstance(given, OutgoingMessage) else OutgoingMessage(given)
                    try:
                        checked = check_message(message, self._trace_id_of(message), self._largest, self._compress)
                    except ConfigError as error:
                        raise at_position(position, error) from error
                    self._runs.append(_Run(message, checked, checked.wire_bytes))
            yield

    def _check_plain(self, some: Sequence[Any]) -> bool:
        """Take messages together if they are bodies that any topic accepts, and fit into one command."""
        message = OutgoingMessage(some[0])
        if set(map(type, some)) != {bytes} or self._context or self._compress or self._trace_id_of(message) is not None:
            return False
        size = sum(map(len, some)) + _PLAIN_BYTES * len(some)
        # An extended topic takes a byte less than others.
        if not all(some) or max(map(len, some)) >= self._largest or size > self._room:
            return False
        self._runs.append(_Run(message, CheckedMessage(message.body), size, some))
        return True

    def parts(self) -> Iterator[Part | None]:
        """Plan the commands: by partition and kind, within the server's limits, in order.

        The first one comes after the topic is known to accept all messages. Call :meth:`check` before.

        Yields:
            The next command. None for a break.

        Raises:
            ConfigError: The topic does not accept a message; the text names its position.
        """
        by_partition: dict[int | None, list[_Chunk]] = {}
        view, bound_to = self._topic.view, self._shell.machine.bound_to
        adds_context = bool(self._context) and view.meta is not None and view.meta.extend_support
        compresses, position = self._compress is not None, 0
        for run in self._runs:
            message, checked, size = run.message, run.checked, run.size
            if position % _SLICE == 0:
                yield None
            if adds_context:
                checked = in_context(checked, self._context, self._largest)
                size = checked.wire_bytes
            try:
                check_accepted(view, checked, self._largest, compresses=compresses)
                partition = bound_to(self._topic, message.key, message.partition)
                key = None if partition is None else lane_key(message.key)
            except ConfigError as error:
                raise at_position(position, error) from error
            kind, count = checked.kind, len(run.bodies) or 1
            chunks = by_partition.setdefault(partition, [])
            if not chunks or not chunks[-1].takes(kind, size, count, self._room):
                chunks.append(_Chunk(kind))
            chunk = chunks[-1]
            if run.bodies:
                chunk.messages += run.bodies
                chunk.positions += range(position, position + count)
            else:
                chunk.messages.append(checked.body if kind == "plain" else checked)
                chunk.positions.append(position)
            chunk.used += size
            if partition is not None:
                chunk.keys[key] = None
            position += count
        for partition, chunks in by_partition.items():
            for chunk in chunks:
                part = self._part(chunk, partition)
                yield None  # it has been encoded, and queueing it takes time again
                yield part

    def _part(self, chunk: _Chunk, partition: int | None) -> Part:
        topic, limit = self._name, self._limit
        messages = chunk.messages
        request: PublishRequest
        if chunk.used > self._room:  # it fits into no batch
            message = CheckedMessage(messages[0]) if chunk.kind == "plain" else messages[0]
            request = single_pub(topic, message, limit, time.time_ns())
        elif chunk.kind == "plain":
            request = plain_mpub(topic, messages, limit, self._largest)
        else:
            request = rich_mpub(topic, messages, limit, time.time_ns())
        request.keys, request.partition, request.is_part = tuple(chunk.keys), partition, True
        return Part(request, chunk.positions)

    async def publish(self) -> list[Receipt | PublishError]:
        """Publish; return the outcome of each message.

        Raises:
            ConfigError: A message is not valid; the text names its position. Nothing was sent.

        If cancelled, any part of the batch may be stored.
        """
        try:
            failure = await self._queue()
            # Each position gets its outcome below if there is no failure.
            results: list[Receipt | PublishError] = [failure] * len(self._given)  # type: ignore[list-item]
            for request, positions in self._queued:
                outcome = await _outcome(request)
                for position, result in zip(positions, outcome, strict=True):
                    results[position] = result
                await self._pause()
            return results
        finally:
            for request, _ in self._queued:
                self._shell.let_go(request)

    async def _queue(self) -> PublishError | None:
        """Queue all commands; return why the last ones could not be queued, or None."""
        topic, shell = self._topic, self._shell
        if self._is_small:
            for _ in self.check():
                pass
            if topic.names_partitions and not topic.waiting and topic.gate is None:
                for part in self.parts():
                    self._admit(part)
                return None
        gate = Gate(topic=self._name, size=0, limit=self._limit, count=len(self._given))
        try:
            await shell.publish(gate)
            for _ in self.check():
                await self._let_others_run()
            for part in self.parts():
                await self._let_others_run()
                self._admit(part)
        except PublishError as error:
            if gate.error is None:
                topic.unsent.failed += self._unqueued
            return error
        finally:
            if not gate.is_over:
                shell.let_go(gate)
            shell.machine.leave_gate(gate, shell.clock())
            shell.drain()
        return None

    @property
    def _unqueued(self) -> int:
        return len(self._given) - sum(part.request.count for part in self._queued)

    def _admit(self, part: Part | None) -> None:
        if part is not None:
            part.request.limit = max(self._deadline - self._shell.clock(), 0.0)
            self._shell.publish(part.request)
            self._queued.append(part)

    async def _pause(self) -> None:
        """Let other tasks run if the turn is over."""
        # The loop's own clock may stand still during a turn, as uvloop's does.
        if not self._is_small and monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = monotonic() + TURN

    async def _let_others_run(self) -> None:
        """Let other tasks run if the turn is over.

        Raises:
            PublishError: The time limit has passed, or the producer was closed.
        """
        await self._pause()
        reason: NsqError
        if self._shell.is_closed:
            reason = ClosedError("the producer was closed")
        elif self._shell.clock() < self._deadline:
            return
        else:
            self._topic.unsent.timed_out += self._unqueued
            reason = ResponseTimeoutError(
                "the time limit passed before this part of a large batch was queued: raise timeout= or publish"
                " smaller batches"
            )
        failed = PublishError(str(reason), topic=self._name, partition=None, attempts=0, maybe_stored=False)
        raise failed from reason


async def _outcome(request: PublishRequest) -> Sequence[Receipt | PublishError]:
    try:
        receipts: list[Receipt] = await request.ticket
    except PublishError as error:
        return [error] * request.count
    return receipts


def _room(config: ProducerConfig) -> int:
    """Return the bytes of messages, their size words included, that one MPUB has at most."""
    return min(BATCH_BYTES, config.max_batch_bytes - 4)  # the word with their number is part of the body


def as_list(messages: object) -> list[bytes | OutgoingMessage]:
    """Return the messages of one call as a list.

    Raises:
        ConfigError: They are a single body, a mapping, or not iterable.
    """
    if type(messages) is list:  # the usual case, without the slow looks at abstract classes
        return messages.copy()
    if isinstance(messages, bytes | bytearray | memoryview | str | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages must be a list or another iterable of messages, not {type(messages).__name__}")
    return list(messages)


def single_mpub(topic: str, messages: Sequence[object], limit: float, config: ProducerConfig) -> MpubRequest | None:
    """Return a small batch of plain bodies as one command. None for any other batch: use :class:`PublishBatch`."""
    room = _room(config)
    if not 0 < len(messages) <= BATCH_COUNT:
        return None
    first = messages[0]
    if type(first) is bytes and len(first) * len(messages) > room:
        return None  # most batches are uniform: encoding this one would be wasted
    try:
        # Anything but bytes raises. An extended topic takes a byte less than others.
        request = plain_mpub(topic, messages, limit, config.max_message_bytes - 1)  # type: ignore[arg-type]
    except ConfigError:
        return None
    return request if request.size + _PLAIN_BYTES * len(messages) <= room else None


def at_position(position: int, error: ConfigError) -> ConfigError:
    """Return ``error`` with the position of its message."""
    return ConfigError(f"message {position}: {error}")
