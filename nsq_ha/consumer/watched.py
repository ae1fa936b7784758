"""Messages whose handling may take long."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Protocol

from nsq_ha.consumer.causes import with_cause
from nsq_ha.consumer.counts import DeliveryCounts
from nsq_ha.consumer.delivery import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.message import Message, MessageSource


class Desk(Protocol):
    """Receives the answers to watched messages."""

    def call(self, answer: object, *arguments: object) -> bool:
        """Return False in the event loop's thread; in another one schedule ``answer`` there and return True."""

    def finished(self, watched: Watched, message: Message) -> None:
        """Record that a message is finished."""

    def requeued(self, watched: Watched, message: Message, delay: float | None) -> None:
        """Record that a message is requeued."""

    def gives_up(self, message: Message) -> bool:
        """Start to give up a requeued message if that was its last attempt; return whether it was."""

    def drop(self, message: Message) -> None:
        """Forget a message that the server no longer expects to be answered."""


def finish_copy(copy: Message) -> None:
    """Finish a copy that no handler gets, and count it."""
    counts = getattr(copy.source, "counts", None)
    if isinstance(counts, DeliveryCounts):
        counts.finished_unhandled += 1
    copy.finish()


class Watched:
    """Stands between a message and its source, so that its answer also answers later copies of it.

    Attributes:
        topic: From ``origin``.
        channel: From ``origin``.
        partition: From ``origin``.
        nsqd: From ``origin``.
        is_ordered: From ``origin``.
        origin: The message's own source.
        taken_at: When the message was handed out.
        deadline: When the server requeues it.
    """

    __slots__ = (
        "_copies",
        "_desk",
        "channel",
        "deadline",
        "is_ordered",
        "nsqd",
        "origin",
        "partition",
        "taken_at",
        "topic",
    )

    def __init__(self, origin: MessageSource, desk: Desk, taken_at: float, deadline: float) -> None:
        self.topic: str = origin.topic
        self.channel: str = origin.channel
        self.partition: int = origin.partition
        self.nsqd: str = origin.nsqd
        self.is_ordered: bool = getattr(origin, "is_ordered", False)
        self.origin: MessageSource = origin
        self.taken_at: float = taken_at
        self.deadline: float = deadline
        self._desk = desk
        self._copies: list[Message] = []

    @property
    def is_alive(self) -> bool:
        """Whether answers reach the server."""
        return getattr(self.origin, "is_alive", True)

    @property
    def has_copies(self) -> bool:
        """Whether copies wait for the answer."""
        return bool(self._copies)

    def add_copy(self, copy: Message) -> None:
        """Keep a copy until the answer; it replaces an earlier copy from the same connection."""
        for older in [one for one in self._copies if one.source is copy.source]:
            self._copies.remove(older)
            self._desk.drop(older)
        self._copies.append(copy)

    def finish(self, message: Message) -> None:
        """Finish the message and its copies."""
        if self._desk.call(self.finish, message):
            return
        self._desk.finished(self, message)
        self.origin.finish(message)
        for copy in self._others():
            finish_copy(copy)

    def requeue(self, message: Message, delay: float | None) -> None:
        """Requeue the message and its copies."""
        if self._desk.call(with_cause(self.requeue), message, delay):
            return
        self._desk.requeued(self, message, delay)
        if self._desk.gives_up(message):
            return  # its copies wait until it is given up
        self.origin.requeue(message, delay)
        for copy in self._others():
            copy.requeue(delay)

    def interrupted(self, message: Message) -> bool:
        """Return whether the consumer takes over a message whose ``async with`` block was cancelled."""
        interrupted: Callable[[Message], bool] | None = getattr(self.origin, "interrupted", None)
        return interrupted is not None and interrupted(message)

    def touch(self, message: Message) -> None:
        """Touch the message."""
        timeout: float = getattr(self.origin, "msg_timeout", 60.0)
        self.deadline = monotonic() + timeout
        self.origin.touch(message)

    def _others(self) -> list[Message]:
        """Return the copies from other connections. On the same connection, the id's answer counts for all copies."""
        copies, self._copies = self._copies, []
        for copy in copies:
            if copy.source is self.origin:
                self._desk.drop(copy)
        return [copy for copy in copies if copy.source is not self.origin and not copy.answered]


def delivery_of(message: Message) -> Delivery | None:
    """Return the delivery of a message, which may be watched. None if it has none any more."""
    source = message.source
    origin = source.origin if isinstance(source, Watched) else source
    return origin if isinstance(origin, Delivery) else None
