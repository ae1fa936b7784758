"""Temporary channels on the leaders of partitions, each read through a blocking connection.

:class:`Replay` creates a channel at an offset, subscribes, sets RDY and sends FIN. It does not
decide which messages count (``chain``) or what follows a failure (``range_reader``).

Here a FIN only means "send more": the channel belongs to this reader and vanishes with
it. So each accepted message is finished immediately.

**Source:** Spark design 1.2; server protocol 3, 5, 7.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import NsqError, ResponseTimeoutError, TransportError
from nsq_ha.protocol import SubAdvanced, SubOrdered, layout_for
from nsq_ha.spark.cluster import BlockingCluster, temporary_channel
from nsq_ha.spark.connection import BlockingSubscription

if TYPE_CHECKING:
    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.plan.batch_planner import Range

UNGATHERED_BYTES: Final = 32 * 1024
"""Up to this size of the range nsqd sends each message immediately: gathering would take longer than the range."""


class Replay(BlockingSubscription):
    """A subscription to one range, from ``position`` on: :meth:`open` connects, :meth:`close` ends it.

    Args:
        asked: The range.
        node: The leader of its partition.
        cluster: Used to create and delete channels; the caller closes it.
        options: Options of the read.
    """

    def __init__(self, asked: Range, node: Node, cluster: BlockingCluster, options: ReadOptions) -> None:
        self._is_own = options.channel is None
        self._gathers = asked.end - asked.start > UNGATHERED_BYTES
        self._key = asked.topic, asked.partition, node, options.channel_prefix
        channel = options.channel or cluster.unanswered.pop(self._key, None)
        place = asked.topic, channel or temporary_channel(options.channel_prefix), asked.partition
        super().__init__(node, options.connection, place, extended=asked.extended, gathers=self._gathers)
        self._asked = asked
        self._node = node
        self._cluster = cluster
        self._options = options

    def open(self, position: int) -> None:
        """Create the channel at ``position``, connect and subscribe.

        Raises:
            TransportError: Connecting failed, or no answer came in time.
            ServerError: The server refused; ``retriable`` says whether another leader may accept.
            RemoteProtocolError: The server's answers violate the protocol.
        """
        # Creating an existing channel changes nothing, so this also works for a registered one.
        place = self.topic, self.partition, self._node, self.channel
        try:
            self._cluster.open_channel(*place, position)
        except TransportError:
            # The server does not answer: deleting the channel would time out as well.
            if self._is_own:
                self._cluster.unanswered[self._key] = self.channel
            raise
        except BaseException:
            self._delete_channel()
            raise
        try:
            # Without a start position: with one, the server ignores the partition.
            kind = SubOrdered if self._asked.ordered else SubAdvanced
            layout = layout_for(detail=True, ext=self._asked.extended)
            self.subscribe(kind(self.topic, self.channel, self.partition), layout, self._options.rdy)
            self.set_ready(self.wanted)
        except BaseException:
            self.close()
            self._delete_channel()
            raise

    def _delete_channel(self) -> None:
        """Delete a channel without clients; an ephemeral one vanishes only when its last client leaves."""
        if self._is_own:
            self._cluster.unanswered[self._key] = self.channel
            with contextlib.suppress(NsqError):
                self._cluster.delete_channel(self.topic, self.partition, self._node, self.channel)
                del self._cluster.unanswered[self._key]

    def receive(self, until: float) -> list[Message]:
        """Wait for messages.

        Args:
            until: ``time.monotonic()`` at which to give up.

        Returns:
            The messages in the order of arrival; empty after a heartbeat alone.

        Raises:
            ResponseTimeoutError: No data before ``until``.
            ConnectionLostError: The connection ended; if the leader moved, the server sends no error before.
            ServerError: The reason why the server is about to close the connection.
            RemoteProtocolError: The server violated the protocol.
        """
        arrived, self.connection.early = self.connection.early, []
        if not arrived:
            try:
                arrived = self.messages_of(self.connection.receive(until))
            except ResponseTimeoutError as error:
                raise ResponseTimeoutError(
                    f"nsqd {self.nsqd} sent no message of {self.topic}-{self.partition} in time"
                ) from error
        if arrived:
            self.note_size(max([len(message.body) for message in arrived]))
            self.follow(self.wanted)
        return arrived
