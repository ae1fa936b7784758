"""Fixtures of the contract suite: the cluster, topics that its tests share, and a channel for each test.

Topics are shared because a real cluster takes its time to make one; a channel is new for each test, and bodies
carry a mark of their test (see ``reading``), so that those of an earlier test can be ignored.
"""

import asyncio
import inspect
import os
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from integration.cluster import (
    AUTH_VARIABLE,
    COMPRESSION_VARIABLE,
    LOOKUPD_VARIABLE,
    NODE_VARIABLE,
    REQUIRE_VARIABLE,
    TLS_VARIABLE,
    ClusterUnderTest,
    real_cluster,
)
from integration.plain import UPSTREAM_VARIABLE, KeylessProducer, plain_cluster
from integration.reading import Consumers, eventually
from nsq_ha import Compression, ConsumerConfig, Producer, ProducerConfig
from tests.support import programs
from tests.support.full import mark_cases
from tests.support.inside import watched_sockets
from tests.support.loops import LOOPS

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _without_skip(report: Report) -> Report:
    """With ``NSQ_HA_TEST_REQUIRE=1`` what could not be tested has failed."""
    if report.skipped and os.environ.get(REQUIRE_VARIABLE) == "1":
        report.outcome = "failed"
        report.longrepr = f"{REQUIRE_VARIABLE}=1 forbids skips: {report.longrepr}"
    return report


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_skip((yield))


def pytest_configure() -> None:
    """Give all clients the secret and the compression of the environment, unless a test sets its own."""
    defaults: dict[str, object] = {}
    if secret := os.environ.get(AUTH_VARIABLE):
        defaults["auth_secret"] = secret
    if compression := os.environ.get(COMPRESSION_VARIABLE):
        defaults["compression"] = Compression(compression)
    for kind in (ProducerConfig, ConsumerConfig):
        # A dataclass keeps the defaults of its keyword arguments there, below what redacts its errors.
        inspect.unwrap(kind.__init__).__kwdefaults__.update(defaults)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a cluster cannot be asked for: it is no part of the contract there, so it is not skipped."""
    left_out = set[str]()
    if LOOKUPD_VARIABLE in os.environ or UPSTREAM_VARIABLE in os.environ:
        needs = {"faults": NODE_VARIABLE, "tls": TLS_VARIABLE}
        left_out = {mark for mark, variable in needs.items() if variable not in os.environ}
    kinds = _kinds()
    unwanted = [
        item for item in items if any(item.get_closest_marker(name) for name in left_out) or not _applies(item, kinds)
    ]
    config.hook.pytest_deselected(items=unwanted)
    items[:] = [item for item in items if item not in unwanted]
    mark_cases(items)


def _kinds() -> set[str]:
    """The kinds of cluster to test: those that the environment names, or both as embedded ones."""
    named = {
        kind
        for kind, variable in (("partitioned", LOOKUPD_VARIABLE), ("plain", UPSTREAM_VARIABLE))
        if os.environ.get(variable)
    }
    return named or {"partitioned", "plain"}


def _applies(item: pytest.Item, kinds: set[str]) -> bool:
    """Whether a test is one for the kind of cluster that it would get."""
    kind = (
        item.callspec.params.get("cluster") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
    )
    if kind is None:
        return True
    marks = {mark.name for mark in item.iter_markers()}
    suits = bool(marks & {"plain", "only_plain"}) if kind == "plain" else "only_plain" not in marks
    return kind in kinds and suits


@pytest.fixture(scope="session", params=["partitioned", "plain"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterUnderTest]:
    cluster = plain_cluster() if request.param == "plain" else real_cluster()
    if cluster is None:
        from integration.embedded import EmbeddedCluster  # noqa: PLC0415 - not needed for a real one

        cluster = EmbeddedCluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="session")
def ordinary(cluster: ClusterUnderTest) -> str:
    """An ordinary topic of 2 partitions."""
    return cluster.create_topic(2, 2)


@pytest.fixture(scope="session")
def ordered(cluster: ClusterUnderTest) -> str:
    """An ordered topic of 4 partitions."""
    return cluster.create_topic(4, 2, ordered=True)


@pytest.fixture(scope="session")
def extended(cluster: ClusterUnderTest) -> str:
    """An extended topic of 2 partitions."""
    return cluster.create_topic(2, 2, extended=True)


@pytest.fixture(scope="session")
def single(cluster: ClusterUnderTest) -> str:
    """An ordinary topic of 1 partition."""
    return cluster.create_topic(1, 2)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all, or the one that runs already. The second number lets a failed task run again."""
    from nsq_ha.spark.session import local_session  # noqa: PLC0415 - not needed for the contract
    from tests.support.spark_queries import PATIENT  # noqa: PLC0415 - so is PySpark

    session = local_session("tests", threads="2,4", config=PATIENT)
    yield session
    session.stop()


@pytest.fixture
def channel(cluster: ClusterUnderTest) -> Iterator[str]:
    """A channel that no other test uses; deleted afterwards, since a server scans all that exist."""
    name = f"ch_{uuid.uuid4().hex[:10]}"
    yield name
    cluster.delete_channel(name)


@pytest.fixture(autouse=True)
def faults_are_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """A real cluster refuses to publish, and to create channels, for up to a minute after a node's return."""
    yield
    if request.node.get_closest_marker("faults") is not None:
        request.getfixturevalue("cluster").await_writable()


@pytest.fixture
def mark() -> bytes:
    """The beginning of this test's bodies."""
    return uuid.uuid4().hex[:8].encode() + b":"


@pytest.fixture
async def producer(cluster: ClusterUnderTest) -> AsyncIterator[Producer]:
    kind = KeylessProducer if cluster.is_plain else Producer
    async with kind(lookupd=cluster.lookupd) as producer:
        yield producer


@pytest.fixture
def consume(cluster: ClusterUnderTest, channel: str) -> Consumers:
    return Consumers(cluster.lookupd, channel)


@pytest.fixture(scope="session", autouse=True)
def programs_end() -> Iterator[None]:
    yield
    programs.close()


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """Closing producers and consumers leaves no task and no socket behind."""
    yield
    await eventually(lambda: watched_sockets() == 1)  # the loop's own one
    assert asyncio.all_tasks() == {asyncio.current_task()}
