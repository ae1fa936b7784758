"""Producer and consumer for the partitioned, replicated NSQ: sharded, ordered, traced.

Everything in ``__all__`` is public, and so are the modules ``nsq_ha.admin``, ``nsq_ha.dashboard``,
``nsq_ha.dead_letters``, ``nsq_ha.devcluster``, ``nsq_ha.errors``, ``nsq_ha.events``, ``nsq_ha.prometheus``,
``nsq_ha.protocol``, ``nsq_ha.spark``, ``nsq_ha.stats``, ``nsq_ha.sync``, ``nsq_ha.telemetry``,
``nsq_ha.testing`` and ``nsq_ha.tracelog``; anything else may change.
"""

from nsq_ha._version import __version__

# Type checkers know the name. `typing` would make the first moments of a command longer, in which Ctrl-C ends in a
# traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from nsq_ha.consumer import Consumer
    from nsq_ha.consumer.handlers import Batch
    from nsq_ha.engine.answers import LookupdList, NodeInfo, TopicInfo
    from nsq_ha.engine.lookupd import LookupClient
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
    from nsq_ha.message import Message, OutgoingMessage, Receipt
    from nsq_ha.options.config import ClientConfig, ConsumerConfig, ProducerConfig
    from nsq_ha.options.ext_filter import ExtFilter
    from nsq_ha.options.keywords import ConsumerOptions, ProducerOptions
    from nsq_ha.options.start_from import StartFrom
    from nsq_ha.options.types import Backoff, Compression, TlsConfig
    from nsq_ha.policy.sharding import JavaInt
    from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta
    from nsq_ha.producer import Producer
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

if not TYPE_CHECKING:  # A checker that saw __getattr__ would accept any name.
    # A name loads its module when it is first used: a program that only consumes loads no producer, and one that
    # only wants the version loads nothing.
    _NAMES = {
        "consumer": ("Consumer",),
        "consumer.handlers": ("Batch",),
        "engine.answers": ("LookupdList", "NodeInfo", "TopicInfo"),
        "engine.lookupd": ("LookupClient",),
        "errors": (*(name for name in __all__ if name.endswith("Error")),),
        "message": ("Message", "OutgoingMessage", "Receipt"),
        "options.config": ("ClientConfig", "ConsumerConfig", "ProducerConfig"),
        "options.ext_filter": ("ExtFilter",),
        "options.keywords": ("ConsumerOptions", "ProducerOptions"),
        "options.start_from": ("StartFrom",),
        "options.types": ("Backoff", "Compression", "TlsConfig"),
        "policy.sharding": ("JavaInt",),
        "policy.topology": ("LookupAnswer", "Node", "TopicMeta"),
        "producer": ("Producer",),
        "worker": ("Worker",),
    }
    _HOMES = {name: f"nsq_ha.{module}" for module, names in _NAMES.items() for name in names}
    _MODULES = frozenset(
        {"admin", "dead_letters", "errors", "events", "prometheus", "protocol", "stats", "sync", "tracelog"}
    )

    def __getattr__(name: str) -> object:
        """Load a public name, or a public module that needs no extra."""
        from importlib import import_module  # noqa: PLC0415 - a name of this module would be taken for a public one

        if name in _MODULES:
            return import_module(f"nsq_ha.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        """Return all names, loaded or not."""
        return sorted({*globals(), *_HOMES, *_MODULES})
