"""Find message boundaries in one partition's log: by offset, time, number of messages or bytes.

All offsets of a plan are found here or are a bound of the log. :class:`Unread`
divides the limits of a micro-batch between partitions.

The leader reports the end of a log at once, but finds the newest messages only seconds
later, when it has flushed them. Creating a channel makes it flush; a topic that
accepts only registered channels takes its time. Until then a boundary among such
messages is *not readable yet*: never replace it by another boundary or by the end of
the the log. Callers that can wait use :meth:`PartitionLog.patiently`.

**Source:** Spark design 1.1, 2.1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from nsq_ha.errors import DataLossError, NsqError, ResponseTimeoutError
from nsq_ha.options.checks import MAX_INT64

if TYPE_CHECKING:
    from nsq_ha.admin.nsqd_http import Search, StoredMessage
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.checkpoint import TopicPartition
    from nsq_ha.spark.cluster import BlockingCluster, Extent
    from nsq_ha.spark.options import ReadOptions

K = TypeVar("K")
T = TypeVar("T")

PAUSE: Final = 0.2
"""Seconds between two requests while something is missing."""

_NS_OF_MS: Final = 1_000_000


class NotReadableError(ResponseTimeoutError):
    """A message of the log cannot be read yet, since it is not committed or flushed; try again later."""


def retried(
    question: Callable[[], T],
    until: float,
    *,
    final: type[NsqError] | tuple[()] = (),
    meanwhile: Callable[[], object] = lambda: None,
    late: tuple[str, float] | None = None,
) -> T:
    """Ask until there is an answer.

    Args:
        question: Asks once.
        until: ``time.monotonic()`` at which to give up.
        final: An error after which to give up at once, as after those that retries cannot fix.
        meanwhile: Called before each further attempt.
        late: The arguments of :func:`no_progress`, whose error to raise after ``until``. None for the last error.

    Raises:
        NsqError: The last error.
    """
    while True:
        try:
            return question()
        except NsqError as error:
            is_over = time.monotonic() >= until
            if is_over and error.retriable and late is not None:
                raise no_progress(*late, error) from error
            if is_over or not error.retriable or isinstance(error, final):
                raise
        time.sleep(PAUSE)
        meanwhile()


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's log, as its leader reports it; finds boundaries in it. All offsets are bytes.

    A method that finds nothing raises :class:`NotReadableError` if the boundary is in
    the log but cannot be read yet, and another :class:`NsqError` if the leader gave no
    usable answer. :meth:`patiently` waits until both conditions end.

    Attributes:
        topic: The topic.
        partition: The partition.
        node: Its leader.
        extent: The extent of the log.
        cluster: The cluster to ask.
        patience: Seconds that :meth:`patiently` waits.
        prefix: Prefix of the names of temporary channels.
        seen_at: ``time.monotonic()`` when the leader reported it.
    """

    topic: str
    partition: int
    node: Node
    extent: Extent
    cluster: BlockingCluster
    patience: float
    prefix: str
    seen_at: float = 0.0

    @property
    def place(self) -> TopicPartition:
        """The topic and the number of the partition."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """The partition, for error messages."""
        return f"{self.topic}-{self.partition}"

    def patiently(self, question: Callable[[PartitionLog], T], until: float | None = None) -> T:
        """Ask until there is an answer; keep the extent, but look up the leader again.

        Args:
            question: Called with this log on the current leader.
            until: ``time.monotonic()`` at which to give up. None for after ``patience``.

        Raises:
            ResponseTimeoutError: There was no answer until then; the last error is the cause.
            NsqError: An error that retries cannot fix.
        """
        log = self

        def follow_the_leader() -> None:
            nonlocal log
            with contextlib.suppress(NsqError):
                leader = self.cluster.view(self.topic).leaders.get(self.partition)
                log = log if leader is None else dataclasses.replace(log, node=leader)

        if until is None:
            until = time.monotonic() + self.patience
        return retried(lambda: question(log), until, meanwhile=follow_the_leader, late=(self.name, self.patience))

    def boundary(self, offset: int) -> int | None:
        """Return where the first message at or after ``offset`` begins, or where the log ends.

        Returns:
            None if ``offset`` lies inside the last message.
        """
        if offset <= self.extent.start:
            return self.extent.start
        if offset >= self.extent.end:
            return self.extent.end
        found = self.first_at(offset)
        return None if found is None else found.offset

    def first_at(self, offset: int) -> StoredMessage | None:
        """Return the first message at or after ``offset``, or None if there is none."""
        if offset >= self.extent.end:
            return None
        for is_flushed in (False, True):
            found = self._find("virtual_offset", offset)
            if found is not None:
                return found if found.offset < self.extent.end else None
            # The server gives the same answer for an offset inside the last message, where nothing follows.
            last = self._find("count", self.extent.messages)
            if last is not None and last.offset < offset:
                return None
            if not is_flushed:
                self._flush()
        raise self._not_readable(f"the message at or after offset {offset}")

    def boundary_at(self, offset: int) -> StoredMessage | None:
        """Return the message that begins at ``offset``, or None if it is deleted, or the log ends there.

        Raises:
            DataLossError: No message begins there.
        """
        if not self.extent.start <= offset < self.extent.end:
            return None
        found = self.first_at(offset)
        if found is None or found.offset > offset:
            following = self.extent.end if found is None else found.offset
            raise DataLossError(f"no message begins at the offset {offset}, the next one begins at {following}")
        return found

    def before(self, offset: int) -> StoredMessage | None:
        """Return the last kept message before ``offset``, or None if there is none."""
        if offset <= self.extent.start:
            return None
        first = self.first_at(offset)
        return self._numbered(self.extent.messages if first is None else first.number - 1)

    def oldest(self) -> StoredMessage | None:
        """Return the oldest kept message, or None if none can be read yet."""
        return self._find("virtual_offset", self.extent.start)

    def rows_behind(self, offset: int) -> int:
        """Return how many messages begin at or after ``offset``, as far as the leader counts them."""
        first = self.first_at(offset)
        return 0 if first is None else max(0, self.extent.messages - first.number + 1)

    def after_rows(self, start: int, rows: int) -> int:
        """Return the boundary ``rows`` messages after ``start``, or the log's end."""
        if rows <= 0:
            return start
        first = self.first_at(start)
        if first is None or self.extent.messages - first.number + 1 <= rows:
            return self.extent.end
        return min(self._numbered(first.number + rows).offset, self.extent.end)

    def after_bytes(self, start: int, count: int) -> int:
        """Return the first boundary at least ``count`` bytes after ``start``, so that at least one message fits."""
        if count <= 0:
            return start
        found = self.first_at(start + count)
        return self.extent.end if found is None else found.offset

    def time_of(self, offset: int) -> int:
        """Return the time of the first message at or after ``offset``, in milliseconds; a late one if there is none."""
        first = self.first_at(offset)
        return MAX_INT64 if first is None else first.timestamp_ns // _NS_OF_MS

    def after_time(self, start: int, milliseconds: int) -> int:
        """Return where the older messages end that begin at ``start``: perhaps at the log's end."""
        last = self._find("count", self.extent.messages)
        is_all = last is not None and last.timestamp_ns < milliseconds * _NS_OF_MS  # as once a query has caught up
        found = None if is_all else self.at_time(milliseconds, start)
        return self.extent.end if found is None else found

    def at_time(self, milliseconds: int, start: int = 0) -> int | None:
        """Return where the first message at or after ``start`` begins that is not older, or None if all are older."""
        wanted = milliseconds * _NS_OF_MS
        low, high = max(start, self.extent.start), self.extent.end
        answer: int | None = None
        while low < high:
            middle = (low + high) // 2
            found = self.first_at(middle)
            if found is None or found.timestamp_ns >= wanted:
                answer = answer if found is None else found.offset
                high = middle
            else:
                low = found.offset + 1
        return answer

    def cuts(self, start: int, end: int, pieces: int, rows: int | None) -> list[int]:
        """Return boundaries inside ``(start, end)`` that cut it into about ``pieces``, or by ``rows`` messages."""
        found: set[int] = set()
        for number in range(1, pieces):
            stored = self.first_at(start + (end - start) * number // pieces)
            if stored is not None:
                found.add(stored.offset)
        if rows is not None and (first := self.first_at(start)) is not None:
            for number in range(first.number + rows, self.extent.messages + 1, rows):
                if (offset := self._numbered(number).offset) >= end:
                    break
                found.add(offset)
        return sorted(cut for cut in found if start < cut < end)

    def _numbered(self, number: int) -> StoredMessage:
        found = self._find("count", number)
        if found is None:
            self._flush()
            found = self._find("count", number)
        if found is None:
            raise self._not_readable(f"message number {number}")
        return found

    def _flush(self) -> None:
        self.cluster.flush(self.topic, self.partition, self.node, self.prefix)

    def _find(self, mode: Search, position: int) -> StoredMessage | None:
        return self.cluster.stored(self.topic, self.partition, self.node, mode, position)

    def _not_readable(self, what: str) -> NotReadableError:
        return NotReadableError(
            f"{self.name}: {what} is not readable yet at nsqd {self.node.address}, "
            f"though the log ends at offset {self.extent.end}"
        )


@dataclass(slots=True)
class Unread:
    """The unread messages of partitions with new ones, and the part of them that a micro-batch takes.

    A partition whose leader does not know the boundary yet is *held*; it does not stop
    the others.

    Attributes:
        options: Options of the read.
        logs: The partitions; the micro-batch ends at the end of each extent at the latest.
        starts: Offsets at which the micro-batch starts.
        held: Partitions that have no end yet, and why.
    """

    options: ReadOptions
    logs: Mapping[TopicPartition, PartitionLog]
    starts: Mapping[TopicPartition, int]
    held: dict[TopicPartition, NsqError] = field(default_factory=dict)

    def is_too_little(self) -> bool:
        """Return whether fewer messages than ``minOffsetsPerTrigger`` wait; uncountable ones do not count."""
        least = self.options.min_offsets_per_trigger
        return least is not None and sum(self._rows().values()) < least

    def ends(self) -> dict[TopicPartition, int]:
        """Return the ends of the micro-batch within the limits, without held partitions."""
        ends = {place: each.extent.end for place, each in self.logs.items() if place not in self.held}

        def cut(parts: Mapping[TopicPartition, int], question: Callable[[PartitionLog, int, int], int]) -> None:
            for place, end in self._each(parts, question).items():
                ends[place] = min(ends[place], end)

        if (seconds := self.options.max_time_per_trigger) is not None:
            times = self._each(dict.fromkeys(ends, 0), lambda each, start, _: each.time_of(start))
            until = min(times.values(), default=0) + round(seconds * 1000)
            ends |= {place: self.starts[place] for place, at in times.items() if until <= at < MAX_INT64}
            older = dict.fromkeys((place for place, at in times.items() if at < until), until)
            cut(older, lambda each, start, before: each.after_time(start, before))
        if (rows := self.options.max_offsets_per_trigger) is not None:
            waiting = self._rows()
            parts = {place: share for place, share in shares(rows, waiting).items() if share < waiting[place]}
            cut(parts, lambda each, start, share: each.after_rows(start, share))
        if (count := self.options.max_bytes_per_trigger) is not None:
            # Apply it to the rest: separately, the limits might exclude different partitions and so all.
            sizes = {place: end - self.starts[place] for place, end in ends.items() if place not in self.held}
            parts = {place: share for place, share in shares(count, sizes).items() if share < sizes[place]}
            cut(parts, lambda each, start, share: each.after_bytes(start, share))
        return {place: end for place, end in ends.items() if place not in self.held}

    def _rows(self) -> dict[TopicPartition, int]:
        return self._each(dict.fromkeys(self.logs, 0), lambda each, start, _: each.rows_behind(start))

    def _each(
        self, parts: Mapping[TopicPartition, int], question: Callable[[PartitionLog, int, int], int]
    ) -> dict[TopicPartition, int]:
        """Ask for each partition; hold those without an answer."""
        found: dict[TopicPartition, int] = {}
        for place, part in parts.items():
            if place in self.held:
                continue
            try:
                found[place] = question(self.logs[place], self.starts[place], part)
            except NsqError as error:
                if not error.retriable:
                    raise
                self.held[place] = error
        return found


def no_progress(name: str, seconds: float, error: NsqError) -> ResponseTimeoutError:
    """Return the error for a partition without progress for as long as the options allow."""
    return ResponseTimeoutError(f"{name}: no progress for {seconds:g} s (fetchTimeout, fetchRetries): {error}")


def shares(limit: int, backlogs: Mapping[K, int]) -> dict[K, int]:
    """Divide ``limit`` in proportion to the backlogs, as Spark's Kafka connector does; each one gets at least 1.

    The sum is at most ``limit``, or what the shares below 1 add to it. If all backlogs fit, each one is its share.
    """
    total = sum(backlogs.values())
    if total <= limit:
        return dict(backlogs)
    return {key: max(1, limit * backlog // total) if backlog else 0 for key, backlog in backlogs.items()}
