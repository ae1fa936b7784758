"""The partitions that one consumer reads, with a running subscription for each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.consumer.inflight import DeliveryCounts
from nsq_ha.consumer.subscription import Subscription
from nsq_ha.engine.approach import Approach
from nsq_ha.engine.lookup_log import numbered
from nsq_ha.engine.observe import PartitionReports
from nsq_ha.errors import ConfigError, TopicNotFoundError
from nsq_ha.options.checks import EPHEMERAL_SUFFIX
from nsq_ha.options.config import ConsumerConfig, check_plain
from nsq_ha.policy.timing import Outage

if TYPE_CHECKING:
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.policy.topology import Node, TopicMeta, TopicView

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_NUMBERS: Final = "[0-9]+"
_LOOK_AGAIN: Final = 1.0


class Partitions:
    """The subscriptions to one topic.

    Args:
        watch: Knows the topic's partitions.
        channel: The channel.
        config: The consumer's options.
        subscriptions: Filled with one subscription for each partition, by its number.
        shell: Takes the messages.

    Attributes:
        past: Counts of partitions that are no longer read.
    """

    def __init__(
        self,
        watch: TopicWatch,
        channel: str,
        config: ConsumerConfig,
        subscriptions: dict[int, Subscription],
        shell: ConsumerShell,
    ) -> None:
        self._subscriptions = subscriptions
        self._watch = watch
        self._channel = channel
        self._name = f"{watch.topic}/{channel}"
        self._reports = PartitionReports(watch.observer, watch.topic, channel, None)
        self._config = config
        self._shell = shell
        self._approach = Approach()
        self.past: DeliveryCounts = DeliveryCounts()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._warned: frozenset[str] = frozenset()  # options
        self._absence = Outage()
        self._is_absence_reported = False

    def are_subscribed(self) -> bool:
        """Return whether all partitions to read are subscribed; False while none is known."""
        wanted = self.needed()
        return bool(wanted) and all(self.is_subscribed(partition) for partition in wanted)

    def needed(self) -> set[int]:
        """Return the partitions that must be subscribed; an nsqd that left a plain cluster may have left for good."""
        view = self._watch.view
        return set(view.leaders) if view is not None and _is_plain(view) else self.wanted()

    def wanted(self) -> set[int]:
        """Return the partitions to read; none while the topic is unknown."""
        if self._config.partitions is not None:
            return set(self._config.partitions)
        view = self._watch.view
        if view is None:
            return set()
        # An nsqd of a plain cluster that nobody lists any more is read while its connection lasts.
        numbers = view.known if _is_plain(view) else range(view.partition_num)
        return {*numbers, *view.leaders}

    def is_subscribed(self, partition: int) -> bool:
        """Return whether messages of ``partition`` may arrive."""
        subscription = self._subscriptions.get(partition)
        return subscription is not None and subscription.state.conn is not None and subscription.is_subscribed

    def follow(self, view: TopicView, group: asyncio.TaskGroup | None) -> None:
        """Subscribe to new partitions, and stop reading removed ones.

        Args:
            view: The topic's partitions.
            group: Runs the subscriptions' tasks. None starts no subscription.
        """
        wanted = self.wanted()
        try:
            if view.meta is not None and not self._subscriptions:
                self._check_meta(view.meta)
            self._check_numbers(view)
        except ConfigError as error:
            self._shell.refused(error)
            return
        for partition in sorted(wanted - self._subscriptions.keys()):
            if group is not None:
                self._add(partition, group)
        if view.exists and view.partition_num > 0 and self._config.partitions is None:
            for partition in [p for p in self._subscriptions if p not in wanted]:
                self._remove(partition)
        for subscription in self._subscriptions.values():
            subscription.view_changed(view)

    @property
    def is_listed(self) -> bool:
        """Whether a partition of the topic, or an nsqd of a plain cluster that has it, is known to the nsqlookupds."""
        return _is_listed(self._watch.view)

    @property
    def absent_since(self) -> float | None:
        """Since when there is nothing to read, in the loop's time. None if there is."""
        return self._absence.began_at

    async def seek(self) -> None:
        """Look up often while there is nothing to read, since a new channel misses earlier messages; warn meanwhile.

        Nobody tries to connect then, so no failing attempt could warn.

        Raises:
            ClosedError: The watch ended.
        """
        loop, outage = asyncio.get_running_loop(), self._absence
        while not self.is_listed:
            if any(map(self.is_subscribed, self._subscriptions)):
                # Nsqds of a plain cluster that are not listed any more deliver while their connections last.
                await asyncio.sleep(_LOOK_AGAIN)
                continue
            if not outage.failures:
                outage.failed(loop.time())
            warned = outage.warning(loop.time())
            if warned is not None:
                self._is_absence_reported = True
                log.warning(
                    "%s: nothing to read for %.0f s: %s; still looking", self._name, warned.seconds, self.why_not()
                )
                self._reports.stalled(warned, self.why_not())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(outage.warn_at):
                    await self._watch.wait_until(_is_listed)
        over = outage.recovered(loop.time())
        if over is not None:
            log.warning("%s: found the topic after %.0f s", self._name, over.seconds)
            self._reports.recovered(over)

    def warn_at_start(self, now: float) -> None:
        """Warn that entering continues without all partitions, unless :meth:`seek` has just logged why."""
        if self._is_absence_reported:
            return
        without = sorted(self._without_channel())
        log.warning(
            "%s: not all partitions are subscribed yet, continuing in the background: %s%s",
            self._name,
            self.why_not(),
            f". The channel may not exist on {numbered(without)} yet: what is published there before it does is not"
            f" delivered to it"
            if without
            else "",
        )
        self._absence.warned(now)

    async def create_channels(self, delay: float) -> None:
        """Create the channel on the partitions where no subscription has done so within ``delay`` seconds.

        SUB creates it, too, and is quicker: for 254 partitions of a real cluster it takes 0.3 s, and HTTP 2 s. So this
        is for servers that are slow to answer, or slow to connect to. What fails here is left to SUB.
        """
        await asyncio.sleep(delay)
        view, siblings = self._watch.view, self._watch.siblings
        is_lasting = not self._channel.endswith(EPHEMERAL_SUFFIX)
        if view is None or view.is_plain or siblings is None or not is_lasting:
            return
        # A start position is set later, and decides which messages are delivered.
        start = self._config.start_from
        placed: Iterable[int] = start if isinstance(start, Mapping) else () if start is None else self._subscriptions

        async def create(subscription: Subscription, node: Node) -> None:
            try:
                await siblings.create(subscription.partition, node, self._channel, ordered=False)
                subscription.has_channel = True
            except Exception as error:  # noqa: BLE001 - it is only a help
                log.debug("%s-%d: channel not created: %s", self._watch.topic, subscription.partition, error)

        waiting = (self._without_channel() & self._subscriptions.keys() & view.leaders.keys()).difference(placed)
        await asyncio.gather(*(create(self._subscriptions[each], view.leaders[each]) for each in waiting))

    def _without_channel(self) -> set[int]:
        """Return the partitions to read that may not have the channel; none of a plain topic, which keeps messages."""
        if self._watch.view is not None and _is_plain(self._watch.view):
            return set()
        subscriptions = self._subscriptions
        return {each for each in self.wanted() if each not in subscriptions or not subscriptions[each].has_channel}

    def _check_numbers(self, view: TopicView) -> None:
        """Raise a ConfigError if an option names partitions that the topic does not have."""
        start = self._config.start_from
        given = {"partitions": self._config.partitions or (), "start_from": start if isinstance(start, Mapping) else ()}
        for option, partitions in given.items():
            absent = [p for p in sorted(partitions) if 0 < view.partition_num <= p and p not in view.leaders]
            if absent:
                has, last = f"topic {view.topic!r} has", view.partition_num - 1
                numbers = f"partitions 0..{last}" if last else "only partition 0"
                raise ConfigError(f"{option}: {has} {numbers}, not {', '.join(map(str, absent))}")

    def _check_meta(self, meta: TopicMeta) -> None:
        """Raise a ConfigError if the options do not fit the topic, and warn if they have no effect."""
        config, topic = self._config, self._watch.topic
        if not meta.is_partitioned:
            check_plain(config)
        if config.tag is not None and not meta.extend_support:
            raise ConfigError(
                f"topic {topic!r} has no tags, so tag={config.tag!r} would receive every message: remove tag=, or"
                f" create the topic as an extended one"
            )
        if config.ext_filter is not None and not meta.extend_support:
            raise ConfigError(
                f"messages of topic {topic!r} have no headers, so nsqd would ignore ext_filter= and deliver every"
                f" message: remove ext_filter=, or create the topic as an extended one"
            )
        if config.skip_header is not None and not meta.extend_support and "skip_header" not in self._warned:
            self._warned |= {"skip_header"}
            log.warning(
                "%s: messages of this topic have no headers, so skip_header= skips none of them: remove it, or"
                " create the topic as an extended one",
                self._name,
            )
        if config.ordered is True and not meta.ordered and "ordered" not in self._warned:
            self._warned |= {"ordered"}
            log.warning(
                "%s: the topic is not ordered: ordered=True makes this channel ordered for all its consumers, one"
                " message at a time for each partition, until nsqd's /channel/setorder is called with order=false",
                self._name,
            )

    def _add(self, partition: int, group: asyncio.TaskGroup) -> None:
        subscription = Subscription(
            self._watch, self._channel, partition, self._config, self._shell, approach=self._approach
        )
        self._subscriptions[partition] = subscription
        self._tasks[partition] = group.create_task(
            subscription.link.run(), name=f"nsq_ha subscription {self._watch.topic}-{partition}"
        )

    def _remove(self, partition: int) -> None:
        view = self._watch.view
        if view is not None and _is_plain(view):
            log.info("%s: an nsqd that is no longer listed is not read any more", self._watch.topic)
        else:
            log.info("%s-%d is no longer a partition of the topic", self._watch.topic, partition)
        self._tasks.pop(partition).cancel()
        gone = self._subscriptions.pop(partition)
        self._shell.machine.partitions.pop(partition, None)
        self.past.add(gone.state.counts)
        self.past.returned += gone.state.in_flight  # else they would count as finished

    def cancel(self) -> None:
        """End the subscriptions' tasks."""
        for task in self._tasks.values():
            task.cancel()

    def why_not(self) -> str:
        """Return why not all partitions to read are subscribed; may be asked from any thread."""
        watch, subscriptions = self._watch, dict(self._subscriptions)
        if watch.view is not None and watch.error is None and not self.is_listed:
            return self._why_absent(watch.view)
        troubles = {p: str(trouble) for p, s in subscriptions.items() if (trouble := s.trouble) is not None}
        if troubles:
            return _by_cause(troubles, self._named)
        if watch.error is not None:
            return str(watch.error)
        if watch.view is None:
            return "the first lookup was not answered yet"
        leaders, is_plain = watch.view.leaders, _is_plain(watch.view)
        silent: dict[str, list[int]] = {}
        for p in sorted(subscriptions):
            if p in leaders and not subscriptions[p].is_subscribed:
                silent.setdefault(leaders[p].address, []).append(p)
        places = {address: "" if is_plain else f"{numbered(each)}: " for address, each in silent.items()}
        texts = (f"{place}nsqd {address} has not answered yet" for address, place in places.items())
        return "; ".join(texts) or f"no partition has a leader yet{watch.view.cause}"

    def _why_absent(self, view: TopicView) -> str:
        topic = self._watch.topic
        if view.is_plain and view.exists and view.partition_num:
            return (
                f"no nsqlookupd lists an nsqd for topic {topic!r} any more: it was deleted, its nsqds do not run, or"
                " nsqlookupd was restarted a moment ago"
            )
        if view.exists:
            return f"no partition has a leader yet{view.cause}"
        if view.is_plain:
            return f"no nsqd has topic {topic!r} yet: the first publish creates it"
        return str(TopicNotFoundError.named(topic))

    def _named(self, numbers: list[int]) -> str:
        """Return how texts name partitions: by their numbers, or those of a plain topic by their nsqds."""
        view = self._watch.view
        if view is None or not _is_plain(view):
            return numbered(numbers)
        known = view.known
        return ", ".join(f"nsqd {known[each].address}" if each in known else "an nsqd" for each in numbers)


def _by_cause(troubles: Mapping[int, str], named: Callable[[list[int]], str]) -> str:
    """Return the troubles of partitions; those that differ only in numbers, such as the nsqd's address, once."""
    alike: dict[str, list[int]] = {}
    for partition in sorted(troubles):
        alike.setdefault(re.sub(_NUMBERS, "0", troubles[partition]), []).append(partition)
    texts = []
    for first, *others in alike.values():
        same = f" (the same for {named(others)})" if others else ""
        place, trouble = named([first]), troubles[first]
        texts.append(f"{trouble}{same}" if place.removeprefix("nsqd ") in trouble else f"{place}: {trouble}{same}")
    return "; ".join(texts)


def _is_listed(view: TopicView | None) -> bool:
    return view is not None and view.exists and bool(view.leaders if view.is_plain else view.partition_num)


def _is_plain(view: TopicView) -> bool:
    return view.meta is not None and not view.meta.is_partitioned
