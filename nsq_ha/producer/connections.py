"""The part of the machine that knows connections: their beginning, their end, and what follows if no answer comes.

The invariants: nothing is written to a connection that nsqd may not be able to answer over; answers are matched with
requests by their order alone; and an nsqd that fails is connected to again after pauses that grow.

The times of silence are in ``policy.liveness``.

Source: server failures 3.3, 3.4, 3.7, 4.1 to 4.3; server protocol 3.3.
"""

from __future__ import annotations

import math
from typing import Final

from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError, ResponseTimeoutError, ServerError
from nsq_ha.message import Receipt
from nsq_ha.policy.liveness import ASKED_EVERY, DOUBTED_AFTER, OVERDUE_AFTER, STALLED_AFTER, stalled_at
from nsq_ha.policy.timing import QUICK_GAP, delay_after
from nsq_ha.policy.tls_renewal import Phase
from nsq_ha.policy.topology import Node
from nsq_ha.producer.actions import CheckChannels, CloseConnection, LookUp, OpenConnection, Report
from nsq_ha.producer.lanes import Lanes
from nsq_ha.producer.reasons import leader_name, no_leader
from nsq_ha.producer.state import FIRST_PROBE, ConnectionStep, Lane, NsqdHealth, ProducerConn, PublishRequest

ANSWER_GRACE: Final = QUICK_GAP
"""Seconds that a connection has to answer, once a lookup names another leader, or the leader has answered elsewhere."""

LONGEST_PAUSE: Final = QUICK_GAP
"""Most seconds between two tries after refusals, and between two looks at a silent connection. Each try is a single
publish, and a leader should get writes soon after it recovers."""


class Connections(Lanes):
    """Opens, replaces and closes the connections of all lanes."""

    # ------------------------------------------------------------ opening

    def connect(self, lane: Lane, now: float) -> None:
        """Connect to the leader of a lane, if it is known and it is time."""
        if lane.conn is not None or lane.opening is not None:
            return
        lane.is_used = True
        node = lane.node
        if node is None:
            if now < lane.retry_at:
                self.wake(lane.retry_at)
            else:
                self._cannot_use(lane, no_leader(lane), now)
            return
        nsqd = self.nsqds.get(node.address)
        if nsqd is None:
            nsqd = self.nsqds[node.address] = NsqdHealth(node)
        is_shared = node.is_plain or nsqd.unshared >= self._config.connections_per_nsqd
        conn = nsqd.shared if is_shared else None
        if conn is None:
            if now < nsqd.retry_at:
                self.wake(nsqd.retry_at)
                return
            conn = self._open(ProducerConn(nsqd, node, now, is_shared=is_shared), now)
            if is_shared:
                nsqd.shared = conn
            else:
                nsqd.unshared += 1
        lane.opening, lane.is_checked = conn, False
        conn.lanes[lane] = None
        conn.leaving.pop(lane, None)
        self.actions.append(LookUp(lane.topic, "if old"))  # if the node is gone, the lookup names another one
        self.actions.append(CheckChannels(lane, conn))

    def _cannot_use(self, lane: Lane, error: NsqError, now: float) -> None:
        """Look for the leader again after a pause that grows."""
        lane.failures += 1
        lane.retry_at = now + self.delay(lane.failures)
        self.wake(lane.retry_at)
        self.trouble(lane, error, now)

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after so many failures in a row."""
        return delay_after(self._config.backoff, failures, self._chance)

    def _open(self, conn: ProducerConn, now: float) -> ProducerConn:
        self.wake(now + STALLED_AFTER)
        self.conns[conn] = None
        self.actions.append(OpenConnection(conn))
        return conn

    def checked(self, lane: Lane, conn: ProducerConn, error: NsqError | None, now: float) -> None:
        """Take the outcome of a :class:`CheckChannels`; with an error, nsqd does not lead the partition yet."""
        if lane.opening is not conn:
            return
        if error is None:
            lane.is_checked = True
            if conn.step is ConnectionStep.OPEN:
                self._use(lane, conn, now)
            return
        lane.opening = None
        conn.lanes.pop(lane, None)
        self._close_unused(conn, error, now)
        self._cannot_use(lane, error, now)

    def _use(self, lane: Lane, conn: ProducerConn, now: float) -> None:
        lane.conn, lane.opening = conn, None
        lane.failures, lane.retry_at = 0, -math.inf
        lane.counts.reconnects += bool(lane.plain_receipts)
        lane.plain_receipts = [Receipt(lane.topic.name, lane.number, conn.node.address)]
        lane.last_used = max(lane.last_used, now)
        if not lane.refusals:
            lane.trouble = None
        self.dirty[lane] = None
        self.actions.append(Report("connected", lane, conn=conn))
        self.look_up(lane.topic)

    # ------------------------------------------------------------ the end of a connection

    def closed(self, conn: ProducerConn, error: NsqError, now: float, *, is_fault: bool = True) -> None:
        """Take the end of a connection, or of the attempt to open it.

        Args:
            conn: The connection.
            error: Why.
            now: The time.
            is_fault: Whether nsqd gets a pause before the next attempt.
        """
        was, conn.step = conn.step, ConnectionStep.CLOSED
        if was is ConnectionStep.CLOSED:
            return
        del self.conns[conn]
        if conn.asks is not None:
            return
        is_replacement = conn.replaces is not None
        self._disown(conn, now)
        if is_fault and not is_replacement:
            self._failed(conn.nsqd, now, is_opening=was is ConnectionStep.OPENING)
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

    def _unlink(self, lane: Lane, conn: ProducerConn, error: NsqError) -> None:
        """Take a connection that has ended from a lane."""
        if lane.conn is conn:
            lane.conn = None
            lane.refusals, lane.paused_until = 0, -math.inf
            self.actions.append(Report("disconnected", lane, error, conn))
        if lane.opening is conn:
            lane.opening = None
            if isinstance(error, ServerError):
                self.actions.append(Report("refused", lane, error, conn))

    def _disown(self, conn: ProducerConn, now: float) -> None:
        """Forget who leads to a connection that has ended."""
        nsqd, successor, before = conn.nsqd, conn.successor, conn.replaces
        if before is not None:  # it was to replace another one
            before.successor = conn.replaces = None
            before.renew_at = now + self.delay(1)
            self.wake(before.renew_at)
        if conn.is_shared:
            if nsqd.shared is conn:
                nsqd.shared = None
        else:
            nsqd.unshared -= 1
        if successor is not None:
            self.drop(successor, ConnectionLostError("no longer needed"), now, is_fault=False)
        for probe in [each for each in self.conns if each.asks is conn]:
            self.drop(probe, ConnectionLostError("the question is over"), now)

    def _failed(self, nsqd: NsqdHealth, now: float, *, is_opening: bool) -> None:
        """Record a failure of an nsqd; those of several connections before one pause count as one."""
        if now >= nsqd.retry_at:
            nsqd.failures += 1
            nsqd.retry_at = now + self.delay(nsqd.failures)
        self.wake(nsqd.retry_at)
        if is_opening:
            nsqd.is_suspect = True
            nsqd.probed(now)

    def _take_back(self, conn: ProducerConn, error: NsqError, *, is_read: bool, only: Lane | None = None) -> list[Lane]:
        """Take back what is unanswered, in doubt if nsqd may have read it; return the lanes that got something."""
        lost: dict[Lane, list[PublishRequest]] = {}
        for request in conn.own():
            lane: Lane = request.lane  # type: ignore[assignment]  # it was written
            if only not in (None, lane):
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

    def drop(self, conn: ProducerConn, reason: NsqError, now: float, *, is_fault: bool = True) -> None:
        """End a connection."""
        if conn.step is not ConnectionStep.CLOSED:
            self.actions.append(CloseConnection(conn, reason))
            self.closed(conn, reason, now, is_fault=is_fault)

    def _close_unused(self, conn: ProducerConn, reason: NsqError, now: float) -> None:
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
            conn.leaving[lane] = now + ANSWER_GRACE
            self.wake(conn.leaving[lane])
        else:
            self._close_unused(conn, reason, now)

    def settle(self, conn: ProducerConn, now: float) -> None:
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

    def renew(self, conn: ProducerConn, now: float) -> None:
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
        if not conn.sent and conn.last_used < lifetime.identified_at and not any(lane.is_needed for lane in conn.lanes):
            # The next publish opens another one: an idle producer needs no handshake every three seconds.
            self.drop(conn, ConnectionLostError("closed the idle connection"), now, is_fault=False)
            return
        successor = conn.successor
        is_replaced = successor is not None and successor.step is ConnectionStep.OPEN
        # The order in which nsqd reads from two connections is unknown, so the other one waits for these answers.
        conn.is_draining = is_replaced or phase is not Phase.DUE
        if phase is Phase.STALE or (conn.is_draining and not conn.owes() and (is_replaced or successor is None)):
            self._expire_conn(conn, now)
        elif phase is Phase.DUE and successor is None and conn.asks is None:
            if now < conn.renew_at:
                self.wake(conn.renew_at)
                return
            conn.nsqd.unshared += not conn.is_shared
            conn.successor = self._open(
                ProducerConn(conn.nsqd, conn.node, now, is_shared=conn.is_shared, replaces=conn), now
            )

    def _expire_conn(self, conn: ProducerConn, now: float) -> None:
        """Close a connection over which nothing more arrives, or go on with the one that replaces it."""
        reason = ConnectionLostError(f"{conn.node.address} can no longer write to this connection")
        successor = conn.successor
        must_probe = [lane for lane in conn.lanes if conn.owes(lane)]
        if successor is not None and successor.step is ConnectionStep.OPEN:
            self.switch(conn, successor, now)
        else:
            self.drop(conn, reason, now, is_fault=False)
        for lane in must_probe:  # a single publish tests whether nsqd answers, before all are written again
            self.pause(lane, now)
            self.trouble(lane, reason, now)

    def switch(self, before: ProducerConn, conn: ProducerConn, now: float) -> None:
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
                self.actions.append(CheckChannels(lane, conn))
            else:
                lane.conn = conn
                self.dirty[lane] = None
        before.leaving.clear()
        self.drop(before, ConnectionLostError("replaced"), now, is_fault=False)
        self.wake(now)

    # ------------------------------------------------------------ the leader

    def pause(self, lane: Lane, now: float) -> None:
        """Write nothing for a moment, then a single publish; all refusals before one pause count as one."""
        if now >= lane.paused_until:
            lane.refusals += 1
            lane.paused_until = now + min(self.delay(lane.refusals), LONGEST_PAUSE)
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

    # ------------------------------------------------------------ time, and silence

    def watch(self, conn: ProducerConn, now: float) -> None:
        """Look after a connection."""
        if conn.step is ConnectionStep.OPENING:
            self.slow(conn, now)
        elif conn.sent:
            self.look(conn, now)
        else:
            idle_at = max(conn.last_used, conn.since) + self._config.idle_timeout
            if now < idle_at:
                self.wake(idle_at)
            elif not any(lane.is_needed for lane in conn.lanes):
                self.drop(conn, ConnectionLostError("closed the idle connection"), now, is_fault=False)
        if conn.step is ConnectionStep.OPEN and conn.leaving:
            self.settle(conn, now)
        if conn.step is ConnectionStep.OPEN:
            self.renew(conn, now)

    def look(self, conn: ProducerConn, now: float) -> None:
        """Decide what follows from the silence of a connection over which answers are due."""
        if conn.grace_until <= now:
            text = f"{conn.node.address} answers over another connection, but not over this one"
            self._leave_silent(conn, ResponseTimeoutError(text), now, is_fault=False)
            return
        begins = stalled_at(conn.since, conn.sent[0].size)
        if now < begins:
            self.wake(begins)
            return
        self.wake(min(now + LONGEST_PAUSE, conn.grace_until))
        silence = STALLED_AFTER + now - begins
        reason = ResponseTimeoutError(
            f"{conn.node.address} has answered no publish for {now - conn.since:.1f} s: closing its connection"
        )
        if conn.asks is not None:
            if silence >= ASKED_EVERY:
                self.drop(conn, reason, now)
        elif silence >= OVERDUE_AFTER:
            for request in conn.own():
                self.end(request, reason)
            for lane in self._leave_silent(conn, reason, now, is_fault=True):
                self.pause(lane, now)  # a single publish tests whether the leader answers
        else:
            self._stalled(conn, now)
            if silence >= DOUBTED_AFTER:
                self._doubt(conn, reason, now)

    def _leave_silent(self, conn: ProducerConn, reason: NsqError, now: float, *, is_fault: bool) -> list[Lane]:
        """Close a connection, and report it; return the lanes that used it."""
        lanes = [lane for lane in conn.lanes if lane.conn is conn]
        self.actions.extend(Report("closing", lane, reason, conn) for lane in lanes)
        self.drop(conn, reason, now, is_fault=is_fault)
        return lanes

    def _stalled(self, conn: ProducerConn, now: float) -> None:
        """Prefer other partitions. The leader may be frozen, or wait for a frozen follower.

        Publishes bound to this partition stay unanswered: all sent to the same live leader again, they would be stored
        twice.
        """
        lanes = [lane for lane in conn.lanes if lane.conn is conn]
        if conn.node.is_plain:
            conn.nsqd.suspect(now)
        for lane in lanes:
            error = ResponseTimeoutError(f"{leader_name(lane)} has not answered for {STALLED_AFTER} s or more")
            self.note(lane, error, now)
            if now >= lane.probe_at:
                lane.probe_at = now + FIRST_PROBE
                self.actions.append(LookUp(lane.topic, "soon"))
        if self._retries:
            for lane in lanes:
                self.move(lane, now)

    def _doubt(self, conn: ProducerConn, reason: NsqError, now: float) -> None:
        """Ask over another connection whether the leader answers, or just leave this one if nobody waits."""
        conn.is_doubted = True
        if not conn.awaited():
            lanes = list(conn.lanes)
            self.drop(conn, reason, now, is_fault=False)
            for lane in lanes:
                self.pause(lane, now)
        elif (
            self._retries
            and conn.lifetime is None
            and now >= conn.nsqd.ask_at
            and not any(each.asks is conn for each in self.conns)
        ):
            conn.nsqd.ask_at = now + ASKED_EVERY
            self._open(ProducerConn(conn.nsqd, conn.node, now, asks=conn), now)

    def opened(self, conn: ProducerConn, now: float) -> list[PublishRequest]:
        """Take that a connection is open. Return what to write to it at once, if it only asks."""
        if conn.step is not ConnectionStep.OPENING:
            return []
        conn.step, conn.since = ConnectionStep.OPEN, now
        conn.nsqd.is_suspect = False
        silent = conn.asks
        if silent is None:
            if conn.replaces is not None:
                self.renew(conn.replaces, now)
            for each in list(conn.lanes):
                if each.opening is conn and each.is_checked:
                    self._use(each, conn, now)
            self.wake(now)
            return []
        awaited = silent.awaited()
        if silent.step is not ConnectionStep.OPEN or not silent.is_doubted or not awaited:
            self.drop(conn, ConnectionLostError("the question is over"), now)
            return []
        request = min(awaited, key=lambda each: each.attempts)  # the oldest of these
        lane: Lane = request.lane  # type: ignore[assignment]  # it was written
        request.attempts += 1
        request.maybe_stored = True
        lane.counts.retries += 1
        conn.sent.append(request)
        conn.orphans[request] = lane
        self.wake(now + ASKED_EVERY)
        return [request]

    def answered_elsewhere(self, conn: ProducerConn, silent: ProducerConn, *, works: bool, now: float) -> None:
        """Take that nsqd has answered a question: if it works, the silent connection gets a moment."""
        if works and silent.step is ConnectionStep.OPEN and silent.is_doubted:
            silent.grace_until = now + ANSWER_GRACE
            self.wake(silent.grace_until)
        self.drop(conn, ConnectionLostError("the question is over"), now)

    def slow(self, conn: ProducerConn, now: float) -> None:
        """Move what may be published elsewhere while a connection is being opened for long."""
        if not self._retries or conn.asks is not None or conn.replaces is not None:
            return
        if now < conn.since + STALLED_AFTER:
            self.wake(conn.since + STALLED_AFTER)
            return
        conn.since = now
        self.wake(now + STALLED_AFTER)
        conn.nsqd.suspect(now)
        error = ConnectError(f"{conn.node.address} could not be connected to for {STALLED_AFTER} s or more")
        for lane in list(conn.lanes):
            if lane.is_needed or lane.trouble is None:
                self.trouble(lane, error, now)


def another_leads(conn: ProducerConn) -> ConnectionLostError:
    """Return why a connection is left."""
    return ConnectionLostError(f"closed the connection to {conn.node.address}: another node leads now")
