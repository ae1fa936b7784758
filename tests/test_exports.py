"""The public names: a program written to them keeps working."""

import importlib
import importlib.metadata
import inspect

import pytest

import nsq_ha
from nsq_ha import errors

PUBLIC = [
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


def test_the_public_names_are_these() -> None:
    assert nsq_ha.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(nsq_ha, name) is not None


def test_what_is_public_is_described() -> None:
    for name in PUBLIC[:-1]:
        assert inspect.getdoc(getattr(nsq_ha, name)), name


@pytest.mark.parametrize(
    "module",
    [
        "admin",
        "dead_letters",
        "errors",
        "protocol",
        "devcluster",
        "events",
        "migrate",
        "prometheus",
        "stats",
        "sync",
        "telemetry",
        "tracelog",
        "spark",
    ],
)
def test_public_modules(module: str) -> None:
    assert inspect.getdoc(importlib.import_module(f"nsq_ha.{module}"))


def test_the_version_is_the_distributions() -> None:
    assert nsq_ha.__version__ == importlib.metadata.version("nsq_ha")


def test_every_error_is_described_and_has_the_root() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert len(kinds) > 20
    for kind in kinds:
        assert issubclass(kind, nsq_ha.NsqError), kind
        assert kind.__doc__, kind
        assert kind.__name__.endswith("Error"), kind


def test_the_users_methods_are_these() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(nsq_ha.Producer) >= {"publish", "publish_many", "aclose", "trace", "stats", "wait_ready"}
    assert methods(nsq_ha.Consumer) >= {"run", "aclose", "wait_subscribed", "max_in_flight", "set_max_in_flight"}
    assert methods(nsq_ha.Message) >= {"finish", "requeue", "touch", "headers", "tag", "trace_id", "internal_id"}


async def test_a_consumer_shows_only_what_users_call() -> None:
    shown = {name for name in dir(nsq_ha.Consumer("t", "c", lookupd="http://127.0.0.1:1")) if not name.startswith("_")}
    assert shown == {
        "aclose",
        "batches",
        "channel",
        "config",
        "from_env",
        "health",
        "is_healthy",
        "max_in_flight",
        "run",
        "set_max_in_flight",
        "stats",
        "topic",
        "wait_ready",
        "wait_subscribed",
    }
