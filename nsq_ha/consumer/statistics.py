"""Read the state of a consumer, for ``stats()`` and ``health()``.

Nothing here changes anything, and each value is read at once, so any thread may call it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from nsq_ha.engine.link import STATES
from nsq_ha.policy.health import Trouble
from nsq_ha.stats import ConsumerPartition, ConsumerStats

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsq_ha.consumer.delivery import DeliveryCounts
    from nsq_ha.consumer.inbox import ConsumerInbox
    from nsq_ha.consumer.partitions import Partitions
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.engine.lookups import LookupCounts, TopicWatch


def consumer_stats(
    inbox: ConsumerInbox, watch: TopicWatch | None, past: DeliveryCounts, lookups: LookupCounts
) -> ConsumerStats:
    """Return the statistics of a consumer.

    Args:
        inbox: Its messages and subscriptions.
        watch: The topic's lookups. None before the consumer is entered.
        past: Counts of partitions that are no longer read.
        lookups: Counts of all lookups.
    """
    waiting = Counter(message.partition for message in (*tuple(inbox.waiting), *inbox.pace.backoff.parked))
    topic, subscriptions = inbox.ledger.topic, sorted(inbox.subscriptions.items())
    partitions = [_partition(topic, watch, subscription, waiting[number]) for number, subscription in subscriptions]
    return ConsumerStats(
        topic=topic,
        channel=inbox.ledger.channel,
        partitions=tuple(partitions),
        queued=sum(waiting.values()),
        ready=sum(each.ready for each in partitions),
        max_in_flight=inbox.pace.flow.max_in_flight,
        max_rate=None if inbox.pace.rate is None else inbox.pace.rate.per_second,
        limited_seconds=inbox.pace.limited_seconds,
        held_bytes=inbox.held_bytes(),
        given_up=inbox.giving_up.given_up,
        handled=inbox.pace.handler_calls,
        handler_seconds=inbox.pace.handler_seconds,
        **asdict(lookups),
        # From what was read once: meanwhile messages arrive.
        **{name: count + sum(getattr(each, name) for each in partitions) for name, count in past.fields(0).items()},
    )


def _partition(topic: str, watch: TopicWatch | None, subscription: Subscription, queued: int) -> ConsumerPartition:
    view = None if watch is None else watch.view
    leader = None if view is None else view.leaders.get(subscription.partition)
    counts, trouble = subscription.counts, subscription.trouble
    return ConsumerPartition(
        topic=topic,
        partition=subscription.partition,
        leader=None if leader is None else leader.address,
        state=STATES[subscription.link.life.state],
        queued=queued,
        ready=subscription.ready,
        lag=None if counts.lag_ns is None else counts.lag_ns / 1e9,
        heartbeat_age=subscription.link.heartbeat_age,
        trouble=None if trouble is None else str(trouble),
        **counts.fields(subscription.in_flight + subscription.replaced_in_flight),
    )


def consumer_notes(inbox: ConsumerInbox) -> list[str]:
    """Return what an operator may want to know, though it is no trouble."""
    notes = [] if inbox.pace.flow.max_in_flight else ["paused: max_in_flight=0"]
    if (rate := inbox.pace.rate) is not None:
        notes.append(f"limited: max_rate={rate.per_second:g} messages a second")
    if inbox.pace.backoff.wants_test is not None:
        notes.append("handlers fail: messages are held back, but for one at a time")
    return notes


def consumer_troubles(
    watch: TopicWatch, partitions: Partitions, subscriptions: Mapping[int, Subscription], opened_at: float, now: float
) -> list[Trouble]:
    """Return what does not work, at the loop's time ``now``."""
    found: list[Trouble] = []
    error, failing_since = watch.error, watch.failing_since
    if error is not None and failing_since is not None:
        found.append(Trouble("", str(error), now - failing_since))
    wanted = partitions.needed()
    # nsqds of a plain cluster that are not listed any more are read while their connections last.
    if not wanted and error is None and not any(map(partitions.is_subscribed, tuple(subscriptions))):
        since = opened_at if partitions.absent_since is None else partitions.absent_since
        found.append(Trouble(watch.topic, partitions.why_not(), now - since))
    leaderless = dict(watch.leaderless_since)
    for number in sorted(wanted):
        if partitions.is_subscribed(number):
            continue
        subscription, name = subscriptions.get(number), watch.name_of(number)
        if number in leaderless:
            found.append(Trouble(name, "has no leader", now - leaderless[number]))
            continue
        reason = None if subscription is None else subscription.trouble
        since = opened_at if subscription is None else subscription.trouble_since or opened_at
        found.append(Trouble(name, "is not subscribed yet" if reason is None else str(reason), now - since))
    return found
