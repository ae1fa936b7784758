"""The PUB family: where a message goes, what it is answered, and what waits for a replica.

Source: protocol reference 6; youzan/nsq ``preparePub``, ``internalPubExtAndTrace``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nsq_ha.devcluster.nsqd.delivery import OK_FRAME, traced_frame
from nsq_ha.devcluster.storage.record import Draft
from nsq_ha.devcluster.storage.replica import EXITING
from nsq_ha.protocol.headers import trace_id_of

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.session import Session
    from nsq_ha.devcluster.storage.record import Record
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.protocol import commands
    from nsq_ha.protocol.requests import Publishing

Answer = Callable[[Sequence["Record"]], bytes]
"""Makes the success frame from what was stored."""

NOT_EXIST: Final = b"E_TOPIC_NOT_EXIST "
_PARTITION_NEEDED: Final = b"E_BAD_PARTITION topic partition is not valid for multi partition: -1"


class Publisher:
    """Publishes for one session."""

    def __init__(self, session: Session) -> None:
        """Begin without a target."""
        self._session = session
        self._replica: Replica | None = None

    def target(self, publishing: Publishing) -> bool | None:
        """Find the replica that a publish is for; tell whether its topic is extended.

        None when the connection was closed with the server's refusal.
        """
        session = self._session
        node = session.node
        number = publishing.partition
        if number is None:
            number = node.led_partition(publishing.topic)
        replica = None if number is None else node.replicas.get((publishing.topic, number))
        if replica is None:
            session.fail(NOT_EXIST)
            return None
        if publishing.partition is None and replica.options.ordered:
            session.fail(_PARTITION_NEEDED)
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
        """MPUB_TRACE: the answer tells of the first message, and the size of all."""
        drafts = [Draft(body, trace_id) for trace_id, body in command.messages]
        self._store(drafts, b"E_MPUB_FAILED ", _traced_batch)

    def mpub_ext(self, command: commands.MpubExt) -> None:
        """MPUB_EXT: an empty header is none."""
        drafts = [Draft(body, (trace_id_of(ext) or 0) if ext else 0, ext or None) for ext, body in command.messages]
        self._store(drafts, b"E_MPUB_FAILED ", _ok)

    def _store(self, drafts: Sequence[Draft], failed: bytes, answer: Answer) -> None:
        session, replica = self._session, self._replica
        if replica is None:
            raise RuntimeError("a publish without its header")
        if session.node.exiting:
            session.refuse(failed + EXITING)
            return
        if replica.refusal is not None:
            session.refuse(replica.refusal)
            return
        if replica.stalled:
            self._store_later(replica, drafts, answer)
            return
        session.send(answer(replica.store(drafts)))
        if replica not in session.changed:
            session.changed.append(replica)

    def _store_later(self, replica: Replica, drafts: Sequence[Draft], answer: Answer) -> None:
        session = self._session

        def stored(records: list[Record]) -> None:
            session.send(answer(records))
            session.connection.unblock()

        def refuse(frame: bytes) -> None:
            session.refuse(frame)
            session.connection.unblock()

        session.connection.block()
        replica.store_later(drafts, stored, refuse)


def _ok(_records: Sequence[Record]) -> bytes:
    return OK_FRAME


def _traced(records: Sequence[Record]) -> bytes:
    record = records[0]
    return traced_frame(record, record.trace_id, record.raw_size)


def _traced_batch(records: Sequence[Record]) -> bytes:
    return traced_frame(records[0], 0, sum(record.raw_size for record in records))
