"""Publish the rows of one task: MPUBs by partition, one in flight on each connection, with retries.

Each partition's MPUBs are stored in order: the next one is sent only after the previous
one was acknowledged. An MPUB that was sent but not answered, or refused late, is in doubt: it is
sent again, may then be stored twice, and is counted as doubtful. ``row_converter`` decides which row
goes where.

**Source:** Spark design 2.3; server protocol 6.
"""

from __future__ import annotations

import itertools
import operator
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.redaction import excerpt
from nsq_ha.errors import NsqError, PublishError, RemoteProtocolError, ServerError
from nsq_ha.options.types import Backoff
from nsq_ha.policy.liveness import PROMPT_REFUSAL
from nsq_ha.policy.timing import delay_after
from nsq_ha.protocol import decode_traced
from nsq_ha.protocol.encoding import encode_mpub, encode_mpub_ext, encode_mpub_trace
from nsq_ha.protocol.frames import OK
from nsq_ha.protocol.messages import check_traced, traced_size
from nsq_ha.spark.connection import BlockingConnection

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import BlockingCluster
    from nsq_ha.spark.options import WriteOptions
    from nsq_ha.spark.write.row_converter import OutgoingRow, RowConverter

_ROOM: Final = 16  # maximum bytes of a message in an MPUB besides body and header
_PLACE: Final = operator.itemgetter(0, 1)
_ANSWER_TIMEOUT: Final = 10.0
_IDLE: Final = 5.0  # seconds without a publish in which nsqd ends no connection
_RETRY: Final = Backoff(initial=0.05, maximum=1.0, factor=2.0, jitter=0.3)


@dataclass(frozen=True, slots=True)
class EncodedMpub:
    """One encoded MPUB.

    Attributes:
        command: The bytes to send.
        rows: Number of messages.
        size: Bytes of their bodies.
        traced: Whether it is an ``MPUB_TRACE``, whose answer says where it is stored.
    """

    command: bytes
    rows: int
    size: int
    traced: bool = False


def encode(topic: str, partition: int, rows: Sequence[OutgoingRow], *, extended: bool, traced: bool) -> EncodedMpub:
    """Return the MPUB of rows of one partition.

    Raises:
        ConfigError: A message is larger than the server accepts.
    """
    if extended:
        command = encode_mpub_ext(topic, partition, [(row.ext, row.body) for row in rows])
    elif traced:
        command = encode_mpub_trace(topic, partition, [(row.trace_id, row.body) for row in rows])
    else:
        command = encode_mpub(topic, partition, [row.body for row in rows])
    return EncodedMpub(command, len(rows), sum(len(row.body) for row in rows), traced=traced and not extended)


@dataclass(slots=True)
class PartitionWritten:
    """The acknowledged messages of one task and partition.

    Attributes:
        rows: Number of messages.
        size: Bytes of their bodies.
        doubtful: Number of messages that were sent again, though the first attempt may have stored them.
    """

    rows: int = 0
    size: int = 0
    doubtful: int = 0


class PartitionWriter:
    """Publishes to one partition, blocking.

    Args:
        topic: The topic.
        partition: The partition.
        options: Options of the write.
        cluster: Used for lookups; the caller closes it.
        leader: The leader at the time of the plan. None if it is not known.

    Attributes:
        written: The messages acknowledged so far.
    """

    def __init__(
        self, topic: str, partition: int, options: WriteOptions, cluster: BlockingCluster, leader: Node | None = None
    ) -> None:
        self.written: PartitionWritten = PartitionWritten()
        self._leader = leader
        self._is_doubtful = leader is None
        self._topic = topic
        self._partition = partition
        self._options = options
        self._cluster = cluster
        self._connection: BlockingConnection | None = None
        self._pending: EncodedMpub | None = None
        self._failure: NsqError | None = None
        self._sent_at = 0.0

    def send(self, batch: EncodedMpub) -> None:
        """Wait until the previous batch is acknowledged, then send this one.

        Raises:
            PublishError: The previous batch could not be stored within ``publishTimeout``.
            ServerError: The server refuses it permanently.
        """
        self.settle()
        self._pending = batch
        if self._connection is not None and (self._connection.is_late or time.monotonic() - self._sent_at >= _IDLE):
            # Over a connection that nsqd has ended meanwhile, this batch would be in doubt.
            self.close()
        if self._connection is not None:
            # settle() handles failures.
            try:
                self._transmit(self._connection, batch, time.monotonic() + self._options.publish_timeout)
            except NsqError as error:
                self._failure = error

    def settle(self) -> None:
        """Wait until the pending batch is acknowledged; raises as :meth:`send`."""
        batch = self._pending
        if batch is None:
            return
        until = time.monotonic() + self._options.publish_timeout
        attempts = doubtful = failures = 0
        while True:
            try:
                self._deliver(batch, until)
                break
            except NsqError as error:
                is_sent = self._connection is not None
                attempts += is_sent
                is_prompt = time.monotonic() - self._sent_at <= PROMPT_REFUSAL
                doubtful += is_sent and not (isinstance(error, ServerError) and is_prompt)
                self._give_up(error, until, attempts, in_doubt=doubtful > 0)
                failures += 1
                time.sleep(delay_after(_RETRY, failures, random.random))
        self._pending = None
        written = self.written
        written.rows += batch.rows
        written.size += batch.size
        written.doubtful += batch.rows * bool(doubtful)

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._failure = None

    def _deliver(self, batch: EncodedMpub, until: float) -> None:
        """Send the pending batch, unless :meth:`send` did, and wait for its answer.

        Raises:
            RemoteProtocolError: The answer belongs to another batch.
            NsqError: That failed; without a connection, the batch was not sent.
        """
        if self._failure is not None:
            raise self._failure
        if self._connection is None:
            self._connection = self._opened()
            self._transmit(self._connection, batch, until)
        answer = self._connection.answer(min(until, time.monotonic() + _ANSWER_TIMEOUT))
        if batch.traced:
            total = batch.size + batch.rows * traced_size(0)[0]
            sizes = total, total + batch.rows
            check_traced(decode_traced(answer), trace_id=0, partition=self._partition, sizes=sizes)
        elif answer != OK:
            raise RemoteProtocolError(f"nsqd answered MPUB with an unexpected response, not with OK: {excerpt(answer)}")

    def _give_up(self, error: NsqError, until: float, attempts: int, *, in_doubt: bool) -> None:
        """Close the connection; raise unless another attempt makes sense."""
        self.close()
        self._is_doubtful = True
        if not error.retriable:
            raise error
        if time.monotonic() >= until:
            raise PublishError(
                str(error), topic=self._topic, partition=self._partition, attempts=attempts, maybe_stored=in_doubt
            ) from error

    def _opened(self) -> BlockingConnection:
        """Return a new connection to the current leader."""
        if self._leader is None or self._is_doubtful:
            self._leader, _ = self._cluster.leader(self._topic, self._partition, self._leader)
            self._is_doubtful = False
        connection = BlockingConnection(self._leader, self._options.connection)
        try:
            connection.open()
        except NsqError:
            connection.close()
            raise
        return connection

    def _transmit(self, connection: BlockingConnection, batch: EncodedMpub, until: float) -> None:
        self._sent_at = time.monotonic()
        connection.protocol.expect_publish()
        connection.send(batch.command, until)


class TaskWriter:
    """Publishes the rows of one task: gathers them into MPUBs and sends each partition's MPUBs in order.

    Args:
        options: Options of the write.
        rows: Converts the rows.
        cluster: Used for lookups; the caller closes it.
    """

    def __init__(self, options: WriteOptions, rows: RowConverter, cluster: BlockingCluster) -> None:
        self._options = options
        self._rows = rows
        self._cluster = cluster
        self._writers: dict[tuple[str, int], PartitionWriter] = {}
        self._waiting: dict[tuple[str, int], list[OutgoingRow]] = {}
        self._sizes: dict[tuple[str, int], int] = {}

    def add(self, batch: Any) -> None:  # noqa: ANN401 - pyarrow has no types
        """Add the rows of a ``pyarrow.RecordBatch``; send each full MPUB, those of one partition as a whole.

        Raises:
            NsqError: See :meth:`PartitionWriter.send` and :meth:`RowConverter.messages`.
        """
        for place, run in itertools.groupby(self._rows.messages(batch), _PLACE):
            self._hold(place, run)

    def finish(self) -> Mapping[tuple[str, int], PartitionWritten]:
        """Send the remaining rows and wait for all answers."""
        for place in list(self._waiting):
            self._send(place)
        for writer in self._writers.values():
            writer.settle()
        return {place: writer.written for place, writer in self._writers.items()}

    def close(self) -> None:
        """Close all connections."""
        for writer in self._writers.values():
            writer.close()

    def _hold(self, place: tuple[str, int], rows: Iterable[OutgoingRow]) -> None:
        """Keep rows for the next MPUB; send each full one."""
        most, largest = self._options.batch_messages, self._options.batch_bytes
        held, filled = self._waiting.setdefault(place, []), self._sizes.get(place, 0)
        for row in rows:
            size = len(row[2]) + len(row[4]) + _ROOM
            if len(held) >= most or (held and filled + size > largest):
                self._send(place)
                held, filled = self._waiting[place], 0
            held.append(row)
            filled += size
        self._sizes[place] = filled

    def _send(self, place: tuple[str, int]) -> None:
        rows, self._waiting[place] = self._waiting[place], []
        if rows:
            extended = self._rows.targets[place[0]].extended
            self._writer(place).send(encode(*place, rows, extended=extended, traced=self._options.trace))

    def _writer(self, place: tuple[str, int]) -> PartitionWriter:
        writer = self._writers.get(place)
        if writer is None:
            leader = self._rows.targets[place[0]].leaders.get(place[1])
            writer = self._writers[place] = PartitionWriter(*place, self._options, self._cluster, leader)
        return writer
