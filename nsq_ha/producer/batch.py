"""Many messages in one call: cut into commands that the server takes, with an outcome for each message."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, PublishError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.policy.batching import chunks
from nsq_ha.producer.outgoing import (
    MAX_MESSAGE_BYTES,
    Outgoing,
    Prepared,
    RichBatch,
    kind_of,
    lane_key,
    plain_batch,
    prepare,
)
from nsq_ha.producer.topic import NO_KEY
from nsq_ha.protocol.encoding import body_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.outgoing import PlainBatch
    from nsq_ha.producer.topic import TopicPublisher

BATCH_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Most bytes of one MPUB; the server takes 5 MiB."""
BATCH_COUNT: Final = 10_000
"""Most messages of one MPUB."""
STEP: Final = 1_000
"""Messages with keys, traces or headers that are looked at without a halt."""


class Part:
    """One command of a batch.

    Attributes:
        outgoing: The command.
        positions: Of its messages in the batch.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        positions: Sequence[int],
        first: OutgoingMessage,
        partition: int | None,
        keys: Sequence[Hashable],
    ) -> None:
        """Keep the parts; ``partition`` None leaves the choice to the moment at which it is queued."""
        self.outgoing = outgoing
        self.positions = positions
        self._first = first
        self._partition = partition
        self._keys = keys

    def submit(self, publisher: TopicPublisher, view: TopicView) -> None:
        """Queue it."""
        partition = self._partition
        if partition is None:
            partition, _ = publisher.partition_for(self._first, view)
        publisher.submit(self.outgoing, partition, self._keys)


class Batch:
    """The messages of one call. Take :meth:`prepared` to its end, then :meth:`parts`.

    Both come to a halt every few milliseconds of work, so that a large batch can let others run.

    Args:
        topic: The topic.
        messages: As the caller gave them, one at least; kept, not copied.
        trace_id_of: Returns what a message is traced with. None for no trace.

    Attributes:
        size: Bytes of the bodies, known when it is prepared.
        is_small: It takes no longer than one command does.
    """

    def __init__(
        self,
        topic: str,
        messages: Sequence[bytes | OutgoingMessage],
        trace_id_of: Callable[[OutgoingMessage], int | None],
    ) -> None:
        self.topic = topic
        self._given = messages
        self._trace_id_of = trace_id_of
        self._parts: list[Part] = []
        self._refused: dict[int, PublishError] = {}
        self._messages: list[OutgoingMessage] = []
        self._prepared: list[Prepared] = []
        self._sizes = _plain_sizes(messages) if trace_id_of(_ANY) is None else None
        if self._sizes is None:
            self.size = 0
            self.is_small = len(messages) <= STEP
        else:
            self.size = sum(self._sizes)
            self.is_small = len(messages) <= BATCH_COUNT and self.size <= BATCH_BYTES

    def __len__(self) -> int:
        return len(self._given)

    def prepared(self) -> Iterator[None]:
        """Check the messages, halting now and then.

        Raises:
            ConfigError: A message is not legal; its position is named.
        """
        if self._sizes is not None:
            return
        for position, given in enumerate(self._given):
            message = given if isinstance(given, OutgoingMessage) else OutgoingMessage(given)
            self._messages.append(message)
            try:
                prepared = prepare(message, self._trace_id_of(message))
            except ConfigError as error:
                raise _at(position, error) from error
            self._prepared.append(prepared)
            self.size += len(prepared.body)
            if position % STEP == STEP - 1:
                yield

    def parts(self, publisher: TopicPublisher, view: TopicView) -> Iterator[Part | None]:
        """Cut it into commands: by partition and kind, within the server's limits, in order.

        The first comes when all messages are known to suit the topic.

        Yields:
            The next command. None for a mere halt.

        Raises:
            ConfigError: A message does not suit the topic; its position is named.
        """
        for part in self._rich_parts(publisher, view) if self._sizes is None else self._plain_parts(publisher, view):
            if part is not None:
                self._parts.append(part)
            yield part

    def _plain_parts(self, publisher: TopicPublisher, view: TopicView) -> Iterator[Part]:
        if view.meta is not None and view.meta.ordered:
            try:
                publisher.partition_for(_ANY, view)
            except ConfigError as error:
                raise _at(0, error) from error
        bodies: Sequence[bytes] = self._given  # type: ignore[assignment]  # or they had no sizes
        new_future = asyncio.get_running_loop().create_future
        for cut in chunks([_HEAD_BYTES + size for size in self._sizes or ()], BATCH_BYTES, BATCH_COUNT):
            yield Part(plain_batch(self.topic, bodies[cut.start : cut.stop], new_future), cut, _ANY, None, ())

    def _rich_parts(self, publisher: TopicPublisher, view: TopicView) -> Iterator[Part | None]:
        by_partition: dict[int | None, list[list[int]]] = {}
        for position, message in enumerate(self._messages):
            if position % STEP == STEP - 1:
                yield None
            try:
                check_kind(view, self._prepared[position])
                chosen, is_free = publisher.partition_for(message, view)
            except ConfigError as error:
                raise _at(position, error) from error
            except PublishError as error:
                self._refused[position] = error
                continue
            runs = by_partition.setdefault(None if is_free else chosen, [])
            if not runs or kind_of(self._prepared[runs[-1][0]]) != kind_of(self._prepared[position]):
                runs.append([])
            runs[-1].append(position)
        for partition, runs in by_partition.items():
            for run in runs:
                sizes = [self._prepared[position].wire_bytes for position in run]
                for chunk in chunks(sizes, BATCH_BYTES, BATCH_COUNT):
                    yield self._part([run[index] for index in chunk], partition)

    def _part(self, positions: Sequence[int], partition: int | None) -> Part:
        new_future = asyncio.get_running_loop().create_future
        prepared = [self._prepared[position] for position in positions]
        outgoing: Outgoing
        if kind_of(prepared[0]) == "plain":
            outgoing = plain_batch(self.topic, [message.body for message in prepared], new_future)
        else:
            outgoing = RichBatch(self.topic, prepared, new_future())
        messages = [self._messages[position] for position in positions]
        keys: list[Hashable] = []
        if partition is not None:
            keys = [NO_KEY if message.key is None else lane_key(message.key) for message in messages]
        return Part(outgoing, positions, messages[0], partition, keys)

    def results(
        self, outcomes: Sequence[list[Receipt] | PublishError], failure: PublishError | None
    ) -> list[Receipt | PublishError]:
        """Return the outcome of each message.

        Args:
            outcomes: Of the commands that were queued, in their order.
            failure: What those met that were not. None when all were.
        """
        results: list[Receipt | PublishError | None] = [failure] * len(self)
        for position, error in self._refused.items():
            results[position] = error
        for part, outcome in zip(self._parts, outcomes, strict=False):
            if isinstance(part.positions, range) and not isinstance(outcome, PublishError):
                results[part.positions.start : part.positions.stop] = outcome
                continue
            for index, position in enumerate(part.positions):
                results[position] = outcome if isinstance(outcome, PublishError) else outcome[index]
        return [result for result in results if result is not None]


_ANY: Final = OutgoingMessage(b"x")
"""Stands for a message that may go anywhere."""
_HEAD_BYTES: Final = 6


def _plain_sizes(messages: Sequence[object]) -> list[int] | None:
    """Return the sizes of bodies, all legal, as they most often are. None when one is anything else."""
    try:
        return body_sizes(messages)  # type: ignore[arg-type]  # if they are no bytes, that is told
    except ConfigError:
        return None


def as_list(messages: object) -> list[bytes | OutgoingMessage]:
    """Return the messages of one call in a list.

    Raises:
        ConfigError: They are none: a single body, a mapping, or nothing that has parts.
    """
    if isinstance(messages, bytes | bytearray | memoryview | str | Mapping) or not isinstance(messages, Iterable):
        raise ConfigError(f"messages must be a list, or another sequence of them, not {type(messages).__name__}")
    return list(messages)


def small_plain_batch(
    topic: str, messages: Sequence[object], new_future: Callable[[], asyncio.Future[list[Receipt]]]
) -> PlainBatch | None:
    """Make the one command of a small batch of bodies. None when it is not so plain: ask :class:`Batch`."""
    if not 0 < len(messages) <= BATCH_COUNT:
        return None
    first = messages[0]
    if type(first) is bytes and len(first) * len(messages) > BATCH_BYTES:
        return None  # most batches are of one kind: this one would be encoded only to be cut
    try:
        whole = plain_batch(topic, messages, new_future)  # type: ignore[arg-type]  # if they are no bytes, that is told
    except ConfigError:
        return None
    return whole if whole.size + _HEAD_BYTES * len(messages) <= BATCH_BYTES else None


def check_kind(view: TopicView, prepared: Prepared) -> None:
    """Check that the topic takes messages of this kind.

    Raises:
        ConfigError: It does not.
    """
    meta = view.meta
    if meta is None:
        return
    if prepared.ext is not None and not meta.extend_support:
        raise ConfigError(
            f"topic {view.topic!r} takes no headers or tags: create it extended (nsq-ha topic create --extended)"
        )
    if prepared.trace_id is not None and not meta.is_partitioned:
        raise ConfigError("nsqds that are named by nsqd= know no traces: use lookupd=, or trace nothing")


def _at(position: int, error: ConfigError) -> ConfigError:
    return ConfigError(f"message {position}: {error}")
