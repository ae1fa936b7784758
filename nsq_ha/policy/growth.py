"""Which channels a partition lacks that the topic's other partitions have.

On the partitioned server, each partition has channels of its own, and a new channel starts at the end of the partition:
what was stored before is never delivered to it. So whoever uses a new partition first creates the channels there that
its siblings have. ``engine.siblings`` asks the servers, and creates them.

The invariant: a partition that was in use gets no channels. Consumers may read only some partitions on purpose, and a
channel that nobody reads would keep the partition's messages on disk. So a channel is created only on a partition that
the topic did not have when the client first looked, that has no message yet, or that has no lasting channel at all.

Source: server failures 3.8; youzan/nsq ``nsqd/topic.go`` (getOrCreateChannel).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nsq_ha.checks import EPHEMERAL_SUFFIX


class LedPartition(msgspec.Struct, frozen=True):
    """What the leader of a partition has.

    Attributes:
        messages: Number of messages ever stored.
        paused: Whether each channel is paused, by its name.
    """

    messages: int
    paused: Mapping[str, bool]


def lasting(channels: Iterable[str]) -> frozenset[str]:
    """Return the channels that stay without a client. Others belong to one reader, who creates what it needs."""
    return frozenset(name for name in channels if not name.endswith(EPHEMERAL_SUFFIX))


def is_new(partition: int, here: LedPartition, first: int) -> bool:
    """Return whether channels may be created on a partition.

    Args:
        partition: The partition.
        here: What its leader has.
        first: Number of partitions that the topic had when the client first looked.
    """
    return partition >= first or not here.messages or not lasting(here.paused)


def lacking(here: LedPartition, siblings: Iterable[LedPartition]) -> Mapping[str, bool]:
    """Return the lasting channels that a partition lacks, and whether each is paused wherever it exists.

    Args:
        here: What the partition's leader has.
        siblings: What the leaders of the other partitions have.
    """
    found: dict[str, bool] = {}
    for sibling in siblings:
        for name, paused in sibling.paused.items():
            found[name] = found.get(name, True) and paused
    return {name: found[name] for name in sorted(lasting(found) - here.paused.keys())}
