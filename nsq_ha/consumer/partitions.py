"""What a consumer reads, in words: whether all partitions are subscribed, why not, and what happens to them.

Its methods may be called from any thread. Log lines and the application's ``on_event`` tell what happens.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from nsq_ha.base.grouping import grouped
from nsq_ha.consumer import choice
from nsq_ha.engine.lookup_log import numbered
from nsq_ha.errors import RemoteProtocolError, ServerError, TopicNotFoundError
from nsq_ha.events import Connected, Disconnected, Recovered, Refused, Stalled
from nsq_ha.policy.health import Trouble

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import ReadPartition
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.consumer.subscriptions import PartitionEvent
    from nsq_ha.engine.lookups import TopicWatch
    from nsq_ha.events import Event
    from nsq_ha.policy.topology import TopicView

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_NUMBERS: Final = "[0-9]+"


class Partitions:
    """The partitions of one consumer.

    Args:
        watch: Knows the topic's partitions.
        shell: The consumer's.
        now: The time.

    Attributes:
        watch: As given.
    """

    def __init__(self, watch: TopicWatch, shell: ConsumerShell, now: float) -> None:
        self.watch: TopicWatch = watch
        self._opened_at = now
        self._has_warned = False  # of an absent topic
        self._shell = shell

    def are_subscribed(self) -> bool:
        """Return whether all partitions to read are subscribed; False while none is known."""
        wanted = choice.needed(self._shell.config, self.watch.view)
        return bool(wanted) and wanted <= self._subscribed()

    def _subscribed(self) -> set[int]:
        return {number for number, each in tuple(self._shell.machine.partitions.items()) if each.conn is not None}

    def troubles(self, now: float) -> list[Trouble]:
        """Return what does not work; may be asked from any thread."""
        watch, wanted, subscribed = self.watch, choice.needed(self._shell.config, self.watch.view), self._subscribed()
        found: list[Trouble] = []
        error, failing_since = watch.error, watch.failing_since
        if error is not None and failing_since is not None:
            found.append(Trouble("", str(error), now - failing_since))
        elif not wanted and not subscribed:  # an nsqd that is not listed any more is read while its connection lasts
            since = self._shell.machine.subscriptions.absence.began_at
            found.append(Trouble(watch.topic, self.why_not(), now - (since or self._opened_at)))
        for number in sorted(wanted - subscribed):
            partition, name = self._shell.machine.partitions.get(number), watch.view.name_of(number)
            leaderless = watch.leaderless_since.get(number)
            began_at, why = (None, None) if partition is None else (partition.outage.began_at, partition.trouble)
            if leaderless is not None:
                # The nsqd may have failed before the nsqlookupds noticed: it is one outage.
                found.append(Trouble(name, "has no leader", now - min(leaderless, began_at or leaderless)))
            else:
                found.append(Trouble(name, str(why or "is not subscribed yet"), now - (began_at or self._opened_at)))
        return found

    def warn_at_start(self, now: float) -> None:
        """Warn that entering continues without all partitions, unless it has just been said why."""
        if self._has_warned:
            return
        without = sorted(self.without_channel())
        log.warning(
            "%s: not all partitions are subscribed yet, continuing in the background: %s%s",
            self._shell.name,
            self.why_not(),
            f". The channel may not exist on {numbered(without)} yet: what is published there before it does is not"
            f" delivered to it"
            if without
            else "",
        )
        self._shell.machine.subscriptions.absence.warned(now)

    def without_channel(self) -> set[int]:
        """Return the partitions to read that may not have the channel; none of a plain topic, which keeps messages."""
        view, partitions = self.watch.view, self._shell.machine.partitions
        wanted = set() if choice.has_no_partitions(view) else choice.wanted(self._shell.config, view)
        return {each for each in wanted if each not in partitions or not partitions[each].has_channel}

    def why_not(self) -> str:
        """Return why not all partitions to read are subscribed; may be asked from any thread."""
        watch, partitions = self.watch, dict(self._shell.machine.partitions)
        if watch.view.is_answered and watch.error is None and not choice.is_listed(watch.view):
            return self._why_absent(watch.view)
        troubles = {p: str(trouble) for p, each in partitions.items() if (trouble := each.trouble) is not None}
        if troubles:
            return _by_cause(troubles, self._named)
        if watch.error is not None:
            return str(watch.error)
        if not watch.view.is_answered:
            return "the first lookup was not answered yet"
        leaders, is_plain = watch.view.leaders, choice.has_no_partitions(watch.view)
        unread = (p for p in sorted(partitions) if p in leaders and partitions[p].conn is None)
        silent = grouped((leaders[p].address, p) for p in unread)
        places = {address: "" if is_plain else f"{numbered(each)}: " for address, each in silent.items()}
        texts = (f"{place}nsqd {address} has not answered yet" for address, place in places.items())
        return "; ".join(texts) or f"no partition has a leader yet{watch.view.cause}"

    def _why_absent(self, view: TopicView) -> str:
        topic = self.watch.topic
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
        if not choice.has_no_partitions(self.watch.view):
            return numbered(numbers)
        known = self.watch.view.known
        return ", ".join(f"nsqd {known[each].address}" if each in known else "an nsqd" for each in numbers)

    # ------------------------------------------------------------ what happens to them

    def _tell(self, kind: Callable[..., Event], partition: ReadPartition | None, **facts: object) -> None:
        watch, number = self.watch, None if partition is None else partition.number
        watch.observer.event(kind(topic=watch.topic, channel=self._shell.channel, partition=number, **facts))

    def report(self, event: PartitionEvent) -> None:
        """Tell what has happened to a partition, or to the topic."""
        if event.partition is None:
            self._of_topic(event)
        elif event.what == "failed":
            self._failed(event, event.partition)
        else:
            self._changed(event, event.partition)

    def _changed(self, event: PartitionEvent, partition: ReadPartition) -> None:
        what, _, node, error, conn, outage = event
        name, address = self.watch.view.name_of(partition.number), "" if node is None else node.address
        connection = "" if conn is None or conn.handle is None else conn.handle.name
        if what == "subscribed":
            log.info("subscribed to %s over %s", name, connection)
            self._tell(Connected, partition, nsqd=address)
        elif what == "replaced":
            log.debug("%s: opened another connection to nsqd %s, %s", name, address, connection)
        elif what == "disconnected":
            self._tell(Disconnected, partition, nsqd=address, reason=str(error))
        elif what == "settled" and outage is not None:
            # At the same level as the warning, so that whoever saw that sees this, too.
            log.warning("%s at nsqd %s: reading again after %.0f s", name, address, outage.seconds)
            self._tell(Recovered, partition, **outage._asdict())
        elif what == "refused" and isinstance(error, ServerError):
            self._tell(Refused, partition, nsqd=address, code=error.code, text=str(error))
        elif what == "final":
            log.error("%s at nsqd %s: %s", name, address, error)
        elif what == "moved":
            log.info("%s: the leader moved from %s", name, connection)
        elif what == "gone":
            is_plain = name == self.watch.topic
            said = ": an nsqd that is no longer listed is not read any more"
            log.info("%s%s", name, said if is_plain else " is no longer a partition of the topic")

    def _failed(self, event: PartitionEvent, partition: ReadPartition) -> None:
        """Log a failure, as a warning if failures have lasted long enough."""
        outage, error, said = event.outage, event.error, str(event.error)
        if event.node is not None:  # many reasons begin with the address
            name, address = self.watch.view.name_of(partition.number), event.node.address
            said = f"{name} at nsqd {address}: {said.removeprefix(address).removeprefix(':').lstrip()}"
        if outage is not None:
            log.warning("%s; still trying after %.0f s and %d failures", said, *outage)
            self._tell(Stalled, partition, reason=str(error), **outage._asdict())
        elif partition.outage.failures > 1:
            log.debug("%s", said)
        else:
            # The next connection may seem sound until nsqd delivers the same message again, a message timeout later.
            log.log(logging.WARNING if isinstance(error, RemoteProtocolError) else logging.INFO, "%s", said)

    def _of_topic(self, event: PartitionEvent) -> None:
        """Tell that there is nothing to read, or that there is something again."""
        outage, name = event.outage, self._shell.name
        if outage is None:
            return
        if event.what == "found":
            log.warning("%s: found the topic after %.0f s", name, outage.seconds)
            self._tell(Recovered, None, **outage._asdict())
        else:
            self._has_warned = True
            why = self.why_not()
            log.warning("%s: nothing to read for %.0f s: %s; still looking", name, outage.seconds, why)
            self._tell(Stalled, None, reason=why, **outage._asdict())


def _by_cause(troubles: Mapping[int, str], named: Callable[[list[int]], str]) -> str:
    """Return the troubles of partitions; those that differ only in numbers, such as the nsqd's address, once."""
    alike = grouped((re.sub(_NUMBERS, "0", troubles[partition]), partition) for partition in sorted(troubles))
    texts = []
    for first, *others in alike.values():
        same = f" (the same for {named(others)})" if others else ""
        place, trouble = named([first]), troubles[first]
        texts.append(f"{trouble}{same}" if place.removeprefix("nsqd ") in trouble else f"{place}: {trouble}{same}")
    return "; ".join(texts)
