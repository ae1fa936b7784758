"""One partition's subscription: it finds the leader, subscribes, and does so again whatever happens.

Owns the connection. What is done when is ``policy.subscription``'s: this module
tells it what happened and does what it says.

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
from nsq_ha.consumer.trouble import Trouble
from nsq_ha.discovery.nsqd_http import NsqdHttp
from nsq_ha.errors import (
    AuthError,
    BadNameError,
    ChannelNotRegisteredError,
    ConnectionLostError,
    InvalidCommandError,
    LocalProtocolError,
    MessageRefusedError,
    NoLeaderError,
    NsqError,
    ServerError,
    SubscribeRefusedError,
)
from nsq_ha.policy.backoff import delay_after
from nsq_ha.policy.subscription import Act, Life, settle_time
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, encode_fin, encode_ready, layout_for
from nsq_ha.transport.connection import Callbacks, Connection
from nsq_ha.transport.opening import open_while
from nsq_ha.transport.pausing import pause

if TYPE_CHECKING:
    from nsq_ha.config import ConsumerConfig
    from nsq_ha.discovery.watcher import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView
    from nsq_ha.protocol import DamagedMessage
    from nsq_ha.start_from import StartFrom

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
        self._life: Life[Node] = Life(settle_time(config.heartbeat_interval))
        self._trouble = Trouble(watch.topic, partition)
        self._known: tuple[Node, TopicMeta | None] | None = None
        self._watch = watch
        self._channel = channel
        self._config = config
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._start_from = _start_of(config, partition)
        self._wake = asyncio.Event()

    @property
    def trouble(self) -> NsqError | None:
        """Why it is not subscribed. None while it is."""
        return self._trouble.reason

    @property
    def is_subscribed(self) -> bool:
        """Whether messages may arrive."""
        return self._life.is_reading

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
        """Look again if another node leads, or the topic's meta changed. News of other partitions end no back-off."""
        leader = view.leaders.get(self.partition)
        known = None if leader is None else (leader, view.meta)
        if known == self._known:
            return
        self._known = known
        if leader is not None and (self._connection is None or leader != self._connection.node):
            self._wake.set()

    async def run(self) -> None:
        """Stay subscribed until told to stop or cancelled; whatever the outside does is met here."""
        life = self._life
        try:
            self._turn()
            while life.act not in (Act.END, Act.TELL):
                if life.act is Act.CONNECT:
                    await self._try()
                    continue
                act, limit = life.act, None
                if act is Act.ASK:
                    self._watch.refresh_soon()
                    limit = delay_after(self._config.backoff, life.failures, random.random)
                elif self._trouble.is_open:
                    limit = max(life.settled_at - self._loop.time(), 0.0)
                await pause(self._wake, limit)
                # A loss while it read asks for a pause of its own; one while it paused ends the pause.
                if life.act is act:
                    if act is Act.READ and self._trouble.is_open and self._loop.time() >= life.settled_at:
                        self._trouble.settled(life.node)
                    self._turn()
        finally:
            life.close()
            connection_left = self._connection
            self._leave(ConnectionLostError("the consumer was closed"))
            if connection_left is not None:
                await connection_left.ended()

    async def stop_messages(self) -> None:
        """Ask the server for no further message (CLS), and come back no more; errors end it silently."""
        was_reading = self._life.is_reading
        self._life.stop()
        self._wake.set()
        if was_reading and self._connection is not None:
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

    def _meta(self) -> TopicMeta | None:
        return self._watch.view.meta if self._watch.view is not None else None

    def _leader(self) -> Node | None:
        view = self._watch.view
        return view.leaders.get(self.partition) if view is not None and view.meta is not None else None

    def _turn(self) -> None:
        life, leader = self._life, self._leader()
        old = life.node
        life.turn(leader)
        if life.act is Act.ASK:
            no_leader = NoLeaderError(f"{self._watch.topic}-{self.partition} has no leader now")
            self._trouble.failed(self._loop.time(), no_leader)
        elif life.act is Act.CONNECT and old is not None:
            log.info("leader of %s-%d moved from %s", self._watch.topic, self.partition, old.address)

    async def _try(self) -> None:
        """Connect to the leader, leave the old connection, subscribe; tell how it went."""
        node, meta = self._life.target, self._meta()
        if node is None or meta is None:
            raise LocalProtocolError("a subscription tries a node that leads")
        try:
            await self._subscribe(node, meta)
        except NsqError as error:
            is_permanent = self._is_permanent(error)
            self._life.failed(self._leader(), for_good=is_permanent)
            if self._life.act is Act.TELL:
                log.error("%s-%d: %s", self._watch.topic, self.partition, error)  # noqa: TRY400 - the text says all
                self._inbox.refused(error)
            else:
                self._trouble.failed(self._loop.time(), error, node)

    async def _subscribe(self, node: Node, meta: TopicMeta) -> None:
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
        try:
            self._life.opened()
            if self._life.act is not Act.SUBSCRIBE:
                raise ConnectionLostError("not wanted any more")  # noqa: TRY301 - cleaned up below
            self._leave(ConnectionLostError(f"left for {node.address}, which leads now"))
            await self._start_channel(node, is_ordered=is_ordered)
            delivery.attach(connection)
            self._connection, self.delivery = connection, delivery
            topic, channel = self._watch.topic, self._channel
            if not meta.is_partitioned:
                await connection.subscribe(Sub(topic, channel, None), delivery, layout_for(detail=False, ext=False))
            else:
                command = (SubOrdered if is_ordered else SubAdvanced)(topic, channel, self.partition)
                await connection.subscribe(command, delivery, layout_for(detail=True, ext=meta.extend_support))
        except BaseException:
            if self.delivery is delivery:
                self._leave(ConnectionLostError("not subscribed"))
            connection.abort(ConnectionLostError("not subscribed"))
            raise
        self._start_from = None
        self._life.accepted(self._loop.time())
        if self._life.is_reading:
            self._trouble.subscribed(self._loop.time())
            log.info("subscribed to %s-%d at %s", self._watch.topic, self.partition, node.address)
            self._inbox.joined(self)

    async def _start_channel(self, node: Node, *, is_ordered: bool) -> None:
        """Set where the channel starts to read, where that was asked for."""
        if self._start_from is None:
            return
        where = (self._watch.topic, self.partition, self._channel)
        async with NsqdHttp(node, timeout=self._config.lookup_timeout) as nsqd:
            if is_ordered:
                # Switched by SUB_ORDERED, a channel with backlog starts over and gives its first message twice.
                await nsqd.create_channel(*where)
                await nsqd.set_order(*where, ordered=True)
            await nsqd.start_channel_from(*where, str(self._start_from))

    async def _open(self, node: Node, delivery: Delivery, *, extend_support: bool) -> Connection:
        def lost(reason: NsqError) -> None:
            # While SUB is unanswered its failure says it.
            if self.delivery is delivery and self._life.is_reading:
                self._life.lost(self._loop.time())
                self._trouble.failed(self._loop.time(), reason, node)
                self._leave(reason)
                self._wake.set()

        callbacks = Callbacks(lost, messages=self._messages, refusals=self._refusals, damaged=self._damaged)
        return await open_while(
            self._config,
            node,
            callbacks,
            extend_support=extend_support,
            news=self._wake,
            is_wanted=lambda: self._life.is_wanted(self._leader()),
        )

    def _leave(self, reason: NsqError) -> None:
        connection, self._connection = self._connection, None
        delivery, self.delivery = self.delivery, None
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
        if delivery.is_ordered:
            delivery.arrived_at = self._loop.time()
        if tracelog.switch.is_any and tracelog.switch.is_on(self._watch.topic):
            for message in messages:
                tracelog.log_message("delivery", message)
        delivery.is_arriving = True
        self._inbox.arrived(messages)  # runs who waits for messages: what it answers leaves together, below
        delivery.is_arriving = False
        delivery.flush()

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
