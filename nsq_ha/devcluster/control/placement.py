"""What the cluster agrees on: topics, their partitions, who holds and who leads them.

This is what the real cluster keeps in etcd. It is shared by all nodes of the
dev cluster; what a *node* believes is in its replicas, what an *nsqlookupd*
believes in its memory, and both may lag behind.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.node import Nsqd


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    """How a topic was created.

    Attributes:
        partitions: Number of partitions at creation.
        replicas: Replicas of each.
        ordered: Only ordered subscriptions (``orderedmulti``).
        multi_part: Several partitions may share a node.
        extended: Messages may carry JSON headers.
        disable_channel_auto_create: Channels must be registered first.
        sync_every: Messages that may stay in the writer's buffer (``syncdisk``); 0 and 1 flush each.
    """

    partitions: int
    replicas: int
    ordered: bool = False
    multi_part: bool = False
    extended: bool = False
    disable_channel_auto_create: bool = False
    sync_every: int = 0


class Partition:
    """One partition as the cluster sees it.

    Attributes:
        number: 0 and up.
        replicas: Nodes that shall hold it.
        isr: Nodes that hold all that was acknowledged.
        leader: The elected one. None while there is none.
        registered: The leader as it is registered at the nsqlookupds. None while
            it is not linked to them, or writes are being handed over.
        writable: Whether ``access=w`` names it.
        stops: How many moves and joins stop writing at the moment.
        suffering: A follower is silent for so long that ``access=w`` leaves the partition out.
    """

    def __init__(self, topic: Topic, number: int, replicas: list[Nsqd]) -> None:
        """Begin without a leader."""
        self.topic = topic
        self.number = number
        self.replicas = replicas
        self.isr = list(replicas)
        self.leader: Nsqd | None = None
        self.registered: Nsqd | None = None
        self.writable = False
        self.stops = 0
        self.suffering = False

    @property
    def key(self) -> tuple[str, int]:
        """Topic name and number."""
        return self.topic.name, self.number

    @property
    def majority(self) -> int:
        """In-sync replicas that a write needs."""
        return self.topic.options.replicas // 2 + 1

    @property
    def has_majority(self) -> bool:
        """Whether enough replicas are in sync to write."""
        return len(self.isr) >= self.majority


@dataclass(eq=False)
class Topic:
    """One topic.

    Attributes:
        name: Its name.
        options: How it was created.
        partitions: By number.
        channels: Channels registered at the nsqlookupds, for topics that create none by themselves.
        deleted: It is gone; what still refers to it must let go.
        partition_num: Number of partitions that the cluster decided on; some may not exist yet.
    """

    name: str
    options: TopicOptions
    partitions: dict[int, Partition] = field(default_factory=dict)
    channels: set[str] = field(default_factory=set)
    deleted: bool = False
    partition_num: int = 0

    def __post_init__(self) -> None:
        """Begin with the number it was created with."""
        self.partition_num = self.options.partitions
