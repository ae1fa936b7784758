"""Fixtures for pytest, which loads them by itself where nsq_ha is installed.

All are synchronous, since the cluster runs in its own thread. They work in tests of any kind, also in coroutines. They
need the extra ``cluster``; a project without it can use its own fixtures of the same names.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from nsq_ha.devcluster import DevCluster

_numbers: Final = itertools.count(1)


def _cluster(*, plain: bool = False) -> DevCluster:
    """Create a cluster; imported here, since most runs of pytest need none."""
    from nsq_ha.devcluster import DevCluster  # noqa: PLC0415

    return DevCluster(plain=plain)


@pytest.fixture(scope="session")
def nsq_cluster() -> Iterator[DevCluster]:
    """Share a cluster of 2 nsqlookupds and 3 nsqds in the whole run; leave it as you found it."""
    with _cluster() as cluster:
        yield cluster


@pytest.fixture
def nsq_own_cluster() -> Iterator[DevCluster]:
    """Provide a cluster for this test only; break it as you like."""
    with _cluster() as cluster:
        yield cluster


@pytest.fixture
def nsq_plain_cluster() -> Iterator[DevCluster]:
    """Provide a plain (upstream) cluster for this test only."""
    with _cluster(plain=True) as cluster:
        yield cluster


@pytest.fixture
def nsq_make_topic(nsq_cluster: DevCluster) -> Iterator[Callable[..., str]]:
    """Provide a function that creates topics with unique names on ``nsq_cluster``; delete them after the test.

    The function takes the arguments of :meth:`nsq_ha.devcluster.DevCluster.create_topic` after the name.
    """
    made: list[str] = []

    def make(partitions: int = 1, replicas: int = 3, *, ordered: bool = False, extended: bool = False) -> str:
        name = f"test_{next(_numbers)}"
        nsq_cluster.create_topic(name, partitions, replicas, ordered=ordered, extended=extended)
        made.append(name)
        return name

    yield make
    from nsq_ha.devcluster import ChangeRefusedError  # noqa: PLC0415

    for name in made:
        with contextlib.suppress(ChangeRefusedError):  # the test has deleted it
            nsq_cluster.delete_topic(name)


@pytest.fixture
def nsq_topic(nsq_make_topic: Callable[..., str]) -> str:
    """Create an ordered topic of 2 partitions for this test only."""
    return nsq_make_topic(2, ordered=True)
