"""What subscribed connections of both kinds of nsqd have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nsq_ha.devcluster.nsqd.connection import Connection


class AnySubscriber(ABC):
    """A consumer of one channel. It begins with RDY 0.

    Attributes:
        connection: The client's connection.
        client_id: Number of the connection, as in error texts.
        closing: The client sent CLS.
        tag: Which messages the client gets, see ``storage.channel``; empty for those without a tag.
        ready: RDY.
        holds: Messages in flight here.
        msg_timeout: Seconds until an unanswered message comes again.
        max_msg_timeout: Longest time from delivery that TOUCH can hold a message.
        received: Messages delivered here.
        finished: FINs that succeeded.
        requeued: REQs that succeeded.
    """

    def __init__(self, connection: Connection) -> None:
        settings = connection.settings
        self.connection: Connection = connection
        self.client_id: int = connection.client_id
        self.closing: bool = False
        self.tag: str = ""
        self.ready: int = 0
        self.holds: int = 0
        self.received: int = 0
        self.finished: int = 0
        self.requeued: int = 0
        self.msg_timeout: float = settings.msg_timeout / 1000
        self._host = connection.node.host
        self.max_msg_timeout: float = self._host.limits.max_msg_timeout / 1000
        self._silent = False
        self._sample = settings.sample_rate

    def is_sampled(self) -> bool:
        """Return whether to deliver a message; sampling leaves the others out."""
        return not self._sample or self._host.chance.randrange(100) <= self._sample

    def count(self, *, received: int = 0, finished: int = 0, requeued: int = 0) -> None:
        """Add to the counts that ``/stats`` shows."""
        self.received += received
        self.finished += finished
        self.requeued += requeued

    def drop(self) -> None:
        """Close the connection without an error frame."""
        self.connection.close()

    def set_ready(self, count: int) -> None:
        """RDY."""
        if self._silent:
            return
        self.ready = count
        if count > self.holds:
            self._dispatch()

    def fall_silent(self) -> None:
        """Accept no more messages."""
        self._silent = True
        self.ready = 0

    @abstractmethod
    def _dispatch(self) -> None:
        """Let the channel deliver."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the channel."""

    @abstractmethod
    def finish(self, message_id: bytes) -> None:
        """FIN."""

    @abstractmethod
    def requeue(self, message_id: bytes, delay: float) -> None:
        """REQ."""

    @abstractmethod
    def touch(self, message_id: bytes) -> None:
        """TOUCH."""
