"""Read the state of a producer, for ``stats()`` and ``health()``.

Nothing here changes anything, and each value is read at once, so any thread may call it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import asdict

from nsq_ha.engine.link import STATES
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.link_life import LinkState
from nsq_ha.producer.outcomes import PublishCounts
from nsq_ha.stats import ProducerPartition, ProducerStats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nsq_ha.engine.lookups import LookupCounts, TopicWatch
    from nsq_ha.engine.servers import LookupdOutage
    from nsq_ha.producer.sender import Sender
    from nsq_ha.producer.topic import TopicPublisher


def producer_stats(
    publishers: Iterable[TopicPublisher], past: PublishCounts, lookups: LookupCounts, pending_bytes: int
) -> ProducerStats:
    """Return the statistics of a producer.

    Args:
        publishers: Of the topics in use.
        past: Counts of forgotten topics.
        lookups: Counts of all lookups.
        pending_bytes: Bytes of all queued and unanswered bodies.
    """
    total, queued, partitions = PublishCounts(), 0, []
    total.add(past)
    for publisher in publishers:
        queued += publisher.queued
        total.add(publisher.unsent)
        for _, sender in sorted(publisher.senders.items()):
            total.add(sender.counts)
            partitions.append(_partition(publisher.watch, sender))
    partitions.sort(key=lambda each: (each.topic, each.partition))
    return ProducerStats(
        partitions=tuple(partitions),
        queued=queued + sum(each.queued for each in partitions),
        in_flight=sum(each.in_flight for each in partitions),
        pending_bytes=pending_bytes,
        **asdict(total),
        **asdict(lookups),
    )


def _partition(watch: TopicWatch, sender: Sender) -> ProducerPartition:
    link, trouble, view = sender.link, sender.trouble, watch.view
    leader = None if view is None else view.leaders.get(sender.partition)
    return ProducerPartition(
        topic=watch.topic,
        partition=sender.partition,
        leader=None if leader is None else leader.address,
        state=STATES[link.life.state],
        queued=sender.lane.waiting,
        in_flight=sender.lane.unanswered,
        heartbeat_age=link.heartbeat_age,
        trouble=None if trouble is None else str(trouble),
        **asdict(sender.counts),
    )


def producer_troubles(publishers: Sequence[TopicPublisher], silence: LookupdOutage | None, now: float) -> list[Trouble]:
    """Return what does not work for the topics in use, at the loop's time ``now``.

    Args:
        publishers: Of the topics in use. Without any, all that is known is whether an nsqlookupd answers.
        silence: Set while none answers.
        now: The loop's time.
    """
    if not publishers:
        return [] if silence is None else [Trouble("", str(silence.error), now - silence.since)]
    found: list[Trouble] = []
    lookups: dict[str, Trouble] = {}  # the same nsqlookupds answer for all topics
    for publisher in publishers:
        watch = publisher.watch
        error, failing_since, absent_since = watch.error, watch.failing_since, watch.absent_since
        if error is not None and failing_since is not None:
            text = str(error)
            lookups.setdefault(text, Trouble("", text, now - failing_since))
        if absent_since is not None and error is None and not _is_still_connected(publisher):
            found.append(Trouble(watch.topic, _why_absent(publisher), now - absent_since))
        leaderless = dict(watch.leaderless_since)
        for partition, since in leaderless.items():
            found.append(Trouble(watch.name_of(partition), "has no leader", now - since))
        for partition, sender in tuple(publisher.senders.items()):
            trouble, since_failed = sender.trouble, sender.trouble_since
            # The failure of an idle sender is no news: the next publish may find a leader that works again.
            if trouble is None or since_failed is None or partition in leaderless or not _is_in_use(sender):
                continue
            found.append(Trouble(watch.name_of(partition), str(trouble), now - since_failed))
    return [*lookups.values(), *found]


def _is_still_connected(publisher: TopicPublisher) -> bool:
    """Return whether an nsqd of a plain cluster that is not listed any more takes publishes over its connection."""
    view = publisher.watch.view
    is_plain = view is not None and view.is_plain
    return is_plain and any(sender.link.connection is not None for sender in tuple(publisher.senders.values()))


def _why_absent(publisher: TopicPublisher) -> str:
    view, reason = publisher.watch.view, publisher.trouble
    if reason is not None:
        return str(reason)
    return "no nsqlookupd lists an nsqd for it" if view is not None and view.is_plain else "no partition is known yet"


def _is_in_use(sender: Sender) -> bool:
    return sender.load > 0 or sender.link.life.state in (LinkState.CONNECTING, LinkState.PAUSED)
