"""Many messages in one call: cut into commands that the server takes, with an outcome for each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, PublishError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.policy.batching import chunks
from nsq_ha.producer.outgoing import MAX_MESSAGE_BYTES, Outgoing, Prepared, kind_of, lane_key, prepare
from nsq_ha.producer.topic import NO_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.topic import Ticket, TopicPublisher

BATCH_BYTES: Final = 4 * MAX_MESSAGE_BYTES
"""Most bytes of one MPUB; the server takes 5 MiB."""
BATCH_COUNT: Final = 10_000
"""Most messages of one MPUB."""


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
        keys: list[Hashable],
    ) -> None:
        """Keep the parts; ``partition`` None leaves the choice to the moment at which it is queued."""
        self.outgoing = outgoing
        self.positions = positions
        self._first = first
        self._partition = partition
        self._keys = keys

    def submit(self, publisher: TopicPublisher, view: TopicView) -> Ticket:
        """Queue it."""
        partition = self._partition
        if partition is None:
            partition, _ = publisher.partition_for(self._first, view)
        return publisher.submit(self.outgoing, partition, self._keys)


class Batch:
    """The messages of one call, checked.

    Args:
        topic: The topic.
        messages: As the caller gave them.
        trace_id_of: Returns what a message is traced with. None for no trace.

    Raises:
        ConfigError: A message is not legal; its position is named.
    """

    def __init__(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        trace_id_of: Callable[[OutgoingMessage], int | None],
    ) -> None:
        self.topic = topic
        self.messages = [m if isinstance(m, OutgoingMessage) else OutgoingMessage(m) for m in messages]
        self._prepared: list[Prepared] = []
        self._parts: list[Part] = []
        self._refused: dict[int, PublishError] = {}
        for position, message in enumerate(self.messages):
            try:
                self._prepared.append(prepare(message, trace_id_of(message)))
            except ConfigError as error:
                raise _at(position, error) from error
        self.size = sum(len(prepared.body) for prepared in self._prepared)

    def parts(self, publisher: TopicPublisher, view: TopicView) -> list[Part]:
        """Cut it into commands: by partition and kind, within the server's limits, in order.

        Raises:
            ConfigError: A message does not suit the topic; its position is named.
        """
        by_partition: dict[int | None, list[list[int]]] = {}
        for position, message in enumerate(self.messages):
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
        self._parts = [
            self._part([run[index] for index in chunk], partition)
            for partition, runs in by_partition.items()
            for run in runs
            for chunk in chunks([self._prepared[position].wire_bytes for position in run], BATCH_BYTES, BATCH_COUNT)
        ]
        return self._parts

    def _part(self, positions: Sequence[int], partition: int | None) -> Part:
        future: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        outgoing = Outgoing(self.topic, [self._prepared[position] for position in positions], future, batch=True)
        messages = [self.messages[position] for position in positions]
        keys: list[Hashable] = []
        if partition is not None:
            keys = [NO_KEY if message.key is None else lane_key(message.key) for message in messages]
        return Part(outgoing, positions, messages[0], partition, keys)

    def results(
        self, outcomes: Sequence[list[Receipt] | BaseException], failure: PublishError | None
    ) -> list[Receipt | PublishError]:
        """Return the outcome of each message.

        Args:
            outcomes: Of the commands that were queued, in their order.
            failure: What those met that were not. None when all were.

        Raises:
            BaseException: An outcome that is neither receipts nor a PublishError.
        """
        results: list[Receipt | PublishError | None] = [failure] * len(self.messages)
        for position, error in self._refused.items():
            results[position] = error
        for part, outcome in zip(self._parts, outcomes, strict=False):
            if isinstance(outcome, BaseException) and not isinstance(outcome, PublishError):
                raise outcome
            for index, position in enumerate(part.positions):
                results[position] = outcome if isinstance(outcome, PublishError) else outcome[index]
        return [result for result in results if result is not None]


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
