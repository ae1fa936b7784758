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
import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.inflight import Conn, Partition
from nsq_ha.consumer.receiving import Receiver
from nsq_ha.consumer.source import Source
from nsq_ha.consumer.starting import Start
from nsq_ha.consumer.trouble import PartitionTrouble
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.link import Link, Role
from nsq_ha.engine.observe import PartitionReports
from nsq_ha.engine.waiting import open_while, uninterrupted
from nsq_ha.errors import ConnectError, LocalProtocolError, NoLeaderError, NsqError, ServerError
from nsq_ha.policy.link_life import Life, settle_time
from nsq_ha.policy.skipping import skipping_of
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, layout_for
from nsq_ha.protocol.encoding import encode_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.engine.approach import Approach
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView

CUT_OFF_TIMEOUT: Final = 1.0
"""Seconds that the end of a consumer waits for nsqd to stop sending, if no close has waited for it as long."""

_STRAGGLE: Final = 0.02
"""Seconds after the answer to CLS in which the one message may come that nsqd was sending meanwhile."""


class Subscription(Role[Connection]):
    """Reads one partition. Run its link as a task; it ends if cancelled, or if nsqd refuses permanently.

    Args:
        watch: The lookups of the topic.
        channel: The channel.
        partition: The partition.
        config: The consumer's options.
        shell: Takes the messages.
        approach: Gives the consumer's connections their turns.

    Attributes:
        partition: The partition.
        has_channel: The partition has the channel, as far as is known.
        state: Its messages.
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
        shell: ConsumerShell,
        *,
        approach: Approach,
    ) -> None:
        self.partition = partition
        self._approach = approach
        self.has_channel: bool = False
        self.state: Partition = Partition(partition)
        self._channel = channel
        self._watch = watch
        self._config = config
        self._shell = shell
        shell.machine.partitions[partition] = self.state
        self._loop = asyncio.get_running_loop()
        self._reports = PartitionReports(watch.observer, watch.topic, channel, partition)
        self._trouble = PartitionTrouble(watch.topic, watch.name_of(partition), config, self._reports)
        self._known: tuple[Node, TopicMeta | None] | None = None
        self._start = Start(watch, channel, partition, config)
        self._receiver = Receiver(
            watch.topic,
            watch.name_of(partition),
            self._start,
            shell,
            self._reports.refused,
            skipping_of(config.skip_header, config.ext_filter),
        )
        self._cut_off: asyncio.Future[None] | None = None
        self._conns: dict[Connection, tuple[Conn, float]] = {}  # with the times at which they were replaced
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
    def nsqd(self) -> str:
        """``host:port`` of the nsqd that delivers. Empty without one."""
        return self.state.conn.source.nsqd if self.state.conn is not None else ""

    @property
    def kept(self) -> tuple[int, int]:
        """The fewest and the most messages that nsqd would keep until their timeout if the connection ended now.

        Those that it has sent for the latest RDY may not have been read yet.
        """
        conn = self.state.conn
        if conn is None or conn.is_returned_at_end or conn.is_rejecting:
            return 0, 0
        return len(conn.messages), max(len(conn.messages), conn.ready)

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
        self._shell.drain()
        await self.link.aclose(timeout)

    async def cut_off(self, timeout: float = CUT_OFF_TIMEOUT) -> None:
        """Requeue what nsqd would keep until its timeout, also what it has sent and is on its way.

        Nobody will answer these messages. The next call waits for the first one.

        Args:
            timeout: Seconds to wait for nsqd to stop sending.
        """
        connection, conn = self.link.connection, self.state.conn
        if self._cut_off is None:
            if connection is None or conn is None or conn.is_returned_at_end:
                return
            self._cut_off = asyncio.ensure_future(self._requeue_all(connection, conn, timeout))
        await uninterrupted(self._cut_off)

    async def _requeue_all(self, connection: Connection, conn: Conn, timeout: float) -> None:
        connection.write(encode_ready(0))  # else nsqd would send them here again
        most = max(len(conn.messages), conn.ready)
        self._shell.machine.cut_off(conn, monotonic())
        self._shell.machine.reject(conn)
        self._shell.drain()
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
        meta, heartbeats = self._meta(), self._shell.heartbeats
        conn = self._new_conn(meta)
        interval = heartbeats.interval
        config = self._config
        if interval != config.heartbeat_interval:
            config = dataclasses.replace(config, heartbeat_interval=interval)
        callbacks = self._receiver.callbacks(conn, lost)

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
        self._conns[connection] = conn, math.inf
        return connection

    async def join(self, connection: Connection) -> None:
        """Subscribe; messages arrive with the connection's delivery as their source."""
        node, (conn, _), start = connection.node, self._conns[connection], self._start
        async with self._approach.asking(node):
            position = await start.prepare(node, is_ordered=conn.is_ordered)
        conn.may_repeat |= start.is_set
        self._attach(conn, connection)
        try:
            await self._send_sub(connection, conn, position)
        except ServerError as error:
            if (better := start.after_refusal(error)) is not error:
                raise better from error
            raise
        self.has_channel = True
        if conn.is_ordered:
            await start.replicate(node)
        start.done()

    def connected(self, connection: Connection, *, again: bool) -> None:
        """Record that a leader is subscribed to."""
        self.log.info("subscribed to %s over %s", self.link.name, connection.name)
        self._trouble.subscribed(self._loop.time())
        self.state.counts.reconnects += again

    def use(self, connection: Connection) -> None:
        """Read from ``connection`` from now on."""
        self._shell.joined(self._conns[connection][0])

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
        conn = self.state.conn
        if conn is None:
            return False
        self._conns[connection] = conn, self._loop.time()
        self._shell.machine.replaced(conn)
        conn.source.on_answered = partial(self.link.answered, connection)
        return True

    def is_outstanding(self, connection: Connection, now: float) -> bool:
        """Return whether messages of ``connection`` are unanswered, and nsqd has not timed them out."""
        if connection not in self._conns:
            return False
        conn, since = self._conns[connection]
        return bool(conn.messages) and now <= max(min(since, now), conn.touched_at) + conn.msg_timeout

    def dropped(self, connection: Connection) -> None:
        """Drop all answers to messages of ``connection``."""
        found = self._conns.pop(connection, None)
        if found is not None:
            self._shell.left(found[0])

    def left(self, reason: NsqError, *, is_expired: bool) -> None:
        """Drop all answers to messages of the connection in use."""
        conn = self.state.conn
        if conn is not None:
            self._conns.pop(conn.handle, None)
            self._shell.left(conn)
        if is_expired:
            self.failed(reason, self.link.life.node)
        self._shell.changed.set()

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
        self._shell.refused(explained)
        return True

    @property
    def is_forsaken(self) -> bool:
        """Whether this is an nsqd of a plain cluster that no nsqlookupd lists any more; it may never return."""
        view = self._watch.view
        if view is None or view.meta is None:
            return False
        return not view.meta.is_partitioned and self.partition not in view.leaders

    def _new_conn(self, meta: TopicMeta) -> Conn:
        is_ordered = meta.ordered if self._config.ordered == "auto" else self._config.ordered
        return Conn(self.state, is_ordered=is_ordered, is_returned_at_end=meta.is_partitioned)

    def _attach(self, conn: Conn, connection: Connection) -> None:
        """Answer over ``connection`` what arrives over it."""
        identity, nsqd = connection.identity, connection.node.address
        conn.opened(
            monotonic(),
            msg_timeout=identity.msg_timeout / 1000,
            max_msg_timeout=identity.max_msg_timeout / 1000,
            max_ready=identity.max_rdy_count,
        )
        conn.handle, conn.repeats_ready = connection, identity.counts_ready_down
        conn.source = Source(self._shell, conn, self._watch.topic, self._channel, nsqd)

    async def _send_sub(self, connection: Connection, conn: Conn, start: str | None) -> None:
        meta, topic = self._meta(), self._watch.topic
        if not meta.is_partitioned:
            command: Sub | SubOrdered | SubAdvanced = Sub(topic, self._channel, None)
        elif conn.is_ordered:
            command = SubOrdered(topic, self._channel, self.partition)
        else:
            command = SubAdvanced(topic, self._channel, self.partition, start)
        layout = layout_for(detail=meta.is_partitioned, ext=meta.is_partitioned and meta.extend_support)
        await connection.subscribe(command, conn.source, layout)

    def _meta(self) -> TopicMeta:
        meta = self._watch.view.meta if self._watch.view is not None else None
        if meta is None:
            raise LocalProtocolError("internal error: no leader to subscribe to")
        return meta
