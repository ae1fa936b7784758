"""A dev cluster, and the command line called inside this process."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from nsq_ha.cli.app import app
from nsq_ha.devcluster import DevCluster
from tests.admin.conftest import quicken
from tests.support.inside import coordinator_of, in_cluster
from tests.support.library_log import logging_as_before
from tests.support.ports import nobody_listens
from tests.support.processes import sigint_as_in_a_terminal
from tests.support.terminal import WIDTH, Terminal

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    # Elections take 0.44 s instead of 22.
    with DevCluster(time_scale=0.02) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def plain() -> Iterator[DevCluster]:
    with DevCluster(plain=True, nsqds=2) as cluster:
        yield cluster


@pytest.fixture(params=["cluster", "plain"], ids=["partitioned", "plain"])
def either(request: pytest.FixtureRequest) -> DevCluster:
    """A cluster of each kind."""
    found: DevCluster = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def changes_show_soon() -> Iterator[None]:
    """The cluster makes them in a few hundredths of a second."""
    with pytest.MonkeyPatch.context() as patch:
        quicken(patch)
        yield


@pytest.fixture(autouse=True)
def ctrl_c_works() -> Iterator[None]:
    """However the tests were started."""
    with sigint_as_in_a_terminal():
        yield


@pytest.fixture(autouse=True)
def nothing_is_shown_later() -> Iterator[None]:
    """The command line shows the library's log; later tests must not."""
    with logging_as_before():
        yield


@pytest.fixture
def invoke(cluster: DevCluster) -> Invoke:
    """Run ``nsq-ha`` with some arguments; an exception that is no exit fails the test."""

    def run(*arguments: str, stdin: str | bytes | None = None, lookupd: str | None = None) -> Result:
        result = CliRunner().invoke(
            app,
            arguments,
            input=stdin,
            env={"NSQ_HA_LOOKUPD": lookupd or cluster.lookupd[0], "COLUMNS": "160"},
            prog_name="nsq-ha",
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def name(cluster: DevCluster) -> Iterator[str]:
    """A topic's name that no other test uses. Topics whose names begin with it end with the test.

    Each topic costs the cluster time, whether or not somebody uses it.
    """
    name = f"cli_{uuid.uuid4().hex[:10]}"
    yield name
    topics = coordinator_of(cluster).placement.topics
    for topic in in_cluster(cluster, lambda: [each for each in topics if each.startswith(name)]):
        cluster.delete_topic(topic)


@pytest.fixture
def topic(cluster: DevCluster, name: str) -> str:
    """An ordinary topic of 2 partitions."""
    return cluster.create_topic(name, 2, 3, sync_every=1)


@pytest.fixture
def ordered(cluster: DevCluster, name: str) -> str:
    """An ordered topic of 4 partitions."""
    return cluster.create_topic(f"{name}.ordered", 4, 3, ordered=True, sync_every=1)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    with nobody_listens() as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    for name, value in {"TERM": "xterm", "COLUMNS": str(WIDTH), "LINES": "20"}.items():
        monkeypatch.setenv(name, value)
    return Terminal()
