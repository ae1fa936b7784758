"""Choose the partition of a topic for each message."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from nsq_ha.errors import ConfigError, LookupUnavailableError
from nsq_ha.policy import sharding
from nsq_ha.policy.choice import least_loaded, round_robin

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.sharding import Key
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.limits import Request
    from nsq_ha.producer.repartition import Repartition
    from nsq_ha.producer.sender import Sender


class PartitionChoice:
    """Chooses partitions for one topic.

    Args:
        topic: The topic.
        config: The producer's options.
        repartition: Knows how many partitions are in use.
        senders: The topic's senders, by partition. A partition without a sender counts as healthy.

    Attributes:
        routes: The partitions in use that accept writes, according to the last view.
    """

    def __init__(
        self, topic: str, config: ProducerConfig, repartition: Repartition, senders: Mapping[int, Sender]
    ) -> None:
        self.routes: tuple[int, ...] = ()
        self._topic = topic
        self._is_round_robin = config.strategy == "round_robin"
        self._is_own_hash = callable(config.sharding)
        self._hash = sharding.hasher(config.sharding)
        self._repartition = repartition
        self._senders = senders
        self._turn = random.randrange(1024)  # noqa: S311 - spreads the first messages of many producers
        self._is_plain = False
        self._routes_of: TopicView | None = None
        self._routes_used = 0
        self._takes_keyless = self._takes_keys = False
        self._calm_view: TopicView | None = None

    def partition_for(self, key: Key | None, partition: int | None, view: TopicView) -> tuple[int, bool]:
        """Choose the partition of a message.

        Args:
            key: The message's key.
            partition: The partition that the message names.
            view: The topic's view.

        Returns:
            The partition, and whether the message may go to another one.

        Raises:
            ConfigError: The partition does not exist, the sharding function does
                not accept the key, or the topic is ordered and gets neither.
            PublishError: The number of partitions changed, and keys are refused since then.
        """
        meta = view.meta
        if meta is None:
            raise LookupUnavailableError(f"no nsqlookupd named a partition of topic {self._topic!r}")
        if not meta.is_partitioned and (partition is not None or key is not None):
            raise ConfigError(
                "key= and partition= need the partitioned server: plain nsqd has no partitions and no order. Publish"
                " without them"
            )
        if partition is not None:
            if not 0 <= partition < meta.partition_num:
                raise ConfigError(
                    f"partition {partition} of {self._topic!r} does not exist: "
                    f"it has {meta.partition_num} (0..{meta.partition_num - 1})"
                )
            return partition, False
        if key is not None:
            number: object = self._hash(key)
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise ConfigError(f"sharding function must return an int of 0 or more, not {number!r}")
            self._repartition.check_key()
            return number % (self._repartition.used or meta.partition_num), False
        if meta.ordered:
            raise ConfigError(f"topic {self._topic!r} is ordered: give key= or partition=")
        return self.any_partition(view, meta.partition_num), True

    def any_partition(self, view: TopicView, partition_num: int, avoid: int | None = None) -> int:
        """Choose a partition for a message that may go to any; prefer a healthy one.

        Args:
            view: The topic's view.
            partition_num: Its number of partitions.
            avoid: Choose another partition than this, if possible.
        """
        used = self._repartition.used or partition_num
        self._look_up_routes(view, used)
        candidates: Sequence[int] = self.routes
        if avoid is not None or self._any_in_trouble():
            candidates = [p for p in self.routes if p != avoid and self.is_healthy(p)]
            if avoid is None and candidates and (probed := self._probed()) is not None:
                return probed
        if not candidates:
            candidates = [p for p in self.routes if p != avoid] or range(used)
        self._turn += 1
        if not self._is_round_robin or self._is_plain:
            return least_loaded(candidates, self._turn, self._load)
        return round_robin(candidates, self._turn)

    def quick(self, request: Request, view: TopicView | None) -> Sender | None:
        """Choose the sender of a plain request that names no partition, in the usual case.

        This gives the same result as :meth:`partition_for` in a fraction of the time.

        Returns:
            The sender. None if the case is not usual: call :meth:`partition_for`.
        """
        if view is not self._calm_view or request.partition is not None or not request.is_plain:
            return None
        key = request.key
        if key is not None:
            return self._senders.get(self._hash(key) % self._routes_used) if self._takes_keys else None
        if not self._takes_keyless:
            return None
        turn, routes = self._turn + 1, self.routes
        sender = self._senders.get(routes[turn % len(routes)])
        if sender is None or sender.trouble is not None:
            return None
        self._turn = turn
        return sender

    def prepare_quick(self, view: TopicView) -> None:
        """Let :meth:`quick` use ``view``, which is usable, unless there is something unusual in it."""
        if view is self._calm_view:
            return
        self._calm_view = None
        if view.meta is None or not self._repartition.is_calm:
            return
        self._look_up_routes(view, self._repartition.used)
        is_round_robin = self._is_round_robin and not self._is_plain
        self._takes_keyless = not view.meta.ordered and is_round_robin and bool(self.routes)
        # The result of a caller's function has to be checked each time.
        self._takes_keys = view.meta.is_partitioned and not self._is_own_hash and self._routes_used > 0
        self._calm_view = view

    def _look_up_routes(self, view: TopicView, used: int) -> None:
        if self._routes_of is not view or self._routes_used != used:
            self._routes_of, self._routes_used = view, used
            self.routes = tuple(sorted(p for p in view.publishable if p < used))
            # The nsqds of a plain cluster are machines of different load, not equal shares of one topic.
            self._is_plain = view.meta is not None and not view.meta.is_partitioned and len(self.routes) > 1

    def _any_in_trouble(self) -> bool:
        for sender in self._senders.values():  # noqa: SIM110 - a third of the time of any(), once for each publish
            if sender.trouble is not None:
                return True
        return False

    def _probed(self) -> int | None:
        """Choose a partition in trouble that a single message should probe now."""
        probed = (p for p in self.routes if not self.is_healthy(p) and self._senders[p].may_probe())
        return next(probed, None)

    def is_healthy(self, partition: int) -> bool:
        """Return whether a partition has no known problem."""
        sender = self._senders.get(partition)
        return sender is None or sender.trouble is None

    def _load(self, partition: int) -> int:
        sender = self._senders.get(partition)
        return sender.load if sender is not None else 0
