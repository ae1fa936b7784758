"""The loop's side of a consumer's connections: it opens, subscribes and ends them, as the machine says.

The rules are in ``consumer.subscriptions``; nothing is decided here.

The invariant: when :meth:`Connecting.end` returns, neither a task nor a socket remains.

Source: server failures 3.7, 3.9, 4.3.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.base.tasks import Tasks
from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.consumer.clock import ROUND_TRIPS
from nsq_ha.consumer.partitions import Partitions
from nsq_ha.consumer.shell import Source
from nsq_ha.consumer.starting import Starting
from nsq_ha.consumer.subscriptions import ConnectionAction, LookUps, PartitionEvent, Unreadable
from nsq_ha.engine.connect_limiter import ConnectLimiter, ended
from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.waiting import is_foreign, uninterrupted
from nsq_ha.errors import (
    ConnectError,
    ConnectionLostError,
    NsqError,
    ProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.policy.connect_limit import ConnectLimit
from nsq_ha.protocol import Sub, SubAdvanced, SubOrdered, layout_for
from nsq_ha.protocol.encoding import encode_ready

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from nsq_ha.consumer.inflight import Subscription
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.policy.topology import Node, TopicView

CUT_OFF_TIMEOUT: Final = 1.0
"""Seconds that the end of a consumer waits for nsqd to stop sending, if no close has waited for it as long; and that
nsqd has to confirm the end of a connection that is not used any more."""

_STRAGGLE: Final = ROUND_TRIPS
"""Seconds after the answer to CLS in which the one message may come that nsqd was sending meanwhile."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Connecting:
    """The connections of one consumer.

    Args:
        watch: The lookups of the topic.
        shell: The consumer's.

    Attributes:
        partitions: What is read, and what happens to it, in words.
    """

    def __init__(self, watch: TopicWatch, shell: ConsumerShell) -> None:
        self._watch = watch
        self._shell = shell
        self._subscriptions = shell.machine.subscriptions
        self.partitions: Partitions = Partitions(watch, shell, monotonic())
        self._starting = Starting(watch, shell)
        self._limiter = ConnectLimiter()
        self._limits: defaultdict[str, ConnectLimit] = defaultdict(ConnectLimit)
        self._attempts: dict[Subscription, asyncio.Task[None]] = {}
        self._tasks = Tasks(log)
        self._open: dict[Subscription, Connection] = {}
        self._cutting: dict[Subscription, asyncio.Task[None]] = {}
        shell.acts |= {
            ConnectionAction: self._act,
            LookUps: lambda action: watch.look_up_often(is_wanted=action.are_frequent),
            PartitionEvent: self.partitions.report,
            Unreadable: lambda action: shell.refused(action.error),
        }

    def begin(self) -> None:
        """Follow the lookups."""
        self._watch.listen(self._viewed)
        if self._watch.view.is_answered:
            self._viewed(self._watch.view)
        self._subscriptions.seek(monotonic())
        self._shell.drain()
        self._start(self._stay(), "stays")
        self._start(self._starting.create_channels(self.partitions), "creates channels")

    async def _stay(self) -> None:
        """Wait until the loop cancels all tasks, as at the end of ``asyncio.run``; leave nothing with nsqds then."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            if not self._shell.machine.is_closed:
                await self.cut_off(self._shell.machine.conns)
                self._shell.close()
                await self.end()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that ends with the consumer at the latest."""
        return self._tasks.start(work, f"nsq_ha consumer {self._watch.topic} {name}")

    def _viewed(self, view: TopicView) -> None:
        """Take what the nsqlookupds say."""
        if not view.exists:
            for partition in self._shell.machine.partitions.values():
                self._starting.forget(partition)
        self._subscriptions.learn(view, monotonic())
        self._shell.drain()
        self._shell.changed.set()

    # ------------------------------------------------------------ what the machine wants

    def _act(self, action: ConnectionAction) -> None:
        what, conn, reason = action
        connection = self._open.get(conn)
        if what == "open":
            self._attempts[conn] = self._start(self._attempt(conn), "connects")
        elif what == "stop":
            self._start(self._stop(conn), "stops messages")
        elif what == "leave":
            self._start(self._leave(conn), "leaves a partition")
        elif what == "abort" and (attempt := self._attempts.pop(conn, None)) is not None:
            attempt.cancel()
        if connection is None:
            return
        if what == "keep alive":
            connection.keep_alive()
        elif what == "close":
            self._start(connection.aclose(CUT_OFF_TIMEOUT), "closes a connection")
        elif what == "abort" and reason is not None:
            connection.abort(reason)

    # ------------------------------------------------------------ opening and subscribing

    async def _attempt(self, conn: Subscription) -> None:
        """Open a connection, and subscribe."""
        try:
            await self._connect(conn)
            self._subscriptions.subscribed(conn, monotonic())
        except (Exception, asyncio.CancelledError) as error:
            if (connection := self._open.get(conn)) is not None:
                by_nsqd = isinstance(error, ProtocolError | ResponseTimeoutError | ServerError)
                connection.abort(error if by_nsqd else ConnectionLostError("not used"))  # type: ignore[arg-type]
            if not is_foreign(error):
                raise
            if not isinstance(error, NsqError):
                report_unexpected(log, self._watch.view.name_of(conn.partition.number), error)
                error = ConnectionLostError(f"unexpected error while consuming: {error!r}")
            self._subscriptions.failed(conn, error, monotonic())
        finally:
            self._attempts.pop(conn, None)
        self._shell.drain()

    async def _connect(self, conn: Subscription) -> None:
        node, number = conn.node, conn.partition.number
        if conn.replaces is None:
            self._watch.refresh_if_old()  # if the node is gone, the lookup names another one
        new_partitions, check = self._watch.new_partitions, None
        if conn.replaces is None and new_partitions is not None:
            check = new_partitions.check(number, node, self._watch.view)
        self._open[conn] = connection = await self._opened(conn, node)
        conn.lifetime = connection.lifetime
        if new_partitions is not None and check is not None:
            await new_partitions.passed(check)  # SUB will tell whether the node leads
        if not self._subscriptions.opened(conn, monotonic()):
            raise ConnectionLostError("no longer needed")
        self._shell.drain()  # leave the former leader first
        await self._subscribe(conn, connection)
        if not connection.is_open:
            raise ConnectionLostError(f"the connection to {node.address} was lost")

    async def _opened(self, conn: Subscription, node: Node) -> Connection:
        """Connect to ``node``, with the heartbeats that the event loop can answer."""
        meta, heartbeats, config = conn.meta, self._shell.heartbeats, self._shell.config
        interval = heartbeats.interval
        if interval != config.heartbeat_interval:
            config = dataclasses.replace(config, heartbeat_interval=interval)
        conn.source = source = Source(self._shell, conn)
        callbacks = Callbacks(
            partial(self._lost, conn), messages=source.arrived, refusals=source.refused, damaged=source.damaged
        )
        try:
            opening = partial(Connection.open, config, node, callbacks, extend_support=meta.extend_support)
            return await self._limiter.open(node, self._limits[node.address], opening)
        except ServerError as error:
            if interval != self._shell.config.heartbeat_interval and "heartbeat_interval" in str(error):
                heartbeats.refused()
                raise ConnectError(f"{node.address} refused a heartbeat interval of {interval:g} s: {error}") from error
            raise

    async def _subscribe(self, conn: Subscription, connection: Connection) -> None:
        """Subscribe; messages arrive with the connection's source."""
        meta, topic, channel, number = conn.meta, self._shell.topic, self._shell.channel, conn.partition.number
        async with self._limiter.slots(conn.node):
            position = await self._starting.prepare(conn)
        conn.opened(connection.identity)
        conn.handle = connection
        if not meta.is_partitioned:
            command: Sub | SubOrdered | SubAdvanced = Sub(topic, channel, None)
        elif conn.is_ordered:
            command = SubOrdered(topic, channel, number)
        else:
            command = SubAdvanced(topic, channel, number, position)
        layout = layout_for(detail=meta.is_partitioned, ext=meta.is_partitioned and meta.extend_support)
        try:
            await connection.subscribe(command, conn.source, layout)
        except ServerError as error:
            self._starting.check_refusal(conn, error)
            raise
        conn.partition.has_channel = True
        await self._starting.replicate(conn)
        conn.partition.is_started = True

    def _lost(self, conn: Subscription, error: NsqError) -> None:
        """Take the end of a connection; one that is not subscribed yet fails its attempt."""
        if (connection := self._open.pop(conn, None)) is not None:
            ended(connection, self._limits[conn.node.address])
        conn.handle = None
        if conn not in self._attempts:
            self._subscriptions.lost(conn, error, monotonic())
        self._shell.drain()

    # ------------------------------------------------------------ the end of messages, and of connections

    async def _stop(self, conn: Subscription) -> None:
        """Have nsqd stop to send messages; ignore errors."""
        try:
            if (connection := self._open.get(conn)) is not None:
                await connection.stop_messages()
        except NsqError as error:
            log.debug("%s: CLS failed: %s", self._watch.view.name_of(conn.partition.number), error)
        self._subscriptions.stopped(conn, monotonic())
        self._shell.drain()

    async def _leave(self, conn: Subscription) -> None:
        await self.cut_off((conn,))
        self._cutting.pop(conn, None)
        self._subscriptions.end(conn, ConnectionLostError("no longer needed"), monotonic())
        self._shell.drain()

    async def cut_off(self, conns: Iterable[Subscription], timeout: float = CUT_OFF_TIMEOUT) -> None:
        """Requeue what nsqds would keep until its timeout, also what they have sent and is on its way.

        Nobody will answer these messages. The next call waits for the first one.

        Args:
            conns: The connections.
            timeout: Seconds to wait for each nsqd to stop sending.
        """
        for conn in conns:
            connection = self._open.get(conn)
            if connection is not None and conn not in self._cutting and not conn.meta.is_partitioned:
                requeuing = self._requeue_all(connection, conn, timeout)
                self._cutting[conn] = asyncio.create_task(requeuing, name=f"nsq_ha cuts off {connection.name}")
        for cutting in tuple(self._cutting.values()):
            await uninterrupted(cutting)

    async def _requeue_all(self, connection: Connection, conn: Subscription, timeout: float) -> None:
        connection.write(encode_ready(0))  # else nsqd would send them here again
        most, name = max(len(conn.messages), conn.ready), self._watch.view.name_of(conn.partition.number)
        self._shell.machine.cut_off(conn, monotonic())
        self._shell.drain()
        try:
            async with asyncio.timeout(timeout):
                await connection.stop_messages()
            await asyncio.sleep(_STRAGGLE)
        except TimeoutError:
            log.warning(
                "%s: %s did not answer CLS in time: up to %d messages may stay in flight until nsqd's message timeout",
                name,
                connection.name,
                most,
            )
        except NsqError as error:
            log.debug("%s: CLS failed: %s", name, error)
        connection.write_now(b"")

    async def aclose(self, deadline: float) -> None:
        """Send what is buffered and close all connections, until a time of the loop."""
        self._shell.drain()
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        await asyncio.gather(*(connection.aclose(left) for connection in self._open.values()))

    async def end(self) -> None:
        """End everything at once; wait until it has ended."""
        connections = tuple(self._open.values())
        for connection in connections:
            connection.abort(ConnectionLostError("the consumer was closed"))
        await self._tasks.close()
        for connection in connections:
            await connection.ended()
