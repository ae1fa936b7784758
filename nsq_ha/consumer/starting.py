"""Prepare a channel for the first subscription to a partition: set its position, make it known to the replicas.

The position is set over nsqd's HTTP, since SUB with a position ignores the
partition that it names. If nsqd refuses plain HTTP and leads no other partition
of the topic, SUB carries the position; the partition of each message is then
compared with the expected one.

A new ordered channel is made known to the replicas over nsqd's HTTP, too: nsqd itself does so only after the first
FIN, and until then a change of the leader loses the channel and its messages (youzan/nsq ``trySyncTopicChannels``).
This follows SUB, which creates the channel: the channels of hundreds of partitions would otherwise wait for each other.

Source: server protocol 5.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConnectionLostError, NsqError, TlsRequiredError
from nsq_ha.options.checks import EPHEMERAL_SUFFIX

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import ReadPartition, Subscription
    from nsq_ha.consumer.partitions import Partitions
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.errors import ServerError
    from nsq_ha.options.start_from import StartFrom
    from nsq_ha.policy.topology import Node

_QUICK: Final = 1.0
"""Seconds within which subscriptions usually succeed. After that, or a fifth of ``start_timeout`` if that is less, the
channels of the others are created over HTTP."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Starting:
    """Prepares the channel of one consumer. After the first success for a partition there is nothing to do.

    Args:
        watch: The lookups of the topic.
        shell: The consumer's.
    """

    def __init__(self, watch: TopicWatch, shell: ConsumerShell) -> None:
        self._watch = watch
        self._shell = shell

    def _start_of(self, partition: int) -> StartFrom | None:
        start = self._shell.config.start_from
        return start.get(partition) if isinstance(start, Mapping) else start

    async def prepare(self, conn: Subscription) -> str | None:
        """Set the position; return the one that SUB must carry, or None.

        Raises:
            TlsRequiredError: The position cannot be set.
            NsqError: nsqd refused it, or did not answer.
        """
        partition, node, position = conn.partition, conn.node, None
        start = self._start_of(partition.number)
        if partition.is_started or start is None:
            return None
        try:
            await self._set_position(conn, start)
        except TlsRequiredError as error:
            if conn.is_ordered or not self._is_only_one_at(node):
                raise TlsRequiredError(
                    "",
                    f"start_from cannot be applied to {self._watch.view.name_of(partition.number)}: {error.detail}, and"
                    f" SUB takes a position only for an unordered topic of which the nsqd leads one partition. Leave"
                    f" start_from out, and set the channel's position over nsqd's HTTPS (/channel/setoffset)",
                ) from error
            conn.is_checked = True
            position = str(start)
        conn.may_repeat = True
        return position

    @staticmethod
    def check_refusal(conn: Subscription, error: ServerError) -> None:
        """Check why nsqd refused SUB.

        It takes no position on an empty partition, where all positions are the same. It has created the channel
        by then, so the next SUB goes without a position.

        Raises:
            ConnectionLostError: This was the reason.
        """
        if not conn.is_checked:
            return
        from nsq_ha.admin.nsqd_http import EMPTY_LOG  # noqa: PLC0415 - see _set_position

        if EMPTY_LOG in error.detail:
            conn.partition.is_started = True
            why = "the partition is empty and takes no start position: subscribing without one"
            raise ConnectionLostError(why) from error

    async def replicate(self, conn: Subscription) -> None:
        """Make a new ordered channel known to the replicas. If this fails, only a change of the leader can do harm.

        Setting a position does that, too.
        """
        partition, node, channel = conn.partition, conn.node, self._shell.channel
        new_partitions, number = self._watch.new_partitions, partition.number
        if partition.is_started or self._start_of(number) is not None or new_partitions is None:
            return
        if not conn.is_ordered or channel.endswith(EPHEMERAL_SUFFIX) or not node.http_port:
            return
        try:
            here = (await new_partitions.held(node)).get(number)
            # A channel that an operator paused has been made known, and stays paused.
            if here is None or not here.paused.get(channel):
                await new_partitions.report(number, node, channel)
        except NsqError as error:
            log.warning(
                "channel %s of %s may be unknown to the partition's replicas (%s): if it is new and the leader"
                " changes before a message is finished, the messages so far are not delivered",
                channel,
                self._watch.view.name_of(number),
                error,
            )

    def forget(self, partition: ReadPartition) -> None:
        """Record that the topic is gone: a channel of its successor is new. A position is set once all the same."""
        partition.is_started = partition.is_started and self._start_of(partition.number) is not None

    async def _set_position(self, conn: Subscription, start: StartFrom) -> None:
        config, where = self._shell.config, (self._shell.topic, conn.partition.number, self._shell.channel)
        # Imported here: the modules of admin take 1 MB, and most consumers need none of them.
        from nsq_ha.admin.nsqd_http import NsqdHttp  # noqa: PLC0415

        async with NsqdHttp(conn.node, timeout=config.lookup_timeout, local_addr=config.local_addr) as nsqd:
            if conn.is_ordered:
                # Make it ordered while it is new and empty: later its reader starts over (Subscription.without_repeat).
                await nsqd.change_channel("create", *where)
                await nsqd.set_order(*where, ordered=True)
            await nsqd.start_channel_from(*where, str(start))

    def _is_only_one_at(self, node: Node) -> bool:
        """Return whether ``node`` certainly leads no other partition of the topic."""
        view = self._watch.view
        return len(view.leaders) == view.partition_num and list(view.leaders.values()).count(node) == 1

    async def create_channels(self, partitions: Partitions) -> None:
        """Create the channel on the partitions where no subscription has done so.

        SUB creates it, too, and is quicker: for 254 partitions of a real cluster it takes 0.3 s, and HTTP 2 s. So this
        is for servers that are slow to answer, or slow to connect to. What fails here is left to SUB.
        """
        machine, channel = self._shell.machine, self._shell.channel
        await asyncio.sleep(min(_QUICK, self._shell.config.start_timeout / 5))
        view, new_partitions = self._watch.view, self._watch.new_partitions
        is_lasting = not channel.endswith(EPHEMERAL_SUFFIX)
        if view.is_plain or new_partitions is None or not is_lasting or machine.is_closing:
            return

        async def create(partition: ReadPartition) -> None:
            with contextlib.suppress(NsqError):
                await new_partitions.create(partition.number, view.leaders[partition.number], channel, ordered=False)
                partition.has_channel = True

        # A start position is set later, and decides which messages are delivered.
        waiting = partitions.without_channel() & machine.partitions.keys() & view.leaders.keys()
        free = [machine.partitions[number] for number in waiting if self._start_of(number) is None]
        await asyncio.gather(*map(create, free))
