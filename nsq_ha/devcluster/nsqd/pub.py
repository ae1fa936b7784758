"""The PUB family: find the replica, store the messages, wait for the followers, answer.

Source: server protocol 6; youzan/nsq ``preparePub``, ``internalPubExtAndTrace``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nsqd.connection import OK_FRAME
from nsq_ha.devcluster.storage.log import Draft
from nsq_ha.devcluster.storage.replica import EXITING
from nsq_ha.protocol.frames import OK
from nsq_ha.protocol.server.headers import trace_id_of

if TYPE_CHECKING:
    from nsq_ha.devcluster.auth import Credentials
    from nsq_ha.devcluster.nsqd.connection import Connection
    from nsq_ha.devcluster.storage.log import Record
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.devcluster.storage.replicas import StorageNode
    from nsq_ha.protocol import commands
    from nsq_ha.protocol.server.decoder import PublishHeader

Answer = Callable[[Sequence["Record"]], bytes]
"""Encodes the success frame from the stored records."""

NOT_EXIST: Final = b"E_TOPIC_NOT_EXIST "
_PARTITION_NEEDED: Final = b"E_BAD_PARTITION topic partition is not valid for multi partition: -1"
_TRACED: Final = struct.Struct(">ii2sQQQI")


class PubCommands:
    """Execute the publishes of one connection."""

    def __init__(self, connection: Connection, node: StorageNode, credentials: Credentials) -> None:
        self._connection = connection
        self._node = node
        self._credentials = credentials
        self._replica: Replica | None = None
        self._changed: list[Replica] = []  # replicas that stored messages in this turn

    def target(self, header: PublishHeader) -> bool | None:
        """Find the replica for a publish and return whether its topic is extended.

        Return None after closing the connection with the server's refusal.
        """
        replica = self._node.find(header.topic, header.partition)
        if replica is None:
            self._connection.fail(NOT_EXIST)
            return None
        if header.partition is None and replica.options.ordered:
            self._connection.fail(_PARTITION_NEEDED)
            return None
        refusal = self._credentials.refusal("PUB", header.topic)  # nsqd calls all publishes PUB here
        if refusal is not None:
            self._connection.fail(refusal)
            return None
        self._replica = replica
        return replica.options.extended

    # ------------------------------------------------------------ commands

    def pub(self, command: commands.Pub) -> None:
        """PUB."""
        self._store((Draft(command.body),), b"E_PUB_FAILED ", _ok)

    def pub_trace(self, command: commands.PubTrace) -> None:
        """PUB_TRACE."""
        self._store((Draft(command.body, command.trace_id),), b"E_PUB_FAILED ", _traced)

    def pub_ext(self, command: commands.PubExt) -> None:
        """PUB_EXT; a trace id in the header asks for the long answer."""
        trace_id = trace_id_of(command.ext)
        draft = Draft(command.body, trace_id or 0, command.ext)
        self._store((draft,), b"E_PUB_FAILED ", _ok if trace_id is None else _traced)

    def mpub(self, command: commands.Mpub) -> None:
        """MPUB."""
        self._store([Draft(body) for body in command.bodies], b"E_MPUB_FAILED ", _ok)

    def mpub_trace(self, command: commands.MpubTrace) -> None:
        """MPUB_TRACE: the answer has the position of the first message, and the size of all."""
        drafts = [Draft(body, trace_id) for trace_id, body in command.messages]
        self._store(drafts, b"E_MPUB_FAILED ", _traced_batch)

    def mpub_ext(self, command: commands.MpubExt) -> None:
        """MPUB_EXT: an empty header counts as none."""
        drafts = [Draft(body, (trace_id_of(ext) or 0) if ext else 0, ext or None) for ext, body in command.messages]
        self._store(drafts, b"E_MPUB_FAILED ", _ok)

    def _store(self, drafts: Sequence[Draft], failed: bytes, answer: Answer) -> None:
        connection, replica = self._connection, self._replica
        if replica is None:
            raise RuntimeError("internal error: a publish without its header")
        if self._node.exiting:
            connection.refuse(failed + EXITING)
            return
        if replica.refusal is not None:
            connection.refuse(replica.refusal)
            return
        if replica.stalled:
            self._store_later(replica, drafts, answer)
            return
        connection.send(answer(replica.store(drafts)))
        if replica not in self._changed:
            self._changed.append(replica)

    def _store_later(self, replica: Replica, drafts: Sequence[Draft], answer: Answer) -> None:
        connection = self._connection

        def stored(records: list[Record]) -> None:
            connection.send(answer(records))
            connection.unblock()

        def refuse(frame: bytes) -> None:
            connection.refuse(frame)
            connection.unblock()

        connection.block()
        replica.store_later(drafts, stored, refuse)

    def deliver(self) -> None:
        """Let the channels of the changed replicas deliver, at the end of a turn."""
        if self._changed:
            now = self._node.host.now()
            for replica in self._changed:
                replica.deliver(now)
            self._changed.clear()


def _ok(_records: Sequence[Record]) -> bytes:
    return OK_FRAME


def _traced(records: Sequence[Record]) -> bytes:
    record = records[0]
    return _TRACED.pack(34, 0, OK, record.internal_id, record.trace_id, record.offset, record.raw_size)


def _traced_batch(records: Sequence[Record]) -> bytes:
    first = records[0]
    return _TRACED.pack(34, 0, OK, first.internal_id, 0, first.offset, sum(record.raw_size for record in records))
