"""Fixtures for pytest. They are not loaded by themselves: name this module in ``conftest.py``.

::

    pytest_plugins = ["nsq_ha.devcluster.fixtures"]

All are ordinary functions, since the cluster runs in a thread of its own: they
serve tests of any kind, coroutines too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from nsq_ha.devcluster.cluster import DevCluster

_numbers: Final = itertools.count(1)


@pytest.fixture(scope="session")
def nsq_cluster() -> Iterator[DevCluster]:
    """A cluster of 2 nsqlookupds and 3 nsqds for the whole run; leave it as you found it."""
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture
def nsq_own_cluster() -> Iterator[DevCluster]:
    """A cluster for this test alone, to be broken as you like."""
    with DevCluster() as cluster:
        yield cluster


@pytest.fixture
def nsq_make_topic(nsq_cluster: DevCluster) -> Iterator[Callable[..., str]]:
    """Make topics with names of their own on ``nsq_cluster``; they are deleted after the test.

    Takes what :meth:`nsq_ha.devcluster.DevCluster.create_topic` takes behind the name.
    """
    made: list[str] = []

    def make(partitions: int = 1, replicas: int = 3, *, ordered: bool = False, extended: bool = False) -> str:
        name = f"test_{next(_numbers)}"
        nsq_cluster.create_topic(name, partitions, replicas, ordered=ordered, extended=extended)
        made.append(name)
        return name

    yield make
    for name in made:
        nsq_cluster.delete_topic(name)


@pytest.fixture
def nsq_topic(nsq_make_topic: Callable[..., str]) -> str:
    """An ordered topic of 2 partitions, for this test alone."""
    return nsq_make_topic(2, ordered=True)
