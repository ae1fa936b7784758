"""A blocking connection to the port from which other nsqds copy partitions.

This module sends and receives; ``protocol.pull`` has the format, ``reader`` decides what an answer means. The port has
neither TLS nor AUTH.

**Source:** Spark design 5; youzan/nsq ``consistence/coordinator_rpc.go``.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from nsq_ha.errors import ConnectError, ConnectionLostError, RemoteProtocolError, ResponseTimeoutError
from nsq_ha.protocol.gob import decode_uint
from nsq_ha.protocol.pull import MAX_BYTES, Answers, Pull, Pulled, Refused, Requests

if TYPE_CHECKING:
    from types import TracebackType

    from nsq_ha.policy.topology import Node

CONNECT_TIMEOUT: Final = 2.0
"""Seconds to connect."""

LARGEST: Final = 2 * MAX_BYTES
"""Bytes of a message that is received; the messages of an answer take half of them at most, its entries far less."""

_READ_BYTES: Final = 64 * 1024
_LENGTH_BYTES: Final = 9


def copy_port(node: Node) -> tuple[str, int] | None:
    """Return host and port from which other nsqds copy, as the lookups name them. None if they do not."""
    host, *numbers = node.distributed_id.rsplit(":", 3)
    if len(numbers) != 3 or not (numbers[0].isascii() and numbers[0].isdigit()):
        return None
    port = int(numbers[0][:6])
    return (host, port) if 0 < port < 2**16 else None


class BulkLink:
    """One connection. A context manager that connects.

    Args:
        node: The nsqd.
        address: Host and port, from :func:`copy_port`.

    Attributes:
        answered: Number of answers so far.
    """

    def __init__(self, node: Node, address: tuple[str, int]) -> None:
        self.answered: int = 0
        self._where = f"nsqd {node.address}, port {address[1]}"
        self._address = address
        self._requests = Requests()
        self._answers = Answers(self._message)
        self._buffer = memoryview(b"")
        self._patience = 0.0
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        """Connect.

        Raises:
            ConnectError: That failed.
        """
        try:
            self._socket = socket.create_connection(self._address, CONNECT_TIMEOUT)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise ConnectError(f"cannot connect to {self._where}: {error}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, pull: Pull) -> None:
        """Send a request; :meth:`answer` returns its answer, after those of earlier ones.

        Raises:
            ConnectionLostError: The connection was lost.
        """
        try:
            connection = self._connected()
            connection.settimeout(CONNECT_TIMEOUT)
            connection.sendall(self._requests.encode(pull))
        except OSError as error:
            raise ConnectionLostError(f"connection to {self._where} lost: {error}") from error

    def answer(self, patience: float) -> Pulled | Refused:
        """Wait for the next answer.

        Args:
            patience: Seconds without a byte after which to give up.

        Raises:
            ResponseTimeoutError: There was none for so long.
            ConnectionLostError: The connection was lost.
            RemoteProtocolError: The answer is not understood.
        """
        self._patience = patience
        number, answer = self._answers.read()
        self.answered += 1
        if number != self.answered:
            raise RemoteProtocolError(f"{self._where} sent answer {number} instead of {self.answered}")
        return answer

    def _message(self) -> memoryview:
        """Receive a message of the gob stream; nothing is copied but what arrived with its length."""
        while (start := self._length_ends()) is None:
            self._buffer = memoryview(bytes(self._buffer) + self._receive())
        size, _ = decode_uint(self._buffer, 0)
        if size > LARGEST:
            raise RemoteProtocolError(f"{self._where} sent a message of {size} bytes")
        arrived = self._buffer[start : start + size]
        self._buffer = self._buffer[start + size :]
        message = np.empty(size, np.uint8).data
        message[: len(arrived)] = arrived
        at = len(arrived)
        while at < size:
            at += self._receive_into(message[at:])
        return message

    def _length_ends(self) -> int | None:
        """Return where the length of the next message ends. None if it did not arrive yet."""
        if not self._buffer:
            return None
        end = 1 if self._buffer[0] < 128 else min(257 - self._buffer[0], _LENGTH_BYTES + 1)
        return end if end <= len(self._buffer) else None

    def _receive(self) -> bytes:
        part = memoryview(bytearray(_READ_BYTES))
        return bytes(part[: self._receive_into(part)])

    def _receive_into(self, part: memoryview) -> int:
        try:
            connection = self._connected()
            connection.settimeout(self._patience)
            size = connection.recv_into(part)
        except TimeoutError as error:
            raise ResponseTimeoutError(f"{self._where} sent nothing in time") from error
        except OSError as error:
            raise ConnectionLostError(f"connection to {self._where} lost: {error}") from error
        if not size:
            raise ConnectionLostError(f"{self._where} closed the connection")
        return size

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLostError(f"the connection to {self._where} is closed")
        return self._socket
