"""Read ranges to their proven end, in a task or in the driver, even if connections fail and leaders move.

After a failure, :class:`RangeReader` opens another connection at the position reached, to
the current leader: a channel, or with ``fetch=bulk`` one that copies the log. ``chain`` decides
which messages of a channel are accepted. :class:`Replay` is such a channel. A FIN in it only means
"send more", since the channel belongs to its reader and vanishes with it: so each accepted message
is finished immediately. :class:`DriverRead` reads small micro-batches where they
are planned, so that their rows go to Spark with the plan: starting a Python task costs Spark more
than reading some messages.

The invariants: a reader yields exactly the chain from start to end, each message once,
and ends without an error only if that is complete or data loss is allowed. The driver
returns rows only if the chain rule proved them complete; what it cannot read immediately,
tasks read with all their patience. So the driver never decides about data loss.

**Source:** Spark design 1.2, 1.3, 1.4, 1.5, 2.1; server protocol 3, 5, 7.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import DataLossError, NsqError, ResponseTimeoutError, TransportError
from nsq_ha.message import Message
from nsq_ha.options.types import Backoff
from nsq_ha.policy.timing import delay_after
from nsq_ha.protocol import SubAdvanced, SubOrdered, layout_for
from nsq_ha.spark import logger
from nsq_ha.spark.cluster import BlockingCluster, Extent, temporary_channel, worker_cluster
from nsq_ha.spark.connection import BlockingSubscription, ConnectionExpiredError
from nsq_ha.spark.plan.boundaries import NotReadableError, PartitionLog, no_progress
from nsq_ha.spark.read.bulk.cutting import StoredMessages
from nsq_ha.spark.read.bulk.reader import BulkCopy, BulkUnavailableError
from nsq_ha.spark.read.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.plan.batch_planner import Range
    from nsq_ha.spark.read.columns import Projection


Rows = list[Message] | StoredMessages
"""Rows of one partition, in the order of the log."""

BATCH_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the log after which rows are yielded, so that large messages do not fill memory."""

MOST_RANGES: Final = 8
"""Number of ranges that the driver reads in turn, some milliseconds each; tasks read more of them in parallel."""

UNGATHERED_BYTES: Final = 32 * 1024
"""Up to this size of the range nsqd sends each message immediately: gathering would take longer than the range."""

PAUSE: Final = 30.0
"""Seconds for which tasks read all micro-batches after the driver failed to read one."""

DRIVER_PATIENCE: Final = 1.0
"""Seconds without progress after which the driver leaves a micro-batch to tasks."""

_REOPEN: Final = Backoff(initial=0.1, maximum=1.0, factor=2.0, jitter=0.3)


def read_ranges(ranges: Sequence[Range], options: ReadOptions, projection: Projection) -> Iterator[Any]:
    """Read the ranges of one task; yield Arrow record batches.

    Args:
        ranges: The ranges, one after the other.
        options: Options of the read.
        projection: The columns to build.

    Raises:
        NsqError: See :meth:`RangeReader.batches`. Spark runs the task again if it is set to.
    """
    with worker_cluster(options.lookupd) as cluster:
        for part in ranges:
            for rows in RangeReader(part, options, cluster).batches():
                yield projection.batch(rows)


class DriverRead:
    """Reads small micro-batches of one query in the driver. Blocking; used from one thread.

    Args:
        options: Options of the read.
        projection: The columns to build.
    """

    def __init__(self, options: ReadOptions, projection: Projection) -> None:
        # The driver never counts a message as lost: only tasks wait long enough to decide that.
        patience = min(options.fetch_timeout, DRIVER_PATIENCE)
        self._options = dataclasses.replace(
            options, fail_on_data_loss=True, fetch="subscribe", fetch_timeout=patience, fetch_retries=0
        )
        self._is_split = options.min_partitions is not None or options.max_records_per_partition is not None
        self._projection = projection
        self._not_before = 0.0

    def wants(self, ranges: Sequence[Range]) -> bool:
        """Return whether to read a micro-batch in the driver; never if the user sets a number of tasks."""
        size = sum(part.end - part.start for part in ranges)
        small = 0 < len(ranges) <= MOST_RANGES and size <= self._options.driver_bytes
        return small and not self._is_split and time.monotonic() >= self._not_before

    def rows(self, ranges: Sequence[Range], cluster: BlockingCluster) -> list[Any] | None:
        """Read ranges, one after the other.

        Returns:
            Arrow record batches with all their messages, or None if that failed.
        """
        try:
            return [
                self._projection.batch(rows)
                for part in ranges
                for rows in RangeReader(part, self._options, cluster).batches()
            ]
        except NsqError as error:
            logger.info("the driver could not read a micro-batch, tasks read it: %s", error)
            self._not_before = time.monotonic() + PAUSE
            return None


class RangeReader:
    """Reads one range, blocking.

    Args:
        asked: The range.
        options: Options of the read: its timeouts, and whether data may be lost.
        cluster: Used for lookups and channels; the caller closes it.

    Attributes:
        opened: Number of connections so far; more than one after a failure.
    """

    def __init__(self, asked: Range, options: ReadOptions, cluster: BlockingCluster) -> None:
        self.opened: int = 0
        self._copies = options.fetch == "bulk"
        self._asked = asked
        self._node = asked.leader
        self._is_doubtful = False
        self._options = options
        self._cluster = cluster
        self._chain = Chain(asked.start, asked.end, asked.partition)
        self._rows: list[Message] = []
        self._progress_at = 0.0
        self._progress_to = asked.start
        self._yielded_to = asked.start
        self._failures = 0

    def batches(self) -> Iterator[Rows]:
        """Yield the messages of the range in order, some thousands at a time.

        The caller may take any time between two batches: a connection that the
        server has closed meanwhile is replaced.

        Raises:
            DataLossError: The log does not hold the range, and ``failOnDataLoss`` is true.
            NsqError: No progress for ``fetchTimeout`` times (``fetchRetries`` + 1);
                the last failure is the cause.
        """
        self._progress_at = time.monotonic()
        while not self._chain.is_complete:
            try:
                node = self._leader()
                self.opened += 1
                copies = self._copies and node.address not in self._cluster.uncopied
                yield from self._copied(node) if copies else self._subscribed(node)
            except DataLossError as error:
                self._lose(str(error), self._chain.end)
            except ConnectionExpiredError as error:
                # Go on at once, unless nothing arrived for too long.
                if self._has_progressed() or time.monotonic() - self._progress_at < self._options.fetch_timeout:
                    logger.debug("%s: opening another channel after %s", self._where, error)
                else:
                    self._failed(ResponseTimeoutError(str(error)))
            except NsqError as error:
                if not error.retriable:
                    raise
                self._failed(error)
        if self._rows:
            yield self._taken()

    def _copied(self, node: Node) -> Iterator[Rows]:
        """Copy the log; if that is not possible, leave the rest of the range to a subscription."""
        chain, asked = self._chain, dataclasses.replace(self._asked, start=self._chain.position)
        try:
            for messages in BulkCopy(asked, node, self._cluster, self._options).messages():
                chain.position = self._yielded_to = messages.end
                yield messages
                self._has_progressed()
        except BulkUnavailableError as error:
            self._copies = False
            self._progress_at = time.monotonic()
            if error.is_general:
                # Once for all tasks of this process: to find out again may take seconds each time.
                self._cluster.uncopied.add(node.address)
                text = "fetch=bulk is not possible, so subscriptions read the logs of nsqd %s: %s: %s"
                logger.warning(text, node.address, self._where, error)
            else:
                logger.info("a subscription reads the rest of a range: %s: %s", self._where, error)

    def _subscribed(self, node: Node) -> Iterator[Rows]:
        """Read through a channel until the range is complete or the channel fails; then close it."""
        chain, patience = self._chain, self._options.fetch_timeout
        with contextlib.closing(Replay(self._asked, node, self._cluster, self._options)) as replay:
            chain.reopened()
            replay.open(chain.position)
            until = time.monotonic() + patience
            while not chain.is_complete:
                finish = chain.take(replay.receive(until), self._rows)
                # A complete range needs nothing more: the channel vanishes with its connection.
                if finish and not chain.is_complete:
                    replay.finish_all(finish)
                if not self._has_progressed():
                    continue
                if (
                    len(self._rows) >= self._options.arrow_batch_rows
                    or chain.position - self._yielded_to >= BATCH_BYTES
                ):
                    yield self._taken()
                    # The time that the caller took does not count against the server.
                    self._progress_at = time.monotonic()
                until = self._progress_at + patience

    def _leader(self) -> Node:
        """Return the planned leader, and after a failure the current one, as far as an nsqlookupd answers."""
        if self._node is None or self._is_doubtful:
            self._node, meta = self._cluster.leader(self._asked.topic, self._asked.partition, self._node)
            self._is_doubtful = False
            if meta is not None:
                self._asked = dataclasses.replace(self._asked, ordered=meta.ordered, extended=meta.extend_support)
        return self._node

    def _taken(self) -> list[Message]:
        rows, self._rows, self._yielded_to = self._rows, [], self._chain.position
        return rows

    def _has_progressed(self) -> bool:
        """Record progress since the last call; return whether there was any."""
        if self._chain.position == self._progress_to:
            return False
        self._progress_to = self._chain.position
        self._progress_at = time.monotonic()
        self._failures = 0
        return True

    def _failed(self, error: NsqError) -> None:
        """Decide whether to continue, and wait a little."""
        self._has_progressed()
        self._failures += 1
        self._is_doubtful = True
        limit = self._options.patience
        spent = time.monotonic() - self._progress_at >= limit
        # An open channel without messages: the log may have changed since the range was planned.
        stalled = isinstance(error, ResponseTimeoutError)
        loss = self._loss(final=spent) if spent or stalled else None
        if loss is not None:
            self._lose(*loss)
            return
        if spent:
            raise no_progress(self._where, limit, error) from error
        logger.info("%s: opening another channel after %s", self._where, error)
        if not stalled:
            time.sleep(delay_after(_REOPEN, self._failures, random.random))

    def _loss(self, *, final: bool) -> tuple[str, int] | None:
        """Compare the range with the leader's log.

        Args:
            final: Whether the patience is over, so that messages that may only be late count as lost.

        Returns:
            What is lost and where reading could continue. None if nothing is known to be lost.
        """
        position, end = self._chain.position, self._chain.end
        try:
            leader = self._leader()
            extent = self._cluster.extents(self._asked.topic, leader).get(self._asked.partition)
            if extent is None:
                return None
            following = self._boundary(leader, extent)
        except NsqError:
            return None
        if position < extent.start:
            return f"the log now begins at {extent.start}, older messages are deleted", min(extent.start, end)
        if final and extent.end < end:
            return f"the log ends at {extent.end}: its tail was never committed, or the topic was re-created", end
        if final and following is None:
            following = self._chain.next_stashed
        if following is not None and following != position:
            return f"no message begins there, the next one is at {following}", min(following, end)
        return None

    def _boundary(self, leader: Node, extent: Extent) -> int | None:
        """Return where the next message begins. None if it is not in the log, or cannot be read yet."""
        position = self._chain.position
        if not extent.start <= position < extent.end:
            return None
        asked, options = self._asked, self._options
        current = PartitionLog(
            asked.topic, asked.partition, leader, extent, self._cluster, options.patience, options.channel_prefix
        )
        with contextlib.suppress(NotReadableError):
            found = current.boundary(position)
            return extent.end if found is None else found
        return None

    def _lose(self, loss: str, following: int) -> None:
        """Raise, or continue at ``following`` if data loss is allowed."""
        text = f"{self._where}: {loss}"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}; set failOnDataLoss=false to read what is left")
        logger.warning("%s; skipping %d bytes of the log", text, following - self._chain.position)
        self._yielded_to += following - self._chain.position
        self._chain = Chain(following, self._chain.end, self._chain.partition)

    @property
    def _where(self) -> str:
        return f"{self._asked.name} at offset {self._chain.position}"


class Replay(BlockingSubscription):
    """A subscription to one range, from ``position`` on: :meth:`open` connects, :meth:`close` ends it.

    Args:
        asked: The range.
        node: The leader of its partition.
        cluster: Used to create and delete channels; the caller closes it.
        options: Options of the read.
    """

    def __init__(self, asked: Range, node: Node, cluster: BlockingCluster, options: ReadOptions) -> None:
        self._is_own = options.channel is None
        gathers = asked.end - asked.start > UNGATHERED_BYTES
        self._key = asked.topic, asked.partition, node, options.channel_prefix
        channel = options.channel or cluster.unanswered.pop(self._key, None)
        place = asked.topic, channel or temporary_channel(options.channel_prefix), asked.partition
        super().__init__(node, options.connection, place, extended=asked.extended, gathers=gathers)
        self._asked = asked
        self._node = node
        self._cluster = cluster
        self._options = options

    def open(self, position: int) -> None:
        """Create the channel at ``position``, connect and subscribe.

        Raises:
            TransportError: Connecting failed, or no answer came in time.
            ServerError: The server refused; ``retriable`` says whether another leader may accept.
            RemoteProtocolError: The server's answers violate the protocol.
        """
        is_made = False
        try:
            # Creating an existing channel changes nothing, so this also works for a registered one.
            self._cluster.open_channel(self.topic, self.partition, self._node, self.channel, position)
            is_made = True
            # Without a start position: with one, the server ignores the partition.
            kind = SubOrdered if self._asked.ordered else SubAdvanced
            layout = layout_for(detail=True, ext=self._asked.extended)
            self.subscribe(kind(self.topic, self.channel, self.partition), layout, self._options.rdy)
            self.set_ready(self.wanted)
        except BaseException as error:
            self.close()
            if self._is_own:
                self._cluster.unanswered[self._key] = self.channel
                # An ephemeral channel vanishes only when its last client leaves, and this one had none. If the server
                # does not answer, deleting it would time out as well.
                if is_made or not isinstance(error, TransportError):
                    with contextlib.suppress(NsqError):
                        self._cluster.delete_channel(self.topic, self.partition, self._node, self.channel)
                        del self._cluster.unanswered[self._key]
            raise

    def receive(self, until: float) -> list[Message]:
        """Wait for messages as :class:`BlockingSubscription` does, and let RDY follow their size."""
        arrived = super().receive(until)
        self.follow(self.wanted)
        return arrived
