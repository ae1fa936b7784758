"""Decide when a plain nsqd has delivered all messages from before a query: ``availableNow`` with ``delivery=ack``.

Such a server has no log with an end, and a moment without messages proves nothing:
they may be in flight to a killed driver, the channel may be paused, or the server
may be slow. So this module requests the server's counts over HTTP, and waits
longer if there are none.

**Source:** Spark design 2.2; nsqio/nsq nsqd/stats.go.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from nsq_ha.admin.description import Unfinished
from nsq_ha.errors import NsqError, ResponseTimeoutError
from nsq_ha.policy.topology import Node

if TYPE_CHECKING:
    from nsq_ha.spark.ack.puller import Puller
    from nsq_ha.spark.cluster import BlockingCluster

T = TypeVar("T")

log: Final = logging.getLogger("nsq_ha.spark")

QUIET: Final = 1.0
"""Seconds without an old message after which to request the server's counts."""

ASK: Final = 0.25
"""Seconds between two requests to one server."""


class DrainVerdict(enum.Enum):
    """Whether a server may still deliver a message from before the query."""

    WAIT = "wait"
    DONE = "done"
    STUCK = "stuck"


def judge(seconds: float, counts: Unfinished | None, limit: float, *, flows: bool, caught_up: bool) -> DrainVerdict:
    """Return whether a server that delivers no old messages still has some.

    Args:
        seconds: How long the server could deliver messages and delivered no old one.
        counts: The server's counts, or None.
        limit: Seconds after which a message of a killed driver has been redelivered.
        flows: Whether it delivered newer messages in that time.
        caught_up: Whether it delivered a message that was published after its counts showed nothing in flight to a
            client that is gone. Since a queue is in order, all older messages were delivered before.
    """
    if seconds < QUIET:
        return DrainVerdict.WAIT
    if counts is None:
        return DrainVerdict.DONE if seconds >= limit else DrainVerdict.WAIT
    is_empty = not (counts.waiting or counts.held)
    # A second connection may be our own broken one, which still holds old messages.
    if not counts.orphaned and (is_empty or (caught_up and counts.clients == 1)):
        return DrainVerdict.DONE
    if seconds < limit:
        return DrainVerdict.WAIT
    return DrainVerdict.DONE if flows and not counts.orphaned else DrainVerdict.STUCK


class Draining:
    """Watches one puller until its nsqd has delivered all older messages. Blocking; used from one thread.

    Args:
        puller: Pulls from the nsqd. If the nsqd's HTTP port is unknown (0), the port above its TCP port is tried.
        cluster: Used to ask the nsqd; the caller closes it.
        limit: See :func:`judge`.
    """

    def __init__(self, puller: Puller, cluster: BlockingCluster, limit: float) -> None:
        node = puller.node
        self._puller = puller
        self._cluster = cluster
        self._is_known = node.http_port != 0
        self._node = node if self._is_known else Node(node.host, node.tcp_port, node.tcp_port + 1)
        self._limit = limit
        self._may_ask = True
        self._asked_at = float("-inf")
        self._mark_ns: int | None = None
        self._begun_at = time.monotonic()
        clock = self._ask(lambda: cluster.clock(self._node))
        # Its clock may be ahead and shows whole seconds: too many messages may count as old, never too few.
        self._older_than_ns = max(time.time_ns(), 0 if clock is None else int((clock + 1.0) * 1e9))
        puller.drain(self._older_than_ns)

    def is_done(self) -> bool:
        """Return whether the nsqd has delivered all old messages; the puller then takes no more.

        Raises:
            ResponseTimeoutError: It holds messages, but delivers none for longer than they may be in flight.
        """
        puller, now = self._puller, time.monotonic()
        if puller.is_drained:
            return True
        # Taken before the request, so that messages that arrive meanwhile count as seen after it.
        seconds, newest_ns = puller.quiet_for, puller.newest_ns
        if seconds < QUIET:
            self._mark_ns = None
        if seconds < QUIET or now - self._asked_at < ASK:
            return False
        self._asked_at = now
        counts = self._ask(lambda: self._cluster.unfinished(self._node, puller.topic, puller.channel))
        caught_up = self._mark_ns is not None and newest_ns > self._mark_ns
        flows = newest_ns > self._older_than_ns
        verdict = judge(seconds, counts, self._limit, flows=flows, caught_up=caught_up)
        if counts is None or counts.orphaned:
            self._mark_ns = None
        elif self._mark_ns is None:
            self._mark_ns = self._older_than_ns + int((time.monotonic() - self._begun_at) * 1e9)
        if verdict is DrainVerdict.STUCK:
            raise ResponseTimeoutError(_stuck(puller, counts))
        if verdict is DrainVerdict.DONE and puller.quiet_for >= seconds:
            puller.finish_draining()
            return True
        return False

    def _ask(self, question: Callable[[], T | None]) -> T | None:
        """Ask the nsqd; return None if it does not answer or is another one."""
        try:
            if self._may_ask and not self._is_known:
                self._may_ask = self._is_known = self._cluster.tcp_port(self._node) == self._node.tcp_port
            return question() if self._may_ask else None
        except NsqError as error:
            log.info("nsqd %s did not return the counts of the channel: %s", self._node.address, error)
            return None


def _stuck(puller: Puller, counts: Unfinished | None) -> str:
    counts = counts or Unfinished(0, 0, 0, 0, paused=False)
    return (
        f"topic {puller.topic!r}, channel {puller.channel!r}: nsqd {puller.node.address} delivers nothing, but holds "
        f"{counts.waiting} messages, and {counts.held + counts.orphaned} are in flight to other clients"
        f"{'; the channel is paused' if counts.paused else ''}. "
        "Resume the channel or stop its other clients, and start the query again"
    )
