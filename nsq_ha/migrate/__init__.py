"""Move topics from one cluster to another while programs publish and consume.

A :class:`MigratingProducer` publishes a share of each topic to the current cluster and the rest to the previous one; a
:class:`MigratingConsumer` reads both.
"""

from nsq_ha.migrate.consumer import MigratingConsumer
from nsq_ha.migrate.producer import MigratingProducer, Publisher
from nsq_ha.migrate.shares import Share
from nsq_ha.policy.migration import Cluster

__all__ = ["Cluster", "MigratingConsumer", "MigratingProducer", "Publisher", "Share"]
