"""Handle changes of a topic's number of partitions.

Owns the number that keys are hashed over and the option ``partition_change``.
``policy.choice`` decides when a new number is due.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsq_ha.errors import PublishError
from nsq_ha.policy.choice import PartitionCount
from nsq_ha.policy.lookup_pace import partition_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView

log: logging.Logger = logging.getLogger("nsq_ha.producer")


class Repartition:
    """The number of partitions that a producer uses for one topic.

    Args:
        topic: The topic.
        config: The producer's options.
        with_keys: Returns the futures of all pending publishes with a key.
    """

    def __init__(
        self, topic: str, config: ProducerConfig, with_keys: Callable[[], Iterable[asyncio.Future[object]]]
    ) -> None:
        self._topic = topic
        self._config = config
        given = config.new_partition_delay
        default = partition_delay(config.lookup_interval, config.max_lookup_interval)
        self._delay = default if given is None else given
        self._with_keys = with_keys
        self._loop = asyncio.get_running_loop()
        self._count = PartitionCount()
        self._is_partitioned = True
        self._draining: set[asyncio.Future[object]] = set()
        self._refusal: str | None = None

    @property
    def used(self) -> int:
        """The number to hash over; 0 before the first lookup."""
        return self._count.used

    @property
    def is_calm(self) -> bool:
        """Whether no change is due, draining or refused. Only a new view can end this."""
        return not (self._count.is_pending or self._draining or self._refusal is not None)

    def view_changed(self, view: TopicView) -> None:
        """Use the newest view of the topic."""
        if view.meta is None:
            if not view.exists:
                # A re-created topic is a new topic: nothing in it can be out of order.
                self._count = PartitionCount()
            return
        self._is_partitioned = view.meta.is_partitioned
        delay = self._delay if self._is_partitioned else 0.0
        self._count.found(view.meta.partition_num, self._loop.time(), delay)
        if not self._count.used:
            self._count.take(self._loop.time())

    def is_settled(self) -> bool:
        """Use a new number if it is due; return whether publishing may continue."""
        if self._count.is_pending and (change := self._count.take(self._loop.time())) is not None:
            self._changed(*change)
        if self._draining:
            self._draining = {future for future in self._draining if not future.done()}
        return not self._draining

    @property
    def is_draining(self) -> bool:
        """Whether earlier publishes with keys are unanswered. Unlike :meth:`is_settled`, this changes nothing."""
        return any(not future.done() for future in self._draining)

    async def settled(self) -> None:
        """Wait until publishing may continue. Cancelling leaves nothing behind."""
        while not self.is_settled():
            await asyncio.wait(self._draining)

    def check_key(self) -> None:
        """Refuse a publish with a key if ``partition_change`` says so.

        Raises:
            PublishError: The number changed; nothing was sent.
        """
        if self._refusal is not None:
            raise PublishError(self._refusal, topic=self._topic, partition=None, attempts=0, maybe_stored=False)

    def _changed(self, old: int, new: int) -> None:
        if not self._is_partitioned:
            return
        policy = self._config.partition_change
        log.warning(
            "%s: the number of partitions changed from %d to %d, so keys move (partition_change=%r)",
            self._topic,
            old,
            new,
            policy,
        )
        if policy == "drain":
            self._draining = set(self._with_keys())
        elif policy == "refuse":
            self._refusal = (
                f"the topic has {new} partitions now, {old} before, and partition_change='refuse': "
                "create a new producer when all messages with keys are consumed"
            )
        if self._config.on_partition_change is not None:
            try:
                self._config.on_partition_change(self._topic, old, new)
            except Exception:
                log.exception("on_partition_change failed for %s", self._topic)
