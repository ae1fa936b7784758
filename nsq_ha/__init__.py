"""Producer and consumer for the partitioned, replicated NSQ: sharded, ordered, traced.

Everything in ``__all__`` is public, and so are the modules ``nsq_ha.errors``,
``nsq_ha.admin``, ``nsq_ha.dead_letters``, ``nsq_ha.protocol``, ``nsq_ha.devcluster``, ``nsq_ha.sync``,
``nsq_ha.events``, ``nsq_ha.migrate``, ``nsq_ha.stats``, ``nsq_ha.tracelog`` and ``nsq_ha.spark``; anything else may
change.
"""

from nsq_ha._version import __version__
from nsq_ha.config import ClientConfig, ConsumerConfig, ProducerConfig
from nsq_ha.consumer import Consumer
from nsq_ha.consumer.batches import Batch
from nsq_ha.discovery.answers import LookupdList, NodeInfo, TopicInfo
from nsq_ha.discovery.lookupd import LookupClient
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    DiscoveryError,
    NsqError,
    ProtocolError,
    PublishError,
    ServerError,
    TransportError,
)
from nsq_ha.ext_filter import ExtFilter
from nsq_ha.message import Message, OutgoingMessage, Receipt
from nsq_ha.option_types import Backoff, Compression, TlsConfig
from nsq_ha.options import ConsumerOptions, ProducerOptions
from nsq_ha.policy.sharding import JavaInt
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta
from nsq_ha.producer import Producer
from nsq_ha.start_from import StartFrom
from nsq_ha.worker import Worker

__all__ = [
    "Backoff",
    "Batch",
    "ClientConfig",
    "ClosedError",
    "Compression",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerOptions",
    "DiscoveryError",
    "ExtFilter",
    "JavaInt",
    "LookupAnswer",
    "LookupClient",
    "LookupdList",
    "Message",
    "Node",
    "NodeInfo",
    "NsqError",
    "OutgoingMessage",
    "Producer",
    "ProducerConfig",
    "ProducerOptions",
    "ProtocolError",
    "PublishError",
    "Receipt",
    "ServerError",
    "StartFrom",
    "TlsConfig",
    "TopicInfo",
    "TopicMeta",
    "TransportError",
    "Worker",
    "__version__",
]
