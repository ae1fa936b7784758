"""One partition's subscription: what a consumer reads over a link, and answers.

``engine.link`` connects, and follows the leader; ``consumer.receiving`` handles what
arrives; ``consumer.trouble`` says which failures end the subscription.

The invariant: messages are requested over at most one connection at a time. The
client connects to a new leader, leaves the old connection, and then subscribes.
If nsqd can write to a connection for a limited time only, its replacement is
subscribed with RDY 0 before CLS is sent.

Source: server failures 3.7, 3.9, 4.3.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from nsq_ha.consumer.delivery import Delivery, DeliveryCounts, Reports
from nsq_ha.consumer.receiving import Receiver
from nsq_ha.consumer.starting import Start
from nsq_ha.consumer.trouble import PartitionTrouble
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.link import Link, Role
from nsq_ha.engine.observe import PartitionReports
from nsq_ha.engine.waiting import open_while, uninterrupted
from nsq_ha.errors import ConnectError, LocalProtocolError, NoLeaderError, NsqError, ServerError
from nsq_ha.policy.link_life import Life, settle_time
from nsq_ha.policy.ready import Seen
from nsq_ha.policy.skipping import skipping_of
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, layout_for
from nsq_ha.protocol.encoding import encode_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.consumer.clock import Heartbeats
    from nsq_ha.engine.approach import Approach
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView

CUT_OFF_TIMEOUT: Final = 1.0
"""Seconds that the end of a consumer waits for nsqd to stop sending, if no close has waited for it as long."""

_STRAGGLE: Final = 0.02
"""Seconds after the answer to CLS in which the one message may come that nsqd was sending meanwhile."""


class Inbox(Protocol):
    """Receives a subscription's messages and events.

    ``consumer.inbox`` implements it, and knows its subscriptions: an import there would be a circle.

    Attributes:
        heartbeats: How often nsqd should send heartbeats.
    """

    heartbeats: Heartbeats

    @property
    def ledger(self) -> Reports:
        """Where deliveries report."""

    def arrived(self, messages: list[Message]) -> None:
        """Receive the messages of one read."""

    def joined(self) -> None:
        """Record that a subscription succeeded, perhaps over another connection; RDY is still 0."""

    def left(self) -> None:
        """Record that a subscription ended, or that a replaced connection has ended."""

    def cut_off(self, delivery: Delivery) -> None:
        """Requeue the unanswered messages of a connection that is about to end."""

    def refused(self, error: NsqError) -> None:
        """Record an error that retries cannot fix."""


class Subscription(Role[Connection]):
    """Reads one partition. Run its link as a task; it ends if cancelled, or if nsqd refuses permanently.

    Args:
        watch: The lookups of the topic.
        channel: The channel.
        partition: The partition.
        config: The consumer's options.
        inbox: Receives the messages and events.
        approach: Gives the consumer's connections their turns.

    Attributes:
        partition: The partition.
        has_channel: The partition has the channel, as far as is known.
        counts: Counts of its messages.
        delivery: The delivery of the connection in use.
        link: The connection to the leader.
    """

    doing: ClassVar[str] = "consuming"
    client: ClassVar[str] = "consumer"
    needs_channels: ClassVar[bool] = False  # SUB will tell
    log: ClassVar[logging.Logger] = logging.getLogger("nsq_ha.consumer")

    def __init__(
        self,
        watch: TopicWatch,
        channel: str,
        partition: int,
        config: ConsumerConfig,
        inbox: Inbox,
        *,
        approach: Approach,
    ) -> None:
        self.partition = partition
        self._approach = approach
        self.has_channel: bool = False
        self.counts: DeliveryCounts = DeliveryCounts()
        self.delivery: Delivery | None = None
        self._channel = channel
        self._watch = watch
        self._config = config
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._reports = PartitionReports(watch.observer, watch.topic, channel, partition)
        self._trouble = PartitionTrouble(watch.topic, watch.name_of(partition), config, self._reports)
        self._known: tuple[Node, TopicMeta | None] | None = None
        self._start = Start(watch, channel, partition, config)
        self._receiver = Receiver(
            watch.topic,
            watch.name_of(partition),
            self._start,
            inbox.arrived,
            self._reports.refused,
            skipping=skipping_of(config.skip_header, config.ext_filter),
        )
        self._cut_off: asyncio.Future[None] | None = None
        # Of connections that are being opened, or replaced and not done.
        self._deliveries: dict[Connection, Delivery] = {}
        self._replaced: dict[Connection, tuple[Delivery, float]] = {}
        life: Life[Node] = Life(settle_time(config.heartbeat_interval))
        self.link: Link[Connection] = Link(self, watch, partition, config.backoff, life=life, reports=self._reports)

    @property
    def trouble(self) -> NsqError | None:
        """Why the partition is not subscribed; None while it is."""
        return self._trouble.reason

    @property
    def trouble_since(self) -> float | None:
        """When its failures began, in the loop's time. None if there are none."""
        return self._trouble.since

    @property
    def is_subscribed(self) -> bool:
        """Whether messages may arrive."""
        return self.link.life.is_reading

    @property
    def ready(self) -> int:
        """The RDY count sent last; 0 while not subscribed."""
        return self.delivery.ready if self.delivery is not None else 0

    @property
    def in_flight(self) -> int:
        """Number of unanswered messages of the connection in use."""
        return self.delivery.in_flight if self.delivery is not None else 0

    @property
    def replaced_in_flight(self) -> int:
        """Number of unanswered messages of the replaced connections."""
        return sum(delivery.in_flight for delivery, _ in tuple(self._replaced.values()))

    @property
    def unanswered(self) -> int:
        """Number of messages that the application has not answered, without those held here until they are requeued."""
        current = self.delivery.in_flight - self.delivery.held if self.delivery is not None else 0
        return current + sum(delivery.in_flight - delivery.held for delivery, _ in self._replaced.values())

    @property
    def nsqd(self) -> str:
        """``host:port`` of the nsqd that delivers. Empty without one."""
        return self.delivery.nsqd if self.delivery is not None else ""

    @property
    def kept(self) -> tuple[int, int]:
        """The fewest and the most messages that nsqd would keep until their timeout if the connection ended now.

        Those that it has sent for the latest RDY may not have been read yet.
        """
        delivery = self.delivery
        if delivery is None or delivery.is_returned_at_end or not delivery.is_alive:
            return 0, 0
        return delivery.in_flight, max(delivery.in_flight, delivery.ready)

    @property
    def seen(self) -> Seen:
        """What the connection in use delivers."""
        delivery = self.delivery
        if delivery is None:
            return Seen(0, 0, 0, 0)
        return Seen(delivery.ready, delivery.in_flight, delivery.peak, delivery.delivered)

    def reset_peak(self) -> None:
        """Reset the peak of messages in flight."""
        if self.delivery is not None:
            self.delivery.peak = self.delivery.in_flight

    @property
    def max_ready(self) -> int:
        """The largest RDY count allowed; 0 while not subscribed."""
        delivery, connection = self.delivery, self.link.connection
        if delivery is None or connection is None or not self.link.life.is_reading:
            return 0
        return 1 if delivery.is_ordered else connection.identity.max_rdy_count

    def set_ready(self, count: int) -> None:
        """Send RDY if it differs from the count sent last."""
        delivery, connection = self.delivery, self.link.connection
        if delivery is not None and connection is not None and delivery.ready != count:
            delivery.ready = count
            delivery.granted.grant(count)
            connection.write(encode_ready(count))

    def view_changed(self, view: TopicView) -> None:
        """Wake up if the leader or the topic's meta changed; changes of other partitions do not end a backoff."""
        if not view.exists:
            self._start.forget()
        leader = view.leaders.get(self.partition)
        known = None if leader is None else (leader, view.meta)
        if known == self._known:
            return
        self._known = known
        if leader is not None:
            self.link.leads(leader)

    async def aclose_connection(self, timeout: float) -> None:
        """Flush the answers and close the connection within the time limit."""
        for delivery in (self.delivery, *(delivery for delivery, _ in self._replaced.values())):
            if delivery is not None:
                delivery.flush()
        await self.link.aclose(timeout)

    async def cut_off(self, timeout: float = CUT_OFF_TIMEOUT) -> None:
        """Requeue what nsqd would keep until its timeout, also what it has sent and is on its way.

        Nobody will answer these messages. The next call waits for the first one.

        Args:
            timeout: Seconds to wait for nsqd to stop sending.
        """
        connection, delivery = self.link.connection, self.delivery
        if self._cut_off is None:
            if connection is None or delivery is None or delivery.is_returned_at_end:
                return
            self._cut_off = asyncio.ensure_future(self._requeue_all(connection, delivery, timeout))
        await uninterrupted(self._cut_off)

    async def _requeue_all(self, connection: Connection, delivery: Delivery, timeout: float) -> None:
        connection.write(encode_ready(0))  # else nsqd would send them here again
        most = max(delivery.in_flight, delivery.ready)
        self._inbox.cut_off(delivery)
        delivery.reject()
        try:
            async with asyncio.timeout(timeout):
                await connection.stop_messages()
            await asyncio.sleep(_STRAGGLE)
        except TimeoutError:
            self.log.warning(
                "%s: %s did not answer CLS in time: up to %d messages may stay in flight until nsqd's message timeout",
                self.link.name,
                connection.name,
                most,
            )
        except NsqError as error:
            self.log.debug("%s: CLS failed: %s", self.link.name, error)
        connection.write_now(b"")

    # ------------------------------------------------------------ the link's role: to connect and to subscribe

    def leader(self) -> Node:
        """Return the node to read from."""
        view = self._watch.view
        node = view.leaders.get(self.partition) if view is not None and view.meta is not None else None
        if node is None:
            cause = "" if view is None else view.cause
            raise NoLeaderError(f"{self.link.name} has no leader now{cause}")
        return node

    async def open(self, node: Node, lost: Callable[[NsqError], None], is_wanted: Callable[[], bool]) -> Connection:
        """Connect to ``node``, with the heartbeats that the event loop can answer."""
        meta, heartbeats = self._meta(), self._inbox.heartbeats
        delivery = self._new_delivery(meta)
        interval = heartbeats.interval
        config = self._config
        if interval != config.heartbeat_interval:
            config = dataclasses.replace(config, heartbeat_interval=interval)
        callbacks = self._receiver.callbacks(delivery, lost)

        def opening() -> Coroutine[Any, Any, Connection]:
            return Connection.open(config, node, callbacks, extend_support=meta.extend_support)

        try:
            connection = await open_while(
                self._approach.open(node, opening), node, news=self.link.news, is_wanted=is_wanted
            )
        except ServerError as error:
            if interval != self._config.heartbeat_interval and "heartbeat_interval" in str(error):
                heartbeats.refused()
                raise ConnectError(f"{node.address} refused a heartbeat interval of {interval:g} s: {error}") from error
            raise
        self._deliveries[connection] = delivery
        return connection

    async def join(self, connection: Connection) -> None:
        """Subscribe; messages arrive with the connection's delivery as their source."""
        node, delivery, start = connection.node, self._deliveries[connection], self._start
        async with self._approach.asking(node):
            position = await start.prepare(node, is_ordered=delivery.is_ordered)
        delivery.may_repeat |= start.is_set
        delivery.attach(connection)
        try:
            await self._send_sub(connection, delivery, position)
        except ServerError as error:
            if (better := start.after_refusal(error)) is not error:
                raise better from error
            raise
        self.has_channel = True
        if delivery.is_ordered:
            await start.replicate(node)
        start.done()

    def connected(self, connection: Connection, *, again: bool) -> None:
        """Record that a leader is subscribed to."""
        self.log.info("subscribed to %s over %s", self.link.name, connection.name)
        self._trouble.subscribed(self._loop.time())
        self.counts.reconnects += again

    def use(self, connection: Connection) -> None:
        """Read from ``connection`` from now on."""
        self.delivery = self._deliveries.pop(connection)
        self._inbox.joined()

    def look_in(self) -> float | None:
        """Return the seconds until the subscription has lasted for long enough, if something failed before."""
        return self.link.life.settled_at - self._loop.time() if self._trouble.is_open else None

    async def looked(self, connection: Connection) -> None:
        """Record that the subscription has lasted."""
        if self._trouble.is_open and self._loop.time() >= self.link.life.settled_at:
            self._trouble.settled(connection.node)

    async def settle(self, connection: Connection, until: float | None) -> None:
        """Have nsqd stop to send messages; ignore errors."""
        try:
            async with asyncio.timeout_at(until):
                await connection.stop_messages()
        except TimeoutError:
            self.log.debug("%s: CLS was not answered in time by %s", self.link.name, connection.name)
        except NsqError as error:
            self.log.debug("%s: CLS failed: %s", self.link.name, error)

    def retired(self, connection: Connection) -> bool:
        """Keep the connection in use for answers only."""
        delivery, self.delivery = self.delivery, None
        if delivery is None:
            return False

        def freed() -> None:
            self._inbox.ledger.freed()
            self.link.answered(connection)

        self._replaced[connection] = delivery, self._loop.time()
        delivery.retire(freed)
        return True

    def is_outstanding(self, connection: Connection, now: float) -> bool:
        """Return whether messages of ``connection`` are unanswered, and nsqd has not timed them out."""
        delivery, since = self._replaced.get(connection, (self.delivery, now))
        return (
            delivery is not None
            and delivery.in_flight > 0
            and now <= max(since, delivery.touched_at) + delivery.msg_timeout
        )

    def dropped(self, connection: Connection) -> None:
        """Drop all answers to messages of ``connection``."""
        if (opened := self._deliveries.pop(connection, None)) is not None:
            opened.detach()
        if (replaced := self._replaced.pop(connection, None)) is not None:
            replaced[0].detach()
            self._inbox.left()

    def left(self, reason: NsqError, *, is_expired: bool) -> None:
        """Drop all answers to messages of the connection in use."""
        delivery, self.delivery = self.delivery, None
        if delivery is not None:
            delivery.detach()
        if is_expired:
            self.failed(reason, self.link.life.node)
        self._inbox.left()

    def failed(self, error: NsqError, node: Node | None) -> None:
        """Record a failure, and warn if it is time."""
        if node is not None or not self.is_forsaken:
            self._trouble.failed(self._loop.time(), self._trouble.explained(error), node)

    def is_final(self, error: NsqError, node: Node | None) -> bool:
        """Return whether retrying cannot help after ``error``, and report it if so."""
        explained = self._trouble.explained(error)
        if not self._trouble.ends(explained):
            return False
        at = "" if node is None else f" at nsqd {node.address}"
        self.log.error("%s%s: %s", self.link.name, at, explained)
        self._inbox.refused(explained)
        return True

    @property
    def is_forsaken(self) -> bool:
        """Whether this is an nsqd of a plain cluster that no nsqlookupd lists any more; it may never return."""
        view = self._watch.view
        if view is None or view.meta is None:
            return False
        return not view.meta.is_partitioned and self.partition not in view.leaders

    def _new_delivery(self, meta: TopicMeta) -> Delivery:
        return Delivery(
            self._inbox.ledger,
            self.partition,
            self.counts,
            is_ordered=meta.ordered if self._config.ordered == "auto" else self._config.ordered,
            is_returned_at_end=meta.is_partitioned,
            longest_delay=self._receiver.longest_delay,
        )

    async def _send_sub(self, connection: Connection, delivery: Delivery, start: str | None) -> None:
        meta, topic = self._meta(), self._watch.topic
        if not meta.is_partitioned:
            command: Sub | SubOrdered | SubAdvanced = Sub(topic, self._channel, None)
        elif delivery.is_ordered:
            command = SubOrdered(topic, self._channel, self.partition)
        else:
            command = SubAdvanced(topic, self._channel, self.partition, start)
        layout = layout_for(detail=meta.is_partitioned, ext=meta.is_partitioned and meta.extend_support)
        await connection.subscribe(command, delivery, layout)

    def _meta(self) -> TopicMeta:
        meta = self._watch.view.meta if self._watch.view is not None else None
        if meta is None:
            raise LocalProtocolError("internal error: no leader to subscribe to")
        return meta
