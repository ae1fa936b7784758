"""A dev cluster, and the command line called inside this process."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from nsq_ha.cli.app import app
from nsq_ha.devcluster import DevCluster
from tests.support.library_log import logging_as_before
from tests.support.ports import nobody_listens
from tests.support.processes import sigint_as_in_a_terminal

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    # Elections take 0.44 s instead of 22.
    with DevCluster(time_scale=0.02) as cluster:
        yield cluster


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
def name() -> str:
    """A topic's name that no other test uses."""
    return f"cli_{uuid.uuid4().hex[:10]}"


@pytest.fixture
def topic(cluster: DevCluster, name: str) -> str:
    """An ordinary topic of 2 partitions."""
    return cluster.create_topic(name, 2, 3, sync_every=1)


@pytest.fixture
def ordered(cluster: DevCluster) -> str:
    """An ordered topic of 4 partitions."""
    return cluster.create_topic(f"cli_{uuid.uuid4().hex[:10]}", 4, 3, ordered=True, sync_every=1)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    with nobody_listens() as port:
        yield f"http://127.0.0.1:{port}"
