"""The part of the machine that knows silence: what follows if a leader does not answer, or cannot be connected to.

The times are in ``policy.liveness``.

Source: server failures 3.3, 3.4, 4.1 to 4.3.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.errors import ConnectError, ConnectionLostError, NsqError, ResponseTimeoutError
from nsq_ha.policy import liveness
from nsq_ha.policy.liveness import ASKED_EVERY, DOUBTED_AFTER, STALLED_AFTER, stalled_at
from nsq_ha.producer.actions import LookUp, Report
from nsq_ha.producer.connections import ANSWER_GRACE, Connections
from nsq_ha.producer.reasons import leader_name
from nsq_ha.producer.state import FIRST_PROBE, ConnectionStep, Lane, ProducerConn, PublishRequest

_LOOK_EVERY: Final = 0.25
"""Seconds between two looks at a silent connection."""


class Silence(Connections):
    """Decides what follows from silence."""

    def watch(self, conn: ProducerConn, now: float) -> None:
        """Look after a connection."""
        if conn.step is ConnectionStep.OPENING:
            self.slow(conn, now)
        elif conn.sent:
            self.look(conn, now)
        else:
            idle_at = max(conn.last_used, conn.opened_at) + self._config.idle_timeout
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
        self.wake(min(now + _LOOK_EVERY, conn.grace_until))
        silence = STALLED_AFTER + now - begins
        reason = ResponseTimeoutError(
            f"{conn.node.address} has answered no publish for {now - conn.since:.1f} s: closing its connection"
        )
        if conn.asks is not None:
            if silence >= ASKED_EVERY:
                self.drop(conn, reason, now)
        elif silence >= liveness.OVERDUE_AFTER:
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
        is_due = now >= conn.refresh_at
        if is_due:
            conn.refresh_at = now + FIRST_PROBE
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
        conn.step, conn.since, conn.opened_at = ConnectionStep.OPEN, now, now
        conn.nsqd.is_suspect = False
        silent = conn.asks
        if silent is None:
            self.start(conn, now)
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
