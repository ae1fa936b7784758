"""Whether all given nsqlookupds belong to one cluster; answers of two clusters cannot be merged.

Within a partitioned cluster every nsqlookupd lists all of them, and every nsqd registers at all of them. Two
nsqlookupds belong together if either list has a server in common. Lists of nsqlookupds alone prove no difference: one
that has lost etcd may know only those that have gone. Nor do those of nsqds: an nsqlookupd that has just started knows
none. What counts is what the servers call each other, so names, addresses and NAT on the client's side do not matter.

Those of a plain cluster list no nsqlookupds and know nothing of each other, so all of them count as one.

Source: youzan/nsq ``nsqlookupd/http.go`` ``doListLookup``; seen on two real clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Sight(NamedTuple):
    """What one nsqlookupd sees of its cluster.

    Attributes:
        lookupd: Its base URL.
        lookupds: The nsqlookupds that it lists; empty for a plain one.
        nsqds: Addresses of the nsqds that are registered at it; empty if they are unknown.
    """

    lookupd: str
    lookupds: frozenset[str]
    nsqds: frozenset[str] = frozenset()


def separate_clusters(sights: Sequence[Sight]) -> list[Sight]:
    """Return what the nsqlookupds of each cluster see together, by the name of the first one.

    Only those with nsqds are known to be several: the answers of two clusters can be told from those of one in trouble
    only if both have nsqds.
    """
    clusters: list[Sight] = []
    for sight in sights:
        seen = sight
        for other in [each for each in clusters if _are_together(sight, each)]:
            clusters.remove(other)
            seen = Sight(other.lookupd, other.lookupds | seen.lookupds, other.nsqds | seen.nsqds)
        clusters.append(seen)
    return clusters


def _are_together(one: Sight, other: Sight) -> bool:
    if not one.lookupds and not other.lookupds:
        return True
    return bool(one.lookupds & other.lookupds or one.nsqds & other.nsqds)
