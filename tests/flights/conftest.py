"""A dev cluster for the tests of this folder."""

import uuid
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from examples.flights import flights
from examples.flights.command import demo
from examples.flights.flights import Flight
from nsq_ha.devcluster import DevCluster
from tests.support.processes import sigint_as_in_a_terminal

Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def cluster() -> Iterator[DevCluster]:
    # Elections take 0.44 s instead of 22.
    with DevCluster(time_scale=0.02) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: DevCluster) -> Iterator[str]:
    """An ordered topic of 2 partitions."""
    name = cluster.create_topic(f"demo_{uuid.uuid4().hex[:10]}", 2, 3, ordered=True, sync_every=1)
    yield name
    cluster.delete_topic(name)


@pytest.fixture
def few_flights(monkeypatch: pytest.MonkeyPatch) -> None:
    """400 flights of 40 aircraft in each month."""
    rows = [Flight(f"N{number % 40}", ("flight", "carrier"), (str(number), "UA")) for number in range(400)]
    monkeypatch.setattr(flights, "read", lambda months: rows * len(months))


@pytest.fixture
def invoke() -> Iterator[Invoke]:
    """Run the command; an exception that is no exit fails the test."""

    def run(*arguments: str) -> Result:
        result = CliRunner().invoke(demo, arguments, env={"COLUMNS": "160"}, prog_name="make demo")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    with sigint_as_in_a_terminal():
        yield run
