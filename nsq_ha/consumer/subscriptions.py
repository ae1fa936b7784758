"""When a consumer connects to the leaders of its partitions, subscribes, replaces connections and leaves them.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.

The invariants, for all inputs in any order:

* Messages are requested over at most one connection of a partition at a time. The client connects to a new leader,
  leaves the former one, and then subscribes. If no lookup names a leader, the connection stays in use.
* A connection to which nsqd can write for a limited time only is replaced before that: the other one is subscribed
  with RDY 0, then CLS is sent over the first one. That one is kept until what came over it is answered.
* A pause follows each failure, unless another node leads by then; topics are looked up often during each pause. Only a
  subscription that has lasted ends the growth of the pauses: nsqd may accept SUB, deliver some messages, and then the
  one that ends the connection. So the client reconnects at once after one loss, and the tenth in a row waits longest.
* A partition ends only with the consumer, with the topic's partition, or if nsqd refuses and retrying cannot help.

=======================  ==============================  ===============
event                    short lives in a row            failures
=======================  ==============================  ===============
SUB accepted             as before                       = short lives
lost before it settled   one more                        short lives + 1
lost later               0                               1
a failed attempt         as before                       one more
=======================  ==============================  ===============

Source: server failures 3.7, 3.9, 4.1 to 4.4; server protocol 3.3.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from nsq_ha.consumer import choice
from nsq_ha.consumer.answers import Said
from nsq_ha.consumer.inflight import DeliveryCounts, ReadPartition, Stage, Subscription
from nsq_ha.errors import (
    AuthError,
    BadNameError,
    ChannelNotRegisteredError,
    ConfigError,
    ConnectionLostError,
    InvalidCommandError,
    MessageRefusedError,
    NoLeaderError,
    NsqError,
    ServerError,
    SubscribeRefusedError,
    TlsRequiredError,
)
from nsq_ha.policy.connect_limit import SETTLED
from nsq_ha.policy.liveness import SILENT_INTERVALS
from nsq_ha.policy.permission import RENEWABLE
from nsq_ha.policy.plain_topology import explained
from nsq_ha.policy.timing import Outage, Warned, delay_after
from nsq_ha.policy.tls_renewal import Phase
from nsq_ha.policy.topology import unanswered

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.answers import Answering
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView

SETTLED_INTERVALS: Final = SILENT_INTERVALS
"""Heartbeat intervals after which a subscription counts as working; ``SETTLED`` seconds if they are longer."""

_MUST_BE_ORDERED: Final = "E_SUB_ORDER_IS_MUST"

_PERMANENT: Final = (
    BadNameError,
    ChannelNotRegisteredError,
    InvalidCommandError,
    MessageRefusedError,
    TlsRequiredError,
)


class ConnectionAction(NamedTuple):
    """Something to do with a connection.

    Attributes:
        what: ``open`` and subscribe; ``abort`` it or the attempt to open it; ``close`` it when what is buffered has
            been sent; ``stop``: send CLS, and say :meth:`Subscriptions.stopped` when it is answered or cannot be;
            ``keep alive`` with a NOP, since nsqd writes no more; ``leave``: requeue what nsqd would keep, then end it,
            since its partition is read no more.
        conn: The connection.
        reason: Why it is aborted.
    """

    what: Literal["open", "abort", "close", "stop", "keep alive", "leave"]
    conn: Subscription
    reason: NsqError | None = None


class LookUps(NamedTuple):
    """Look the topic up often from now on, or no longer."""

    are_frequent: bool


class Unreadable(NamedTuple):
    """Tell the application that retrying cannot help."""

    error: NsqError


class PartitionEvent(NamedTuple):
    """Something of a partition, or of the topic, to log, and to tell the application.

    Attributes:
        what: ``subscribed``, ``replaced``, ``disconnected``, ``failed``, ``settled``, ``refused``, ``final``,
            ``moved`` or ``gone``; of the whole topic ``absent`` or ``found``.
        partition: The partition. None if it is about the topic.
        node: The nsqd. None if it is not about one.
        error: Why.
        conn: The connection.
        outage: The facts, if there is a reason to warn.
    """

    what: str
    partition: ReadPartition | None = None
    node: Node | None = None
    error: NsqError | None = None
    conn: Subscription | None = None
    outage: Warned | None = None


class Subscriptions:
    """The connections of all partitions of one consumer.

    Args:
        config: The consumer's options.
        topic: The topic.
        messages: The part of the machine that has the messages.
        chance: Returns a number from 0 to 1.

    Attributes:
        view: What the nsqlookupds say. None before the first lookup.
        past: Counts of partitions that are no longer read.
        absence: Since when there is nothing to read.
        news: A view that was not looked at yet.
        wake_at: When to call :meth:`tick`.
    """

    def __init__(self, config: ConsumerConfig, topic: str, messages: Answering, chance: Callable[[], float]) -> None:
        self.view: TopicView = unanswered(topic)
        self.past: DeliveryCounts = DeliveryCounts()
        self.absence: Outage = Outage()
        self.news: TopicView | None = None
        self.wake_at: float = math.inf
        self._config, self._topic, self._messages, self._chance = config, topic, messages, chance
        self._partitions = messages.partitions
        self._actions = messages.actions
        self._wanting: dict[ReadPartition, None] = {}
        self._is_looked_up = False

    def _wake(self, when: float) -> None:
        self.wake_at = min(self.wake_at, when)

    # ------------------------------------------------------------ what is read

    def learn(self, view: TopicView, now: float) -> None:
        """Have the next tick look at what the nsqlookupds say, and the one after it if that fails."""
        self.news = view
        self._wake(now)

    def viewed(self, view: TopicView, now: float) -> None:
        """Take what the nsqlookupds say."""
        if self._messages.is_closing:
            return
        self.view = view
        wanted = choice.wanted(self._config, view)
        try:
            if view.meta is not None and not self._partitions:
                for kind, text in choice.check_meta(self._config, self._topic, view.meta).items():
                    self._messages.warn_once(kind, text)
            choice.check_numbers(self._config, view)
        except ConfigError as error:
            self._actions.append(Unreadable(error))
            return
        for number in sorted(wanted - self._partitions.keys()):
            self._partitions[number] = ReadPartition(number)
        if view.exists and view.partition_num > 0 and self._config.partitions is None:
            for number in [each for each in self._partitions if each not in wanted]:
                self._remove(self._partitions.pop(number), now)
        for partition in self._partitions.values():
            self._lead(partition, view, now)
            self._look(partition, now)
        self.seek(now)

    def _lead(self, partition: ReadPartition, view: TopicView, now: float) -> None:
        """Take who leads a partition; a change ends a pause, but not one of other partitions."""
        leader = view.leaders.get(partition.number)
        led = None if leader is None or view.meta is None else (leader, view.meta)
        if led == partition.led:
            return
        conn = partition.conn
        was_moved = conn is not None and partition.is_moved_from(conn)
        partition.led = led
        if led is None:
            return
        if conn is not None and not was_moved and partition.is_moved_from(conn):
            self._actions.append(PartitionEvent("moved", partition, conn=conn))
        used = partition.opening or conn
        if used is None or partition.is_moved_from(used):
            partition.retry_at = now

    def _remove(self, partition: ReadPartition, now: float) -> None:
        self._actions.append(PartitionEvent("gone", partition))
        self.past.add(partition.counts)
        self.past.returned += partition.in_flight  # else they would count as finished
        partition.is_over = True
        self._wanting.pop(partition, None)
        self._abandon(partition, now)

    def _abandon(self, partition: ReadPartition, now: float) -> None:
        """End all connections of a partition that is read no more."""
        reason = ConnectionLostError("no longer needed")
        for conn in (partition.opening, *partition.replaced):
            if conn is not None:
                self.end(conn, reason, now)
        if partition.conn is not None:
            self._actions.append(ConnectionAction("leave", partition.conn))  # which says :meth:`end` after that

    def seek(self, now: float) -> None:
        """Look the topic up often while there is nothing to read, since a new channel misses what is earlier; and warn.

        Nobody tries to connect then, so no failing attempt could warn.

        Nsqds of a plain cluster that are not listed any more deliver while their connections last.
        """
        absence = self.absence
        if choice.is_listed(self.view):
            if (over := absence.recovered(now)) is not None:
                self._actions.append(PartitionEvent("found", outage=over))
        elif not any(partition.conn for partition in self._partitions.values()):
            if absence.began_at is None:
                absence.failed(now)
            if (warned := absence.warning(now)) is not None:
                self._actions.append(PartitionEvent("absent", outage=warned))
            self._wake(absence.warn_at)
        self._look_up()

    def _look_up(self) -> None:
        """Look the topic up often exactly while something waits for a change."""
        is_wanted = not self._messages.is_closing and bool(self._wanting or self.absence.began_at is not None)
        if is_wanted is not self._is_looked_up:
            self._is_looked_up = is_wanted
            self._actions.append(LookUps(is_wanted))

    def is_unlisted(self, partition: ReadPartition) -> bool:
        """Return whether it is an nsqd of a plain cluster that no nsqlookupd lists any more; it may never return."""
        return choice.has_no_partitions(self.view) and partition.number not in self.view.leaders

    # ------------------------------------------------------------ what is due

    def tick(self, now: float) -> None:
        """Do what is due."""
        self.wake_at = math.inf
        if self.news is not None:
            self.viewed(self.news, now)
            self.news = None
        for partition in tuple(self._partitions.values()):
            self._look(partition, now)
        if not self._messages.is_closing:
            self.seek(now)

    def _look(self, partition: ReadPartition, now: float) -> None:
        """Do what is due for a partition."""
        for each in tuple(partition.replaced):
            self._look_at_replaced(each, now)
        conn, opening = partition.conn, partition.opening
        if self._messages.is_closing:
            if conn is not None and conn.lifetime is not None and not conn.is_stopped:
                self._wake(conn.lifetime.stale_at)
                if now >= conn.lifetime.stale_at:
                    self.stopped(conn, now)
            return
        if opening is not None and partition.is_moved_from(opening):
            self.end(opening, ConnectionLostError("no longer needed"), now)
        if conn is not None and not partition.is_moved_from(conn):
            self._renew(partition, conn, now)
        elif partition.opening is None and not partition.is_over:
            self._connect(partition, now)
        if partition.conn is not None and partition.outage.began_at is not None:
            self._settle(partition, partition.conn, now)
        self._want(partition)

    def _want(self, partition: ReadPartition) -> None:
        """Have the topic looked up often while a partition is not read after a failure."""
        conn = partition.conn
        is_read = conn is not None and not partition.is_moved_from(conn)
        if partition.failures and not (is_read or partition.is_over or self.is_unlisted(partition)):
            self._wanting[partition] = None
        else:
            self._wanting.pop(partition, None)
        self._look_up()

    # ------------------------------------------------------------ connecting

    def _connect(self, partition: ReadPartition, now: float) -> None:
        """Connect to the leader, if it is known and it is time."""
        if now < partition.retry_at:
            self._wake(partition.retry_at)
        elif partition.led is not None:
            self._open(partition, partition.led, None)
        elif not self.is_unlisted(partition):
            name = self.view.name_of(partition.number)
            self._fail(partition, NoLeaderError(f"{name} has no leader now{self.view.cause}"), None, now)

    def _open(self, partition: ReadPartition, led: tuple[Node, TopicMeta], replaces: Subscription | None) -> None:
        meta, ordered = led[1], self._config.ordered
        partition.opening = conn = Subscription(
            partition,
            is_ordered=meta.ordered if ordered == "auto" else ordered,
            led=led,
            replaces=replaces,
        )
        self._actions.append(ConnectionAction("open", conn))

    def opened(self, conn: Subscription, now: float) -> bool:
        """Take that a connection is open; return whether to subscribe. The former leader is left before that."""
        if conn.stage is not Stage.OPENING:
            return False
        conn.stage = Stage.SUBSCRIBING
        partition, node = conn.partition, conn.node
        if conn.replaces is None:
            reason = ConnectionLostError(f"left for {node.address}, which leads now")
            for each in partition.conns:
                if each.node != node:
                    self.end(each, reason, now)
        return True

    def subscribed(self, conn: Subscription, now: float) -> None:
        """Take that SUB was answered."""
        if conn.stage is not Stage.SUBSCRIBING:
            return
        partition, before = conn.partition, conn.replaces
        conn.stage = Stage.SUBSCRIBED
        if before is not None:
            self._stop(before)
        else:
            self._use(partition, conn, now)
            partition.failures = partition.short_lives
            interval = self._config.heartbeat_interval
            partition.settled_at = now + min(SETTLED_INTERVALS * interval, SETTLED)
            partition.counts.reconnects += partition.subscribed_at is not None
            partition.subscribed_at = now
            partition.trouble = None
            self._actions.append(PartitionEvent("subscribed", partition, conn.node, conn=conn))
        self._look(partition, now)

    def _use(self, partition: ReadPartition, conn: Subscription, now: float) -> None:
        partition.opening = conn.replaces = None
        conn.stage = Stage.IN_USE
        self._messages.opened(conn, now)

    def _settle(self, partition: ReadPartition, conn: Subscription, now: float) -> None:
        """End the outage of a partition if its subscription has lasted."""
        if now < partition.settled_at:
            self._wake(partition.settled_at)
            return
        over = partition.outage.recovered(partition.subscribed_at or now)
        self._actions.append(PartitionEvent("settled", partition, conn.node, outage=over))

    # ------------------------------------------------------------ failures

    def failed(self, conn: Subscription, error: NsqError, now: float) -> None:
        """Take that a connection could not be opened or subscribed, or was lost before it was used."""
        if conn.stage is Stage.CLOSED:
            return
        partition = conn.partition
        if isinstance(error, ServerError):
            self._actions.append(PartitionEvent("refused", partition, conn.node, error))
        self._forget(conn, error, now)
        if conn.replaces is not None:
            self._pause(partition, now)
            text = f"partition {partition.number}: the connection could not be replaced yet: {error}"
            self._actions.append(Said(is_warning=False, text=text))
        elif self._ends(partition, final := self._explained(error)):
            partition.is_over = True
            self._actions += (PartitionEvent("final", partition, conn.node, final), Unreadable(final))
            self._abandon(partition, now)
        else:
            self._fail(partition, error, conn.node, now)
        self._look(partition, now)

    def _fail(self, partition: ReadPartition, error: NsqError, node: Node | None, now: float) -> None:
        """Record a failure, and pause."""
        self._pause(partition, now)
        self._trouble(partition, error, node, now)

    def _pause(self, partition: ReadPartition, now: float) -> None:
        partition.failures += 1
        partition.retry_at = now + delay_after(self._config.backoff, partition.failures, self._chance)
        self._wake(partition.retry_at)

    def _trouble(self, partition: ReadPartition, error: NsqError, node: Node | None, now: float) -> None:
        partition.trouble = error = self._explained(error)
        partition.outage.failed(now)
        self._actions.append(PartitionEvent("failed", partition, node, error, outage=partition.outage.warning(now)))

    def _explained(self, error: NsqError) -> NsqError:
        """Return the error to report."""
        return explained(error, self._topic) if self._config.nsqd else error

    def _ends(self, partition: ReadPartition, error: NsqError) -> bool:
        """Return whether a failed attempt ends the subscription, since retries cannot fix ``error``."""
        was_subscribed = partition.subscribed_at is not None
        if isinstance(error, AuthError):
            renews = was_subscribed and self._config.auth_secret is not None and error.code in RENEWABLE
            return not (error.retriable or renews)
        if isinstance(error, ChannelNotRegisteredError) and was_subscribed:
            return False  # another leader may not have got the channel from the nsqlookupds yet
        if isinstance(error, _PERMANENT):
            return True
        if self._config.nsqd:  # without nsqlookupd, nothing says whether the topic is ordered
            return isinstance(error, SubscribeRefusedError)
        return isinstance(error, ServerError) and error.code == _MUST_BE_ORDERED and self._config.ordered is False

    def lost(self, conn: Subscription, error: NsqError, now: float) -> None:
        """Take that an open connection has ended."""
        partition = conn.partition
        if conn.stage is Stage.CLOSED:
            return
        if conn is partition.opening:
            self.failed(conn, error, now)
        else:
            is_used, is_moved = conn is partition.conn, partition.is_moved_from(conn)
            self._forget(conn, error, now)
            if is_used:
                partition.short_lives = partition.short_lives + 1 if now < partition.settled_at else 0
                if not (self._messages.is_closing or partition.is_over):
                    self._was_lost(conn, error, now, is_moved=is_moved)
            self._look(partition, now)

    def _was_lost(self, conn: Subscription, error: NsqError, now: float, *, is_moved: bool) -> None:
        partition = conn.partition
        if is_moved:  # the new leader is being connected to
            partition.retry_at = now
            self._trouble(partition, error, conn.node, now)
        else:
            partition.failures = partition.short_lives
            self._fail(partition, error, conn.node, now)
        self.seek(now)

    def end(self, conn: Subscription, reason: NsqError, now: float) -> None:
        """End a connection, or the attempt to open it."""
        if conn.stage is not Stage.CLOSED:
            self._actions.append(ConnectionAction("abort", conn, reason))
            self._forget(conn, reason, now)

    def _forget(self, conn: Subscription, reason: NsqError, now: float) -> None:
        """Take a connection that has ended, or ends now, from its partition."""
        conn.stage = Stage.CLOSED
        partition = conn.partition
        if partition.opening is conn:
            partition.opening = None
        if partition.conn is conn:
            self._actions.append(PartitionEvent("disconnected", partition, conn.node, reason))
            if partition.opening is not None and partition.opening.replaces is conn:
                self.end(partition.opening, ConnectionLostError("no longer needed"), now)
        self._messages.lost(conn, now)

    # ------------------------------------------------------------ connections with a limited lifetime

    def _renew(self, partition: ReadPartition, conn: Subscription, now: float) -> None:
        """Replace a connection to which nsqd can write for a limited time only."""
        lifetime = conn.lifetime
        if lifetime is None:
            return
        phase = lifetime.phase(now)
        self._wake(lifetime.next_phase_at(now) or math.inf)
        successor, is_over = partition.opening, conn.is_stopped or phase is Phase.STALE
        if phase is Phase.FRESH:
            return
        if successor is not None:
            if successor.stage is Stage.SUBSCRIBED and is_over:
                partition.failures = partition.short_lives
                self._drain(conn, now)
                self._use(partition, successor, now)
                self._actions.append(PartitionEvent("replaced", partition, successor.node, conn=successor))
                self._renew(partition, successor, now)
        elif phase is Phase.DUE:
            if now < partition.retry_at:
                self._wake(partition.retry_at)
            else:
                self._open(partition, (conn.node, conn.meta), conn)
        else:
            self._stop(conn)
            if is_over:
                self._expire(partition, conn, now)

    def _expire(self, partition: ReadPartition, conn: Subscription, now: float) -> None:
        """Leave a connection over which nothing more arrives, and which could not be replaced."""
        reason = ConnectionLostError(
            f"closed the connection to {conn.node.address}: nsqd can no longer write to this connection"
        )
        if conn.is_outstanding(now):
            self._actions.append(PartitionEvent("disconnected", partition, conn.node, reason))
            self._drain(conn, now)
        else:
            self.end(conn, reason, now)
        partition.failures = partition.short_lives
        self._fail(partition, reason, conn.node, now)

    def _stop(self, conn: Subscription) -> None:
        if not conn.is_stopping:
            conn.is_stopping = True
            self._actions.append(ConnectionAction("stop", conn))

    def stopped(self, conn: Subscription, now: float) -> None:
        """Take that CLS was answered, or never will be."""
        conn.is_stopped = True
        if conn.stage is not Stage.IN_USE:
            return
        if self._messages.is_closing and conn.lifetime is not None:
            self._drain(conn, now)
        self._look(conn.partition, now)

    def _drain(self, conn: Subscription, now: float) -> None:
        """Keep a connection for answers only. nsqd reads from it, and closes what is silent."""
        conn.stage = Stage.DRAINING
        conn.replaced_at = conn.alive_at = now
        self._messages.replaced(conn)
        self._look_at_replaced(conn, now)

    def _look_at_replaced(self, conn: Subscription, now: float) -> None:
        if not conn.is_outstanding(now):
            conn.stage = Stage.CLOSED
            self._actions.append(ConnectionAction("close", conn))
            self._messages.lost(conn, now)
            return
        if now >= conn.alive_at:
            self._actions.append(ConnectionAction("keep alive", conn))
            conn.alive_at = now + self._config.heartbeat_interval / 2
        self._wake(conn.alive_at)

    def answered(self, conn: Subscription, now: float) -> None:
        """Take that something was answered over a connection that is kept for that."""
        if conn.stage is Stage.DRAINING:
            self._look_at_replaced(conn, now)

    # ------------------------------------------------------------ the end

    def close(self, now: float) -> None:
        """Let nsqd send nothing more, and connect to nothing else; what arrived may still be answered."""
        reason = ConnectionLostError("no longer needed")
        for partition in self._partitions.values():
            if partition.opening is not None:
                self.end(partition.opening, reason, now)
            if partition.conn is not None and partition.conn.stage is Stage.IN_USE:
                self._stop(partition.conn)
                self._look(partition, now)
        self._look_up()

    @property
    def are_stopped(self) -> bool:
        """Whether no nsqd sends messages any more, after :meth:`close`."""
        conns = [partition.conn for partition in self._partitions.values()]
        return all(conn is None or conn.is_stopped or conn.stage is not Stage.IN_USE for conn in conns)
