"""Publish many messages in one call: plan the commands, queue them in order, return an outcome for each message.

The invariants: no message is queued before all are checked. A small batch is
queued in one iteration of the event loop; a large one while its topic's other
publishes wait, and gives the event loop back after every ``TURN`` seconds of work.
Messages that could not be queued within the time limit were not sent, and their
outcome says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from nsq_ha.base.clock import monotonic
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.policy.sharding import Key, lane_key
from nsq_ha.producer.requests import (
    CheckedMessage,
    check_compression,
    check_kind,
    check_message,
    check_size,
    compressing,
    in_context,
    plain_mpub,
    rich_mpub,
    single_pub,
)
from nsq_ha.producer.state import Gate
from nsq_ha.protocol.encoding import body_sizes

if TYPE_CHECKING:
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.requests import Command, MpubRequest
    from nsq_ha.producer.shell import Shell

BoundTo = Callable[[Key | None, int | None], int | None]

BATCH_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one MPUB, unless one message is larger or ``max_batch_bytes`` is lower."""
BATCH_COUNT: Final = 10_000
"""Most messages of one MPUB."""
KEY_COUNT: Final = 4_000
"""Most keys of one MPUB: they are taken and released in the partition's lane all in one go."""
RICH_COUNT: Final = 2_000
"""Most messages of one MPUB with traces or headers: each gets a receipt of its own, all in one go."""
STEP: Final = 1_000
"""Most messages with keys, traces or headers that are processed without a break for other tasks."""
TURN: Final = 0.001
"""Seconds of work after which a large batch lets other tasks run."""

_SLICE: Final = 100
"""Number of messages that are processed between two looks at the clock."""

_ANY: Final = OutgoingMessage(b"x")
"""Stands for a message that may go to any partition, and for one that is not needed anymore."""
_CHECKED: Final = CheckedMessage(b"x", None, None)
"""Takes the place of a checked message that is not needed anymore."""
_HEAD_BYTES: Final = 6
_COUNT_BYTES: Final = 4


class Part(NamedTuple):
    """One command of a batch.

    Attributes:
        request: The command; its keys are set. It is a PUB if its one message fits into no batch.
        positions: Positions of its messages in the batch.
    """

    request: Command
    positions: Sequence[int]


class _Chunk:
    """Messages of one partition and one kind that fit into one command; at least one.

    Attributes:
        messages: The messages.
        positions: Their positions in the batch.
        keys: Their keys in the partition's lane, each once.
    """

    __slots__ = ("_used", "keys", "kind", "messages", "positions")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.messages: list[CheckedMessage] = []
        self.positions: list[int] = []
        self.keys: dict[Hashable, None] = {}
        self._used = 0

    def takes(self, message: CheckedMessage, room: int) -> bool:
        """Return whether one more message fits."""
        most = BATCH_COUNT if self.kind == "plain" else RICH_COUNT
        return (
            message.kind == self.kind
            and len(self.keys) < KEY_COUNT
            and self._used + message.wire_bytes <= room
            and len(self.positions) < most
        )

    def add(self, position: int, message: CheckedMessage) -> None:
        """Append a message."""
        self.positions.append(position)
        self.messages.append(message)
        self._used += message.wire_bytes


class BatchPlan:
    """The messages of one call. Exhaust :meth:`check`, then iterate :meth:`parts`, and at last :meth:`fill`.

    All of them give a break after at most a millisecond or two of work, so that other tasks can run.

    Args:
        topic: The topic.
        messages: The messages, at least one. The list is the plan's: it loses each message when it is not needed
            anymore, since all at the end would hold the event loop.
        trace_id_of: Returns the id to trace a message with. None for no trace.
        config: The producer's options.
        context: Headers to add on an extended topic.

    Attributes:
        size: Bytes of the bodies, known after they are checked.
        is_small: Whether planning and queueing it is quick, so it needs no breaks for other tasks.
    """

    def __init__(
        self,
        topic: str,
        messages: list[bytes | OutgoingMessage],
        trace_id_of: Callable[[OutgoingMessage], int | None],
        config: ProducerConfig,
        context: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.topic = topic
        self._context = context
        self._given = messages
        self._trace_id_of = trace_id_of
        self._parts: list[Sequence[int]] = []
        self._checked: list[CheckedMessage] = []
        self._largest = config.max_message_bytes
        self._room = _room(config)
        self._alone_above = config.max_batch_bytes - _COUNT_BYTES
        self._compress = compressing(config, topic)
        self.size: int = 0
        self._sizes: list[int] | None = None  # of plain bodies, with their heads
        self._most = 0  # the size of the largest of them, without
        self._may_be_plain = trace_id_of(_ANY) is None and self._compress is None and not context
        if self._may_be_plain and len(messages) <= BATCH_COUNT:
            for _ in self._measure():
                pass
        if self._sizes is None:
            self.is_small: bool = len(messages) <= STEP
        else:
            self.is_small = len(messages) <= BATCH_COUNT and self.size <= self._room

    def __len__(self) -> int:
        return len(self._given)

    def check(self) -> Iterator[None]:
        """Check the messages, with breaks.

        Raises:
            ConfigError: A message is not valid; the text names its position.
        """
        if self._may_be_plain and self._sizes is None and len(self) > BATCH_COUNT:
            yield from self._measure()
        if self._sizes is not None:
            return
        step = 1 if self._compress is not None else _SLICE
        for position, given in enumerate(self._given):
            message = given if isinstance(given, OutgoingMessage) else OutgoingMessage(given)
            self._given[position] = message
            try:
                checked = check_message(message, self._trace_id_of(message), self._largest, self._compress)
            except ConfigError as error:
                raise at_position(position, error) from error
            self._checked.append(checked)
            self.size += len(checked.body)
            if position % step == step - 1:
                yield

    def _measure(self) -> Iterator[None]:
        """Keep the sizes if all messages are legal plain bodies, with breaks."""
        sizes: list[int] = []
        for start in range(0, len(self), BATCH_COUNT):
            found = _plain_sizes(self._given[start : start + BATCH_COUNT], self._largest)
            if found is None:
                return
            sizes += [_HEAD_BYTES + size for size in found]
            self._most = max(self._most, *found)
            yield
        self._sizes = sizes
        self.size = sum(sizes) - _HEAD_BYTES * len(sizes)

    def parts(self, view: TopicView, bound_to: BoundTo, limit: float) -> Iterator[Part | None]:
        """Plan the commands: by partition and kind, within the server's limits, in order.

        The first one comes after the topic is known to accept all messages.

        Args:
            view: The topic's.
            bound_to: Returns the only partition that a message may go to, by its key and its partition.
            limit: Seconds for each command.

        Yields:
            The next command. None for a break.

        Raises:
            ConfigError: The topic does not accept a message; the text names its position.
        """
        if self._compress is not None:
            check_compression(view)
        planned = self._rich_parts if self._sizes is None else self._plain_parts
        for part in planned(view, bound_to, limit):
            if part is not None:
                part.request.is_part = True
                self._parts.append(part.positions)
                yield None  # it has been encoded, and queueing it takes time again
            yield part

    def _plain_parts(self, view: TopicView, bound_to: BoundTo, limit: float) -> Iterator[Part]:
        sizes = self._sizes or ()
        try:
            bound_to(None, None)
        except ConfigError as error:
            raise at_position(0, error) from error
        try:
            check_size(view, self._most, None, self._largest)
        except ConfigError as error:
            raise at_position(sizes.index(_HEAD_BYTES + self._most), error) from error
        bodies: Sequence[bytes] = self._given  # type: ignore[assignment]  # otherwise there were no sizes
        for cut in _cuts(sizes, self._room):
            part = bodies[cut.start : cut.stop]
            if self._is_alone(len(part[0])):
                yield Part(single_pub(self.topic, CheckedMessage(part[0], None, None), limit), cut)
            else:
                yield Part(plain_mpub(self.topic, part, limit, self._largest), cut)

    def _rich_parts(self, view: TopicView, bound_to: BoundTo, limit: float) -> Iterator[Part | None]:
        by_partition: dict[int | None, deque[_Chunk]] = {}
        adds_context = bool(self._context) and view.meta is not None and view.meta.extend_support
        room = self._room
        for position, message in enumerate(cast("list[OutgoingMessage]", self._given)):
            if position % _SLICE == _SLICE - 1:
                yield None
            checked = self._checked[position]
            if adds_context:
                checked = in_context(checked, self._context, self._largest)
            try:
                check_kind(view, checked.trace_id, checked.ext)
                check_size(view, len(checked.body), checked.ext, self._largest)
                partition, key = bound_to(message.key, message.partition), lane_key(message.key)
            except ConfigError as error:
                raise at_position(position, error) from error
            cut = by_partition.setdefault(partition, deque())
            if not cut or not cut[-1].takes(checked, room):
                cut.append(_Chunk(checked.kind))
            cut[-1].add(position, checked)
            if partition is not None:
                cut[-1].keys[key] = None
            self._given[position] = _ANY
            self._checked[position] = _CHECKED
        for partition, cut in by_partition.items():
            while cut:  # each is freed here, and not all at the end
                yield self._part(cut.popleft(), partition, limit)

    def _part(self, chunk: _Chunk, partition: int | None, limit: float) -> Part:
        messages = chunk.messages
        request: Command
        if self._is_alone(messages[0].wire_bytes - 4):
            request = single_pub(self.topic, messages[0], limit, began_ns=time.time_ns())
        elif chunk.kind == "plain":
            request = plain_mpub(self.topic, [each.body for each in messages], limit, self._largest)
        else:
            request = rich_mpub(self.topic, messages, limit, time.time_ns())
        request.keys, request.partition = tuple(chunk.keys), partition
        return Part(request, chunk.positions)

    def _is_alone(self, size: int) -> bool:
        """Return whether a message of ``size`` bytes, the first of its command, fits into no batch."""
        return 4 + size > self._alone_above

    def fill(
        self,
        results: list[Receipt | PublishError],
        outcomes: Sequence[list[Receipt] | PublishError],
        failure: PublishError | None,
    ) -> Iterator[None]:
        """Append the outcome of each message to ``results``, with breaks.

        Args:
            results: An empty list.
            outcomes: Of the commands that were queued, in their order.
            failure: Why the other commands were not queued. None if all were.
        """
        # Each position gets its outcome below if there is no failure.
        results += [cast("PublishError", failure)] * len(self)
        for number, outcome in enumerate(outcomes):
            yield
            positions, self._parts[number] = self._parts[number], ()  # freed here, and not all at the end
            if isinstance(positions, range) and not isinstance(outcome, PublishError):
                results[positions.start : positions.stop] = outcome
                continue
            each: Sequence[Receipt | PublishError] = (
                [outcome] * len(positions) if isinstance(outcome, PublishError) else outcome
            )
            for position, result in zip(positions, each, strict=True):
                results[position] = result


class BatchCall:
    """One batch that needs several commands, or one that is not plain. Call :meth:`publish` once.

    Args:
        plan: The messages.
        shell: The producer's.
        limit: Seconds for the whole call, from now on.
    """

    def __init__(self, plan: BatchPlan, shell: Shell, limit: float) -> None:
        self._plan = plan
        self._shell = shell
        self._limit = limit
        self._topic = shell.use(plan.topic)
        self._deadline = shell.clock() + limit
        self._queued: deque[Command] = deque()
        self._turn_ends = monotonic() + TURN

    async def publish(self) -> list[Receipt | PublishError]:
        """Publish; return the outcome of each message.

        Raises:
            ConfigError: A message is not valid; the text names its position. Nothing was sent.

        If cancelled, any part of the batch may be stored.
        """
        try:
            failure = await self._queue()
            outcomes: list[list[Receipt] | PublishError] = []
            while self._queued:
                outcomes.append(await _outcome(self._queued[0]))
                self._forget(self._queued.popleft())
                await self._pause()
            results: list[Receipt | PublishError] = []
            for _ in self._plan.fill(results, outcomes, failure):
                await self._pause()
            return results
        finally:
            for request in self._queued:
                self._forget(request)

    def _forget(self, request: Command) -> None:
        if request.ticket.done() and not request.ticket.cancelled():
            request.ticket.exception()  # mark it as retrieved: the caller may be gone
        self._shell.let_go(request)

    async def _queue(self) -> PublishError | None:
        """Queue all commands; return why the last ones could not be queued, or None."""
        plan, topic, shell = self._plan, self._topic, self._shell
        if plan.is_small:
            for _ in plan.check():
                pass
            if topic.names_partitions and not topic.waiting and topic.gate is None:
                self._queue_now()
                return None
        gate = Gate(topic=plan.topic, size=0, limit=self._limit, count=len(plan))
        try:
            await shell.publish(gate)
            await self._queue_in_turns()
        except PublishError as error:
            if gate.error is None:
                topic.unsent.failed += len(plan) - sum(request.count for request in self._queued)
            return error
        finally:
            if not gate.is_over:
                shell.let_go(gate)
            shell.machine.leave_gate(gate, shell.clock())
            shell.drain()
        return None

    def _parts(self) -> Iterator[Part | None]:
        topic, machine = self._topic, self._shell.machine
        if topic.view is None:
            return iter(())
        return self._plan.parts(topic.view, partial(machine.bound_to, topic), self._deadline - self._shell.clock())

    def _queue_now(self) -> None:
        for part in self._parts():
            if part is not None:
                self._admit(part)

    async def _queue_in_turns(self) -> None:
        """Queue the commands; let other tasks run between them if the batch is large."""
        plan = self._plan
        if plan.is_small:
            self._queue_now()
            return
        for _ in plan.check():
            await self._let_others_run()
        for part in self._parts():
            await self._let_others_run()
            if part is not None:
                part.request.limit = max(self._deadline - self._shell.clock(), 0.0)
                self._admit(part)

    async def _pause(self) -> bool:
        """Let other tasks run if the turn is over; return whether they did."""
        # The loop's own clock may stand still during a turn, as uvloop's does.
        if monotonic() < self._turn_ends or self._plan.is_small:
            return False
        await asyncio.sleep(0)
        self._turn_ends = monotonic() + TURN
        return True

    async def _let_others_run(self) -> None:
        if not await self._pause():
            return
        reason: NsqError
        if self._shell.is_closed:
            reason = ClosedError("the producer was closed")
        elif self._shell.clock() < self._deadline:
            return
        else:
            self._topic.unsent.timed_out += len(self._plan) - sum(request.count for request in self._queued)
            reason = ResponseTimeoutError(
                "the time limit passed before this part of a large batch was queued: raise timeout= or publish"
                " smaller batches"
            )
        failed = PublishError(str(reason), topic=self._plan.topic, partition=None, attempts=0, maybe_stored=False)
        raise failed from reason

    def _admit(self, part: Part) -> None:
        self._shell.publish(part.request)
        self._queued.append(part.request)


async def _outcome(request: Command) -> list[Receipt] | PublishError:
    try:
        receipts: list[Receipt] = await request.ticket
    except PublishError as error:
        return error
    return receipts


def _cuts(sizes: Sequence[int], room: int) -> Iterator[range]:
    """Yield the positions of each MPUB of plain bodies of these sizes; one that is too large is alone."""
    start, used = 0, 0
    for position, size in enumerate(sizes):
        if position > start and (used + size > room or position - start >= BATCH_COUNT):
            yield range(start, position)
            start, used = position, 0
        used += size
    if start < len(sizes):
        yield range(start, len(sizes))


def _room(config: ProducerConfig) -> int:
    """Return the bytes of messages, their size words included, that one MPUB should have at most."""
    return min(BATCH_BYTES, config.max_batch_bytes - _COUNT_BYTES)


def _plain_sizes(messages: Sequence[object], largest: int) -> list[int] | None:
    """Return the sizes of plain bodies. None if one message is not a legal plain body."""
    try:
        return body_sizes(messages, largest)  # type: ignore[arg-type]  # anything but bytes raises ConfigError
    except ConfigError:
        return None


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


def single_mpub(
    topic: str,
    messages: Sequence[object],
    limit: float,
    config: ProducerConfig,
) -> MpubRequest | None:
    """Return a small batch of plain bodies as one command. None for any other batch: use :class:`BatchCall`."""
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
    return request if request.size + _HEAD_BYTES * len(messages) <= room else None


def at_position(position: int, error: ConfigError) -> ConfigError:
    """Return ``error`` with the position of its message."""
    return ConfigError(f"message {position}: {error}")
