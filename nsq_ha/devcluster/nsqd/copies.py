"""A connection to the port of one nsqd from which other nsqds copy partitions.

The port has neither TLS nor AUTH, also if the other ports require them. It knows one call (see
:mod:`nsq_ha.protocol.pull`).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Self

from nsq_ha.devcluster.nodes import Accepted
from nsq_ha.devcluster.storage.pulling import PullError, pull
from nsq_ha.errors import RemoteProtocolError
from nsq_ha.protocol.server.pull import AnswerWriter, Called, CallReader

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.replicas import StorageNode


class CopyConnection(Accepted):
    """One connection.

    Args:
        node: The nsqd.
        connections: The open connections of the port.
    """

    def __init__(self, node: StorageNode, connections: set[Self]) -> None:
        super().__init__(node, connections)
        self._node = node
        self._reader = CallReader()
        self._writer = AnswerWriter()

    def data_received(self, data: bytes) -> None:
        """Answer the calls that are complete; close the connection after bytes that are none."""
        try:
            calls = self._reader.feed(data)
        except RemoteProtocolError:
            self.abort()
            return
        for call in calls:
            if self._node.delay > 0:
                self._node.host.after(self._node.delay, functools.partial(self._answer, call))
            else:
                self._answer(call)

    def _answer(self, call: Called) -> None:
        if self._transport is None or self._transport.is_closing():
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
        self._transport.write(answer)
