"""Move messages of one plain nsqd into the spool: subscribe, receive, write, and only then finish.

Each puller has a thread and a connection to one nsqd for one topic. ``planner`` limits
how much may wait in the spool.

The invariant: a message is finished only after the file that holds it is on disk. A
kill between the two repeats the message; none is lost.

:class:`Draining` decides when an nsqd has delivered all messages from before a query, for ``availableNow``. Such a
server has no log with an end, and a moment without messages proves nothing: they may be in flight to a killed driver,
the channel may be paused, or the server may be slow. So it requests the server's counts over HTTP, and waits longer if
there are none.

**Source:** Spark design 2.2; server protocol 5, 7; nsqio/nsq nsqd/stats.go.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import random
import threading
import time
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from nsq_ha.admin.description import Unfinished
from nsq_ha.errors import ConnectionLostError, NsqError, ResponseTimeoutError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Sub, layout_for
from nsq_ha.spark import logger
from nsq_ha.spark.connection import CONNECT_TIMEOUT, BlockingSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Message
    from nsq_ha.spark.ack.spool import Spool
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.options import ReadOptions

T = TypeVar("T")


FILE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of messages after which to write a file."""

QUIET: Final = 1.0
"""Seconds without an old message after which to request the server's counts."""

ASK: Final = 0.25
"""Seconds between two requests to one server."""

_GATHER: Final = 0.05  # seconds to wait for messages and then for more, before a look at stop() and at the spool's room
_SILENCE: Final = 75.0  # a heartbeat comes every 30 s
_LEAST_BUFFERING: Final = 0.025  # minimum of an upstream nsqd with default settings
_RECONNECT: Final = Backoff(initial=0.1, maximum=5.0, factor=2.0, jitter=0.3)


class Puller:
    """Pulls from one nsqd in a thread, from :meth:`start` to :meth:`stop`.

    Args:
        node: The nsqd.
        topic: The topic.
        options: Options of the read.
        spool: The spool for the messages.
        may_pull: Returns False while the spool is full.

    Attributes:
        topic: The topic.
        channel: The channel of the options.
        node: The nsqd.
        fatal: The error that ended the thread, since retries cannot fix it. None otherwise.
        trouble: The last failure, until there is a connection again. None otherwise.
        is_drained: Whether to take no more messages until the connection is lost, since all old ones have come.
        flows: Whether the server probably has more messages, since the last file was full, or the spool is.
        newest_ns: Publish time of the youngest message in the spool, by the server's clock.
    """

    def __init__(
        self, node: Node, topic: str, options: ReadOptions, spool: Spool, may_pull: Callable[[], bool]
    ) -> None:
        self.topic: str = topic
        self.channel: str = options.channel or ""
        self.fatal: Exception | None = None
        self.trouble: NsqError | None = None
        self.troubled_since: float = time.monotonic()
        self.node = node
        self._options = options
        least = max(options.connection.output_buffer_timeout, _LEAST_BUFFERING)
        self._connection_options = dataclasses.replace(options.connection, output_buffer_timeout=least)
        self._spool = spool
        self._may_pull = may_pull
        self._over = threading.Event()
        self.is_drained: bool = False
        self.flows: bool = False
        self.newest_ns: int = 0
        self._older_than: int | None = None
        self._old_seen_at: float | None = None
        # A daemon, since Spark kills the planning process without warning.
        self._thread = threading.Thread(target=self._run, name=f"nsq_ha-pull-{self.node.address}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; the server redelivers messages that are not written yet."""
        self._over.set()
        self._thread.join(CONNECT_TIMEOUT + _GATHER)

    def drain(self, older_than_ns: int) -> None:
        """Watch for messages published before this time, in nanoseconds since the epoch; see :attr:`quiet_for`."""
        self._older_than = older_than_ns
        self._old_seen_at = None
        self.is_drained = False

    @property
    def quiet_for(self) -> float:
        """Seconds for which the server could send messages but sent none from before :meth:`drain`."""
        seen = self._old_seen_at
        return 0.0 if self._older_than is None or seen is None else time.monotonic() - seen

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        failures = 0
        while not self._over.is_set():
            subscription = BlockingSubscription(self.node, self._connection_options, (self.topic, self.channel, 0))
            try:
                layout = layout_for(detail=False, ext=False)
                subscription.subscribe(Sub(self.topic, self.channel, None), layout, self._options.rdy)
                failures = 0
                self.trouble = None
                self._pull(subscription)
            except Exception as error:  # noqa: BLE001 - the planner raises it; otherwise the query would stop silently
                self._old_seen_at = None
                self.is_drained = self.flows = False
                if not isinstance(error, NsqError) or not error.retriable:
                    self.fatal = error
                    return
                failures += 1
                if self.trouble is None:
                    self.troubled_since = time.monotonic()
                    logger.warning("topic %r: nsqd %s: reconnecting after %s", self.topic, self.node.address, error)
                self.trouble = error
                self._over.wait(delay_after(_RECONNECT, failures, random.random))
            finally:
                subscription.close()

    def _pull(self, subscription: BlockingSubscription) -> None:
        heard_at = time.monotonic()
        while not self._over.is_set():
            self._follow(subscription)
            messages, heard = self._gathered(subscription)
            if messages:
                self._spool.append(messages)
                subscription.finish_all(messages)
                if self._older_than is None or any(message.timestamp_ns < self._older_than for message in messages):
                    self._old_seen_at = time.monotonic()
                self.newest_ns = max(self.newest_ns, *[message.timestamp_ns for message in messages])
            now = time.monotonic()
            heard_at = now if heard else heard_at
            if now - heard_at >= _SILENCE:
                raise ConnectionLostError(f"nsqd {self.node.address} sent no heartbeat for {_SILENCE:g} s")

    def _gathered(self, subscription: BlockingSubscription) -> tuple[list[Message], bool]:
        """Return the messages of the next file, and whether the server sent anything."""
        gathered: list[Message] = []
        most, most_bytes = self._file_limits(subscription)
        heard, size = False, 0
        until = time.monotonic() + _GATHER
        while not (is_full := len(gathered) >= most or size >= most_bytes):
            try:
                # A message that timed out will be redelivered: at least once allows that.
                messages = subscription.receive(until)
            except ResponseTimeoutError:
                break
            heard = True
            if messages and not gathered:
                until = time.monotonic() + _GATHER
            gathered += messages
            size += sum(len(message.body) for message in messages)
        self.flows = is_full or (self.flows and not (subscription.ready or self.is_drained))
        ends = list(itertools.accumulate(len(message.body) for message in gathered[:most]))
        count = max(1, bisect.bisect_right(ends, most_bytes))
        subscription.connection.early = gathered[count:]
        return gathered[:count], heard

    def _file_limits(self, subscription: BlockingSubscription) -> tuple[int, int]:
        """Return how many messages and bytes a file has at most; full ones fill a limited micro-batch exactly."""
        options, ready = self._options, subscription.max_ready
        # The server sends the other half meanwhile.
        rows = max(1, (subscription.ready or ready) // 2)
        rows = _even(options.max_offsets_per_trigger or rows, rows)
        size = min(options.max_bytes_per_trigger or FILE_BYTES, options.max_spool_bytes)
        return rows, _even(size, FILE_BYTES)

    def _follow(self, subscription: BlockingSubscription) -> None:
        """Set RDY by the size of the messages, and to 0 while the spool is full."""
        drained = self.is_drained
        wanted = subscription.wanted if not drained and self._may_pull() else 0
        if not drained and (wanted == 0 or self._old_seen_at is None):
            # Silence counts only while the server may send.
            self._old_seen_at = time.monotonic()
        subscription.follow(wanted)


def _even(whole: int, most: int) -> int:
    """Return the size of the fewest equal pieces of ``whole`` that have at most ``most`` each."""
    return whole // -(-whole // most)


DrainVerdict = Literal["wait", "done", "stuck"]
"""Whether a server may still deliver a message from before the query."""


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
        return "wait"
    if counts is None:
        return "done" if seconds >= limit else "wait"
    is_empty = not (counts.waiting or counts.held)
    # A second connection may be our own broken one, which still holds old messages.
    if not counts.orphaned and (is_empty or (caught_up and counts.clients == 1)):
        return "done"
    if seconds < limit:
        return "wait"
    return "done" if flows and not counts.orphaned else "stuck"


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
        if verdict == "stuck":
            held = counts or Unfinished(0, 0, 0, 0, paused=False)
            raise ResponseTimeoutError(
                f"topic {puller.topic!r}, channel {puller.channel!r}: nsqd {puller.node.address} delivers nothing, but "
                f"holds {held.waiting} messages, and {held.held + held.orphaned} are in flight to other clients"
                f"{'; the channel is paused' if held.paused else ''}. "
                "Resume the channel or stop its other clients, and start the query again"
            )
        if verdict == "done" and puller.quiet_for >= seconds:
            puller.is_drained = True
            return True
        return False

    def _ask(self, question: Callable[[], T | None]) -> T | None:
        """Ask the nsqd; return None if it does not answer or is another one."""
        try:
            if self._may_ask and not self._is_known:
                self._may_ask = self._is_known = self._cluster.tcp_port(self._node) == self._node.tcp_port
            return question() if self._may_ask else None
        except NsqError as error:
            logger.info("nsqd %s did not return the counts of the channel: %s", self._node.address, error)
            return None
