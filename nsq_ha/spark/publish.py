"""Writing to one partition from a task: one connection, one MPUB in flight, retried truthfully.

Owns the order of batches to one partition: batch k + 1 is sent only after batch
k was acknowledged. Does not decide what goes where (``sink``).

What was sent and not answered is in doubt: it is sent again, may then be stored
twice, and is counted as such.

**Source:** Spark reference 2.3; protocol reference 6.
"""

from __future__ import annotations

import dataclasses
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nsq_ha.config import Backoff
from nsq_ha.errors import NoLeaderError, NsqError, PublishError, RemoteProtocolError, ServerError
from nsq_ha.policy.backoff import delay_after
from nsq_ha.protocol import OK, Traced, check_traced, decode_traced, traced_size
from nsq_ha.redaction import excerpt
from nsq_ha.spark.link import Link

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import Cluster
    from nsq_ha.spark.options import WriteOptions

_ANSWER_TIMEOUT: Final = 10.0
_RETRY: Final = Backoff(initial=0.05, maximum=1.0, factor=2.0, jitter=0.3)


@dataclass(frozen=True, slots=True)
class Batch:
    """One encoded MPUB.

    Attributes:
        command: Its bytes.
        rows: Messages in it.
        size: Bytes of their bodies.
        traced: It is an ``MPUB_TRACE``, whose answer names where it is stored.
    """

    command: bytes
    rows: int
    size: int
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """What one task wrote to one partition.

    Attributes:
        rows: Messages that were acknowledged.
        size: Bytes of their bodies.
        batches: MPUBs.
        doubtful: Messages that were sent again without knowing whether they had been stored.
        first_offset: Of the first message; None unless traced.
        last_offset: Behind the last message; None unless traced.
    """

    rows: int = 0
    size: int = 0
    batches: int = 0
    doubtful: int = 0
    first_offset: int | None = None
    last_offset: int | None = None


class PartitionWriter:
    """Writes to one partition, blocking.

    Args:
        topic: The topic.
        partition: The partition.
        options: Of the write.
        cluster: For look-ups; stays the caller's.

    Attributes:
        written: What was acknowledged so far.
    """

    def __init__(self, topic: str, partition: int, options: WriteOptions, cluster: Cluster) -> None:
        self.written = Written()
        self._topic = topic
        self._partition = partition
        self._options = options
        self._cluster = cluster
        self._link: Link | None = None
        self._pending: Batch | None = None
        self._failure: NsqError | None = None

    def send(self, batch: Batch) -> None:
        """Wait until the batch before is acknowledged, then send this one.

        Raises:
            PublishError: The batch before could not be stored within ``publishTimeout``.
            ServerError: The server refuses it for good.
        """
        self.settle()
        self._pending = batch
        if self._link is not None and self._link.is_late:
            self.close()  # another one is opened for this batch
        if self._link is not None:
            # A failure is dealt with when the answer is waited for.
            self._failure = self._try_to_send(self._link, batch)

    def settle(self) -> None:
        """Wait until the batch under way is acknowledged; errors as for :meth:`send`."""
        batch = self._pending
        if batch is None:
            return
        until = time.monotonic() + self._options.publish_timeout
        attempts = doubtful = 0
        while (answer := self._attempt(batch, until)) is None or isinstance(answer, NsqError):
            is_sent = self._link is not None
            attempts += is_sent
            if answer is not None:
                doubtful += is_sent and not isinstance(answer, ServerError)
                self._give_up(answer, until, attempts, in_doubt=doubtful > 0)
                time.sleep(delay_after(_RETRY, max(1, attempts), random.random))
            self._reopen(batch)
        self._pending = None
        self._count(batch, answer, doubtful)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._failure = None

    def _attempt(self, batch: Batch, until: float) -> Traced | bytes | NsqError | None:
        """Return the answer to what was sent, or what went wrong. None when nothing was tried yet."""
        if self._failure is not None or self._link is None:
            return self._failure
        try:
            answer = self._link.answer(min(until, time.monotonic() + _ANSWER_TIMEOUT))
            return self._checked(batch, answer)
        except NsqError as error:
            return error

    def _checked(self, batch: Batch, answer: bytes) -> Traced | bytes:
        """Return the answer after checking that it belongs to this batch.

        Raises:
            RemoteProtocolError: It belongs to another one.
        """
        if not batch.traced:
            if answer != OK:
                raise RemoteProtocolError(f"answer to MPUB is not OK but {excerpt(answer)}")
            return answer
        traced = decode_traced(answer)
        total = batch.size + batch.rows * traced_size(0)[0]
        check_traced(traced, trace_id=0, partition=self._partition, sizes=(total, total + batch.rows))
        return traced

    def _give_up(self, error: NsqError, until: float, attempts: int, *, in_doubt: bool) -> None:
        """Leave the connection, and raise unless another attempt makes sense."""
        self.close()
        if not error.retriable:
            raise error
        if time.monotonic() >= until:
            raise PublishError(
                str(error), topic=self._topic, partition=self._partition, attempts=attempts, maybe_stored=in_doubt
            ) from error

    def _reopen(self, batch: Batch) -> None:
        """Connect to whoever leads by now and send ``batch``; a failure is kept for the next attempt."""
        link: Link | None = None
        try:
            link = Link(self._leader(), self._options.access)
            link.open()
        except NsqError as error:
            if link is not None:
                link.close()
            if not error.retriable:
                raise
            self._failure = error
            return
        self._link = link
        self._failure = self._try_to_send(link, batch)

    def _leader(self) -> Node:
        view = self._cluster.view(self._topic)
        leader = view.leaders.get(self._partition)
        if leader is None:
            raise NoLeaderError(f"{self._topic}-{self._partition} has no leader {view.note}".rstrip())
        return leader

    @staticmethod
    def _try_to_send(link: Link, batch: Batch) -> NsqError | None:
        try:
            link.protocol.expect_publish()
            link.send(batch.command)
        except NsqError as error:
            return error
        return None

    def _count(self, batch: Batch, answer: Traced | bytes, doubtful: int) -> None:
        written = self.written
        first, last = written.first_offset, written.last_offset
        if isinstance(answer, Traced):
            first = answer.offset if first is None else first
            last = answer.offset + answer.raw_size
        self.written = dataclasses.replace(
            written,
            rows=written.rows + batch.rows,
            size=written.size + batch.size,
            batches=written.batches + 1,
            doubtful=written.doubtful + batch.rows * bool(doubtful),
            first_offset=first,
            last_offset=last,
        )
