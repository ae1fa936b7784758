"""The part of the machine that knows topics: what follows from a lookup, and from the time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from nsq_ha.errors import ConnectionLostError
from nsq_ha.options.config import ProducerConfig
from nsq_ha.policy.growth import PartitionCount
from nsq_ha.policy.lookup_pace import partition_delay
from nsq_ha.policy.topology import TopicView
from nsq_ha.producer.actions import ForgetTopic, KeysMove
from nsq_ha.producer.reasons import unknown
from nsq_ha.producer.silence import Silence
from nsq_ha.producer.state import Lane, ProducerTopic, PublishCounts

UNKNOWN_KEPT: Final = 10.0
"""Seconds for which an unknown topic is looked up; if it is created in that time, it is found at once."""

UNKNOWN_TOPIC_PATIENCE: Final = 3.0
"""Seconds for which an unseen topic of a partitioned cluster may be unknown to all nsqlookupds before a publish fails:
a second nsqlookupd learns of a new topic up to 3 s late. A plain nsqlookupd knows only the nsqds that have registered
since it started, so there a publish waits until its own limit."""

FORGET_INTERVAL: Final = 5.0
"""Seconds between two searches for unused topics."""


class Topics(Silence):
    """Follows the lookups of all topics.

    Attributes:
        past: Counts of forgotten topics.
    """

    def __init__(self, config: ProducerConfig, chance: Callable[[], float]) -> None:
        super().__init__(config, chance)
        self.past: PublishCounts = PublishCounts()
        self._by_load = config.strategy == "least_loaded"
        self._partition_delay = partition_delay(config.lookup_interval)
        self._forget_at = math.inf

    def topic(self, name: str, now: float) -> ProducerTopic:
        """Return a topic that is published to from now on; :meth:`viewed` says what is known of it."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics[name] = ProducerTopic(name, now)
            self._forget_at = min(self._forget_at, now + FORGET_INTERVAL)
            self.wake(self._forget_at)
        return topic

    # ------------------------------------------------------------ the topic

    def viewed(self, topic: ProducerTopic, view: TopicView, now: float) -> None:
        """Take the newest view of a topic."""
        topic.view, topic.names_partitions = view, view.partition_num > 0
        self._count(topic, view, now)
        for lane in topic.lanes.values():
            if lane.number not in view.leaders:
                lane.node = None  # missing is not gone: its connection stays in use
        for number, node in view.leaders.items():
            if number < view.partition_num:
                self.lead(topic.lane(number), node, now)
        self._route(topic)
        self.wake(now)
        if self._retries:
            for lane in list(topic.lanes.values()):
                if lane.trouble is not None:
                    self.move(lane, now)
        self.admit(topic, now)
        self.look_up(topic)

    def _count(self, topic: ProducerTopic, view: TopicView, now: float) -> None:
        """Take the number of partitions in a view."""
        if view.meta is None:
            if not view.exists:  # a topic that is created again is a new one: nothing in it can be out of order
                topic.count = PartitionCount()
            return
        topic.was_known = True
        delay = self._partition_delay if view.meta.is_partitioned else 0.0
        topic.count.found(view.meta.partition_num, now, delay)
        if not topic.count.used:
            topic.count.take(now)

    def _route(self, topic: ProducerTopic) -> None:
        """Find the partitions that publishes without a key may go to."""
        view = topic.view
        if view is None or view.meta is None:
            topic.routes = []
        else:
            # Connections to nsqds of a plain cluster stay in use when no nsqlookupd lists one.
            open_to = view.publishable or (view.known if view.is_plain else {})
            topic.routes = [topic.lane(number) for number in sorted(open_to) if number < topic.count.used]
            topic.by_load = self._by_load or (not view.meta.is_partitioned and len(topic.routes) > 1)
        self.choose_path(topic)

    def prepare(self, topic: ProducerTopic, now: float) -> list[Lane]:
        """Connect to the leaders of all partitions, though nothing is published; none if they are not known yet.

        The owner calls :meth:`prepared` when its caller waits no more.
        """
        view = topic.view
        if view is None or not topic.names_partitions:
            return []
        # The nsqds of a plain cluster may have left for good.
        is_partitioned = view.meta is None or view.meta.is_partitioned
        lanes = [topic.lane(number) for number in (range(view.partition_num) if is_partitioned else view.publishable)]
        for lane in lanes:
            lane.callers += 1
            self.connect(lane, now)
        return lanes

    def prepared(self, lanes: Sequence[Lane], now: float) -> None:
        """Take that a caller of :meth:`prepare` waits no more."""
        for lane in lanes:
            lane.callers -= 1
        self.wake(now)

    # ------------------------------------------------------------ time

    def tend(self, now: float) -> None:
        """Look after what waits in topics, and forget those that nobody uses."""
        for topic in list(self.topics.values()):
            self._tend(topic, now)
        if now >= self._forget_at:
            self._forget_at = now + FORGET_INTERVAL if self.topics else math.inf
            for topic in list(self.topics.values()):
                if self._is_unused(topic, now):
                    self._forget_topic(topic, now)
        self.wake(self._forget_at)

    def _tend(self, topic: ProducerTopic, now: float) -> None:
        if topic.count.is_pending:
            before = topic.count.used
            change = topic.count.take(now)
            if change is not None and topic.view is not None and not topic.view.is_plain:
                self.actions.append(KeysMove(topic, *change))
            if topic.count.used != before:
                self._route(topic)
            self.wake(topic.count.due_at)
        if not topic.names_partitions:
            self._look_at_unknown(topic, now)
        for lane in list(topic.lanes.values()):
            if not lane.is_needed:
                continue
            if lane.conn is None:
                self.connect(lane, now)
            elif lane.paused_until > now:
                self.wake(lane.paused_until)
            else:
                self.dirty[lane] = None
        self.look_up(topic)

    def _look_at_unknown(self, topic: ProducerTopic, now: float) -> None:
        """Fail what has waited for a topic that no nsqlookupd knows."""
        if not topic.is_unknown:
            return
        for request in list(topic.waiting):
            gives_up_at = request.deadline - request.limit + UNKNOWN_TOPIC_PATIENCE
            if now < gives_up_at:
                self.wake(gives_up_at)
                break
            self.end(request, unknown(topic))

    def _is_unused(self, topic: ProducerTopic, now: float) -> bool:
        """Return whether to forget a topic because nobody publishes to it; its number of partitions is not changing."""
        if topic.waiting or topic.gate is not None or topic.callers or topic.count.is_pending:
            return False
        lanes = topic.lanes.values()
        used_at = max(topic.used_at, max((lane.last_used for lane in lanes), default=-math.inf))
        idle = self._config.idle_timeout
        if now - used_at <= (idle if topic.names_partitions else min(UNKNOWN_KEPT, idle)):
            return False
        return not any(
            lane.is_needed or lane.keys or (lane.conn is not None and lane.conn.owes(lane)) for lane in lanes
        )

    def _forget_topic(self, topic: ProducerTopic, now: float) -> None:
        del self.topics[topic.name]
        self.past.add(topic.unsent)
        for lane in topic.lanes.values():
            self.past.add(lane.counts)
            self.leave(lane, ConnectionLostError("closed the idle connection"), now)
        for address, nsqd in list(self.nsqds.items()):
            if nsqd.shared is None and not nsqd.unshared:
                del self.nsqds[address]
        self.actions.append(ForgetTopic(topic))
