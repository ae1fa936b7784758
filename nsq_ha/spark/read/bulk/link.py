"""A blocking connection to the port from which other nsqds copy partitions.

This module sends and receives; ``spark.pull.calls`` has the format, ``reader`` decides what an answer means. The port
has neither TLS nor AUTH.

**Source:** Spark design 5; youzan/nsq ``consistence/coordinator_rpc.go``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from nsq_ha.errors import RemoteProtocolError, ResponseTimeoutError
from nsq_ha.policy.liveness import SLOW_LINK
from nsq_ha.spark.connection import Wire
from nsq_ha.spark.pull.calls import MAX_BYTES, Answers, Pull, Pulled, PullRefused, Requests
from nsq_ha.spark.pull.gob import decode_uint, width_at

if TYPE_CHECKING:
    from nsq_ha.policy.topology import Node

LARGEST: Final = 2 * MAX_BYTES
"""Bytes of a message that is received; the messages of an answer take half of them at most, its entries far less."""

_LENGTH_BYTES: Final = 9


def copy_port(node: Node) -> tuple[str, int] | None:
    """Return host and port from which other nsqds copy, as the lookups name them. None if they do not."""
    host, *numbers = node.distributed_id.rsplit(":", 3)
    if len(numbers) != 3 or not (numbers[0].isascii() and numbers[0].isdigit()):
        return None
    port = int(numbers[0][:6])
    return (host, port) if 0 < port < 2**16 else None


class BulkLink:
    """One connection: :meth:`connect` first, :meth:`close` last.

    Args:
        node: The nsqd.
        address: Host and port, from :func:`copy_port`.

    Attributes:
        answered: Number of answers so far.
    """

    def __init__(self, node: Node, address: tuple[str, int]) -> None:
        self.answered: int = 0
        self._where = f"nsqd {node.address}, port {address[1]}"
        self._wire = Wire(*address, self._where)
        self._requests = Requests()
        self._answers = Answers(self._message)
        self._buffer = memoryview(b"")
        self._patience = self._until = 0.0

    def connect(self) -> None:
        """Connect.

        Raises:
            ConnectError: That failed.
        """
        self._wire.connect()

    def close(self) -> None:
        """Close the connection; a second call does nothing."""
        self._wire.close()

    def ask(self, pull: Pull) -> None:
        """Send a request; :meth:`answer` returns its answer, after those of earlier ones.

        Raises:
            ConnectionLostError: The connection was lost.
        """
        self._wire.send(self._requests.encode(pull))

    def answer(self, patience: float) -> Pulled | PullRefused:
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
            raise RemoteProtocolError(f"{self._where} sent answer {number} instead of {self.answered}")
        return answer

    def _message(self) -> memoryview:
        """Receive a message of the gob stream; nothing is copied but what arrived with its length."""
        while (start := self._length_ends()) is None:
            self._buffer = memoryview(bytes(self._buffer) + self._wire.receive(self._wait()))
        size, _ = decode_uint(self._buffer, 0)
        if size > LARGEST:
            raise RemoteProtocolError(f"{self._where} sent a message of {size} bytes")
        self._until += size / SLOW_LINK
        arrived = self._buffer[start : start + size]
        self._buffer = self._buffer[start + size :]
        # From a pool: numpy would get these megabytes as new pages, and clearing them costs as much as the rest.
        message = memoryview(pa.allocate_buffer(size)).cast("B")
        message[: len(arrived)] = arrived
        at = len(arrived)
        while at < size:
            at += self._wire.receive_into(message[at:], self._wait())
        return message

    def _wait(self) -> float:
        """Return how many seconds to wait for the next bytes."""
        if (left := self._until - time.monotonic()) <= 0:
            raise ResponseTimeoutError(f"{self._where} sent only a part of an answer in time")
        return min(left, self._patience)

    def _length_ends(self) -> int | None:
        """Return where the length of the next message ends. None if it did not arrive yet."""
        if not self._buffer:
            return None
        end = min(width_at(self._buffer, 0), _LENGTH_BYTES + 1)
        return end if end <= len(self._buffer) else None
