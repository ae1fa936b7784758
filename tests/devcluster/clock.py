"""The clock of an embedded cluster, held by a test: what lasts a moment lasts as long as the test looks at it."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from nsq_ha.devcluster import DevCluster
from tests.devcluster.probes import LIMIT
from tests.support.inside import in_cluster, next_timer

STEP: Final = 0.005
"""Least seconds between two looks: less than any moment that a test looks for."""
FAR: Final = 120.0
"""Seconds of the cluster in which whatever is expected has to come."""


class Clock:
    """Stands still until it is moved; see :func:`held`."""

    def __init__(self, cluster: DevCluster) -> None:
        self._cluster = cluster
        self._now = asyncio.get_running_loop().time()

    def time(self) -> float:
        """Return the cluster's time."""
        return self._now

    def move(self, seconds: float) -> None:
        """Let time pass, and let everything run that is due then."""

        def passed() -> None:
            self._now += seconds

        in_cluster(self._cluster, passed)
        for _ in range(3):
            in_cluster(self._cluster, _nothing)

    def until(self, condition: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever it gives
        """Let time pass, from one timer to the next, until ``condition`` holds; return what it gives."""
        began, end = self._now, time.monotonic() + 4 * LIMIT
        while not (found := condition()):
            assert self._now < began + FAR, "it did not come true"
            assert time.monotonic() < end, "it did not come true in time"
            self.move(max(STEP, in_cluster(self._cluster, next_timer) - self._now))
        return found


def _nothing() -> None:
    pass


@contextmanager
def held(cluster: DevCluster) -> Iterator[Clock]:
    """Stop the clock of a running cluster for the block, which may move it. Afterwards it goes on from there."""
    clock = in_cluster(cluster, lambda: Clock(cluster))

    def stop() -> None:
        asyncio.get_running_loop().time = clock.time  # type: ignore[method-assign]

    def go_on() -> None:
        late = time.monotonic() - clock.time()
        asyncio.get_running_loop().time = lambda: time.monotonic() - late  # type: ignore[method-assign]

    in_cluster(cluster, stop)
    try:
        yield clock
    finally:
        in_cluster(cluster, go_on)
