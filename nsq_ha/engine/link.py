"""The connection to the leader of one partition: it is opened, used, replaced, moved and closed here.

A link serves one of two roles, publishing or subscribing. It follows the table of
``policy.link_life``; the :class:`Role` knows what is written over a connection and
what the answers mean.

If nsqd will stop writing to a TLS connection (``policy.tls_renewal``), the link opens
another one in time, lets the role switch to it, and keeps the earlier one until what
came over it is answered.

The invariants: at most one connection is in use; and when :meth:`Link.run` ends,
neither a task nor a socket remains.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.engine.retired import Retired
from nsq_ha.engine.waiting import is_foreign, pause
from nsq_ha.errors import (
    ConnectionLostError,
    NoLeaderError,
    NsqError,
    ProtocolError,
    ResponseTimeoutError,
    ServerError,
)
from nsq_ha.policy.link_life import Act, Life, LinkEvent, LinkState
from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.tls_renewal import Phase

if TYPE_CHECKING:
    import logging

    from nsq_ha.engine.connection import Connection
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.engine.observe import PartitionReports
    from nsq_ha.options.types import Backoff
    from nsq_ha.policy.topology import Node
    from nsq_ha.stats import PartitionState

C = TypeVar("C", bound="Connection")

MOVE_GRACE: Final = 0.2
"""Seconds that the old leader has to answer pending publishes after a lookup names another one."""

_SHORTEST_LOOK: Final = 0.01

STATES: Final[Mapping[LinkState, PartitionState]] = MappingProxyType(
    {
        LinkState.IDLE: "idle",
        LinkState.CONNECTING: "connecting",
        LinkState.JOINING: "connecting",
        LinkState.IN_USE: "connected",
        LinkState.REPLACING: "connected",
        LinkState.SWITCHING: "connected",
        LinkState.MOVING: "connected",
        LinkState.MOVE_PAUSED: "connected",
        LinkState.LEAVING: "connected",
        LinkState.EXPIRING: "connected",
        LinkState.DRAINING: "closing",
        LinkState.PAUSED: "waiting",
        LinkState.ENDED: "closed",
    }
)
"""What ``stats()`` calls the states."""


class Role(ABC, Generic[C]):
    """What a link is used for. Everything is called in the event loop.

    Attributes:
        doing: Completes "unexpected error while ...".
        client: Completes "the ... was closed".
        needs_channels: A new partition's leader is used only when it has all channels, see ``engine.siblings``.
        log: For the link's lines.
    """

    doing: ClassVar[str]
    client: ClassVar[str]
    needs_channels: ClassVar[bool]
    log: ClassVar[logging.Logger]

    @property
    def is_needed(self) -> bool:
        """Whether a connection is needed now."""
        return True

    @abstractmethod
    def leader(self) -> Node:
        """Return the node to connect to.

        Raises:
            NoLeaderError: There is none.
        """

    @abstractmethod
    async def open(self, node: Node, lost: Callable[[NsqError], None], is_wanted: Callable[[], bool]) -> C:
        """Open a connection.

        Args:
            node: The nsqd.
            lost: Called when the connection has ended.
            is_wanted: Returns whether to continue; asked again after the link's news, which are cleared.

        Raises:
            NsqError: It could not be opened, or is no longer wanted.
        """

    async def join(self, connection: C) -> None:
        """Prepare an open connection for its use.

        Raises:
            NsqError: It cannot be used.
        """

    @abstractmethod
    def connected(self, connection: C, *, again: bool) -> None:
        """Record that a connection to a leader may be used, for the first time or ``again``."""

    @abstractmethod
    def use(self, connection: C) -> None:
        """Use ``connection`` from now on."""

    def was_used(self, since: float) -> bool:
        """Return whether the connection in use is needed, or was since a time of the loop."""
        return True

    def is_unused(self) -> bool:
        """Return whether to close the connection in use, since nobody has needed it for long."""
        return False

    @abstractmethod
    def look_in(self) -> float | None:
        """Return the seconds until to call :meth:`looked` again. None if only news matters."""

    async def looked(self, connection: C) -> None:
        """Do what is due while ``connection`` is in use."""

    @abstractmethod
    async def settle(self, connection: C, until: float | None) -> None:
        """Wait until nothing more is due from nsqd over ``connection``, at most until a time of the loop."""

    @abstractmethod
    def retired(self, connection: C) -> bool:
        """Record that ``connection`` is used no more; return whether it may stay open."""

    def is_outstanding(self, connection: C, now: float) -> bool:
        """Return whether anything that came over ``connection`` will still be answered."""
        return False

    def dropped(self, connection: C) -> None:
        """Record that a retired connection has ended or ends now."""

    @abstractmethod
    def left(self, reason: NsqError, *, is_expired: bool) -> None:
        """Record that the connection in use is closed.

        Args:
            reason: Why.
            is_expired: nsqd could no longer write to it.
        """

    @abstractmethod
    def failed(self, error: NsqError, node: Node | None) -> None:
        """Record a failure at ``node``, or before there was one."""

    def is_final(self, error: NsqError, node: Node | None) -> bool:
        """Return whether retrying cannot help after ``error``, and report it if so."""
        return False

    @property
    def is_forsaken(self) -> bool:
        """Whether the leader may be gone for good, so that only news ends a pause."""
        return False

    async def cut_off(self) -> None:
        """Settle what nsqd would keep, before the connection in use is closed at the end. This takes a bounded time."""


class Link(Generic[C]):
    """The connection of one role. Run :meth:`run` as a task; it ends if cancelled, or if nsqd refuses for good.

    Args:
        role: What it is used for.
        watch: The lookups of the topic.
        partition: The partition.
        backoff: The pauses between attempts.
        life: Where the connection stands, at the beginning.
        reports: The partition's.

    Attributes:
        connection: The connection in use. None if there is none.
        life: Where it stands.
        name: The topic and the partition, if there are any, for logs.
        news: Set to have the link decide again what to do with the connection.
        used_since: When the connection in use began to be used, in the loop's time.
    """

    def __init__(
        self,
        role: Role[C],
        watch: TopicWatch,
        partition: int,
        backoff: Backoff,
        *,
        life: Life[Node],
        reports: PartitionReports,
    ) -> None:
        self.connection: C | None = None
        self.life: Life[Node] = life
        self.name: str = watch.name_of(partition)
        self._role = role
        self._watch = watch
        self._partition = partition
        self._backoff = backoff
        self._reports = reports
        self._clock = asyncio.get_running_loop().time
        self.news: asyncio.Event = asyncio.Event()
        self.used_since: float = 0.0
        self._was_connected = False
        self._failure: tuple[NsqError, Node | None] | None = None
        self._not_replaced = 0  # attempts in a row
        self._retired: dict[Any, Retired] = {}

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the last heartbeat, or since connecting. None without a connection."""
        return None if self.connection is None else self.connection.heartbeat_age

    # ------------------------------------------------------------ what others report

    def need(self) -> None:
        """Connect if there is no connection."""
        if self.life.act is Act.WAIT:
            self.news.set()

    def leads(self, node: Node) -> None:
        """Record the leader that the latest lookup names."""
        life = self.life
        if node != (life.target or life.node):
            self.news.set()

    async def wait(self, seconds: float | None) -> None:
        """Wait for news, for some seconds at most; None for no limit."""
        await pause(self.news, seconds)

    def is_moved(self, node: Node) -> bool:
        """Return whether another node than ``node`` is known to lead."""
        return self._leader() not in (None, node)

    def lost(self, reason: NsqError) -> None:
        """Close the connection in use after a failure."""
        life, node = self.life, self.life.node
        if life.act is not Act.SETTLE and life.state is not LinkState.DRAINING:
            self._failure = reason, node
        if life.act is not Act.END:  # else it is lost while it is cut off
            life.lost(self._clock())
        self.news.set()
        self._leave(reason)

    def survive(self, error: BaseException) -> None:
        """Report an unexpected error and close the connection in use."""
        self.lost(self._explained(error))

    def refused(self, error: ServerError) -> None:
        """Report an error of the nsqd that is connected to."""
        node = self.life.node or self.life.target
        self._reports.refused(error, "" if node is None else node.address)

    def answered(self, connection: C) -> None:
        """Record that something that came over ``connection`` was answered."""
        if (retired := self._retired.get(connection)) is not None:
            retired.changed()

    async def stop(self) -> None:
        """Let nsqd send nothing more, and connect to nothing else; what arrived may still be answered."""
        life, connection = self.life, self.connection
        was_reading = life.is_reading
        life.take(LinkEvent.STOP)
        self.news.set()
        if not was_reading or connection is None:
            return
        lifetime = connection.lifetime
        await self._role.settle(connection, None if lifetime is None else lifetime.stale_at)
        if lifetime is not None and self.connection is connection:
            self._retire(connection)

    async def aclose(self, timeout: float) -> None:
        """Send what is buffered and close all connections, within the limit."""
        deadline = self._clock() + timeout
        retired = list(self._retired.values())
        for one in retired:
            one.close()
        current = () if self.connection is None else (self.connection,)
        for connection in (*current, *(one.connection for one in retired)):
            await connection.aclose(max(deadline - self._clock(), 0.0))

    # ------------------------------------------------------------ the task

    async def run(self) -> None:
        """Act by the state table until the end; unexpected errors end here."""
        life = self.life
        try:
            while life.act is not Act.END:
                try:
                    self._report()
                    await self._ACTS[life.act](self)
                except (Exception, asyncio.CancelledError) as error:
                    if not is_foreign(error):
                        raise
                    self._broken(error)
        finally:
            life.take(LinkEvent.CLOSE)
            try:
                await self._role.cut_off()
            finally:
                # End everything before the first wait: another cancellation may skip the waits.
                last, reason = self.connection, ConnectionLostError(f"the {self._role.client} was closed")
                self._leave(reason)
                retired = self._drop(reason)
                if last is not None:
                    await last.ended()
                for connection in retired:
                    await connection.ended()

    def _broken(self, error: BaseException) -> None:
        """Close the connection after an unexpected error; the next attempt follows after a pause."""
        reason = self._explained(error)
        self.life.take(LinkEvent.BROKEN)
        self._failure = None
        try:
            self._leave(reason)
            self._role.failed(reason, None)
        except Exception as again:  # noqa: BLE001 - the next attempt may work, whatever is broken
            report_unexpected(self._role.log, f"{self.name}, leaving its connection", again)

    def _explained(self, error: BaseException) -> NsqError:
        if isinstance(error, NsqError):
            return error
        report_unexpected(self._role.log, self.name, error)
        return ConnectionLostError(f"unexpected error while {self._role.doing}: {error!r}")

    def _report(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            self._role.failed(*failure)

    def _leader(self) -> Node | None:
        view = self._watch.view
        return None if view is None else view.leaders.get(self._partition)

    async def _wait(self) -> None:
        while not self._role.is_needed:
            await self.wait(None)
        self.life.take(LinkEvent.NEEDED)

    async def _pause(self) -> None:
        """Wait before the next attempt; a change of the leader ends the wait."""
        self.news.clear()  # only news from now on may end the pause: an immediate failure must not repeat in a loop
        if self._role.is_forsaken:
            await self.wait(None)
        else:
            with self._watch.wanted():
                await self.wait(delay_after(self._backoff, self.life.failures, random.random))
        if self.life.act is Act.PAUSE:
            self.life.take(LinkEvent.RESUME)

    async def _connect(self) -> None:
        """Connect to the leader; leave the earlier one, if there is one, when the connection is open."""
        life, node = self.life, None
        try:
            node = self._role.leader()
            life.aim(node)
            if life.state is LinkState.IN_USE:
                return  # the node that is connected to leads again
            connection = await self._opened(node)
        except (Exception, asyncio.CancelledError) as error:
            if not is_foreign(error):
                raise
            self._not_connected(error, node)
            return
        life.joined(self._clock())
        if life.act is not Act.USE:  # it was stopped meanwhile
            connection.abort(ConnectionLostError("no longer needed"))
            return
        self._reports.connected(node.address)
        self._role.connected(connection, again=self._was_connected)
        self._was_connected = True
        self._begin(connection)

    async def _opened(self, node: Node) -> C:
        """Open a connection and prepare it for its use; then the earlier one has been closed."""
        siblings, view = self._watch.siblings, self._watch.view
        check = None if siblings is None or view is None else siblings.check(self._partition, node, view)
        self._watch.refresh_if_old()  # if the node is gone, the attempt ends when the lookup names another one
        # After a failure, an attempt may wait long for its turn. Another node may lead meanwhile.
        with self._watch.wanted() if self.life.failures else contextlib.nullcontext():
            connection = await self._role.open(node, self._ended, lambda: not self.is_moved(node))
        try:
            if siblings is not None and check is not None:
                try:
                    await siblings.passed(self._partition, check)
                except NoLeaderError:
                    if self._role.needs_channels:
                        raise
            self.life.opened()
            if self.life.act is not Act.JOIN:
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
            reason = ConnectionLostError(f"left for {node.address}, which leads now")
            self._leave(reason)
            self._drop(reason, unless=node)
            await self._role.join(connection)
            if not connection.is_open:
                raise ConnectionLostError(f"the connection to {node.address} was lost")  # noqa: TRY301 - as above
        except BaseException as error:
            self._role.dropped(connection)
            if isinstance(error, ProtocolError | ResponseTimeoutError | ServerError):
                connection.abort(error)  # what nsqd is to blame for
            else:
                connection.abort(ConnectionLostError("not used"))
            raise
        return connection

    def _not_connected(self, raised: BaseException, node: Node | None) -> None:
        """Report an attempt that failed; the connection in use is not affected."""
        error = self._explained(raised)
        if isinstance(raised, ServerError):
            self.refused(raised)
        is_final = self._role.is_final(error, node)
        self.life.failed(self._leader(), for_good=is_final)
        if not is_final:
            self._failure = error, node

    def _begin(self, connection: C) -> None:
        self.connection, self.used_since = connection, self._clock()
        self._role.use(connection)

    def _ended(self, reason: NsqError) -> None:
        """Take the end of a connection: only the one in use matters here."""
        connection = self.connection
        if connection is not None and not connection.is_open:
            self.lost(reason)

    async def _use(self) -> None:
        """Wait until there may be something to decide, and decide."""
        connection = self.connection
        if connection is None or self.life.state is LinkState.DRAINING:
            await pause(self.news, None)
            return
        await pause(self.news, self._look_in(connection))
        if self.connection is not connection or self.life.state is not LinkState.IN_USE:
            return
        life, role, lifetime = self.life, self._role, connection.lifetime
        phase = Phase.FRESH if lifetime is None else lifetime.phase(self._clock())
        is_old = phase is not Phase.FRESH
        life.look(
            is_moved=self.is_moved(connection.node),
            # The next publish opens another one: an idle producer needs no handshake every three seconds.
            is_unused=role.is_unused() or (is_old and not role.was_used(self.used_since)),
            is_due=phase is Phase.DUE,
            is_expiring=is_old,
        )
        if life.state is LinkState.IDLE:
            self._leave(ConnectionLostError("closed the idle connection"))
        elif life.state in (LinkState.LEAVING, LinkState.MOVING):
            role.log.info("%s: the leader moved from %s", self.name, connection.name)
        elif life.state is LinkState.IN_USE:
            await role.looked(connection)

    def _look_in(self, connection: C) -> float | None:
        """Return the seconds until the connection's age or its role may ask for something."""
        lifetime, now = connection.lifetime, self._clock()
        change = None if lifetime is None else lifetime.next_phase_at(now)
        limits = (self._role.look_in(), None if change is None else change - now)
        return min((max(limit, _SHORTEST_LOOK) for limit in limits if limit is not None), default=None)

    async def _settle(self) -> None:
        """Let outstanding answers arrive for a limited time, then close the connection."""
        connection, life = self.connection, self.life
        is_leaving = life.state is LinkState.LEAVING
        if connection is not None:
            lifetime = connection.lifetime
            until = None if lifetime is None else lifetime.stale_at
            if is_leaving:
                until = self._clock() + MOVE_GRACE
            await self._role.settle(connection, until)
            if self.connection is connection and life.act is Act.SETTLE:
                text = "another node leads now" if is_leaving else "nsqd can no longer write to this connection"
                if lifetime is not None and self._role.is_outstanding(connection, self._clock()):
                    self._retire(connection)
                reason = ConnectionLostError(f"closed the connection to {connection.node.address}: {text}")
                self._leave(reason, is_expired=not is_leaving)
        if life.act is Act.SETTLE:
            life.take(LinkEvent.LEFT_WAITING if self._role.is_needed else LinkEvent.LEFT)

    # ------------------------------------------------------------ connections with a limited lifetime

    async def _replace(self) -> None:
        """Use another connection to the same nsqd in place of the one in use."""
        old, life, connection = self.connection, self.life, None
        lifetime = None if old is None else old.lifetime

        def is_wanted() -> bool:
            is_active = life.state in (LinkState.REPLACING, LinkState.SWITCHING)
            return is_active and old is not None and self.connection is old and not self.is_moved(old.node)

        try:
            if old is None or lifetime is None:
                raise ConnectionLostError("there is nothing to replace")  # noqa: TRY301 - cleaned up below
            connection = await self._role.open(old.node, self._ended, is_wanted)
            if not is_wanted():
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
            life.opened()
            await self._role.join(connection)
            await self._role.settle(old, lifetime.stale_at)
            if not is_wanted() or not connection.is_open:
                raise ConnectionLostError("no longer needed")  # noqa: TRY301 - cleaned up below
        except BaseException as error:
            if connection is not None:
                self._role.dropped(connection)
                connection.abort(ConnectionLostError("no longer needed"))
            if not isinstance(error, NsqError):
                raise
            self._role.log.debug("%s: the connection could not be replaced yet: %s", self.name, error)
            self._not_replaced += 1
            await self.wait(delay_after(self._backoff, self._not_replaced, random.random))
            if life.state in (LinkState.REPLACING, LinkState.SWITCHING):
                life.take(LinkEvent.FAILED)  # the connection in use was not replaced yet
            return
        finally:
            self.news.set()  # the attempt may have consumed news that this task waits for
        self._not_replaced = 0
        self._role.log.debug(
            "%s: opened another connection to nsqd, %s in place of %s", self.name, connection.name, old.name
        )
        self._retire(old)
        life.joined(self._clock())
        self._begin(connection)

    def _retire(self, connection: C) -> None:
        """Keep the connection in use until what came over it is answered."""
        self.connection = None
        if not self._role.retired(connection):
            connection.abort(ConnectionLostError("replaced"))
            return

        def over() -> None:
            self._retired.pop(connection, None)
            self._role.dropped(connection)

        def is_outstanding(now: float) -> bool:
            return self._role.is_outstanding(connection, now)

        self._retired[connection] = Retired(connection, is_outstanding=is_outstanding, on_end=over)

    def _drop(self, reason: NsqError, *, unless: Node | None = None) -> list[C]:
        """Abort the retired connections, unless they are to a node that delivers nothing again; return them."""
        dropped = [connection for connection in self._retired if connection.node != unless]
        for connection in dropped:
            self._role.dropped(connection)
            connection.abort(reason)
        return dropped

    def _leave(self, reason: NsqError, *, is_expired: bool = False) -> None:
        """Close the connection in use."""
        connection, self.connection = self.connection, None
        self._reports.disconnected(reason)
        if connection is not None:
            connection.abort(reason)
        if connection is not None or is_expired:
            self._role.left(reason, is_expired=is_expired)

    _ACTS: ClassVar[Mapping[Act, Callable[[Link[Any]], Coroutine[Any, Any, None]]]] = {
        Act.WAIT: _wait,
        Act.CONNECT: _connect,
        Act.USE: _use,
        Act.REPLACE: _replace,
        Act.SETTLE: _settle,
        Act.PAUSE: _pause,
    }
