"""One partition's subscription: it finds the leader, subscribes, and does so again whatever happens.

The invariant: at most one subscribed connection at a time; a new leader is
connected to before the old connection is left, and subscribed to after.

Source: failures reference 4 (Consumer 1-3), 3.7, 3.9.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from nsq_ha import tracelog
from nsq_ha.consumer.delivery import Delivery
from nsq_ha.discovery.nsqd_http import NsqdHttp
from nsq_ha.errors import (
    AuthError,
    BadNameError,
    ChannelNotRegisteredError,
    ConnectionLostError,
    InvalidCommandError,
    MessageRefusedError,
    NoLeaderError,
    NsqError,
    ServerError,
    SubscribeRefusedError,
)
from nsq_ha.policy.backoff import delay_after
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, encode_fin, encode_ready, layout_for
from nsq_ha.transport.connection import Callbacks, Connection
from nsq_ha.transport.opening import open_while

if TYPE_CHECKING:
    from nsq_ha.config import ConsumerConfig, StartFrom
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node, TopicView
    from nsq_ha.protocol import DamagedMessage

log = logging.getLogger("nsq_ha.consumer")

_PERMANENT = (AuthError, BadNameError, ChannelNotRegisteredError, InvalidCommandError, MessageRefusedError)


class Inbox(Protocol):
    """Who takes what a subscription brings; all are called in the event loop."""

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""

    def freed(self) -> None:
        """Note that a message was answered."""

    def joined(self, subscription: Subscription) -> None:
        """Note that it is subscribed; it has RDY 0 until told otherwise."""

    def left(self, subscription: Subscription) -> None:
        """Note that it is not subscribed any more."""

    def refused(self, error: NsqError) -> None:
        """Note a refusal that no retry cures."""


class Subscription:
    """Reads one partition. Run :meth:`run` as a task; it ends when cancelled, or refused for good."""

    def __init__(self, watch: TopicWatch, channel: str, partition: int, config: ConsumerConfig, inbox: Inbox) -> None:
        """Prepare for one partition of the watched topic."""
        self.partition = partition
        self.delivery: Delivery | None = None
        self.trouble: NsqError | None = None
        self.is_subscribed = False
        self._watch = watch
        self._channel = channel
        self._config = config
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._start_from = _start_of(config, partition)
        self._wake = asyncio.Event()

    @property
    def ready(self) -> int:
        """RDY last sent; 0 while it is not subscribed."""
        return self.delivery.ready if self.delivery is not None else 0

    @property
    def in_flight(self) -> int:
        """Messages delivered and not answered."""
        return self.delivery.in_flight if self.delivery is not None else 0

    @property
    def unanswered(self) -> int:
        """Messages that the application has not answered; those held here until their delay is over are none."""
        return self.delivery.in_flight - self.delivery.held if self.delivery is not None else 0

    @property
    def max_ready(self) -> int:
        """The most RDY that it may be given; 0 while it is not subscribed."""
        if self.delivery is None or self._connection is None or not self.is_subscribed:
            return 0
        return 1 if self.delivery.is_ordered else self._connection.identity.max_rdy_count

    def set_ready(self, count: int) -> None:
        """Send RDY when it differs from what was sent last."""
        if self.delivery is not None and self._connection is not None and self.delivery.ready != count:
            self.delivery.ready = count
            self._connection.write(encode_ready(count))

    def view_changed(self, view: TopicView) -> None:
        """Take note of another leader."""
        leader = view.leaders.get(self.partition)
        if leader is not None and (self._connection is None or leader != self._connection.node):
            self._wake.set()

    async def run(self) -> None:
        """Stay subscribed until cancelled; whatever the outside does is met here."""
        failures = 0
        try:
            while True:
                try:
                    await self._subscribe()
                    failures = 0
                    await self._until_trouble()
                    continue
                except NsqError as error:
                    self.trouble = error
                    if self._is_permanent(error):
                        log.error("%s-%d: %s", self._watch.topic, self.partition, error)  # noqa: TRY400 - the text says all
                        self._inbox.refused(error)
                        return
                    log.debug("%s-%d: %s", self._watch.topic, self.partition, error)
                failures += 1
                self._watch.refresh_soon()
                await self._woken(delay_after(self._config.backoff, failures, random.random))
        finally:
            connection_left = self._connection
            self._leave(ConnectionLostError("the consumer was closed"))
            if connection_left is not None:
                await connection_left.ended()

    async def stop_messages(self) -> None:
        """Ask the server for no further message (CLS); errors and lost connections end it silently."""
        if self._connection is not None and self.delivery is not None:
            try:
                await self._connection.stop_messages()
            except NsqError as error:
                log.debug("%s-%d: CLS failed: %s", self._watch.topic, self.partition, error)

    async def aclose_connection(self, timeout: float) -> None:
        """Flush the answers and close the connection, within the limit."""
        if self._connection is not None:
            if self.delivery is not None:
                self.delivery.flush()
            await self._connection.aclose(timeout)

    def _is_permanent(self, error: NsqError) -> bool:
        if isinstance(error, SubscribeRefusedError) and error.code == "E_SUB_ORDER_IS_MUST":
            return self._config.ordered is False
        return isinstance(error, _PERMANENT)

    async def _woken(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _leader(self) -> Node | None:
        view = self._watch.view
        return view.leaders.get(self.partition) if view is not None else None

    async def _subscribe(self) -> None:
        """Connect to the leader, leave the old connection, subscribe."""
        view, node = self._watch.view, self._leader()
        if view is None or view.meta is None or node is None:
            raise NoLeaderError(f"{self._watch.topic}-{self.partition} has no leader now")
        meta = view.meta
        is_ordered = meta.ordered if self._config.ordered == "auto" else self._config.ordered
        delivery = Delivery(
            self._watch.topic,
            self._channel,
            self.partition,
            is_ordered=is_ordered,
            backoff=self._config.requeue_backoff,
            on_freed=self._inbox.freed,
        )
        connection = await self._open(node, delivery, extend_support=meta.extend_support)
        self._leave(ConnectionLostError(f"left for {node.address}, which leads now"))
        try:
            if self._start_from is not None:
                async with NsqdHttp(node, timeout=self._config.lookup_timeout) as nsqd:
                    if is_ordered:
                        # Switched by SUB_ORDERED, a channel with backlog starts over and gives its first message twice.
                        await nsqd.create_channel(self._watch.topic, self.partition, self._channel)
                        await nsqd.set_order(self._watch.topic, self.partition, self._channel, ordered=True)
                    await nsqd.start_channel_from(
                        self._watch.topic, self.partition, self._channel, str(self._start_from)
                    )
            delivery.attach(connection)
            self._connection, self.delivery = connection, delivery
            topic, channel = self._watch.topic, self._channel
            if not meta.is_partitioned:
                await connection.subscribe(Sub(topic, channel, None), delivery, layout_for(detail=False, ext=False))
            else:
                command = (SubOrdered if is_ordered else SubAdvanced)(topic, channel, self.partition)
                await connection.subscribe(command, delivery, layout_for(detail=True, ext=meta.extend_support))
        except BaseException:
            self._leave(ConnectionLostError("not subscribed"))
            connection.abort(ConnectionLostError("not subscribed"))
            raise
        self._start_from = None
        self.trouble = None
        self.is_subscribed = True
        log.info("subscribed to %s-%d at %s", self._watch.topic, self.partition, node.address)
        self._inbox.joined(self)

    async def _open(self, node: Node, delivery: Delivery, *, extend_support: bool) -> Connection:
        def lost(reason: NsqError) -> None:
            if self.delivery is delivery:
                self.trouble = reason
                self._leave(reason)
                self._wake.set()

        callbacks = Callbacks(_no_answers, self._messages, self._refusals, self._damaged, lost)
        return await open_while(
            self._config,
            node,
            callbacks,
            extend_support=extend_support,
            news=self._wake,
            is_wanted=lambda: self._leader() in (None, node),
        )

    async def _until_trouble(self) -> None:
        """Return when the leader is another node; raise when the connection went."""
        while True:
            connection = self._connection
            if connection is None:
                raise self.trouble or ConnectionLostError("connection lost")
            if self._leader() not in (None, connection.node):
                log.info("leader of %s-%d moved from %s", self._watch.topic, self.partition, connection.node.address)
                return
            await self._woken(None)

    def _leave(self, reason: NsqError) -> None:
        connection, self._connection = self._connection, None
        delivery, self.delivery = self.delivery, None
        self.is_subscribed = False
        if delivery is not None:
            delivery.detach()
            self._inbox.left(self)
        if connection is not None:
            connection.abort(reason)

    def _messages(self, messages: list[Message]) -> None:
        delivery = self.delivery
        if delivery is None or messages[0].source is not delivery:
            return
        delivery.in_flight += len(messages)
        if tracelog.switch.is_any and tracelog.switch.is_on(self._watch.topic):
            for message in messages:
                tracelog.log_message("delivery", message)
        self._inbox.arrived(messages)

    def _damaged(self, damaged: list[DamagedMessage]) -> None:
        # It would come damaged again for ever and block the channel: it is finished, loudly.
        for message in damaged:
            log.error(
                "%s-%d: a message cannot be decoded and is finished: %r", self._watch.topic, self.partition, message
            )
            if self._connection is not None:
                self._connection.write(encode_fin(message.message_id))

    def _refusals(self, refusals: list[ServerError]) -> None:
        for refusal in refusals:
            log.info("%s-%d: %s", self._watch.topic, self.partition, refusal)


def _start_of(config: ConsumerConfig, partition: int) -> StartFrom | None:
    start = config.start_from
    return start.get(partition) if isinstance(start, Mapping) else start


def _no_answers(answers: object) -> None:
    """Take none: a subscription publishes nothing."""
