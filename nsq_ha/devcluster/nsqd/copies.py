"""The port of one nsqd from which other nsqds copy partitions, and the connections to it.

The port has neither TLS nor AUTH, also if the other ports require them. It knows one call (see
:mod:`nsq_ha.protocol.pull`).
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, cast

from nsq_ha.devcluster.ports import Listener
from nsq_ha.devcluster.storage.pulling import PullError, pull
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.server.pull import AnswerWriter, Called, CallReader

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.replicas import StorageNode


class CopyPort:
    """The port. Creating it reserves the number; :meth:`open` listens.

    Args:
        node: The nsqd.

    Attributes:
        connections: Open connections.
        port: Its number.

    Raises:
        OSError: There is no free port.
    """

    def __init__(self, node: StorageNode) -> None:
        self.connections: set[CopyConnection] = set()
        self._listener = Listener(lambda: CopyConnection(node, self.connections))
        self.port: int = self._listener.port

    def open(self) -> None:
        """Listen and answer."""
        self._listener.open()

    def abort(self) -> None:
        """Refuse attempts, and reset the connections."""
        self._listener.close()
        self.cut()

    def freeze(self) -> None:
        """Accept and read nothing; the kernel still completes connections."""
        self._listener.freeze()
        for connection in self.connections:
            connection.transport.pause_reading()

    def thaw(self) -> None:
        """Continue."""
        self._listener.thaw()
        for connection in self.connections:
            connection.transport.resume_reading()

    def cut(self) -> None:
        """Reset all connections, also those that wait to be accepted."""
        self._listener.cut()
        for connection in tuple(self.connections):
            connection.transport.abort()

    def release(self) -> None:
        """Stop, and release the port."""
        self.abort()
        self._listener.release()


class CopyConnection(asyncio.Protocol):
    """One connection.

    Args:
        node: The nsqd.
        connections: The open connections of the node; this one adds and removes itself.

    Attributes:
        transport: The socket's side.
    """

    transport: asyncio.Transport

    def __init__(self, node: StorageNode, connections: set[CopyConnection]) -> None:
        self._node = node
        self._connections = connections
        self._reader = CallReader()
        self._writer = AnswerWriter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register with the node."""
        self.transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the node."""
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        """Answer the calls that are complete; close the connection after bytes that are none."""
        try:
            calls = self._reader.feed(data)
        except RemoteProtocolError:
            self.transport.abort()
            return
        for call in calls:
            if self._node.delay > 0:
                self._node.host.after(self._node.delay, functools.partial(self._answer, call))
            else:
                self._answer(call)

    def _answer(self, call: Called) -> None:
        if self.transport.is_closing():
            return
        asked = call.pull
        if asked is None:
            answer = self._writer.refuse(call.number, f"gorpc.Dispatcher: unknown method [{call.method}]")
        else:
            replica = self._node.replicas.get((asked.topic, asked.partition))
            try:
                answer = self._writer.answer(call.number, pull(replica, asked.entry, asked.count))
            except PullError as error:
                answer = self._writer.refuse(call.number, str(error))
        self.transport.write(answer)
