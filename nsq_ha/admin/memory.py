"""What was known of a cluster before a look: without it, a dead nsqd that the nsqlookupds have forgotten is invisible.

Pure and frozen. ``reading`` makes the next memory of each look; the command line keeps it in a file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from nsq_ha.policy.topology import Node

KEPT: Final = 86400.0
"""Seconds for which a server that is gone is remembered."""

MAX_LED: Final = 5000
"""Partitions that are remembered of one nsqd."""

UNBROKEN: Final = 10.0
"""Seconds between two looks up to which the time of what happened between them is known well enough."""

SMOOTHED: Final = 60.0
"""Seconds over which the rates of a :class:`ChannelFlow` are smoothed."""

TopicPartition = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A server when it last answered, or a partition when it last had a leader.

    Attributes:
        seen: When that was, in Unix seconds; 0 if it is not known.
        node: Its addresses. None for an nsqlookupd.
        led: The partitions that it led, or the partition; of a plain nsqd, 0 of each topic of which messages waited.
        waiting: Messages that waited there, on a plain cluster.
        lost: When a look first found no answer. None while it answers.
        moved: How many of ``led`` had other leaders at the last look.
        replaced: When the last of these had moved. None if none did, or nobody looked then.
    """

    seen: float
    node: Node | None = None
    led: frozenset[TopicPartition] = frozenset()
    waiting: int = 0
    lost: float | None = None
    moved: int = 0
    replaced: float | None = None

    @property
    def since(self) -> float | None:
        """When the loss began. None without one, or if looks were too far apart to know it."""
        return self.seen if self.seen and self.lost is not None and self.lost - self.seen <= UNBROKEN else None


@dataclass(frozen=True, slots=True)
class ChannelFlow:
    """How the messages of a channel move in one part of its topic.

    Attributes:
        at: When it was looked at, in Unix seconds.
        done: Messages that it had got rid of.
        failed: Requeues and timeouts.
        depth: Messages that waited.
        began: When it was first looked at.
        since: When ``done`` last changed; when it was first looked at, if it never did.
        returned: How often messages failed since then.
        finishes: Messages that it gets rid of a second.
        failures: Requeues and timeouts a second.
        growth: By how many messages ``depth`` grows a second; negative if it shrinks.
        read: When it last had a client; 0 if it never had one.
    """

    at: float
    done: int
    failed: int
    depth: int
    began: float
    since: float
    returned: int = 0
    finishes: float = 0.0
    failures: float = 0.0
    growth: float = 0.0
    read: float = 0.0

    def after(self, at: float, done: int, failed: int, depth: int) -> ChannelFlow:
        """Return it after another look; the rates are those of the last minute, or of all looks if they were fewer."""
        seconds = at - self.at
        if seconds <= 0:  # the clock was set
            return ChannelFlow(at, done, failed, depth, at, at)
        kept = math.exp(-seconds / SMOOTHED) if self.at > self.began else 0.0
        finished, returned = max(0, done - self.done), max(0, failed - self.failed)  # a new leader counts from 0
        rates = ((self.finishes, finished), (self.failures, returned), (self.growth, depth - self.depth))
        smooth = [old * kept + grown / seconds * (1 - kept) for old, grown in rates]
        is_same = done == self.done
        moved = (self.since, self.returned + returned) if is_same else (at, 0)
        return replace(ChannelFlow(at, done, failed, depth, self.began, *moved, *smooth), read=self.read)


@dataclass(frozen=True, slots=True)
class Memory:
    """The servers that belong to a cluster, and the partitions that nobody leads.

    Attributes:
        nsqds: By the address of their TCP.
        lookupds: By URL.
        unled: The partitions without a leader, by topic and number, such as ``orders-0``.
        flows: Of the parts of channels that have messages, by :func:`nsq_ha.admin.reading.flow_key`.
        at: When the last look ended, in Unix seconds.
    """

    nsqds: Mapping[str, Sighting] = field(default_factory=dict)
    lookupds: Mapping[str, Sighting] = field(default_factory=dict)
    unled: Mapping[str, Sighting] = field(default_factory=dict)
    at: float = 0.0
    flows: Mapping[str, ChannelFlow] = field(default_factory=dict)

    def after(
        self,
        at: float,
        nsqds: Mapping[str, Sighting],
        lookupds: Collection[str],
        leaders: Mapping[TopicPartition, str],
        *,
        partitions: Collection[TopicPartition] = (),
        topics: Collection[str] = (),
        silent: Mapping[str, Node] | None = None,
    ) -> Memory:
        """Return what is known after a look.

        If none of the nsqds that answer was known, it is another cluster at the same address, and the old one is
        forgotten.

        Args:
            at: When the look ended, in Unix seconds.
            nsqds: Those that answered.
            lookupds: Those that answered.
            leaders: Who leads each partition now.
            partitions: Those that an nsqd holds.
            topics: Those that there are.
            silent: The nsqds that are listed and do not answer; one that never did is known by its address only.
        """
        old = self if not nsqds or not self.nsqds or nsqds.keys() & self.nsqds.keys() else Memory()
        found: dict[str, Sighting] = {}
        for address, known in old.nsqds.items():
            if address not in nsqds and at - (known.seen or known.lost or at) <= KEPT:
                found[address] = _missed(known, address, at, old.at, leaders)
        for address, node in (silent or {}).items():
            found.setdefault(address, Sighting(0.0, node, lost=at))
        found |= nsqds
        silent_urls = {
            url: each for url, each in old.lookupds.items() if url not in lookupds and at - each.seen <= KEPT
        }
        urls = {url: replace(each, lost=each.lost or at) for url, each in silent_urls.items()}
        urls |= dict.fromkeys(lookupds, Sighting(at))
        # One that nobody holds is not seen either: the only nsqd that has it may be gone, or not have opened it yet.
        led = {part for each in (*old.nsqds.values(), *old.unled.values()) for part in each.led if part[0] in topics}
        unled = sorted(({*partitions} | led) - leaders.keys())[:MAX_LED]
        names = {f"{topic}-{number}": frozenset({(topic, number)}) for topic, number in unled}
        began = {name: old.at if part <= led or not old.at else at for name, part in names.items()}  # others are new
        lost = {name: old.unled.get(name) or Sighting(began[name], led=each, lost=at) for name, each in names.items()}
        return Memory(found, urls, lost, at)

    def without(self, name: str) -> Memory:
        """Return what is known without a server: an address or a URL."""
        nsqds = {address: each for address, each in self.nsqds.items() if address != name}
        return replace(self, nsqds=nsqds, lookupds={url: each for url, each in self.lookupds.items() if url != name})


def _missed(known: Sighting, address: str, at: float, looked: float, leaders: Mapping[TopicPartition, str]) -> Sighting:
    """Return an nsqd that does not answer; ``looked`` is the time of the look before."""
    moved = sum(leaders.get(each, address) != address for each in known.led)
    replaced = known.replaced
    if moved > known.moved:
        replaced = at if at - looked <= UNBROKEN else None
    return replace(known, lost=known.lost or at, moved=moved, replaced=replaced)
