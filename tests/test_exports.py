"""The public names: a program written to them keeps working."""

import importlib
import importlib.metadata
import inspect
import pickle
import subprocess
import sys

import pytest

import nsq_ha
from nsq_ha import errors
from nsq_ha.devcluster import DevCluster

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


def test_the_version_is_the_distributions() -> None:
    assert nsq_ha.__version__ == importlib.metadata.version("nsq_ha")


def test_every_error_is_described_and_has_the_root() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
    assert len(kinds) > 20
    for kind in kinds:
        assert issubclass(kind, nsq_ha.NsqError), kind
        assert kind.__doc__, kind
        assert kind.__name__.endswith("Error"), kind


async def test_a_consumer_shows_only_what_users_call() -> None:
    shown = {name for name in dir(nsq_ha.Consumer("t", "c", lookupd="http://127.0.0.1:1")) if not name.startswith("_")}
    assert shown == {
        "aclose",
        "batches",
        "channel",
        "config",
        "from_env",
        "get",
        "health",
        "is_healthy",
        "max_in_flight",
        "max_rate",
        "run",
        "set_max_in_flight",
        "set_max_rate",
        "stats",
        "topic",
        "wait_ready",
        "wait_subscribed",
    }


def loaded_by(program: str) -> set[str]:
    code = f"import sys\n{program}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    return set(done.stdout.split())


def test_importing_the_package_loads_only_what_is_used() -> None:
    bare = loaded_by("pass")
    package = loaded_by("import nsq_ha") - bare
    assert {name for name in package if name.startswith("nsq_ha")} == {"nsq_ha", "nsq_ha._version"}
    assert package.isdisjoint({"asyncio", "ssl", "httpx", "msgspec", "mmh3"})
    consumes = loaded_by("from nsq_ha import Consumer")
    assert "nsq_ha.consumer.consumer" in consumes
    optional = {"httpx", "click", "rich", "starlette", "uvicorn", "opentelemetry", "pyarrow", "pyspark"}
    optional |= {"nsq_ha.worker", "nsq_ha.devcluster", "nsq_ha.admin"}
    assert consumes.isdisjoint(optional | {"nsq_ha.producer.producer"})
    assert loaded_by("from nsq_ha import Producer").isdisjoint(optional | {"nsq_ha.consumer"})


@pytest.mark.parametrize(
    "use",
    [
        "from nsq_ha.protocol.compression import SnappyCodec; SnappyCodec()",
        "from nsq_ha.protocol.body_codec import compress_body; compress_body(bytes(99), 'snappy')",
    ],
)
def test_snappy_is_done_by_python_snappy(use: str) -> None:
    assert "snappy" in loaded_by(use)


def test_a_name_is_the_same_wherever_it_comes_from() -> None:
    for name in PUBLIC[:-1]:
        public = getattr(nsq_ha, name)
        assert getattr(sys.modules[public.__module__], name) is public
        assert pickle.loads(pickle.dumps(public)) is public  # noqa: S301 - our own bytes
    assert set(PUBLIC) <= set(dir(nsq_ha))
    with pytest.raises(AttributeError, match="module 'nsq_ha' has no attribute 'Consumr'"):
        _ = vars(nsq_ha)["__getattr__"]("Consumr")


def test_public_modules_are_attributes_of_the_package() -> None:
    program = "import nsq_ha; print(nsq_ha.errors.NsqError.__name__, nsq_ha.stats.Health.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200)
    assert done.stdout.split() == ["NsqError", "Health"]


def test_the_plugin_of_pytest_loads_nothing_until_a_fixture_is_used() -> None:
    before = loaded_by("import pytest")
    plugin = loaded_by("import pytest, nsq_ha.testing.plugin") - before
    assert plugin == {"nsq_ha", "nsq_ha._version", "nsq_ha.testing", "nsq_ha.testing.plugin"}
    with pytest.raises(AttributeError, match=r"module 'nsq_ha.testing' has no attribute 'FakeProduce'"):
        _ = importlib.import_module("nsq_ha.testing").FakeProduce


FIRST_USE = """
import asyncio
from nsq_ha import Consumer, Producer
from nsq_ha.admin import AdminClient

async def use():
    lookupd = {lookupd!r}
    clients = Producer(lookupd=lookupd), Consumer("first_use", "c", lookupd=lookupd), AdminClient(lookupd)
    before = set(sys.modules)
    async with clients[0] as producer, clients[1] as consumer, clients[2] as admin, asyncio.timeout(60):
        await admin.topics()
        await producer.publish("first_use", b"x", key="k")
        async with await anext(consumer):
            pass
    return set(sys.modules) - before

print("late", *sorted(asyncio.run(use())))
raise SystemExit
"""


def test_the_first_use_of_a_client_loads_nothing_in_the_event_loop(nsq_own_cluster: DevCluster) -> None:
    nsq_own_cluster.create_topic("first_use")
    assert loaded_by(FIRST_USE.format(lookupd=nsq_own_cluster.lookupd[0])) == {"late"}
