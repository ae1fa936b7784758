"""Open the connections of one subscription and subscribe over them; ``consumer.subscription`` decides when."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from nsq_ha.consumer.delivery import Delivery
from nsq_ha.engine.waiting import open_while
from nsq_ha.errors import ConnectError, ServerError
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, layout_for

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from nsq_ha.consumer.clock import Heartbeats
    from nsq_ha.consumer.counts import DeliveryCounts
    from nsq_ha.engine.connection import Callbacks, Connection
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import Node, TopicMeta


class Answers(Protocol):
    """The consumer's part in answering messages; all but ``late`` are called in the event loop.

    Attributes:
        heartbeats: How often nsqd should send heartbeats.
    """

    heartbeats: Heartbeats

    @property
    def gives_up(self) -> Callable[[Message], bool]:
        """Start giving up a requeued message if this was its last attempt; return whether it was."""

    def requeued(self, message: Message, delay: float | None) -> None:
        """Record that a message is requeued, with the delay that was given."""

    @property
    def interrupted(self) -> Callable[[Message], bool]:
        """Take back a message whose block was cancelled; return False if it is not taken."""

    @property
    def late(self) -> Callable[[Message, str], None]:
        """Record, from any thread, that a message was answered after its connection ended, and how."""

    def unsettled(self, message: Identity) -> None:
        """Record a message whose FIN may have been without effect."""

    def freed(self) -> None:
        """Record that a message was answered."""


class Opener:
    """Opens and subscribes connections for one partition.

    Args:
        topic: The topic.
        channel: The channel.
        partition: The partition.
        config: The consumer's options.
        answers: Used by the deliveries.
        counts: Counts of the partition's messages.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        partition: int,
        config: ConsumerConfig,
        answers: Answers,
        *,
        counts: DeliveryCounts | None = None,
    ) -> None:
        self._counts = counts
        self._topic = topic
        self._channel = channel
        self._partition = partition
        self._config = config
        self._answers = answers

    def new_delivery(self, meta: TopicMeta) -> Delivery:
        """Return a delivery for a connection that will be opened."""
        return Delivery(
            self._topic,
            self._channel,
            self._partition,
            is_ordered=meta.ordered if self._config.ordered == "auto" else self._config.ordered,
            is_returned_at_end=meta.is_partitioned,
            backoff=self._config.requeue_backoff,
            on_freed=self._answers.freed,
            on_late=self._answers.late,
            gives_up=self._answers.gives_up,
            on_requeued=self._answers.requeued,
            on_interrupted=self._answers.interrupted,
            on_unsettled=self._answers.unsettled,
            counts=self._counts,
        )

    async def open(
        self, node: Node, meta: TopicMeta, callbacks: Callbacks, *, news: asyncio.Event, is_wanted: Callable[[], bool]
    ) -> Connection:
        """Connect to ``node`` as :func:`open_while` does, with the heartbeats that the event loop can answer."""
        interval = self._answers.heartbeats.interval
        config = dataclasses.replace(self._config, heartbeat_interval=interval)
        try:
            return await open_while(
                config, node, callbacks, extend_support=meta.extend_support, news=news, is_wanted=is_wanted
            )
        except ServerError as error:
            if interval != self._config.heartbeat_interval and "heartbeat_interval" in str(error):
                self._answers.heartbeats.refused()
                raise ConnectError(f"{node.address} refused a heartbeat interval of {interval:g} s: {error}") from error
            raise

    async def subscribe(
        self, connection: Connection, meta: TopicMeta, delivery: Delivery, start: str | None = None
    ) -> None:
        """Send SUB and wait for its answer; messages arrive with ``delivery`` as their source.

        Args:
            connection: An open connection without a subscription.
            meta: The meta of the topic.
            delivery: The delivery to attach to the connection.
            start: The position that SUB must carry, if any.
        """
        delivery.attach(connection)
        topic, channel = self._topic, self._channel
        if not meta.is_partitioned:
            await connection.subscribe(Sub(topic, channel, None), delivery, layout_for(detail=False, ext=False))
            return
        command: SubOrdered | SubAdvanced
        if delivery.is_ordered:
            command = SubOrdered(topic, channel, self._partition)
        else:
            command = SubAdvanced(topic, channel, self._partition, start)
        await connection.subscribe(command, delivery, layout_for(detail=True, ext=meta.extend_support))
