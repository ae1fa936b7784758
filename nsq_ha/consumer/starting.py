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

from nsq_ha.errors import ConnectionLostError, NsqError, RemoteProtocolError, ServerError, TlsRequiredError
from nsq_ha.options.checks import EPHEMERAL_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsq_ha.admin.nsqd_http import NsqdHttp
    from nsq_ha.consumer.inflight import ReadPartition
    from nsq_ha.consumer.machine import ConsumerMachine
    from nsq_ha.consumer.partitions import Partitions
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.options.start_from import StartFrom
    from nsq_ha.policy.topology import Node

_QUICK: Final = 1.0
"""Seconds within which subscriptions usually succeed. After that, or a fifth of ``start_timeout`` if that is less, the
channels of the others are created over HTTP."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Start:
    """The start position of one partition's subscription. After the first success there is nothing to do.

    Attributes:
        is_checked: The partition of each message must be compared.
        is_set: The position was set just now, or goes with the next SUB.
    """

    def __init__(self, watch: TopicWatch, channel: str, partition: int, config: ConsumerConfig) -> None:
        self.is_checked: bool = False
        self.is_set: bool = False
        self._watch = watch
        self._replicated_at: Node | None = None
        self._name = f"{watch.topic}-{partition}"
        self._where = (watch.topic, partition, channel)
        self._config = config
        start = config.start_from
        self._start = start.get(partition) if isinstance(start, Mapping) else start
        self._is_done = False

    async def prepare(self, node: Node, *, is_ordered: bool) -> str | None:
        """Set the position; return the one that SUB must carry, or None.

        Raises:
            TlsRequiredError: The position cannot be set.
            NsqError: nsqd refused it, or did not answer.
        """
        self.is_checked = self.is_set = False
        if self._is_done or self._start is None:
            return None
        try:
            await self._set_position(node, self._start, is_ordered=is_ordered)
        except TlsRequiredError as error:
            if is_ordered or not self._is_only_one_at(node):
                raise TlsRequiredError(
                    "",
                    f"start_from cannot be applied to {self._name}: {error.detail}, and SUB takes a position only for"
                    f" an unordered topic of which the nsqd leads one partition. Leave start_from out, and set the"
                    f" channel's position over nsqd's HTTPS (/channel/setoffset)",
                ) from error
            self.is_checked = self.is_set = True
            return str(self._start)
        self.is_set = True
        return None

    def after_refusal(self, error: NsqError) -> NsqError:
        """Return the error to report for a SUB that failed with ``error``.

        nsqd takes no position on an empty partition, where all positions are the same. It has created the channel
        by then, so the next SUB goes without a position.
        """
        if not self.is_checked or not isinstance(error, ServerError):
            return error
        from nsq_ha.admin.nsqd_http import EMPTY_LOG  # noqa: PLC0415 - see _http

        if EMPTY_LOG in error.detail:
            self._is_done = True
            return ConnectionLostError("the partition is empty and takes no start position: subscribing without one")
        return error

    async def replicate(self, node: Node) -> None:
        """Make the new ordered channel known to the replicas. If this fails, only a change of the leader can do harm.

        Setting a position does that, too.
        """
        topic, partition, channel = self._where
        new_partitions = self._watch.new_partitions
        if self._is_done or self._start is not None or new_partitions is None or node == self._replicated_at:
            return
        if channel.endswith(EPHEMERAL_SUFFIX) or not node.http_port:
            return
        try:
            here = (await new_partitions.held(node)).get(partition)
            # A channel that an operator paused has been made known, and stays paused.
            if here is None or not here.paused.get(channel):
                await new_partitions.report(partition, node, channel)
            self._replicated_at = node
        except NsqError as error:
            log.warning(
                "channel %s of %s-%d may be unknown to the partition's replicas (%s): if it is new and the leader"
                " changes before a message is finished, the messages so far are not delivered",
                channel,
                topic,
                partition,
                error,
            )

    def done(self) -> None:
        """Record that SUB succeeded: the channel is at its position."""
        self._is_done = True

    def forget(self) -> None:
        """Record that the topic is gone: a channel of its successor is new. A position is set once all the same."""
        self._is_done = self._is_done and self._start is not None
        self._replicated_at = None

    def check(self, messages: list[Message]) -> None:
        """Check that messages belong to the partition.

        Raises:
            RemoteProtocolError: A message belongs to another partition.
        """
        for message in messages:
            number = message.internal_id >> 50 & 1023
            if number != self._where[1]:
                raise RemoteProtocolError(
                    f"{message.nsqd} delivers partition {number} instead of {self._name}: it leads both, and SUB with"
                    f" a start position does not choose between them"
                )

    async def _set_position(self, node: Node, start: StartFrom, *, is_ordered: bool) -> None:
        config = self._config
        async with _http(node, config.lookup_timeout, config.local_addr) as nsqd:
            if is_ordered:
                # Make it ordered while it is new and empty: later its reader starts over (Subscription.without_repeat).
                await nsqd.change_channel("create", *self._where)
                await nsqd.set_order(*self._where, ordered=True)
            await nsqd.start_channel_from(*self._where, str(start))

    def _is_only_one_at(self, node: Node) -> bool:
        """Return whether ``node`` certainly leads no other partition of the topic."""
        view = self._watch.view
        if view is None or len(view.leaders) != view.partition_num:
            return False
        return list(view.leaders.values()).count(node) == 1


def _http(node: Node, timeout: float, local_addr: str | None) -> NsqdHttp:
    # Imported here: the modules of admin take 1 MB, and most consumers need none of them.
    from nsq_ha.admin.nsqd_http import NsqdHttp  # noqa: PLC0415

    return NsqdHttp(node, timeout=timeout, local_addr=local_addr)


async def create_channels(
    watch: TopicWatch, channel: str, config: ConsumerConfig, partitions: Partitions, machine: ConsumerMachine
) -> None:
    """Create the channel on the partitions where no subscription has done so.

    SUB creates it, too, and is quicker: for 254 partitions of a real cluster it takes 0.3 s, and HTTP 2 s. So this
    is for servers that are slow to answer, or slow to connect to. What fails here is left to SUB.
    """
    await asyncio.sleep(min(_QUICK, config.start_timeout / 5))
    view, new_partitions = watch.view, watch.new_partitions
    is_lasting = not channel.endswith(EPHEMERAL_SUFFIX)
    if view is None or view.is_plain or new_partitions is None or not is_lasting or machine.is_closing:
        return
    # A start position is set later, and decides which messages are delivered.
    start = config.start_from
    placed: Iterable[int] = start if isinstance(start, Mapping) else () if start is None else machine.partitions

    async def create(partition: ReadPartition) -> None:
        with contextlib.suppress(NsqError):
            await new_partitions.create(partition.number, view.leaders[partition.number], channel, ordered=False)
            partition.has_channel = True

    waiting = (partitions.without_channel() & machine.partitions.keys() & view.leaders.keys()).difference(placed)
    await asyncio.gather(*(create(machine.partitions[number]) for number in waiting))
