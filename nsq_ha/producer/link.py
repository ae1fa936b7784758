"""The connection of one sender to the leader of its partition.

Opens, replaces and closes it as ``policy.sender_life`` says. The sender decides
what to write and interprets the answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.engine.connection import Callbacks, Connection
from nsq_ha.engine.shared import Share
from nsq_ha.engine.waiting import is_foreign, open_while, pause
from nsq_ha.errors import (
    ClosedError,
    ConnectError,
    ConnectionLostError,
    NsqError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.policy.liveness import ASKED_EVERY
from nsq_ha.policy.sender_life import Act, Life, State
from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.tls_renewal import Act as Renewal
from nsq_ha.producer.connections import Leader, OldConnections
from nsq_ha.unexpected import report_unexpected

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.shared import SharedConnections
    from nsq_ha.observe import PartitionReports
    from nsq_ha.options.config import ProducerConfig
    from nsq_ha.policy.lane import Lane
    from nsq_ha.policy.topology import Node
    from nsq_ha.producer.connections import ConnectionLimit
    from nsq_ha.producer.limits import Request
    from nsq_ha.producer.stall import RetryPause

log: logging.Logger = logging.getLogger("nsq_ha.producer")

MOVE_GRACE: Final = 0.2
"""Seconds that the old leader has to answer pending publishes after a lookup names another one."""

_ASK_GRACE: Final = 0.25
"""Seconds that a silent connection has to answer after all, once the leader has answered over another one."""

_CLOSED: Final = "the producer was closed"


class LinkUser(Protocol):
    """The methods of the sender that a link uses.

    Attributes:
        last_used: Time of the last write, in the loop's time.
        is_silent: Whether the connection has been silent for long.
    """

    last_used: float
    is_silent: bool

    def question(self) -> tuple[Request, bytes | list[bytes]] | None:
        """Return an unanswered publish and its bytes, to ask a silent leader with."""

    def answered(self, request: Request, answer: bytes | ServerError) -> bool:
        """Take the answer to a question; return whether the leader stores publishes again."""

    def connected(self, nsqd: str) -> None:
        """Record the address of the connected nsqd."""

    def pump(self) -> None:
        """Write what may be written now."""

    def kick(self) -> None:
        """Write soon."""

    def left(self, reason: NsqError) -> None:
        """Take back the unanswered publishes: the connection is closed."""

    def in_trouble(self, error: NsqError) -> None:
        """Record a failure."""

    def old_lost(self, reason: NsqError) -> None:
        """Take back the unanswered publishes on the replaced connection, which is lost."""

    def stored(self, count: int, *, apart: bool = False) -> None:
        """Take ``count`` answers that are all ``OK``; with ``apart``, those on the replaced connection."""

    def answers(self, answers: list[bytes | ServerError], *, apart: bool = False) -> None:
        """Take other answers."""


class Link:
    """The connection of one sender. Run :meth:`run` as a task; it ends only when cancelled.

    Args:
        watch: The lookups of the topic.
        partition: The partition.
        config: The producer's options.
        lane: The sender's lane.
        retry_pause: The sender's pause after refusals.
        user: The sender.
        reports: The sender's.
        connections: The producer's limit of connections.
        shared: The producer's shared connections.

    Attributes:
        connection: The open connection for writing. None if there is none.
        old: The connections that it replaced.
        leader: The leader of the partition.
        life: Where the connection stands.
        ask_at: When to ask next over another connection whether the leader answers, in the loop's time.
    """

    def __init__(
        self,
        watch: TopicWatch,
        partition: int,
        config: ProducerConfig,
        *,
        lane: Lane[Request],
        retry_pause: RetryPause,
        user: LinkUser,
        reports: PartitionReports,
        connections: ConnectionLimit,
        shared: SharedConnections,
    ) -> None:
        self.connection: Connection | Share | None = None
        self.leader: Leader = Leader(watch, partition)
        self.life: Life[Node] = Life()
        self.old: OldConnections = OldConnections(
            lane,
            stored=lambda count: user.stored(count, apart=True),
            answers=lambda answers: user.answers(answers, apart=True),
            refusals=self._log_refusals,
            lost=user.old_lost,
        )
        self.name: str = f"{watch.topic}-{partition}"
        self._watch = watch
        self._partition = partition
        self._config = config
        self._lane = lane
        self._retry_pause = retry_pause
        self._user = user
        self._reports = reports
        self._connections = connections
        self._shared = shared
        self._clock = asyncio.get_running_loop().time
        self._work = asyncio.Event()
        self._opened = asyncio.Event()  # set while connected, and at the end
        self._wanted = 0  # callers of connected()
        self._news = asyncio.Event()
        self._current: object = None  # the token of the connection in use; the ends of others are ignored
        self._failure: NsqError | None = None
        self._used_since = 0.0
        self._must_ask = False
        self.ask_at: float = 0.0

    def __len__(self) -> int:
        """Return the number of open connections, replaced ones included."""
        return (self.connection is not None) + len(self.old)

    def work(self) -> None:
        """Connect if there is no connection, because a publish waits."""
        self._work.set()

    async def connected(self) -> None:
        """Connect though no publish waits, and wait until it is done; failed attempts are repeated.

        Raises:
            ClosedError: The producer was closed.
        """
        self._wanted += 1
        self._work.set()
        try:
            await self._opened.wait()
        finally:
            self._wanted -= 1
        if self.life.state is State.ENDED:
            raise ClosedError(_CLOSED)

    def news(self) -> None:
        """Decide what to do with the connection again."""
        self._news.set()

    def leads(self, node: Node) -> None:
        """Record the leader that the latest lookup names."""
        if node != self.life.node:
            self._news.set()

    @property
    def is_unused(self) -> bool:
        """Whether there is a connection, and no publish is queued or unanswered."""
        return self.connection is not None and not self._load

    def close_unused(self) -> bool:
        """Close the connection if no publish is queued or unanswered; return whether it was closed."""
        if not self.is_unused:
            return False
        self._leave(ConnectionLostError("closed the connection because another partition needs one"))
        self.life.unused()
        self._news.set()
        return True

    def ask(self) -> None:
        """Ask over another connection whether the leader answers."""
        self._must_ask = True
        self._news.set()

    def abandon(self, reason: NsqError) -> None:
        """Close a connection that answers no more; publishes that wait go over another one at once."""
        self._leave(reason)
        self.life.unused()
        self._news.set()

    def lost(self, reason: NsqError) -> None:
        """Close the connection after a failure."""
        self._failure = reason
        self._leave(reason)
        self.life.lost()
        self._news.set()

    def survive(self, error: BaseException) -> None:
        """Report an unexpected error and close the connection; unanswered publishes are in doubt."""
        report_unexpected(log, self.name, error)
        reason = ConnectionLostError(f"unexpected error while publishing: {error!r}")
        try:
            self.lost(reason)
            self._user.in_trouble(reason)
        except Exception as again:  # noqa: BLE001 - the next attempt may work, whatever is broken
            report_unexpected(log, f"{self.name}, leaving its connection", again)

    async def run(self) -> None:
        """Act by the state table until cancelled; unexpected errors end here."""
        acts = {
            Act.WAIT: self._wait,
            Act.CONNECT: self._connect,
            Act.WRITE: self._write,
            Act.REPLACE: self._replace,
            Act.SETTLE: self._settle,
        }
        try:
            while True:
                try:
                    await acts[self.life.act]()
                except (Exception, asyncio.CancelledError) as error:
                    if not is_foreign(error):
                        raise
                    self.survive(error)
                    self.life.broken()
                    self._failure = None
                if self.life.act is Act.PAUSE:
                    await self._pause()
        finally:
            # Abort everything before the first wait: another cancellation may skip the waits.
            last, reason = self.connection, ConnectionLostError(_CLOSED)
            self._leave(reason)
            self.life.close()
            self._opened.set()
            self.old.drop(reason)
            if last is not None:
                await last.ended()
            await self.old.ended()

    @property
    def _load(self) -> int:
        return self._lane.waiting + self._lane.unanswered

    async def _wait(self) -> None:
        self._work.clear()
        if not self._lane.waiting and not self._wanted:
            await self._work.wait()
        self.life.work()

    async def _pause(self) -> None:
        """Report the failure and wait before the next attempt; a change of the leader ends the wait."""
        self._news.clear()  # only news from now on may end the pause: an immediate failure must not repeat in a loop
        failure, self._failure = self._failure, None
        if failure is not None:
            self._user.in_trouble(failure)
        with self._watch.wanted():
            await pause(self._news, delay_after(self._config.backoff, self.life.failures, random.random))
        self.life.resume()

    async def _connect(self) -> None:
        self._failure = None
        try:
            connection = await self._open()
        except NsqError as error:
            node = self.life.node
            if isinstance(error, ServerError):
                self.refused(error)
            if node is not None and self.leader.differs(node):
                self._user.in_trouble(error)
                self.life.failed(is_outdated=True)
            else:
                self._failure = error
                self.life.failed()
            return
        self.life.opened()
        if self.life.act is Act.WRITE:  # otherwise it was lost before this task ran again
            self._user.connected(connection.node.address)
            self._reports.connected(connection.node.address)
            self._use(connection)
            log.info("%s: connected over %s", self.name, connection.name)

    async def _open(self) -> Connection | Share:
        self.life.node = node = self.leader.node()
        if node.is_plain or (self._config.tls is None and not self._connections.has_room):
            self._current = token = object()
            self._watch.refresh_if_old()
            callbacks = self._callbacks(token)
            return await self._shared.open(
                node, callbacks, news=self._news, is_wanted=lambda: not self.leader.differs(node)
            )
        if not await self._connections.take():
            raise ConnectError(
                f"cannot connect to {node.address}: max_connections={self._config.max_connections} connections are open"
                " and none is idle. Raise max_connections"
            )
        self._current = token = object()
        self._watch.refresh_if_old()  # if the node is gone, the attempt ends when the lookup names another one
        siblings, view = self._watch.siblings, self._watch.view
        check = None if siblings is None or view is None else siblings.check(self._partition, node, view)
        connection = await self._opened_to(node, self._callbacks(token), lambda: not self.leader.differs(node))
        if siblings is not None and check is not None:
            try:
                await siblings.passed(self._partition, check)
            except BaseException:
                self._current = None
                connection.abort(ConnectionLostError("the nsqd does not lead the partition yet"))
                raise
        return connection

    async def _opened_to(self, node: Node, callbacks: Callbacks, is_wanted: Callable[[], bool]) -> Connection:
        """Open a connection, for which a place was taken; the place is free when the connection has ended."""
        try:
            connection = await open_while(self._config, node, callbacks, news=self._news, is_wanted=is_wanted)
        except BaseException:
            self._connections.give_back()
            raise
        connection.when_ended(self._connections.give_back)
        return connection

    def _callbacks(self, token: object) -> Callbacks:
        def lost(reason: NsqError) -> None:
            # A closed connection may report its end while the next one is being opened: ignore that.
            if token is self._current:
                self.lost(reason)

        user = self._user
        return Callbacks(lost, answers=user.answers, refusals=self._log_refusals, stored=user.stored)

    def _log_refusals(self, refusals: list[ServerError]) -> None:
        """Log errors that answer nothing; nsqd then closes the connection, which is reported."""
        for refusal in refusals:
            log.debug("%s: %s", self.name, refusal)
            self.refused(refusal)

    def refused(self, error: ServerError) -> None:
        """Report an error of the nsqd."""
        node = self.life.node if self.connection is None else self.connection.node
        self._reports.refused(error, "" if node is None else node.address)

    def _use(self, connection: Connection | Share) -> None:
        """Write to ``connection`` from now on."""
        self.connection, self._used_since = connection, self._clock()
        if self._wanted:
            self._user.last_used = self._used_since  # or it would be closed at once as unused
        connection.on_resume(self._user.kick)
        self._opened.set()
        self._user.pump()

    async def _write(self) -> None:
        """Wait until there may be something to decide, and decide."""
        if (connection := self.connection) is None:
            return
        idle = self._user.last_used + self._config.idle_timeout - self._clock()
        await pause(self._news, max(self.old.check_in(connection, idle), 0.01))
        if self.connection is None:
            return  # lost meanwhile
        is_idle = not self._load and self._clock() - self._user.last_used >= self._config.idle_timeout
        is_used = bool(self._load) or self._user.last_used >= self._used_since
        renewal = self.old.act(connection, is_used=is_used)
        self.life.look(
            is_moved=self.leader.differs(connection.node),
            is_unused=is_idle,
            renewal=renewal,
            has_old=bool(self._lane.unanswered_apart),
            may_replace=renewal is Renewal.REPLACE and self._connections.has_room,
        )
        if self.life.state is State.MOVING:
            log.info("%s: the leader moved from %s", self.name, connection.name)
        if self.life.state is State.IDLE:
            self._leave(ConnectionLostError("closed the idle connection"))
        self._user.pump()
        must_ask, self._must_ask = self._must_ask, False
        if must_ask and self.life.state is State.WRITING and connection.lifetime is None:
            await self._ask(connection)

    async def _ask(self, silent: Connection | Share) -> None:
        """Write a publish once more over another connection; leave the silent one if only the other one is answered."""
        place = silent.trunk if isinstance(silent, Share) else self
        if self._clock() < place.ask_at:
            return
        place.ask_at = until = self._clock() + ASKED_EVERY

        def is_wanted() -> bool:
            return self.connection is silent and self._user.is_silent and not self.leader.differs(silent.node)

        try:
            if not await self._connections.take() or not await self._is_answered_elsewhere(silent, until, is_wanted):
                return
            until = self._clock() + _ASK_GRACE
            while is_wanted() and (left := until - self._clock()) > 0:
                await pause(self._news, left)
            if is_wanted():
                text = f"{silent.node.address} answers over another connection, but not over this one"
                log.warning("%s: closing a connection: %s", self.name, text)
                self.abandon(ResponseTimeoutError(text))
        except NsqError as error:
            log.debug("%s: the leader could not be asked: %s", self.name, error)
        finally:
            self._news.set()  # the waits may have consumed news that this task waits for

    async def _is_answered_elsewhere(
        self, silent: Connection | Share, until: float, is_wanted: Callable[[], bool]
    ) -> bool:
        """Return whether a leader answers a publish over another connection, for which a place was taken."""
        answers: list[bytes | ServerError] = []

        def took(given: list[bytes | ServerError]) -> None:
            answers.extend(given)
            self._news.set()

        other = await self._opened_to(silent.node, Callbacks(lambda _: self._news.set(), answers=took), is_wanted)
        try:
            if not is_wanted() or (question := self._user.question()) is None:
                return False
            request, data = question
            other.write_publishes(data, 1)
            while not answers and other.is_open and is_wanted() and (left := until - self._clock()) > 0:
                await pause(self._news, left)
        finally:
            other.abort(ConnectionLostError("the question is over"))
            await other.ended()
        return bool(answers) and self._user.answered(request, answers[0])

    async def _settle(self) -> None:
        """Wait for outstanding answers for a limited time, then close the connection."""
        connection, is_moving = self.connection, self.life.state is State.MOVING
        if connection is not None:
            lifetime = connection.lifetime
            deadline = self._clock() + MOVE_GRACE if is_moving or lifetime is None else lifetime.stale_at
            while self.connection is connection and self._lane.unanswered and (left := deadline - self._clock()) > 0:
                await pause(self._news, left)
            # One publish tests whether nsqd answers, before all are written again.
            must_probe = not is_moving and bool(self._lane.unanswered or self._retry_pause.refusals)
            text = "another node leads now" if is_moving else "nsqd can no longer write to this connection"
            self._leave(ConnectionLostError(f"closed the connection to {connection.node.address}: {text}"))
            if must_probe:
                self._retry_pause.begin()
        self.life.left(is_waiting=bool(self._lane.waiting))

    async def _replace(self) -> None:
        """Switch to a new connection to the same nsqd, while answers still arrive over the old one."""
        old, token = self.connection, object()
        if not isinstance(old, Connection) or old.lifetime is None or not self._connections.has_room:
            self.life.failed()
            return
        await self._connections.take()  # at once, since there is room
        try:
            connection = await self._opened_to(
                old.node, self._callbacks(token), lambda: self.connection is old and not self.leader.differs(old.node)
            )
        except NsqError as error:
            log.debug("%s: the connection could not be replaced yet: %s", self.name, error)
            await pause(self._news, delay_after(self._config.backoff, 1, random.random))
            self.life.failed()
            return
        finally:
            self._news.set()  # the attempt may have consumed news that this task waits for
        if self.connection is not old or not connection.is_open:
            connection.abort(ConnectionLostError("no longer needed"))
            await connection.ended()
            self.life.failed()
            return
        self.old.retire(old, old.lifetime)
        self._current = token
        log.debug("%s: opened another connection to nsqd, %s in place of %s", self.name, connection.name, old.name)
        self.life.opened()
        self._use(connection)

    def _leave(self, reason: NsqError) -> None:
        connection, self.connection = self.connection, None
        if connection is None:
            return
        self._current = None
        self._opened.clear()
        self._reports.disconnected(reason)
        connection.abort(reason)
        self.old.forget(reason)
        self._user.left(reason)
