"""What one topic's publishing does when its number of partitions changes.

Owns the number that is hashed over, and the option ``partition_change``. When a
new number is due is ``policy.partition_count``'s.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsq_ha.errors import PublishError
from nsq_ha.policy.partition_count import PartitionCount

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.config import ProducerConfig
    from nsq_ha.policy.topology import TopicView

log = logging.getLogger("nsq_ha.producer")


class Growth:
    """The number of partitions of one topic, as its producer uses it."""

    def __init__(
        self, topic: str, config: ProducerConfig, under_way: Callable[[], Iterable[asyncio.Future[object]]]
    ) -> None:
        """Prepare.

        Args:
            topic: The topic.
            config: The producer's options.
            under_way: Returns what every publish with a key that is not done waits for.
        """
        self._topic = topic
        self._config = config
        self._under_way = under_way
        self._loop = asyncio.get_running_loop()
        self._count = PartitionCount()
        self._is_partitioned = True
        self._draining: set[asyncio.Future[object]] = set()
        self._refusal: str | None = None

    @property
    def used(self) -> int:
        """The number to hash over; 0 before the first look-up."""
        return self._count.used

    @property
    def is_calm(self) -> bool:
        """Whether nothing is due, waited for or refused; only a changed view ends it."""
        return not (self._count.is_pending or self._draining or self._refusal is not None)

    def view_changed(self, view: TopicView) -> None:
        """Take note of what the topic has now."""
        if view.meta is None:
            if not view.exists:
                # Made again it is another topic: nothing in it could be out of order.
                self._count = PartitionCount()
            return
        self._is_partitioned = view.meta.is_partitioned
        delay = self._config.new_partition_delay if self._is_partitioned else 0.0
        self._count.told(view.meta.partition_num, self._loop.time(), delay)
        if not self._count.used:
            self._count.take(self._loop.time())

    def is_settled(self) -> bool:
        """Take a new number into use when it is due; tell whether publishing may go on."""
        if self._count.is_pending and (change := self._count.take(self._loop.time())) is not None:
            self._changed(*change)
        if self._draining:
            self._draining = {future for future in self._draining if not future.done()}
        return not self._draining

    @property
    def is_draining(self) -> bool:
        """Whether what is under way is still waited for, as far as was seen last; unlike :meth:`is_settled` a look."""
        return any(not future.done() for future in self._draining)

    async def settled(self) -> None:
        """Wait until publishing may go on. Cancelled, it leaves nothing."""
        while not self.is_settled():
            await asyncio.wait(self._draining)

    def check_key(self) -> None:
        """Refuse a publish with a key where ``partition_change`` says so.

        Raises:
            PublishError: The number changed; nothing was sent.
        """
        if self._refusal is not None:
            raise PublishError(self._refusal, topic=self._topic, partition=None, attempts=0, maybe_stored=False)

    def _changed(self, old: int, new: int) -> None:
        if not self._is_partitioned:
            return
        policy = self._config.partition_change
        log.warning("%s has %d partitions now, %d before: keys go elsewhere (%s)", self._topic, new, old, policy)
        if policy == "drain":
            self._draining = set(self._under_way())
        elif policy == "refuse":
            self._refusal = (
                f"the topic has {new} partitions now, {old} before, and partition_change='refuse': "
                "make a new producer when all that was published with keys is consumed"
            )
        if self._config.on_partition_change is not None:
            try:
                self._config.on_partition_change(self._topic, old, new)
            except Exception:
                log.exception("on_partition_change failed for %s", self._topic)
