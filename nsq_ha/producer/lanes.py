"""The part of the machine that knows lanes: where a publish goes, when it moves, and its end.

The invariants, for all inputs in any order:

* Each key has at most one unanswered publish, so a retry never overtakes a later message of its key; and publishes of
  one key are first written in their order.
* A publish is *not stored* only if each attempt was refused promptly, refused before nsqd stores anything, or not
  written to its end. After one attempt in doubt it stays in doubt.
* A publish that was written keeps its keys until it is answered or its connection is lost, also if its caller is gone.
* Each publish ends once, by its deadline.

Source: server failures 1.1, 4.2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Final

from nsq_ha.errors import ConfigError, ConnectionLostError, NsqError, ServerError
from nsq_ha.message import Receipt
from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy.liveness import STALLED_AFTER, stalled_at
from nsq_ha.policy.plain_topology import explained
from nsq_ha.policy.sharding import Key, hasher
from nsq_ha.producer.actions import Action, LookUp, Report
from nsq_ha.producer.reasons import late, wrapped
from nsq_ha.producer.state import (
    FIRST_PROBE,
    Gate,
    Lane,
    NsqdHealth,
    ProducerConn,
    ProducerTopic,
    PublishCounts,
    PublishRequest,
)

NEEDS_PARTITIONS: Final = (
    "key= and partition= need the partitioned server: plain nsqd has no partitions and no order. Publish without them"
)

LATE_AT_ONCE: Final = 500
"""Most publishes that end in one tick because they are late; others run before the next ones do."""


class Lanes(ABC):
    """Places, moves and ends publishes.

    Args:
        config: The producer's options.
        chance: Returns a number from 0 to 1.

    Attributes:
        topics: The topics in use, by name.
        nsqds: The nsqds in use, by address.
        conns: All connections that are open or being opened.
        past: Counts of forgotten topics.
        pending: What has not ended, by its time limit: those of one limit end in their order.
        dirty: Lanes that may be written.
        finished: Requests that have ended.
        actions: What else the owner is to do.
        wake_at: When to call :meth:`tick`.
    """

    def __init__(self, config: ProducerConfig, chance: Callable[[], float]) -> None:
        self._config, self._chance = config, chance
        self._retries = config.on_unreachable == "retry"
        self._hash = hasher(config.sharding)
        self.topics: dict[str, ProducerTopic] = {}
        self.nsqds: dict[str, NsqdHealth] = {}
        self.conns: dict[ProducerConn, None] = {}
        self.past: PublishCounts = PublishCounts()
        self.pending: dict[float, dict[PublishRequest, None]] = {}
        self.dirty: dict[Lane, None] = {}
        self.finished: list[PublishRequest] = []
        self.actions: list[Action] = []
        self.wake_at: float = math.inf

    def wake(self, when: float) -> None:
        """Have :meth:`tick` called at this time, or earlier."""
        self.wake_at = min(self.wake_at, when)

    @abstractmethod
    def connect(self, lane: Lane, now: float) -> None:
        """Connect to the leader of a lane, if it is known and it is time."""

    def all_pending(self) -> Iterator[PublishRequest]:
        """Yield what has not ended. Any thread may ask."""
        return (request for group in tuple(self.pending.values()) for request in tuple(group))

    # ------------------------------------------------------------ publishing

    def publish(self, request: PublishRequest, now: float) -> bool:
        """Take a new request; return whether to write now. Else more may follow, and the answers wake the rest."""
        topic, limit = self.topics[request.topic], request.limit
        request.deadline = deadline = now + limit
        try:
            self.pending[limit][request] = None
        except KeyError:
            self.pending[limit] = {request: None}
        self.wake_at = min(self.wake_at, deadline)
        if topic.is_quick and request.key is None and request.partition is None and not request.needs_check:
            topic.turn = turn = topic.turn + 1
            lane = topic.routes[turn % len(topic.routes)]
            conn = lane.conn
            if conn is not None and lane.trouble is None:
                request.lane = lane
                lane.ready[request] = None
                self.dirty[lane] = None
                return not conn.sent
            topic.turn -= 1
        elif not request.is_part and (
            isinstance(request, Gate) or topic.gate is not None or topic.waiting or not topic.names_partitions
        ):
            topic.waiting[request] = None
            self.wake(now)
            self.admit(topic, now)
            return True
        return self.place(topic, request, now)

    def place(self, topic: ProducerTopic, request: PublishRequest, now: float, lane: Lane | None = None) -> bool:
        """Queue a request in a lane: in the one that it names, or in any; return whether to write now."""
        if lane is None:
            try:
                if request.needs_check:
                    request.suit(topic.view, self._config.max_message_bytes)
                number = self.bound_to(topic, request.key, request.partition)
                lane = self._any_lane(topic, now) if number is None else topic.lanes.get(number) or topic.lane(number)
            except Exception as error:  # noqa: BLE001 - a sharding function may raise anything
                self.end(request, error)
                return True
        request.lane = lane
        keys, wanted = lane.keys, request.keys
        if keys.keys().isdisjoint(wanted):
            keys.update(dict.fromkeys(wanted))
            lane.ready[request] = None
        else:
            lane.line_up(request)
        self.dirty[lane] = None
        if lane.conn is None:
            self.connect(lane, now)
            return True
        return not lane.conn.sent

    def bound_to(self, topic: ProducerTopic, key: Key | None, partition: int | None) -> int | None:
        """Return the only partition that a message may go to. None if it may go to any.

        Raises:
            ConfigError: The partition does not exist, the sharding function does not accept the key, the cluster has
                no partitions, or the topic is ordered and the message names neither.
        """
        meta = topic.view.meta
        if meta is None:
            raise ConfigError(f"the partitions of topic {topic.name!r} are not known")
        if key is None and partition is None:
            if meta.ordered:
                raise ConfigError(f"topic {topic.name!r} is ordered: give key= or partition=")
            return None
        if not meta.is_partitioned:
            raise ConfigError(NEEDS_PARTITIONS)
        if partition is None:
            return self._hash(key) % topic.count.used
        if not 0 <= partition < meta.partition_num:
            raise ConfigError(
                f"partition {partition} of {topic.name!r} does not exist: "
                f"it has {meta.partition_num} (0..{meta.partition_num - 1})"
            )
        return partition

    def admit(self, topic: ProducerTopic, now: float) -> None:
        """Queue what waits for the topic, up to the next large batch."""
        while topic.gate is None and topic.waiting and topic.names_partitions:
            request, _ = topic.waiting.popitem(last=False)
            if isinstance(request, Gate):
                topic.gate = request
                self.choose_path(topic)
                self.end(request, None, [])
            else:
                self.place(topic, request, now)

    def leave_gate(self, gate: Gate, now: float) -> None:
        """Go on behind a large batch: all of it is queued, or its caller is gone."""
        topic = self.topics.get(gate.topic)
        if topic is not None and topic.gate is gate:
            topic.gate, topic.used_at = None, now
            self.choose_path(topic)
            self.admit(topic, now)

    @staticmethod
    def choose_path(topic: ProducerTopic) -> None:
        """Decide whether a publish without a key needs more than the next route."""
        meta = topic.view.meta
        topic.is_quick = (
            meta is not None and bool(topic.routes) and not (meta.ordered or topic.by_load or topic.gate is not None)
        )

    # ------------------------------------------------------------ the choice of a partition

    def _any_lane(self, topic: ProducerTopic, now: float, avoid: Lane | None = None) -> Lane:
        """Choose a lane by turns: a healthy one, else any that has a leader; at times one that may be well again."""
        topic.turn += 1
        routes = topic.routes if avoid is None else [lane for lane in topic.routes if lane is not avoid]
        if not routes:
            return topic.lane(topic.turn % topic.count.used)
        chosen = self._pick(topic, routes)
        if self.is_healthy(chosen):
            return chosen  # without a look at all others, which may be a thousand
        healthy = [lane for lane in routes if self.is_healthy(lane)]
        if not healthy or (avoid is None and self._may_try(chosen, now)):
            return chosen
        return self._pick(topic, healthy)

    def _pick(self, topic: ProducerTopic, lanes: list[Lane]) -> Lane:
        """Return the one whose turn it is; by load, the next one if that is less loaded.

        Two are compared, not all: a partition that looks idle because it refuses quickly must not attract every
        message.
        """
        first = lanes[topic.turn % len(lanes)]
        if topic.by_load and (second := lanes[(topic.turn + 1) % len(lanes)]).load < first.load:
            return second
        return first

    def nsqd_of(self, lane: Lane) -> NsqdHealth | None:
        """Return the nsqd that leads a lane. None if none does, or if nothing is known of it."""
        return None if lane.node is None else self.nsqds.get(lane.node.address)

    def is_healthy(self, lane: Lane) -> bool:
        """Return whether a lane has no known problem."""
        if lane.trouble is not None:
            return False
        nsqd = self.nsqd_of(lane)
        return nsqd is None or not nsqd.is_suspect

    def _may_try(self, lane: Lane, now: float) -> bool:
        """Return whether a publish may try a lane that may be well again. Connecting costs no publish anything."""
        nsqd = self.nsqd_of(lane)
        if lane.conn is None and nsqd is not None:
            if now >= nsqd.probe_at:
                nsqd.probed(now)
                self.connect(lane, now)
            return False
        if lane.load or now < lane.probe_at:
            return False
        lane.probe_at = now + FIRST_PROBE
        return True

    # ------------------------------------------------------------ trouble

    def trouble(self, lane: Lane, error: NsqError, now: float) -> None:
        """Record a failure; look up the leader if it may have moved, and move or fail what need not wait."""
        before, is_stale = lane.trouble, error.stale_leader
        if isinstance(error, ConnectionLostError) and isinstance(before, ServerError) and before.retriable:
            error = before  # nsqd closed the connection because of it
        elif self._config.nsqd:
            error = explained(error, lane.topic.name)
        self.note(lane, error, now)
        if is_stale:
            self.actions.append(LookUp(lane.topic, "soon"))
        self.look_up(lane.topic)
        if self._retries and error.retriable:
            self.move(lane, now)
        else:
            for request in lane.unwritten():
                self.end(request, error)

    def note(self, lane: Lane, error: NsqError, now: float) -> None:
        """Record why publishing to a lane fails."""
        lane.trouble, lane.is_troubled = error, True
        lane.outage.failed(now)
        self.actions.append(Report("failed", lane, error, lane.conn, lane.outage.warning(now)))

    def look_up(self, topic: ProducerTopic) -> None:
        """Look a topic up often exactly while somebody waits for a change."""
        is_wanted = bool(topic.waiting or topic.callers) and not topic.names_partitions
        is_wanted |= any(lane.trouble and lane.conn is None and lane.is_needed for lane in topic.lanes.values())
        if is_wanted is not topic.is_looked_up:
            topic.is_looked_up = is_wanted
            self.actions.append(LookUp(topic, "often" if is_wanted else "rarely"))

    def move(self, lane: Lane, now: float) -> None:
        """Move requests without keys to other lanes: those that are not written, and those on a stalled connection."""
        topic, conn = lane.topic, lane.conn
        if not any(other is not lane and self.is_healthy(other) for other in topic.routes):
            return
        moved = [request for request in lane.ready if not request.keys]
        for request in moved:
            del lane.ready[request]
        if conn is not None and conn.sent and now >= stalled_at(conn.since, conn.sent[0].size):
            stalled = [
                request
                for request in conn.own()
                if request.lane is lane
                and not (request.keys or request.is_over)
                and now - request.sent_at >= STALLED_AFTER
            ]
            for request in stalled:
                conn.orphan(request, lane)
            moved = stalled + moved
        for request in moved:
            self.place(topic, request, now, self._any_lane(topic, now, avoid=lane))

    # ------------------------------------------------------------ ends

    def end(
        self, request: PublishRequest, error: Exception | None = None, receipts: list[Receipt] | None = None
    ) -> None:
        """End a request for its caller; if it is unanswered, it keeps its keys, and its place among the answers."""
        if request.is_over:
            return
        self._forget(request)
        lane = request.lane
        request.error = error
        if isinstance(error, NsqError) and not isinstance(error, ConfigError):
            counts = self.topics[request.topic].unsent if lane is None else lane.counts
            counts.failed += request.count
            counts.uncertain += request.count if request.maybe_stored else 0
            request.error = wrapped(request, error)
        request.receipts = receipts
        self.finished.append(request)

    def cancel(self, request: PublishRequest, now: float) -> None:
        """Forget a request whose caller is gone; what was not written is never sent."""
        if not request.is_over:
            self._forget(request)
            if self.topics[request.topic].is_looked_up:
                self.wake(now)  # perhaps nobody waits for the lookups any more
        if isinstance(request, Gate):
            self.leave_gate(request, now)

    def _forget(self, request: PublishRequest) -> None:
        request.is_over = True
        del self.pending[request.limit][request]
        lane = request.lane
        if lane is None:
            self.topics[request.topic].waiting.pop(request, None)
        elif request.conn is not None:
            request.maybe_stored = True
        else:
            lane.ready.pop(request, None)
            if request.keys:
                self.release(lane, request)

    def release(self, lane: Lane, request: PublishRequest) -> None:
        """Give the keys of a request to the next ones."""
        lane.release(request)
        if lane.ready:
            self.dirty[lane] = None

    def expire(self, now: float) -> None:
        """End the requests whose time limit has passed."""
        for limit, group in list(self.pending.items()):
            while group:
                request = next(iter(group))
                if request.deadline > now or len(self.finished) >= LATE_AT_ONCE:
                    self.wake(max(request.deadline, now))
                    break
                topic, lane = self.topics[request.topic], request.lane
                counts = topic.unsent if lane is None else lane.counts
                counts.timed_out += request.count
                self.end(request, late(request, topic))
            else:
                del self.pending[limit]
