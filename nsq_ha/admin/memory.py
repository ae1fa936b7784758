"""What was known of a cluster before a look: without it, a dead nsqd that the nsqlookupds have forgotten is invisible.

Pure and frozen. ``reading`` makes the next memory of each look; the command line keeps it in a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from nsq_ha.policy.topology import Node  # noqa: TC001 - read at run time, to decode the file

KEPT: Final = 86400.0
"""Seconds for which a server that is gone is remembered."""

MAX_SERVERS: Final = 500
MAX_LED: Final = 5000
"""Partitions that are remembered of one nsqd."""

TopicPartition = tuple[str, int]
"""A topic and a partition."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A server when it last answered.

    Attributes:
        seen: When that was, in Unix seconds.
        node: Its addresses. None for an nsqlookupd.
        led: The partitions that it led.
        waiting: Messages that waited there, on a plain cluster.
        lost: When a look first found no answer. None while it answers.
        replaced: When all of ``led`` had other leaders. None before.
    """

    seen: float
    node: Node | None = None
    led: frozenset[TopicPartition] = frozenset()
    waiting: int = 0
    lost: float | None = None
    replaced: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The servers that belong to a cluster.

    Attributes:
        nsqds: By the address of their TCP.
        lookupds: By URL.
    """

    nsqds: Mapping[str, Sighting] = field(default_factory=dict)
    lookupds: Mapping[str, Sighting] = field(default_factory=dict)

    def after(
        self,
        at: float,
        nsqds: Mapping[str, Sighting],
        lookupds: Collection[str],
        leaders: Mapping[TopicPartition, str],
    ) -> Memory:
        """Return what is known after a look.

        If none of the nsqds that answer was known, it is another cluster at the same address, and the old one is
        forgotten.

        Args:
            at: When the look ended, in Unix seconds.
            nsqds: Those that answered.
            lookupds: Those that answered.
            leaders: Who leads each partition now.
        """
        old = self if not nsqds or not self.nsqds or nsqds.keys() & self.nsqds.keys() else Memory()
        found: dict[str, Sighting] = {}
        for address, known in old.nsqds.items():
            if address not in nsqds and at - known.seen <= KEPT:
                found[address] = _missed(known, address, at, leaders)
        urls = {url: replace(each, lost=each.lost or at) for url, each in old.lookupds.items() if url not in lookupds}
        found |= nsqds
        urls = {url: each for url, each in urls.items() if at - each.seen <= KEPT} | dict.fromkeys(
            lookupds, Sighting(at)
        )
        return Memory(_newest(found), _newest(urls))

    def without(self, name: str) -> Memory:
        """Return what is known without a server: an address or a URL."""
        nsqds = {address: each for address, each in self.nsqds.items() if address != name}
        return Memory(nsqds, {url: each for url, each in self.lookupds.items() if url != name})


def _missed(known: Sighting, address: str, at: float, leaders: Mapping[TopicPartition, str]) -> Sighting:
    replaced = known.replaced
    if replaced is None and known.led and all(leaders.get(each, address) != address for each in known.led):
        replaced = at
    return replace(known, lost=known.lost or at, replaced=replaced)


def _newest(servers: Mapping[str, Sighting]) -> Mapping[str, Sighting]:
    if len(servers) <= MAX_SERVERS:
        return servers
    return dict(sorted(servers.items(), key=lambda each: -each[1].seen)[:MAX_SERVERS])
