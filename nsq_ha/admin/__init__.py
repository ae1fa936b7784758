"""Administer a cluster: topics, partitions, channels, nodes, and their statistics."""

from nsq_ha.admin.causes import incidents
from nsq_ha.admin.client import AdminClient
from nsq_ha.admin.cluster import ClusterState, LookupdState, NodeLoad
from nsq_ha.admin.description import (
    ChannelStats,
    ClientStats,
    ClusterStats,
    Latency,
    NodeStats,
    PartitionDescription,
    PartitionStats,
    PublisherStats,
    TopicDescription,
    TopicStats,
)
from nsq_ha.admin.incident import Incident
from nsq_ha.admin.nsqd_http import StoredMessage
from nsq_ha.admin.reading import Reading
from nsq_ha.options.keywords import AdminOptions
from nsq_ha.policy.topology import TopicView

__all__ = [
    "AdminClient",
    "AdminOptions",
    "ChannelStats",
    "ClientStats",
    "ClusterState",
    "ClusterStats",
    "Incident",
    "Latency",
    "LookupdState",
    "NodeLoad",
    "NodeStats",
    "PartitionDescription",
    "PartitionStats",
    "PublisherStats",
    "Reading",
    "StoredMessage",
    "TopicDescription",
    "TopicStats",
    "TopicView",
    "incidents",
]
