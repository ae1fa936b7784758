"""Read the state of a producer, for ``stats()`` and ``health()``.

Nothing here changes anything, and each value is read at once, so any thread may call it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from nsq_ha.engine.connection import Connection
from nsq_ha.policy.health import Trouble
from nsq_ha.producer.reasons import topic_trouble
from nsq_ha.producer.state import Lane, ProducerTopic, PublishCounts
from nsq_ha.stats import PartitionState, ProducerPartition, ProducerStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsq_ha.engine.lookups import LookupCounts
    from nsq_ha.engine.servers import LookupdOutage
    from nsq_ha.producer.shell import ProducerShell


def producer_stats(shell: ProducerShell | None, lookups: LookupCounts) -> ProducerStats:
    """Return the statistics of a producer.

    Args:
        shell: Its shell. None if it was not entered.
        lookups: Counts of all lookups.
    """
    total, queued, partitions, size = PublishCounts(), 0, [], 0
    if shell is not None:
        machine = shell.machine
        total.add(machine.past)
        waiting: Counter[Lane] = Counter()
        for request in machine.all_pending():
            size += request.size
            if request.lane is None:
                queued += 1
            elif request.conn is None:
                waiting[request.lane] += 1
        sent = Counter(
            conn.orphans.get(request) or request.lane for conn in tuple(machine.conns) for request in tuple(conn.sent)
        )
        for topic in tuple(machine.topics.values()):
            total.add(topic.unsent)
            for lane in tuple(topic.lanes.values()):
                if lane.is_used:
                    total.add(lane.counts)
                    partitions.append(_partition(lane, waiting[lane], sent[lane], is_closed=shell.is_closed))
    partitions.sort(key=lambda each: (each.topic, each.partition))
    return ProducerStats(
        partitions=tuple(partitions),
        queued=queued + sum(each.queued for each in partitions),
        in_flight=sum(each.in_flight for each in partitions),
        pending_bytes=size,
        **asdict(total),
        **asdict(lookups),
    )


def _partition(lane: Lane, queued: int, in_flight: int, *, is_closed: bool) -> ProducerPartition:
    node, error, conn = lane.node, lane.trouble, lane.conn
    handle = None if conn is None or is_closed else conn.handle
    return ProducerPartition(
        topic=lane.topic.name,
        partition=lane.number,
        leader=None if node is None else node.address,
        state="closed" if is_closed else _state(lane),
        queued=queued,
        in_flight=in_flight,
        heartbeat_age=handle.heartbeat_age if isinstance(handle, Connection) else None,
        trouble=None if error is None else str(error),
        **asdict(lane.counts),
    )


def _state(lane: Lane) -> PartitionState:
    if lane.conn is not None:
        return "connected"
    if lane.opening is not None:
        return "connecting"
    return "waiting" if lane.is_needed else "idle"


def producer_troubles(shell: ProducerShell | None, silence: LookupdOutage | None) -> list[Trouble]:
    """Return what does not work for the topics in use.

    Args:
        shell: The producer's. Without any topic, all that is known is whether an nsqlookupd answers.
        silence: Set while none answers.
    """
    if shell is None:
        return []
    now, topics = shell.clock(), tuple(shell.machine.topics.values())
    if not topics:
        return [] if silence is None else [Trouble("", str(silence.error), now - silence.since)]
    found: list[Trouble] = []
    lookups: dict[str, Trouble] = {}  # the same nsqlookupds answer for all topics
    for topic in topics:
        watch = shell.watches.get(topic.name)
        if watch is None:
            continue
        error, failing_since, absent_since = watch.error, watch.failing_since, watch.absent_since
        if error is not None and failing_since is not None:
            text = str(error)
            lookups.setdefault(text, Trouble("", text, now - failing_since))
        if absent_since is not None and error is None and not _is_still_connected(topic):
            found.append(Trouble(topic.name, _why_absent(topic), now - absent_since))
        leaderless = dict(watch.leaderless_since)
        for partition, since in leaderless.items():
            lane = topic.lanes.get(partition)
            # The nsqd may have failed before the nsqlookupds noticed: it is one outage.
            began_at = None if lane is None or not _is_in_use(lane) else lane.outage.began_at
            found.append(Trouble(watch.view.name_of(partition), "has no leader", now - min(since, began_at or since)))
        for lane in tuple(topic.lanes.values()):
            trouble, since_failed = lane.trouble, lane.outage.began_at
            # The failure of an idle lane is no news: the next publish may find a leader that works again.
            if trouble is None or since_failed is None or lane.number in leaderless or not _is_in_use(lane):
                continue
            found.append(Trouble(lane.name, str(trouble), now - since_failed))
    return [*lookups.values(), *found]


def _is_still_connected(topic: ProducerTopic) -> bool:
    """Return whether an nsqd of a plain cluster that is not listed any more takes publishes over its connection."""
    return topic.view.is_plain and any(lane.conn is not None for lane in tuple(topic.lanes.values()))


def _why_absent(topic: ProducerTopic) -> str:
    reason = topic_trouble(topic)
    if reason is not None:
        return str(reason)
    return "no nsqlookupd lists an nsqd for it" if topic.view.is_plain else "no partition is known yet"


def _is_in_use(lane: Lane) -> bool:
    return lane.is_needed or lane.opening is not None or (lane.conn is not None and bool(lane.conn.sent))


def unready(shell: ProducerShell, names: Sequence[str], troubles: Sequence[Trouble]) -> str:
    """Return what :meth:`ProducerShell.ready` still waits for.

    Args:
        shell: The producer's.
        names: The topics that it was called with.
        troubles: What does not work for the producer.
    """
    waits = []
    for name in names:
        topic = shell.machine.topics.get(name)
        if topic is None or not topic.names_partitions:
            waits.append(name)
        else:
            waits += [lane.name for lane in topic.lanes.values() if lane.conn is None]
    known = {trouble.name: trouble.reason for trouble in reversed(troubles)}
    reasons = ((name, known.get(name) or known.get("") or "is not connected yet") for name in waits)
    return "; ".join(Trouble(name, reason, 0.0).text for name, reason in reasons)
