"""Flush acknowledged messages on the leader of a partition, so that they can be read.

A topic with ``syncdisk`` 0 or 1 flushes each message at once. On other topics a
message stays in the writer's buffer until

* ``syncdisk`` messages arrived since the last turn of the clock,
* a channel has confirmed everything and waits for more,
* the reader of a channel reaches its end, or
* the clock flushes the partition, at most three turns later.

A channel reads to *its own* end, and only some of these events move that end;
messages after it wait for the next one.

Source: youzan/nsq ``nsqd/topic.go`` ``UpdateCommittedOffset``, ``flushForChannels``, ``flushForChannelMoreData``;
``nsqd/nsqd.go`` ``flushAll``; ``consistence/nsqd_coordinator.go`` ``periodFlushCommitLogs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.log import Log

DISTANCE: Final = 4
"""The clock flushes a quarter of the partitions in each turn."""
ALL: Final = 30
"""Every 30th turn flushes all partitions, including those that the node does not lead."""


def is_turn(turn: int, partition: int) -> bool:
    """Return whether the clock flushes a partition in this turn.

    nsqd and its coordinator count separately, one behind the other, so each
    partition is flushed in two consecutive turns of four.
    """
    return (partition + 1 - turn) % DISTANCE in (0, DISTANCE - 1) or turn % ALL == 0


class Flushing:
    """Flush the log of one replica.

    Args:
        log: The log.
        every: How many messages may wait in the writer's buffer (``syncdisk``).
        channels: The live channels of the replica, by name.
    """

    def __init__(self, log: Log, every: int, channels: Mapping[str, Channel]) -> None:
        self._log = log
        self.every = every
        self._channels = channels
        self._last = 0

    def committed(self) -> None:
        """Flush if the messages that were just committed require it."""
        many = self.every <= 1 or self._log.committed - self._last >= self.every
        if (many or any(channel.waits for channel in self._channels.values())) and self._log.flush():
            self._grow()

    def turn(self) -> None:
        """Flush because the clock reached the partition, or its role changed."""
        self._last = self._log.committed
        self._log.flush()
        self._grow()
        for channel in self._channels.values():
            channel.skip_on()

    def refresh(self, channel: Channel) -> None:
        """Flush because the reader of a channel reached its end."""
        if not (channel.skipped or channel.paused) and self._log.flush():
            channel.grow(self._log.flushed)

    def _grow(self) -> None:
        for channel in self._channels.values():
            channel.grow(self._log.flushed)
