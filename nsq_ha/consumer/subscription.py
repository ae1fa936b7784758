"""One partition's subscription: it finds the leader, subscribes, and repeats this after every failure.

This module owns the connection. It reports events to ``policy.subscription``,
which decides what to do. ``consumer.opening`` opens a connection and sends SUB;
``consumer.receiving`` handles what arrives.

The invariant: messages are requested over at most one connection at a time. The
client connects to a new leader, leaves the old connection, and then subscribes.
If nsqd can write to a connection for a limited time only (``consumer.renewal``),
its replacement is subscribed with RDY 0 before CLS is sent.

Source: server failures 3.7, 3.9, 4.3.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Protocol

from nsq_ha.consumer.counts import DeliveryCounts
from nsq_ha.consumer.opening import Answers, Opener
from nsq_ha.consumer.receiving import Receiver
from nsq_ha.consumer.renewal import Renewal, Replaced
from nsq_ha.consumer.starting import Start
from nsq_ha.consumer.trouble import Trouble
from nsq_ha.engine.waiting import is_foreign, pause
from nsq_ha.errors import ConnectionLostError, LocalProtocolError, NoLeaderError, NsqError, ServerError
from nsq_ha.observe import PartitionReports
from nsq_ha.policy.ready import Seen
from nsq_ha.policy.skipping import skipping_of
from nsq_ha.policy.subscription import Act, Life, State, settle_time
from nsq_ha.policy.timing import delay_after
from nsq_ha.protocol.encoding import encode_ready
from nsq_ha.unexpected import report_unexpected

if TYPE_CHECKING:
    from nsq_ha.consumer.delivery import Delivery
    from nsq_ha.engine.connection import Callbacks, Connection
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.tls_renewal import Lifetime
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Inbox(Answers, Protocol):
    """Receives a subscription's messages and events."""

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


class Subscription:
    """Reads one partition. Run :meth:`run` as a task; it ends if cancelled, or if nsqd refuses permanently.

    Attributes:
        partition: The partition.
        has_channel: The partition has the channel, as far as is known.
        counts: Counts of its messages.
        delivery: The delivery of the connection in use.
    """

    def __init__(
        self,
        watch: TopicWatch,
        channel: str,
        partition: int,
        config: ConsumerConfig,
        inbox: Inbox,
    ) -> None:
        self.partition = partition
        self.has_channel: bool = False
        self.counts: DeliveryCounts = DeliveryCounts()
        self._was_subscribed = False
        self._reports = PartitionReports(watch.observer, watch.topic, channel, partition)
        self.delivery: Delivery | None = None
        self._life: Life[Node] = Life(settle_time(config.heartbeat_interval))
        self._trouble = Trouble(watch.topic, partition, config, self._reports)
        self._known: tuple[Node, TopicMeta | None] | None = None
        self._watch = watch
        self._config = config
        self._inbox = inbox
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._is_closing = False
        self._start = Start(watch, channel, partition, config)
        self._opener = Opener(watch.topic, channel, partition, config, inbox, counts=self.counts)
        self._receiver = Receiver(
            watch.topic,
            partition,
            self._start,
            inbox.arrived,
            self._reports.refused,
            skipping=skipping_of(config.skip_header, config.ext_filter),
        )
        self._wake = asyncio.Event()
        self._replaced = Replaced(inbox.freed, inbox.left)
        self._renewal = Renewal(self, config.backoff, f"{watch.topic}-{partition}")

    @property
    def lifetime(self) -> Lifetime | None:
        """The lifetime of the connection in use; None without a connection or without a limit."""
        return self._connection.lifetime if self._connection is not None and self.is_subscribed else None

    @property
    def trouble(self) -> NsqError | None:
        """Why the partition is not subscribed; None while it is."""
        return self._trouble.reason

    @property
    def trouble_since(self) -> float | None:
        """When its failures began, in the loop's time. None if there are none."""
        return self._trouble.since

    @property
    def state(self) -> State:
        """Where it stands."""
        return self._life.state

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last heartbeat, or since connecting. None without a connection."""
        connection = self._connection
        return None if connection is None else connection.heartbeat_age

    @property
    def is_subscribed(self) -> bool:
        """Whether messages may arrive."""
        return self._life.is_reading

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
        return self._replaced.in_flight

    @property
    def unanswered(self) -> int:
        """Number of messages that the application has not answered, without those held here until they are requeued."""
        current = self.delivery.in_flight - self.delivery.held if self.delivery is not None else 0
        return current + self._replaced.unanswered

    @property
    def kept(self) -> int:
        """Number of messages in flight that nsqd would keep until their timeout if the connection ended now."""
        delivery = self.delivery
        return 0 if delivery is None or delivery.is_returned_at_end else delivery.in_flight

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
        if self.delivery is None or self._connection is None or not self.is_subscribed:
            return 0
        return 1 if self.delivery.is_ordered else self._connection.identity.max_rdy_count

    def set_ready(self, count: int) -> None:
        """Send RDY if it differs from the count sent last."""
        if self.delivery is not None and self._connection is not None and self.delivery.ready != count:
            self.delivery.ready = count
            self.delivery.granted.grant(count)
            self._connection.write(encode_ready(count))

    def view_changed(self, view: TopicView) -> None:
        """Wake up if the leader or the topic's meta changed; changes of other partitions do not end a backoff."""
        leader = view.leaders.get(self.partition)
        known = None if leader is None else (leader, view.meta)
        if known == self._known:
            return
        self._known = known
        if leader is not None and (self._connection is None or leader != self._connection.node):
            self._wake.set()

    async def run(self) -> None:
        """Stay subscribed until stopped or cancelled; recover from every external error."""
        life = self._life
        try:
            is_new = True
            while life.act not in (Act.END, Act.REPORT):
                try:
                    if is_new:
                        is_new = False
                        self._check_leader()
                    else:
                        await self._step()
                except (Exception, asyncio.CancelledError) as error:
                    if not is_foreign(error):
                        raise
                    self._survive(error)
        finally:
            # End everything before the first wait: another cancellation may skip the waits.
            life.close()
            self.cut_off()
            connection_left, reason = self._connection, ConnectionLostError("the consumer was closed")
            self._leave(reason)
            self._replaced.drop(reason)
            self._renewal.cancel()
            if connection_left is not None:
                await connection_left.ended()
            await self._replaced.ended()
            await self._renewal.stop()

    async def _step(self) -> None:
        """Connect, or wait for the next event and decide what to do."""
        life = self._life
        if life.act is Act.CONNECT:
            await self._attempt()
            return
        act, limit = life.act, None
        if act is Act.ASK and not self._is_unlisted():
            self._watch.refresh_soon()
            limit = delay_after(self._config.backoff, life.failures, random.random)
        elif self._trouble.is_open:
            limit = max(life.settled_at - self._loop.time(), 0.0)
        await pause(self._wake, limit)
        # A connection lost while reading needs its own pause; one lost during the pause ends it.
        if life.act is act:
            if act is Act.READ and self._trouble.is_open and self._loop.time() >= life.settled_at:
                self._trouble.settled(life.node)
            self._check_leader()

    def _survive(self, error: BaseException) -> None:
        """Report an unexpected error, close all connections and start again after a pause."""
        reason = self._trouble.explain(error)
        self._life.broken()
        self._wake.clear()  # nothing may end the pause: an immediate failure must not repeat in a loop
        try:
            self._leave(reason)
            self._trouble.failed(self._loop.time(), reason)
        except Exception as again:  # noqa: BLE001 - the next attempt may work
            report_unexpected(log, f"{self._watch.topic}-{self.partition}, leaving its connection", again)

    async def stop_messages(self) -> None:
        """Stop the server from sending messages (CLS) and do not subscribe again; ignore errors."""
        was_reading = self._life.is_reading
        self._life.stop()
        self._wake.set()
        await self._renewal.stop()
        if was_reading and self._connection is not None:
            try:
                await self._connection.stop_messages()
            except NsqError as error:
                log.debug("%s-%d: CLS failed: %s", self._watch.topic, self.partition, error)
            if (lifetime := self.lifetime) is not None:
                self._set_aside(lifetime)

    async def aclose_connection(self, timeout: float) -> None:
        """Flush the answers and close the connection within the time limit."""
        self._is_closing = True
        if self._connection is not None:
            if self.delivery is not None:
                self.delivery.flush()
            await self._connection.aclose(timeout)
        await self._replaced.aclose(timeout)

    def cut_off(self) -> None:
        """Requeue what nsqd would keep until its timeout: nobody will answer it, since the consumer was not closed."""
        connection, delivery = self._connection, self.delivery
        if connection is not None and delivery is not None and self.kept:
            connection.write(encode_ready(0))  # else nsqd would send them here again
            delivery.retire(lambda: None)
            self._inbox.cut_off(delivery)
            delivery.flush()
            connection.write_now(b"")

    def _meta(self) -> TopicMeta | None:
        return self._watch.view.meta if self._watch.view is not None else None

    def _leader(self) -> Node | None:
        view = self._watch.view
        return view.leaders.get(self.partition) if view is not None and view.meta is not None else None

    def _is_unlisted(self) -> bool:
        """Return whether this is an nsqd of a plain cluster that no nsqlookupd lists any more; it may never return."""
        meta = self._meta()
        return meta is not None and not meta.is_partitioned and self._leader() is None

    def _check_leader(self) -> None:
        life, leader = self._life, self._leader()
        old = life.node
        life.check(leader)
        if life.act is Act.ASK and not self._is_unlisted():
            cause = "" if self._watch.view is None else self._watch.view.cause
            no_leader = NoLeaderError(f"{self._watch.topic}-{self.partition} has no leader now{cause}")
            self._trouble.failed(self._loop.time(), no_leader)
        elif life.act is Act.CONNECT and old is not None:
            log.info("leader of %s-%d moved from %s", self._watch.topic, self.partition, old.address)

    async def _attempt(self) -> None:
        """Connect to the leader, leave the old connection, subscribe; report the result to ``policy``."""
        node, meta = self._life.target, self._meta()
        if node is None or meta is None:
            raise LocalProtocolError("internal error: no leader to subscribe to")
        try:
            await self._subscribe(node, meta)
        except (Exception, asyncio.CancelledError) as raised:
            if not is_foreign(raised):
                raise
            error = self._start.after_refusal(self._trouble.explain(raised))  # the connection in use is not affected
            if isinstance(raised, ServerError):
                self._reports.refused(raised, node.address)
            self._life.failed(self._leader(), for_good=self._trouble.ends(error))
            if self._life.act is Act.REPORT:
                log.error("%s-%d at nsqd %s: %s", self._watch.topic, self.partition, node.address, error)  # noqa: TRY400 - the text says all
                self._inbox.refused(error)
            else:
                self._trouble.failed(self._loop.time(), error, node)

    async def _subscribe(self, node: Node, meta: TopicMeta) -> None:
        delivery = self._opener.new_delivery(meta)
        siblings, view = self._watch.siblings, self._watch.view
        check = None if siblings is None or view is None else siblings.check(self.partition, node, view)
        connection = await self._opener.open(
            node,
            meta,
            self._callbacks(node, delivery),
            news=self._wake,
            is_wanted=lambda: self._life.is_wanted(self._leader()),
        )
        try:
            if siblings is not None and check is not None:
                with contextlib.suppress(NoLeaderError):  # SUB will tell
                    await siblings.passed(self.partition, check)
            self._life.opened()
            if self._life.act is not Act.SUBSCRIBE:
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
            reason = ConnectionLostError(f"left for {node.address}, which leads now")
            self._leave(reason)
            self._replaced.left_for(node, reason)
            start = await self._start.prepare(node, is_ordered=delivery.is_ordered)
            delivery.may_repeat |= self._start.is_set
            self._connection, self.delivery = connection, delivery
            await self._opener.subscribe(connection, meta, delivery, start)
            self.has_channel = True
            if delivery.is_ordered:
                await self._start.replicate(node)
                if not connection.is_open:
                    raise ConnectionLostError(f"{node.address} closed the connection after SUB")  # noqa: TRY301 - cleaned up below
        except BaseException:
            if self.delivery is delivery:
                self._leave(ConnectionLostError("not subscribed"))
            connection.abort(ConnectionLostError("not subscribed"))
            raise
        self._start.done()
        self._life.accepted(self._loop.time())
        if self._life.is_reading:
            self._trouble.subscribed(self._loop.time())
            log.info("subscribed to %s-%d over %s", self._watch.topic, self.partition, connection.name)
            self._reports.connected(node.address)
            self.counts.reconnects += self._was_subscribed
            self._was_subscribed = True
            self._inbox.joined()
            self._renewal.changed()

    # -- called by its renewal (consumer.renewal.Owner)

    async def replace(self, news: asyncio.Event) -> None:
        """Subscribe over another connection to the same nsqd, then read from that one.

        Raises:
            NsqError: No new connection could be opened, or it is no longer needed; nothing changed.
        """
        old, meta, lifetime = self._connection, self._meta(), self.lifetime
        if old is None or meta is None or lifetime is None:
            raise ConnectionLostError("nothing to replace")

        def is_wanted() -> bool:
            return self._connection is old and self._life.state is not State.DRAINING

        delivery = self._opener.new_delivery(meta)
        callbacks = self._callbacks(old.node, delivery)
        connection = await self._opener.open(old.node, meta, callbacks, news=news, is_wanted=is_wanted)
        try:
            await self._opener.subscribe(connection, meta, delivery)
            if not is_wanted():
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
            await self._stop_within(old, lifetime)
            if self._connection is not old:
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
        except BaseException:
            delivery.detach()
            connection.abort(ConnectionLostError("no longer needed"))
            raise
        self._set_aside(lifetime)
        self._connection, self.delivery = connection, delivery
        place = (self._watch.topic, self.partition)
        log.debug("%s-%d: opened another connection to nsqd, %s in place of %s", *place, connection.name, old.name)
        self._inbox.joined()

    async def run_out(self) -> None:
        """Stop reading from a connection that nsqd can hardly write to, and subscribe again."""
        connection, lifetime = self._connection, self.lifetime
        if connection is None or lifetime is None:
            return
        with contextlib.suppress(NsqError):
            await self._stop_within(connection, lifetime)
        if self._connection is connection and self._life.is_reading:
            reason = ConnectionLostError(f"{connection.node.address} can no longer write to this connection")
            self._reports.disconnected(reason)
            self._set_aside(lifetime)
            self._life.lost(self._loop.time())
            self._trouble.failed(self._loop.time(), reason, connection.node)
            self._inbox.left()
            self._wake.set()

    async def _stop_within(self, connection: Connection, lifetime: Lifetime) -> None:
        """Stop messages over ``connection``; do not wait for a late answer."""
        try:
            async with asyncio.timeout_at(lifetime.stale_at):
                await connection.stop_messages()
        except TimeoutError:
            place = (self._watch.topic, self.partition)
            log.debug("%s-%d: CLS was not answered in time by %s", *place, connection.name)

    def _set_aside(self, lifetime: Lifetime) -> None:
        """Keep the connection, which has this ``lifetime``, only for answers."""
        connection, delivery = self._connection, self.delivery
        if connection is not None and delivery is not None:
            self._connection = self.delivery = None
            self._replaced.add(connection, delivery, lifetime, self._callbacks(connection.node, delivery))

    def _callbacks(self, node: Node, delivery: Delivery) -> Callbacks:
        def lost(reason: NsqError) -> None:
            # While SUB is unanswered, its failure is reported instead.
            if self.delivery is delivery and self._life.is_reading:
                self._life.lost(self._loop.time())
                self._wake.set()
                if self._is_closing:
                    log.debug("%s-%d at nsqd %s: %s", self._watch.topic, self.partition, node.address, reason)
                else:
                    self._trouble.failed(self._loop.time(), reason, node)
                self._leave(reason)

        return self._receiver.callbacks(delivery, lost)

    def _leave(self, reason: NsqError) -> None:
        connection, self._connection = self._connection, None
        delivery, self.delivery = self.delivery, None
        self._reports.disconnected(reason)
        if connection is not None:
            connection.abort(reason)
        self._renewal.changed()
        if delivery is not None:
            delivery.detach()
            self._inbox.left()
