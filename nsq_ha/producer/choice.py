"""Choose the partition of each message of a topic, and handle changes of the topic's number of partitions.

Owns the number that keys are hashed over. ``policy.growth`` decides when a new
number is due, ``policy.sharding`` hashes keys.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError, LookupUnavailableError
from nsq_ha.policy import sharding
from nsq_ha.policy.growth import PartitionCount
from nsq_ha.policy.lookup_pace import partition_delay
from nsq_ha.policy.topology import Node, TopicMeta, TopicView

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from nsq_ha.engine.shared import Connections
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.sharding import Key
    from nsq_ha.producer.sender import Sender

log: logging.Logger = logging.getLogger("nsq_ha.producer")

NEEDS_PARTITIONS: Final = (
    "key= and partition= need the partitioned server: plain nsqd has no partitions and no order. Publish without them"
)


class PartitionChoice:
    """Chooses partitions for one topic, by the view that :meth:`follow` got last.

    Args:
        topic: The topic.
        config: The producer's options.
        repartition: Knows how many partitions are in use.
        senders: The topic's senders, by partition. A partition without a sender counts as healthy.
        connections: The producer's connections.
        try_to_connect: Has a partition's sender try whether its nsqd works again.

    Attributes:
        routes: The partitions in use that accept writes.
    """

    def __init__(
        self,
        topic: str,
        config: ProducerConfig,
        repartition: Repartition,
        senders: Mapping[int, Sender],
        *,
        connections: Connections,
        try_to_connect: Callable[[int], None],
    ) -> None:
        self.routes: tuple[int, ...] = ()
        self._topic = topic
        self._strategy = config.strategy
        self._hash = sharding.hasher(config.sharding)
        self._repartition = repartition
        self._senders = senders
        self._connections = connections
        self._try_to_connect = try_to_connect
        self._turn = random.randrange(1024)  # noqa: S311 - spreads the first messages of many producers
        self._view: TopicView | None = None
        self._meta = TopicMeta(1)
        self._used = 1
        self._picks_by_load = False

    def follow(self, view: TopicView) -> None:
        """Choose by ``view`` from now on, and by the number of partitions that is in use now.

        Raises:
            LookupUnavailableError: The view names no partition.
        """
        used = self._repartition.count.used or view.partition_num
        if view is self._view and used == self._used:
            return
        if view.meta is None:
            raise LookupUnavailableError(f"no nsqlookupd named a partition of topic {self._topic!r}")
        self._view, self._meta, self._used = view, view.meta, used
        # Connections to nsqds of a plain cluster stay in use when no nsqlookupd lists one.
        open_to = view.publishable or (view.known if view.is_plain else {})
        self.routes = tuple(sorted(p for p in open_to if p < used))
        # The nsqds of a plain cluster are machines of different load, not equal shares of one topic.
        self._picks_by_load = self._strategy == "least_loaded" or (
            not view.meta.is_partitioned and len(self.routes) > 1
        )

    def partition_for(self, key: Key | None, partition: int | None) -> int:
        """Return the partition that a message names, or the one of its key; it must have one of both.

        Raises:
            ConfigError: The partition does not exist, or the sharding function does not accept the key.
        """
        meta = self._meta
        if not meta.is_partitioned:
            raise ConfigError(NEEDS_PARTITIONS)
        if partition is not None:
            if not 0 <= partition < meta.partition_num:
                raise ConfigError(
                    f"partition {partition} of {self._topic!r} does not exist: "
                    f"it has {meta.partition_num} (0..{meta.partition_num - 1})"
                )
            return partition
        return sharding.partition_of(self._hash(key), self._used)

    def bound_to(self, key: Key | None, partition: int | None) -> int | None:
        """Return the only partition that a message may go to. None if it may go to any.

        Raises:
            ConfigError: As for :meth:`partition_for`; or the topic is ordered, and the message may go to any.
        """
        if key is not None or partition is not None:
            return self.partition_for(key, partition)
        if self._meta.ordered:
            raise ConfigError(f"topic {self._topic!r} is ordered: give key= or partition=")
        return None

    def any_partition(self) -> int:
        """Choose a partition for a message that may go to any; prefer a healthy one.

        Raises:
            ConfigError: The topic is ordered.
        """
        if self._meta.ordered:
            self.bound_to(None, None)  # raises
        routes, turn = self.routes, self._turn + 1
        self._turn = turn
        if not routes:
            return turn % self._used
        chosen = self._pick(routes) if self._picks_by_load else routes[turn % len(routes)]
        sender = self._senders.get(chosen)
        if sender is not None and sender.trouble is None and sender.link.connection is not None:
            return chosen
        if self.is_healthy(chosen):
            return chosen  # it is one of the best: while a thousand connect, looking at all for each publish takes long
        best = self._best(routes)
        return chosen if chosen in best or self._is_worth_a_try(chosen) else self._pick(best)

    def other_partition(self, avoid: int) -> int:
        """Choose another partition than ``avoid``, if possible a healthy one."""
        self._turn += 1
        others = [each for each in self.routes if each != avoid]
        return self._pick(self._best(others) or range(self._used))

    def _best(self, routes: Sequence[int]) -> Sequence[int]:
        """Return the healthy ones; all if none is."""
        return [each for each in routes if self.is_healthy(each)] or routes

    def _is_worth_a_try(self, partition: int) -> bool:
        """Return whether a publish may try a partition that others are preferred to.

        An nsqd of a plain cluster that is not connected is tried without a publish.
        """
        sender = self._senders.get(partition)
        if self._meta.is_partitioned:
            return sender is not None and not self.is_healthy(partition) and sender.may_probe()
        node, connections = self._node(partition), self._connections
        if node is None or self.is_healthy(partition):
            return False
        if not connections.suspects.may_try(node.address, asyncio.get_running_loop().time()):
            return False
        if sender is not None and sender.link.connection is not None:
            return True
        self._try_to_connect(partition)
        return False

    def _node(self, partition: int) -> Node | None:
        return None if self._view is None else self._view.leaders.get(partition)

    def _pick(self, candidates: Sequence[int]) -> int:
        """Return the one whose turn it is; by load, the next one if that is less loaded.

        Two are compared, not all: a partition that looks idle because it refuses quickly must not attract every
        message.
        """
        first, second = (candidates[turn % len(candidates)] for turn in (self._turn, self._turn + 1))
        return second if self._picks_by_load and self._load(second) < self._load(first) else first

    def is_healthy(self, partition: int) -> bool:
        """Return whether a partition has no known problem."""
        sender = self._senders.get(partition)
        if sender is not None and sender.trouble is not None:
            return False
        node = None if self._meta.is_partitioned else self._node(partition)
        return node is None or node.address not in self._connections.suspects

    def _load(self, partition: int) -> int:
        sender = self._senders.get(partition)
        return 0 if sender is None else sender.load


class Repartition:
    """The number of partitions that a producer uses for one topic.

    Args:
        topic: The topic.
        config: The producer's options.

    Attributes:
        count: The number to hash over, and the one that follows it.
    """

    def __init__(self, topic: str, config: ProducerConfig) -> None:
        self._topic = topic
        self._delay = partition_delay(config.lookup_interval)
        self._loop = asyncio.get_running_loop()
        self.count: PartitionCount = PartitionCount()
        self._is_partitioned = True

    @property
    def is_calm(self) -> bool:
        """Whether no change is due. Only a new view can end this."""
        return not self.count.is_pending

    def view_changed(self, view: TopicView) -> None:
        """Use the newest view of the topic."""
        if view.meta is None:
            if not view.exists:
                # A re-created topic is a new topic: nothing in it can be out of order.
                self.count = PartitionCount()
            return
        self._is_partitioned = view.meta.is_partitioned
        delay = self._delay if self._is_partitioned else 0.0
        self.count.found(view.meta.partition_num, self._loop.time(), delay)
        if not self.count.used:
            self.count.take(self._loop.time())

    def take(self) -> None:
        """Use a new number if it is due."""
        if (
            self.count.is_pending
            and (change := self.count.take(self._loop.time())) is not None
            and self._is_partitioned
        ):
            log.warning("%s: the number of partitions changed from %d to %d, so keys move", self._topic, *change)
