"""Copy a range in bulk, as far as that is possible.

:class:`BulkCopy` asks the partition's leader for entries of the log, and proves the chain on whole arrays
(``cutting``). What it cannot do is left to a subscription (``range_reader``).

:class:`BulkLink` sends and receives; ``spark.pull.calls`` has the format. The port has neither TLS nor AUTH.

The call addresses entries by number, and knows no offsets. So :func:`find_entry` searches where to begin.

The invariants: messages leave in the order of the log, each once, and none is left out. Only those of a leader leave:
any replica answers, and another one may hold messages that were never committed. So after each answer the node must
confirm that it leads; a leader sends committed messages only.

**Source:** Spark design 5; youzan/nsq ``consistence/nsqd_coordinator.go`` ``pullCommitLogsAndData``;
``consistence/coordinator_rpc.go``; ``consistence/commitlog.go`` ``ConvertToOffsetIndex``: entries keep their numbers
when older ones are cleaned.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import pyarrow as pa

from nsq_ha.errors import NoLeaderError, NsqError, RemoteProtocolError, ResponseTimeoutError
from nsq_ha.policy.liveness import SLOW_LINK
from nsq_ha.spark.connection import Wire
from nsq_ha.spark.pull import calls, gob
from nsq_ha.spark.pull.calls import Pulled
from nsq_ha.spark.read.bulk.cutting import DamagedLogError, StoredMessages, cut
from nsq_ha.spark.read.bulk.entries import entries_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from nsq_ha.policy.topology import Node
    from nsq_ha.spark.cluster import BlockingCluster, Extent
    from nsq_ha.spark.options import ReadOptions
    from nsq_ha.spark.plan.batch_planner import Range

PULL_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the log to ask for at once; with entries of different sizes it may become more."""

HELD_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows that wait until the node confirms that it leads; and of a batch."""

LARGEST: Final = 2 * calls.MAX_BYTES
"""Bytes of a message that is received; the messages of an answer take half of them at most, its entries far less."""

_UNFLUSHED_PAUSE: Final = 0.05

_DISPATCHER: Final = "gorpc.Dispatcher"


Missing = Literal["cleaned", "later"]
"""Why an entry cannot be read: the log begins after it; or it does not exist or cannot be read yet."""

_MISSING: Final[Mapping[str, Missing]] = {
    "less than segment start": "cleaned",
    "has been cleaned": "cleaned",
    "out of bound": "later",
    "mismatch queue data end": "later",
    "overflowed the end": "later",
}
"""Parts of the server's errors about entries. It has codes only for others."""


class BulkUnavailableError(NsqError):
    """A subscription must read the rest of the range.

    Attributes:
        is_general: Whether that is so for other ranges of the node, too: the port is closed, or its answers are not
            understood.
    """

    def __init__(self, text: str, *, is_general: bool = False) -> None:
        super().__init__(text)
        self.is_general: bool = is_general


class BulkCopy:
    """Copies a range of the log through one connection, blocking.

    Args:
        asked: The range.
        node: The leader of its partition.
        cluster: Used to ask the leader; the caller closes it.
        options: Options of the read.
    """

    def __init__(self, asked: Range, node: Node, cluster: BlockingCluster, options: ReadOptions) -> None:
        self._asked = asked
        self._node = node
        self._cluster = cluster
        self._options = options
        self._name = f"{asked.topic}-{asked.partition}"
        self._progress_at = time.monotonic()

    def messages(self) -> Iterator[StoredMessages]:
        """Yield the messages of the range in order, at most ``arrowBatchRows`` at a time.

        The caller may take any time between two of them.

        Raises:
            BulkUnavailableError: A subscription must read the rest.
            NsqError: The connection failed, or the node does not lead.
        """
        address = copy_port(self._node)
        if address is None:
            text = f"no lookup names the port of nsqd {self._node.address} for copying"
            raise BulkUnavailableError(text, is_general=True)
        extent = self._extent()
        link = BulkLink(self._node, address)
        try:
            with contextlib.closing(link):
                link.connect()
                yield from self._pull(link, *self._find(link, extent))
        except DamagedLogError as error:
            raise BulkUnavailableError(str(error)) from error
        except RemoteProtocolError as error:
            text = f"the answer of nsqd {self._node.address} is not understood: {error}"
            raise BulkUnavailableError(text, is_general=True) from error
        except NsqError as error:
            if error.retriable and not link.answered:
                # If the node is gone, this fails, and the next connection goes to another leader.
                self._extent()
                raise BulkUnavailableError(str(error), is_general=True) from error
            if isinstance(error, ResponseTimeoutError):  # on a slow link, the same answer would come too late again
                raise BulkUnavailableError(str(error)) from error
            raise

    def _extent(self) -> Extent:
        """Return the extent of the log, if the node leads it.

        Raises:
            NoLeaderError: It does not lead the partition.
            NsqError: It does not answer.
        """
        extent = self._cluster.extents(self._asked.topic, self._node).get(self._asked.partition)
        if extent is None:
            raise NoLeaderError(f"nsqd {self._node.address} no longer leads {self._name}")
        return extent

    # ---------------------------------------------------------------- entries

    def _find(self, link: BulkLink, extent: Extent) -> tuple[int, int]:
        """Return the entry to begin with, as :func:`find_entry`."""

        def look(number: int) -> tuple[int, int] | Missing:
            link.ask(self._request(number, 1))
            answer = self._accepted(link.answer(self._options.fetch_timeout))
            if isinstance(answer, str):
                return answer
            entries = entries_of(answer)
            return (int(entries.offsets[0]), int(entries.sizes[0])) if len(entries.sizes) else "later"

        found = find_entry(self._asked.start, extent, look)
        if found is None:
            # Perhaps the messages before the position are not flushed.
            self._flush()
            found = find_entry(self._asked.start, extent, look)
        if found is None:
            raise BulkUnavailableError("the entries of the log do not contain it")
        return found

    def _request(self, number: int, count: int) -> calls.Pull:
        return calls.Pull(self._asked.topic, self._asked.partition, number, count)

    def _accepted(self, answer: Pulled | str) -> Pulled | Missing:
        """Return an answer, or why there is none.

        Raises:
            NoLeaderError: The node does not have the partition, or has other trouble.
            BulkUnavailableError: The server does not know the call.
        """
        if isinstance(answer, Pulled):
            return answer
        for part, missing in _MISSING.items():
            if part in answer:
                return missing
        text = f"nsqd {self._node.address} refused to send the log of {self._name}"
        if answer.startswith(_DISPATCHER):
            raise BulkUnavailableError(f"{text}: {answer}", is_general=True)
        raise NoLeaderError(f"{text}: {answer}")

    def _pull(self, link: BulkLink, number: int, size: int) -> Iterator[StoredMessages]:
        """Ask for entries from ``number`` on, of about this size, until the range is complete."""
        following, end = self._asked.start, self._asked.end
        held: list[StoredMessages] = []
        held_from = following
        count = self._count(size, end - following)
        link.ask(self._request(number, count))
        while following < end:
            answer = self._accepted(link.answer(self._options.fetch_timeout))
            got = cut(answer, self._asked) if isinstance(answer, Pulled) else None
            if got is None:
                yield from self._leave(held)
                held, held_from = [], following
                if answer == "cleaned":
                    raise BulkUnavailableError("the log was cleaned")
                if count == 1:
                    self._wait_for_more()
                # One of several entries may not be readable yet; then the server sends none.
                count = 1
                link.ask(self._request(number, count))
                continue
            messages, entries = got
            number += entries
            size = (messages.end - int(messages.offsets[0])) // entries
            rows = self._following(messages, following)
            following = rows.end
            if following < end:
                # The server works on the next answer, while this one becomes rows.
                count = self._count(size, end - following)
                link.ask(self._request(number, count))
            held.append(rows)
            if following == end or following - held_from >= HELD_BYTES:
                yield from self._leave(held)
                held, held_from = [], following

    def _count(self, size: int, left: int) -> int:
        """Return how many entries of about this size to ask for."""
        if not size:
            return 1
        return max(1, min(calls.MAX_ENTRIES, PULL_BYTES // size, left // size + left // size // 8 + 1))

    def _following(self, rows: StoredMessages, position: int) -> StoredMessages:
        """Return the rows from ``position`` on, up to the end of the range.

        Raises:
            DamagedLogError: No message begins at ``position``, or the end lies inside one.
        """
        first = int(np.searchsorted(rows.offsets, position))
        if first == len(rows) or int(rows.offsets[first]) != position:
            raise DamagedLogError(f"no message begins at offset {position}")
        part = rows.part(first, int(np.searchsorted(rows.offsets, self._asked.end)))
        if part.end > self._asked.end:
            raise DamagedLogError(f"the end {self._asked.end} lies inside a message")
        return part

    def _leave(self, held: list[StoredMessages]) -> Iterator[StoredMessages]:
        """Yield messages in batches, after the node has confirmed that it leads."""
        if not any(map(len, held)):
            return
        self._extent()
        for rows in held:
            first, count = 0, len(rows)
            most = -(-count // max(1, -(-count // self._options.arrow_batch_rows)))
            while first < count:
                last = int(np.searchsorted(rows.offsets, int(rows.offsets[first]) + HELD_BYTES))
                part = rows.part(first, max(first + 1, min(first + most, last)))
                first += len(part)
                yield part
                # The time that the caller took does not count against the server.
                self._progress_at = time.monotonic()

    def _wait_for_more(self) -> None:
        """Wait a little for messages that are acknowledged but not flushed."""
        self._extent()
        waited = time.monotonic() - self._progress_at
        if waited >= self._options.fetch_timeout:
            raise BulkUnavailableError(f"no more of the log was readable for {waited:.1f} s")
        self._flush()
        time.sleep(_UNFLUSHED_PAUSE)

    def _flush(self) -> None:
        self._cluster.flush(self._asked.topic, self._asked.partition, self._node, self._options.channel_prefix)


def find_entry(
    position: int, extent: Extent, look: Callable[[int], tuple[int, int] | Missing]
) -> tuple[int, int] | None:
    """Return the entry that contains ``position``, or the one that will begin there.

    The numbers double until one is too high, since a server logs a warning for each number beyond the end; then the
    rest is halved.

    Args:
        position: An offset inside the log.
        extent: The extent of the log.
        look: Reads offset and size of the entry with a number.

    Returns:
        Its number, and the bytes of an entry there or immediately before (0 if unknown), to guess how many to ask for.
        None if the entries do not contain it: they begin later, or there is a gap.
    """
    low, start, size = -1, extent.start, 0
    # There are at least as many messages as entries.
    high, is_bounded = extent.messages + 1, False
    while high - low > 1:
        guess = (low + high) // 2 if is_bounded else min(2 * low + 2, high - 1)
        found = look(guess)
        if found == "cleaned":
            low, start, size = guess, extent.start, 0
        elif isinstance(found, str) or found[0] > position:
            high, is_bounded = guess, True
        elif position < sum(found):
            return guess, found[1]
        else:
            low, (start, size) = guess, found
    ends_there = size > 0 and start + size == position
    is_first = low == -1 and position == 0
    return (low + 1, size) if ends_there or is_first else None


def copy_port(node: Node) -> tuple[str, int] | None:
    """Return host and port from which other nsqds copy, as the lookups name them. None if they do not."""
    host, *numbers = node.distributed_id.rsplit(":", 3)
    if len(numbers) != 3 or not (numbers[0].isascii() and numbers[0].isdigit()):
        return None
    port = int(numbers[0][:6])
    return (host, port) if 0 < port < 2**16 else None


class BulkLink(Wire):
    """One connection to the port from which other nsqds copy: :meth:`connect` first, :meth:`close` last.

    Args:
        node: The nsqd.
        address: Host and port, from :func:`copy_port`.

    Attributes:
        answered: Number of answers so far.
    """

    def __init__(self, node: Node, address: tuple[str, int]) -> None:
        self.answered: int = 0
        super().__init__(*address, f"nsqd {node.address}, port {address[1]}")
        self._requests = calls.Requests()
        self._answers = calls.Answers(self._message)
        self._buffer = memoryview(b"")
        self._patience = self._until = 0.0

    def ask(self, pull: calls.Pull) -> None:
        """Send a request; :meth:`answer` returns its answer, after those of earlier ones.

        Raises:
            ConnectionLostError: The connection was lost.
        """
        self.send(self._requests.encode(pull))

    def answer(self, patience: float) -> Pulled | str:
        """Wait for the next answer.

        Args:
            patience: Seconds without a byte after which to give up; also if it comes slower than on a slow link.

        Raises:
            ResponseTimeoutError: There was none for so long.
            ConnectionLostError: The connection was lost.
            RemoteProtocolError: The answer is not understood.
        """
        self._patience, self._until = patience, time.monotonic() + patience
        number, answer = self._answers.read()
        self.answered += 1
        if number != self.answered:
            raise RemoteProtocolError(f"{self._name} sent answer {number} instead of {self.answered}")
        return answer

    def _message(self) -> memoryview:
        """Receive a message of the gob stream; nothing is copied but what arrived with its length."""
        while (start := self._length_ends()) is None:
            self._buffer = memoryview(bytes(self._buffer) + self.receive(self._wait()))
        size, _ = gob.decode_uint(self._buffer, 0)
        if size > LARGEST:
            raise RemoteProtocolError(f"{self._name} sent a message of {size} bytes")
        self._until += size / SLOW_LINK
        arrived = self._buffer[start : start + size]
        self._buffer = self._buffer[start + size :]
        # From a pool: numpy would get these megabytes as new pages, and clearing them costs as much as the rest.
        message = memoryview(pa.allocate_buffer(size)).cast("B")
        message[: len(arrived)] = arrived
        at = len(arrived)
        while at < size:
            at += self.receive_into(message[at:], self._wait())
        return message

    def _wait(self) -> float:
        """Return how many seconds to wait for the next bytes."""
        if (left := self._until - time.monotonic()) <= 0:
            raise ResponseTimeoutError(f"{self._name} sent only a part of an answer in time")
        return min(left, self._patience)

    def _length_ends(self) -> int | None:
        """Return where the length of the next message ends. None if it did not arrive yet."""
        if not self._buffer:
            return None
        end = min(gob.width_at(self._buffer, 0), gob.MAX_BYTES + 1)
        return end if end <= len(self._buffer) else None
