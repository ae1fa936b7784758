"""What one read leaves for the next one: the driver's subscriptions, and the HTTP connections of a worker process.

Placing a channel takes two requests, and a subscription a connection of its own: most of what a small range costs. The
driver reads the small micro-batches of a query one after the other, each from where the last one ended, so it goes on
with the same subscription (:class:`Subscriptions`). Tasks keep no subscription: the next range of a partition may be
another worker's, and until then its channel would have the server hold the log. They keep HTTP connections
(:func:`worker_cluster`).

The invariants: no message is carried from one range to the next, so that what a range returns was sent after it was
planned; the chain rule proves each range by itself, whatever the channel did before; a subscription about which
anything is uncertain is closed. So reuse decides how long a read takes, never which rows it returns.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import NsqError
from nsq_ha.spark.cluster import BlockingCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.plan.batch_planner import Range
    from nsq_ha.spark.read.replay import Replay

log: Final = logging.getLogger("nsq_ha.spark")

MOST: Final = 16
"""Maximum number of idle subscriptions of a query."""

_REUSED: Final = "SPARK_REUSE_WORKER"
"""A variable that Spark sets to 1 in processes that run several tasks."""


class Subscriptions:
    """The idle subscriptions of one query, by partition. Used from one thread.

    The server sends nothing to an idle subscription. It closes one that does not answer its heartbeats, and then the
    channel vanishes: so a query that has nothing to read keeps nothing after a minute or two.
    """

    def __init__(self) -> None:
        self._idle: dict[tuple[str, int], tuple[int, Replay]] = {}

    def keep(self, replay: Replay, position: int) -> bool:
        """Keep an open subscription that has returned the messages before ``position`` and no others.

        Returns:
            Whether it is kept; otherwise the caller closes it.
        """
        try:
            if not replay.pause():
                return False
        except NsqError:
            return False
        place = replay.topic, replay.partition
        self._idle[place] = position, replay
        while len(self._idle) > MOST:
            self._idle.pop(next(iter(self._idle)))[1].close()
        return True

    def take(self, asked: Range, node: Node) -> Replay | None:
        """Return the subscription that goes on where ``asked`` begins, on ``node``. None if there is none."""
        position, replay = self._idle.pop((asked.topic, asked.partition), (0, None))
        if replay is None:
            return None
        try:
            if position == asked.start and replay.suits(asked, node) and replay.resume():
                return replay
        except NsqError as error:
            log.debug("%s: the idle subscription is of no use: %s", asked.name, error)
        replay.close()
        return None

    def close(self) -> None:
        """Close all idle ones."""
        while self._idle:
            self._idle.popitem()[1][1].close()


_idle: Final[dict[tuple[int, tuple[str, ...]], BlockingCluster]] = {}


@contextmanager
def worker_cluster(lookupd: tuple[str, ...]) -> Iterator[BlockingCluster]:
    """Lend a cluster to one task, with the connections of the last task of this process if it had the same servers.

    Its answers are as new as those of any other, unless no nsqlookupd answers: then the last ones count. It is closed
    after a failure, and at the end outside of a worker process that Spark uses again.
    """
    key = os.getpid(), lookupd
    cluster = _idle.pop(key, None) or BlockingCluster(lookupd)
    is_kept = False
    try:
        yield cluster
        is_kept = _is_worker()
    finally:
        if not is_kept:
            cluster.close()
    if is_kept:
        # One is enough: the tasks of a process are mostly those of one query.
        for other in [each for each in _idle if each[0] == key[0]]:
            _idle.pop(other).close()
        _idle[key] = cluster


def _is_worker() -> bool:
    """Return whether Spark uses this process for other tasks or plans afterwards."""
    return os.environ.get(_REUSED) == "1"
