"""Read the state of a consumer, for ``stats()`` and ``health()``.

Nothing here changes anything, and each value is read at once, so any thread may call it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from nsq_ha.message import State
from nsq_ha.stats import ConsumerPartition, ConsumerStats, PartitionState

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import ReadPartition
    from nsq_ha.consumer.machine import ConsumerMachine
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.engine.lookups import LookupCounts, TopicWatch


def consumer_stats(shell: ConsumerShell, watch: TopicWatch | None, lookups: LookupCounts) -> ConsumerStats:
    """Return the statistics of a consumer.

    Args:
        shell: The consumer's.
        watch: The topic's lookups. None before the consumer is entered.
        lookups: Counts of all lookups.
    """
    machine, flow = shell.machine, shell.machine.flow
    read, past = dict(machine.partitions), machine.subscriptions.past
    waiting = Counter(message.partition for message in machine.in_state(State.QUEUED))
    partitions = [
        _partition(shell.topic, watch, each, waiting[number], is_closing=machine.is_closing)
        for number, each in sorted(read.items())
    ]
    return ConsumerStats(
        topic=shell.topic,
        channel=shell.channel,
        partitions=tuple(partitions),
        queued=sum(waiting.values()),
        ready=sum(each.ready for each in partitions),
        max_in_flight=flow.max_in_flight,
        max_rate=None if flow.rate is None else flow.rate.per_second,
        limited_seconds=flow.limited_seconds,
        held_bytes=shell.held_bytes(),
        given_up=shell.giving_up.given_up,
        handled=flow.handler_calls,
        handler_seconds=flow.handler_seconds,
        **asdict(lookups),
        # From what was read once: meanwhile messages arrive.
        **{name: count + sum(getattr(each, name) for each in partitions) for name, count in past.fields(0).items()},
    )


def _partition(
    topic: str, watch: TopicWatch | None, partition: ReadPartition, queued: int, *, is_closing: bool
) -> ConsumerPartition:
    leader = None if watch is None else watch.view.leaders.get(partition.number)
    counts, conn, trouble = partition.counts, partition.conn, partition.trouble
    handle = None if conn is None else conn.handle
    return ConsumerPartition(
        topic=topic,
        partition=partition.number,
        leader=None if leader is None else leader.address,
        state=_state(partition, is_closing=is_closing),
        queued=queued,
        ready=0 if conn is None else conn.ready,
        lag=None if counts.lag_ns is None else counts.lag_ns / 1e9,
        heartbeat_age=None if handle is None else handle.heartbeat_age,
        trouble=None if trouble is None else str(trouble),
        **counts.fields(partition.in_flight),
    )


def _state(partition: ReadPartition, *, is_closing: bool) -> PartitionState:
    if is_closing:
        return "closing" if partition.conns else "closed"
    if partition.conn is not None:
        return "connected"
    if partition.is_over:
        return "closed"
    return "waiting" if partition.opening is None else "connecting"


def consumer_notes(machine: ConsumerMachine) -> list[str]:
    """Return what an operator may want to know, though it is no trouble."""
    notes = [] if machine.flow.max_in_flight else ["paused: max_in_flight=0"]
    if (rate := machine.flow.rate) is not None:
        notes.append(f"limited: max_rate={rate.per_second:g} messages a second")
    if machine.pause.wants_test is not None:
        notes.append("handlers fail: messages are held back, but for one at a time")
    return notes
