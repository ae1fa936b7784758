"""When the leader of a partition flushes acknowledged messages, so that they can be read.

With ``syncdisk`` 0 or 1 each message is flushed at once. On another topic a
message stays in the writer's buffer until

* ``syncdisk`` messages have arrived since the last turn of the clock,
* some channel has confirmed everything and waits for more,
* some channel's reader comes to its end, or
* the clock flushes the partition, at most three turns later.

A channel reads to *its own* end, which only some of these move; later messages
wait for the next one.

Source: youzan/nsq ``nsqd/topic.go`` ``UpdateCommittedOffset``, ``flushForChannels``, ``flushForChannelMoreData``;
``nsqd/nsqd.go`` ``flushAll``; ``consistence/nsqd_coordinator.go`` ``periodFlushCommitLogs``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.replica import Replica

DISTANCE: Final = 4
"""The clock flushes a quarter of the partitions in each turn."""
ALL: Final = 30
"""Every this many turns all partitions are flushed, including those not led here."""


def is_turn(turn: int, partition: int) -> bool:
    """Return whether the clock flushes a partition in this turn.

    nsqd and its coordinator count separately, one turn apart, so a partition is
    flushed in two consecutive turns of four.
    """
    return (partition + 1 - turn) % DISTANCE in (0, DISTANCE - 1) or turn % ALL == 0


class Flushing:
    """Flushes one replica.

    Args:
        replica: The replica.
    """

    def __init__(self, replica: Replica) -> None:
        """Start with nothing to flush."""
        self._replica = replica
        self._every = replica.options.sync_every
        self._last = 0

    def committed(self) -> None:
        """Flush if an acknowledged message requires it."""
        replica = self._replica
        many = self._every <= 1 or replica.log.committed - self._last >= self._every
        if (many or any(channel.waits for channel in replica.channels.values())) and replica.log.flush():
            self._tell()

    def turn(self) -> None:
        """Flush: it is the partition's turn, or its role changed."""
        self._last = self._replica.log.committed
        self._replica.log.flush()
        self._tell()
        for channel in self._replica.channels.values():
            channel.skip_on()

    def refresh(self, channel: Channel) -> None:
        """Flush for a channel whose reader is at its end."""
        if not (channel.skipped or channel.paused) and self._replica.log.flush():
            channel.grow(self._replica.log.flushed)

    def _tell(self) -> None:
        for channel in self._replica.channels.values():
            channel.grow(self._replica.log.flushed)
