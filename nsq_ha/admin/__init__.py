"""Administer topics, partitions and channels: create, change, describe, delete."""

from nsq_ha.admin.client import AdminClient
from nsq_ha.admin.description import ChannelStats, PartitionDescription, PartitionStats, TopicDescription
from nsq_ha.options import AdminOptions
from nsq_ha.policy.topology import TopicView

__all__ = [
    "AdminClient",
    "AdminOptions",
    "ChannelStats",
    "PartitionDescription",
    "PartitionStats",
    "TopicDescription",
    "TopicView",
]
