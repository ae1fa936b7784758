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

import msgspec


class Sight(msgspec.Struct, frozen=True):
    """What one nsqlookupd sees of its cluster.

    Attributes:
        lookupd: Its base URL.
        lookupds: The nsqlookupds that it lists; empty for a plain one.
        nsqds: Addresses of the nsqds that are registered at it; empty if they are unknown.
    """

    lookupd: str
    lookupds: frozenset[str]
    nsqds: frozenset[str] = frozenset()


def separate_clusters(sights: Sequence[Sight]) -> Sequence[Sight]:
    """Return the first given nsqlookupd of each cluster if there are several, else nothing.

    Without nsqds, nobody is known to belong to another cluster: the answers of two clusters can be told from those of
    one in trouble only if both have nsqds.
    """
    groups = _groups(sights)
    proven = [group for group in groups if any(sight.nsqds for sight in group)]
    return [group[0] for group in proven] if len(proven) > 1 else []


def may_differ(sights: Sequence[Sight]) -> bool:
    """Return whether the lists of nsqlookupds leave it open that there are several clusters, so that nsqds decide."""
    return len(_groups(sights)) > 1


def _groups(sights: Sequence[Sight]) -> list[list[Sight]]:
    """Return the nsqlookupds that belong together, those given first in front."""
    groups: list[list[Sight]] = []
    for sight in sights:
        joined = [group for group in groups if any(_are_together(sight, other) for other in group)]
        groups = [group for group in groups if group not in joined]
        groups.append([*(each for group in joined for each in group), sight])
    return sorted(groups, key=lambda group: sights.index(group[0]))


def _are_together(one: Sight, other: Sight) -> bool:
    if not one.lookupds and not other.lookupds:
        return True
    return bool(one.lookupds & other.lookupds or one.nsqds & other.nsqds)
