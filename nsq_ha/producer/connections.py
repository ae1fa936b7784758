"""The part of the machine that knows connections: when one is opened, replaced, doubted, left and closed.

What follows from the silence of a leader is in ``policy.liveness``.

The invariants: nothing is written to a connection that nsqd may not be able to answer over; answers are matched with
requests by their order alone; and an nsqd that fails is connected to again after pauses that grow.

Source: server failures 3.3, 3.4, 3.7, 4.1 to 4.3; server protocol 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError, ResponseTimeoutError, ServerError
from nsq_ha.message import Receipt
from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy import liveness
from nsq_ha.policy.liveness import ASKED_EVERY, DOUBTED_AFTER, STALLED_AFTER, stalled_at
from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.tls_renewal import Phase
from nsq_ha.policy.topology import Node
from nsq_ha.producer.actions import Check, Close, LookUp, Open, Report
from nsq_ha.producer.lanes import Lanes
from nsq_ha.producer.reasons import leader_name, no_leader
from nsq_ha.producer.state import Conn, Lane, Nsqd, Request, Step

MOVE_GRACE: Final = 0.2
"""Seconds that the former leader has to answer, once a lookup names another one."""

LONGEST_PAUSE: Final = 0.25
"""Most seconds between two tries after refusals. Each is a single publish, and a leader should get writes soon after it
recovers."""

_ASK_GRACE: Final = 0.25
"""Seconds that a silent connection has to answer after all, once the leader has answered over another one."""

_LOOK_EVERY: Final = 0.25
"""Seconds between two looks at a silent connection."""

_REFRESHED_EVERY: Final = 1.0
"""Seconds between two lookups because of a leader that does not answer."""


class Connections(Lanes):
    """Opens, replaces and closes the connections of all lanes.

    Attributes:
        conns: All that are open or being opened.
    """

    def __init__(self, config: ProducerConfig, chance: Callable[[], float]) -> None:
        super().__init__(config, chance)
        self.conns: dict[Conn, None] = {}

    # ------------------------------------------------------------ opening

    def connect(self, lane: Lane, now: float) -> None:
        """Connect to the leader of a lane, if it is known and it is time."""
        if lane.conn is not None or lane.opening is not None:
            return
        lane.is_used = True
        node = lane.node
        if node is None:
            self._miss_leader(lane, now)
            return
        nsqd = self.nsqds.get(node.address)
        if nsqd is None:
            nsqd = self.nsqds[node.address] = Nsqd(node)
        is_shared = node.is_plain or nsqd.unshared >= self._config.connections_per_nsqd
        conn = nsqd.shared if is_shared else None
        if conn is None:
            if now < nsqd.retry_at:
                self.wake(nsqd.retry_at)
                return
            conn = self._open(Conn(nsqd, node, now, is_shared=is_shared), now)
            if is_shared:
                nsqd.shared = conn
            else:
                nsqd.unshared += 1
        lane.opening, lane.is_checked = conn, False
        conn.lanes[lane] = None
        conn.leaving.pop(lane, None)
        self.actions.append(LookUp(lane.topic, "if old"))  # if the node is gone, the lookup names another one
        self.actions.append(Check(lane, conn))

    def _miss_leader(self, lane: Lane, now: float) -> None:
        if now < lane.retry_at:
            self.wake(lane.retry_at)
            return
        lane.failures += 1
        lane.retry_at = now + delay_after(self._config.backoff, lane.failures, self._chance)
        self.wake(lane.retry_at)
        self.trouble(lane, no_leader(lane), now)

    def _open(self, conn: Conn, now: float) -> Conn:
        conn.slow_at = now + STALLED_AFTER if self._retries else math.inf
        self.wake(conn.slow_at)
        self.conns[conn] = None
        self.actions.append(Open(conn))
        return conn

    def checked(self, lane: Lane, conn: Conn, error: NsqError | None, now: float) -> None:
        """Take the outcome of a :class:`Check`; with an error, nsqd does not lead the partition yet."""
        if lane.opening is not conn:
            return
        if error is None:
            lane.is_checked = True
            if conn.step is Step.OPEN:
                self._use(lane, conn, now)
            return
        lane.opening = None
        lane.failures += 1
        lane.retry_at = now + delay_after(self._config.backoff, lane.failures, self._chance)
        conn.lanes.pop(lane, None)
        self._close_unused(conn, error, now)
        self.trouble(lane, error, now)
        self.wake(lane.retry_at)

    def opened(self, conn: Conn, now: float) -> list[Request]:
        """Take that a connection is open. Return what to write to it at once, if it only asks."""
        if conn.step is not Step.OPENING:
            return []
        conn.step, conn.since, conn.opened_at = Step.OPEN, now, now
        conn.nsqd.is_suspect = False
        if conn.asks is not None:
            return self._ask(conn, conn.asks, now)
        before = conn.replaces
        if before is not None:
            if before.owes():
                before.is_draining = True  # the order in which nsqd reads from two connections is unknown
            else:
                self.switch(before, conn, now)
            return []
        for lane in list(conn.lanes):
            if lane.opening is conn and lane.is_checked:
                self._use(lane, conn, now)
        self.wake(now)
        return []

    def _use(self, lane: Lane, conn: Conn, now: float) -> None:
        lane.conn, lane.opening = conn, None
        lane.failures, lane.retry_at = 0, -math.inf
        lane.shared = [Receipt(lane.topic.name, lane.number, conn.node.address)]
        lane.counts.reconnects += lane.was_connected
        lane.was_connected = True
        lane.last_used = max(lane.last_used, now)
        if not lane.refusals:
            lane.outage.error = None
        self.dirty[lane] = None
        self.actions.append(Report("connected", lane, conn=conn))
        self.want(lane)

    # ------------------------------------------------------------ the end of a connection

    def closed(self, conn: Conn, error: NsqError, now: float, *, is_fault: bool = True) -> None:
        """Take the end of a connection, or of the attempt to open it.

        Args:
            conn: The connection.
            error: Why.
            now: The time.
            is_fault: Whether nsqd gets a pause before the next attempt.
        """
        was, conn.step = conn.step, Step.CLOSED
        if was is Step.CLOSED:
            return
        del self.conns[conn]
        if conn.asks is not None:
            conn.asks.probe = None
            return
        is_replacement = conn.replaces is not None
        self._disown(conn, now)
        if is_fault and not is_replacement:
            self._failed(conn.nsqd, now, is_opening=was is Step.OPENING)
        lanes = list(conn.lanes)
        conn.lanes.clear()
        lost = self._take_back(conn, error, is_read=conn.is_read)
        for lane in lanes:
            self._unlink(lane, conn, error)
            if is_fault:
                self.trouble(lane, error, now)
        for lane in dict.fromkeys([*lanes, *lost]):
            self.dirty[lane] = None
            if lane.is_needed:
                self.connect(lane, now)

    def _unlink(self, lane: Lane, conn: Conn, error: NsqError) -> None:
        """Take a connection that has ended from a lane."""
        if lane.conn is conn:
            lane.conn = None
            lane.refusals, lane.paused_until = 0, -math.inf
            self.actions.append(Report("disconnected", lane, error, conn))
        if lane.opening is conn:
            lane.opening = None
            if isinstance(error, ServerError):
                self.actions.append(Report("refused", lane, error, conn))

    def _disown(self, conn: Conn, now: float) -> None:
        """Forget who leads to a connection that has ended."""
        nsqd, successor, before = conn.nsqd, conn.successor, conn.replaces
        if before is not None:  # it was to replace another one
            before.successor = conn.replaces = None
            before.is_draining = False
            before.renew_at = now + delay_after(self._config.backoff, 1, self._chance)
            self.wake(before.renew_at)
        if conn.is_shared:
            if nsqd.shared is conn:
                nsqd.shared = None
        else:
            nsqd.unshared -= 1
        if successor is not None:
            self.drop(successor, ConnectionLostError("no longer needed"), now, is_fault=False)
        if conn.probe is not None:
            self.drop(conn.probe, ConnectionLostError("the question is over"), now)

    def _failed(self, nsqd: Nsqd, now: float, *, is_opening: bool) -> None:
        """Record a failure of an nsqd; those of several connections before one pause count as one."""
        if now >= nsqd.retry_at:
            nsqd.failures += 1
            nsqd.retry_at = now + delay_after(self._config.backoff, nsqd.failures, self._chance)
        self.wake(nsqd.retry_at)
        if is_opening:
            nsqd.is_suspect = True
            nsqd.probed(now)

    def _take_back(self, conn: Conn, error: NsqError, *, is_read: bool, only: Lane | None = None) -> list[Lane]:
        """Take back what is unanswered, in doubt if nsqd may have read it; return the lanes that got something."""
        lost: dict[Lane, list[Request]] = {}
        for request in conn.own():
            lane = request.lane
            if lane is None or (only is not None and lane is not only):
                continue
            if is_read and request is not conn.cut:
                request.maybe_stored = True
            if only is None:
                request.conn = None
            else:
                conn.orphan(request, lane)
            if request.is_over:
                self.release(lane, request)
            elif self._retries:
                lane.counts.retries += 1
                lost.setdefault(lane, []).append(request)
            else:
                self.end(request, error)  # it is not sent to another leader
        if only is None:
            conn.sent.clear()
            conn.orphans.clear()
        for lane, requests in lost.items():
            lane.again(requests)
        return list(lost)

    def drop(self, conn: Conn, reason: NsqError, now: float, *, is_fault: bool = True) -> None:
        """End a connection."""
        if conn.step is not Step.CLOSED:
            self.actions.append(Close(conn, reason))
            self.closed(conn, reason, now, is_fault=is_fault)

    def _close_unused(self, conn: Conn, reason: NsqError, now: float) -> None:
        """Close a connection that no lane uses or waits for."""
        if not conn.lanes and not conn.leaving:
            self.drop(conn, reason, now, is_fault=False)

    def leave(self, lane: Lane, reason: NsqError, now: float) -> None:
        """Stop using the connection of a lane; it gets a moment to answer what is unanswered."""
        conn = lane.conn or lane.opening
        if conn is None:
            return
        if lane.conn is not None:
            self.actions.append(Report("disconnected", lane, reason, conn))
        lane.conn = lane.opening = None
        conn.lanes.pop(lane, None)
        conn.starved.pop(lane, None)
        if conn.owes(lane):
            conn.leaving[lane] = now + MOVE_GRACE
            self.wake(conn.leaving[lane])
        else:
            self._close_unused(conn, reason, now)

    def settle(self, conn: Conn, now: float) -> None:
        """Let go of the lanes that have left a connection and got their answers, or whose time is over."""
        reason = another_leads(conn)
        for lane, until in list(conn.leaving.items()):
            if now < until and conn.owes(lane):
                self.wake(until)
                continue
            del conn.leaving[lane]
            for each in self._take_back(conn, reason, is_read=True, only=lane):
                self.dirty[each] = None
                self.connect(each, now)
        self._close_unused(conn, reason, now)

    # ------------------------------------------------------------ connections with a limited lifetime

    def renew(self, conn: Conn, now: float) -> None:
        """Replace a connection to which nsqd can write for a limited time only."""
        lifetime = conn.lifetime
        if lifetime is None:
            return
        phase = lifetime.phase(now)
        following = lifetime.next_phase_at(now)
        if following is not None:
            self.wake(following)
        if phase is Phase.FRESH:
            return
        if not conn.sent and conn.last_used < conn.opened_at and not any(lane.is_needed for lane in conn.lanes):
            # The next publish opens another one: an idle producer needs no handshake every three seconds.
            self.drop(conn, ConnectionLostError("closed the idle connection"), now, is_fault=False)
            return
        if phase is Phase.STALE:
            self._expire_conn(conn, now)
        elif phase is Phase.LATE:
            conn.is_draining = True
            if not conn.owes() and (conn.successor is None or conn.successor.step is not Step.OPENING):
                self._expire_conn(conn, now)
        elif conn.successor is None and conn.asks is None:
            if now < conn.renew_at:
                self.wake(conn.renew_at)
                return
            conn.nsqd.unshared += not conn.is_shared
            conn.successor = self._open(Conn(conn.nsqd, conn.node, now, is_shared=conn.is_shared, replaces=conn), now)

    def _expire_conn(self, conn: Conn, now: float) -> None:
        """Close a connection over which nothing more arrives, or go on with the one that replaces it."""
        reason = ConnectionLostError(f"{conn.node.address} can no longer write to this connection")
        successor = conn.successor
        must_probe = [lane for lane in conn.lanes if conn.owes(lane) or lane.refusals]
        if successor is not None and successor.step is Step.OPEN:
            self.switch(conn, successor, now)
        else:
            self.drop(conn, reason, now, is_fault=False)
        for lane in must_probe:  # a single publish tests whether nsqd answers, before all are written again
            self.pause(lane, now)
            self.trouble(lane, reason, now)

    def switch(self, before: Conn, conn: Conn, now: float) -> None:
        """Use a connection in place of another one to the same nsqd."""
        before.successor = conn.replaces = None
        if before.is_shared and before.nsqd.shared is before:
            before.nsqd.shared = conn
        conn.last_used = before.last_used
        for lane in list(before.lanes):
            del before.lanes[lane]
            conn.lanes[lane] = None
            if lane.opening is before:
                lane.opening, lane.is_checked = conn, False
                self.actions.append(Check(lane, conn))
            else:
                lane.conn = conn
                self.dirty[lane] = None
        before.leaving.clear()
        self.drop(before, ConnectionLostError("replaced"), now, is_fault=False)
        self.wake(now)

    # ------------------------------------------------------------ silence

    def look(self, conn: Conn, now: float) -> None:
        """Decide what follows from the silence of a connection over which answers are due."""
        if conn.grace_until <= now:
            text = f"{conn.node.address} answers over another connection, but not over this one"
            self._give_up(conn, ResponseTimeoutError(text), now)
            return
        begins = stalled_at(conn.since, conn.sent[0].size)
        if now < begins:
            self.wake(begins)
            return
        self.wake(min(now + _LOOK_EVERY, conn.grace_until))
        silence = STALLED_AFTER + now - begins
        reason = ResponseTimeoutError(
            f"{conn.node.address} has answered no publish for {now - conn.since:.1f} s: closing its connection"
        )
        if conn.asks is not None:
            if silence >= ASKED_EVERY:
                self.drop(conn, reason, now)
        elif silence >= liveness.OVERDUE_AFTER:
            self._overdue(conn, reason, now)
        else:
            self._stalled(conn, now)
            if silence >= DOUBTED_AFTER:
                self._doubt(conn, reason, now)

    def _overdue(self, conn: Conn, reason: NsqError, now: float) -> None:
        lanes = [lane for lane in conn.lanes if lane.conn is conn]
        for lane in lanes:
            self.actions.append(Report("closing", lane, reason, conn))
        for request in conn.own():
            self.end(request, reason)
        self.drop(conn, reason, now)
        for lane in lanes:
            self.pause(lane, now)  # a single publish tests whether the leader answers

    def _stalled(self, conn: Conn, now: float) -> None:
        """Prefer other partitions. The leader may be frozen, or wait for a frozen follower.

        Publishes bound to this partition stay unanswered: all sent to the same live leader again, they would be stored
        twice.
        """
        lanes = [lane for lane in conn.lanes if lane.conn is conn]
        is_due = now >= conn.refresh_at
        if is_due:
            conn.refresh_at = now + _REFRESHED_EVERY
        if conn.node.is_plain:
            conn.nsqd.suspect(now)
        for lane in lanes:
            error = ResponseTimeoutError(f"{leader_name(lane)} has not answered for {STALLED_AFTER} s or more")
            self.note(lane, error, now)
            if is_due:
                self.actions.append(LookUp(lane.topic, "soon"))
        if self._retries:
            for lane in lanes:
                self.move(lane, now)

    def _doubt(self, conn: Conn, reason: NsqError, now: float) -> None:
        """Ask over another connection whether the leader answers, or just leave this one if nobody waits."""
        conn.is_doubted = True
        if not conn.is_awaited:
            lanes = list(conn.lanes)
            self.drop(conn, reason, now, is_fault=False)
            for lane in lanes:
                self.pause(lane, now)
        elif self._retries and conn.probe is None and conn.lifetime is None and now >= conn.nsqd.ask_at:
            conn.nsqd.ask_at = now + ASKED_EVERY
            conn.probe = self._open(Conn(conn.nsqd, conn.node, now, asks=conn), now)

    def _ask(self, conn: Conn, silent: Conn, now: float) -> list[Request]:
        """Write an unanswered publish once more: the one that was written least often, the oldest of these."""
        awaited = [request for request in silent.own() if not request.is_over]
        if silent.step is not Step.OPEN or not silent.is_doubted or not awaited:
            self.drop(conn, ConnectionLostError("the question is over"), now)
            return []
        request = min(awaited, key=lambda each: each.attempts)
        lane: Lane = request.lane  # type: ignore[assignment]  # it was written
        request.attempts += 1
        request.maybe_stored = True
        lane.counts.retries += 1
        conn.sent.append(request)
        conn.orphans[request] = lane
        self.wake(now + ASKED_EVERY)
        return [request]

    def answered_elsewhere(self, conn: Conn, silent: Conn, *, works: bool, now: float) -> None:
        """Take that nsqd has answered a question: if it works, the silent connection gets a moment."""
        if works and silent.step is Step.OPEN and silent.is_doubted:
            silent.grace_until = now + _ASK_GRACE
            self.wake(silent.grace_until)
        self.drop(conn, ConnectionLostError("the question is over"), now)

    def _give_up(self, conn: Conn, reason: NsqError, now: float) -> None:
        for lane in conn.lanes:
            self.actions.append(Report("closing", lane, reason, conn))
        self.drop(conn, reason, now, is_fault=False)

    def slow(self, conn: Conn, now: float) -> None:
        """Move what may be published elsewhere while a connection is being opened for long."""
        if now < conn.slow_at:
            self.wake(conn.slow_at)
            return
        conn.slow_at = now + STALLED_AFTER
        self.wake(conn.slow_at)
        if conn.asks is not None or conn.replaces is not None:
            return
        conn.nsqd.suspect(now)
        error = ConnectError(f"{conn.node.address} could not be connected to for {STALLED_AFTER} s or more")
        for lane in list(conn.lanes):
            if lane.is_needed or lane.outage.error is None:
                self.trouble(lane, error, now)

    def pause(self, lane: Lane, now: float) -> None:
        """Write nothing for a moment, then a single publish; all refusals before one pause count as one."""
        if now >= lane.paused_until:
            lane.refusals += 1
            delay = min(delay_after(self._config.backoff, lane.refusals, self._chance), LONGEST_PAUSE)
            lane.paused_until = now + delay
            self.wake(lane.paused_until)

    def lead(self, lane: Lane, node: Node, now: float) -> None:
        """Let ``node`` lead a partition from now on, also if it is the same one: it may have accepted no writes."""
        if lane.node != node:
            used = lane.conn or lane.opening
            if used is not None and used.node != node:
                if lane.conn is not None:
                    self.actions.append(Report("moved", lane, conn=used))
                self.leave(lane, another_leads(used), now)
        lane.node = node
        lane.number_on_wire = None if node.is_plain else lane.number
        lane.retry_at = lane.paused_until = min(lane.paused_until, now)
        nsqd = self.nsqds.get(node.address)
        if nsqd is not None:
            nsqd.retry_at = min(nsqd.retry_at, now)
        self.dirty[lane] = None
        if lane.is_needed:
            self.connect(lane, now)


def another_leads(conn: Conn) -> ConnectionLostError:
    """Return why a connection is left."""
    return ConnectionLostError(f"closed the connection to {conn.node.address}: another node leads now")
