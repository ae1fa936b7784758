"""What the channels of both kinds of nsqd have in common: consumers that take turns, and messages in flight.

A channel does not know frames or sockets: a consumer is anything that takes a message.
"""

from __future__ import annotations

import heapq
import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from nsq_ha.devcluster.storage.log import is_ephemeral

_NEVER: Final = float("inf")


class Refusal(Exception):  # noqa: N818 - an answer of the server, not a failure of this program
    """FIN, REQ or TOUCH is refused; the text goes into the error frame."""


_Message = TypeVar("_Message")
_Id = TypeVar("_Id")


class AnyConsumer(ABC, Generic[_Message]):
    """One subscribed connection. It begins with RDY 0.

    Attributes:
        client_id: Number of the connection, as in error texts.
        tag: Which messages it gets, see :mod:`nsq_ha.devcluster.storage.channel`; empty for those without a tag.
        ready: RDY.
        holds: Messages in flight here.
        msg_timeout: Seconds until an unanswered message comes again.
        max_msg_timeout: Longest time from delivery that TOUCH can hold a message.
    """

    def __init__(self, client_id: int, msg_timeout: float, max_msg_timeout: float) -> None:
        self.client_id = client_id
        self.tag: str = ""
        self.ready: int = 0
        self.holds: int = 0
        self.msg_timeout = msg_timeout
        self.max_msg_timeout = max_msg_timeout

    @abstractmethod
    def wants(self, message: _Message) -> bool:
        """Return whether to deliver the message here; False finishes it for the channel (sampling, filters)."""

    @abstractmethod
    def deliver(self, message: _Message, attempts: int, *, at_once: bool) -> None:
        """Send one message; ``at_once`` forbids buffering."""

    @abstractmethod
    def flush(self) -> None:
        """Write the gathered messages."""

    @abstractmethod
    def drop(self) -> None:
        """Close the connection without an error frame."""


@dataclass(eq=False, slots=True)
class Delivered(Generic[_Message]):
    """A delivered, unanswered message."""

    message: _Message
    consumer: AnyConsumer[_Message]
    delivered: float
    deadline: float


_Held = TypeVar("_Held", bound=Delivered[Any])


_Item = TypeVar("_Item")


class Delayed(Generic[_Id, _Item]):
    """Messages that wait for the end of a delay."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, _Id, _Item]] = []  # heap: due, number, id, message
        self._known: set[_Id] = set()
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, message_id: _Id) -> bool:
        """Return whether a message waits, and its id is still known."""
        return message_id in self._known

    @property
    def in_memory(self) -> int:
        """Number of messages whose id is still known."""
        return len(self._known)

    def add(self, message_id: _Id, item: _Item, due: float, *, is_known: bool = True) -> None:
        """Let a message wait until ``due``."""
        heapq.heappush(self._due, (due, next(self._numbers), message_id, item))
        if is_known:
            self._known.add(message_id)

    def pop_due(self, now: float) -> list[_Item]:
        """Remove and return the messages whose delay has ended."""
        found: list[_Item] = []
        while self._due and self._due[0][0] <= now:
            _, _, message_id, item = heapq.heappop(self._due)
            self._known.discard(message_id)
            found.append(item)
        return found

    def clear(self) -> list[_Item]:
        """Remove and return all."""
        items = [item for _, _, _, item in self._due]
        self._due.clear()
        self._known.clear()
        return items


class AnyChannel(ABC, Generic[_Id, _Held]):
    """One channel.

    Attributes:
        name: The name of the channel.
        ephemeral: The channel disappears with its last consumer.
        paused: Nothing is delivered.
        consumers: The subscribed connections.
        in_flight: Delivered, unanswered messages by id.
        requeued: Number of REQs; the partitioned nsqd counts all messages that come again.
        timed_out: Number of timeouts.
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.ephemeral: bool = is_ephemeral(name)
        self.paused: bool = False
        self.consumers: list[AnyConsumer[Any]] = []
        self.in_flight: dict[_Id, _Held] = {}
        self.requeued: int = 0
        self.timed_out: int = 0
        self._next = 0
        self._earliest = _NEVER

    def add(self, consumer: AnyConsumer[Any]) -> None:
        """Add a consumer; it gets no messages until it is ready."""
        self.consumers.append(consumer)

    def drop_consumers(self) -> None:
        """Disconnect all consumers without an error."""
        for consumer in tuple(self.consumers):
            consumer.drop()

    @abstractmethod
    def dispatch(self, now: float) -> None:
        """Deliver as many messages as possible."""

    @abstractmethod
    def finish(self, message_id: _Id, consumer: AnyConsumer[Any], now: float) -> None:
        """FIN.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """

    @abstractmethod
    def requeue(self, message_id: _Id, consumer: AnyConsumer[Any], delay: float, now: float) -> None:
        """REQ.

        Raises:
            Refusal: The message is not in flight with this consumer, or cannot be requeued.
        """

    def touch(self, message_id: _Id, consumer: AnyConsumer[Any], now: float) -> None:
        """TOUCH: restart the message's timeout, within limits.

        Raises:
            Refusal: The message is not in flight with this consumer.
        """
        held = self._owned(message_id, consumer)
        held.deadline = min(now + consumer.msg_timeout, held.delivered + consumer.max_msg_timeout)

    @abstractmethod
    def _owned(self, message_id: _Id, consumer: AnyConsumer[Any]) -> _Held:
        """Return a message that is in flight with a consumer.

        Raises:
            Refusal: It is not.
        """

    def _next_consumer(self, tag: str = "") -> AnyConsumer[Any] | None:
        """Return the next ready consumer in turn, or None."""
        count = len(self.consumers)
        for step in range(count):
            position = (self._next + step) % count
            consumer = self.consumers[position]
            if consumer.holds < consumer.ready and consumer.tag == tag:
                self._next = position + 1
                return consumer
        return None

    def _hold(self, message_id: _Id, held: _Held) -> None:
        self.in_flight[message_id] = held
        self._earliest = min(self._earliest, held.deadline)
        held.consumer.holds += 1

    def _release(self, message_id: _Id) -> None:
        self.in_flight.pop(message_id).consumer.holds -= 1

    def _forget_held(self) -> None:
        self.in_flight.clear()
        self._earliest = _NEVER

    def _late(self, now: float) -> list[_Held]:
        """Remove and return the messages whose timeout has passed."""
        if now < self._earliest:
            return []
        late = {message_id: held for message_id, held in self.in_flight.items() if held.deadline <= now}
        for message_id in late:
            self._release(message_id)
        self.timed_out += len(late)
        self._earliest = min((held.deadline for held in self.in_flight.values()), default=_NEVER)
        return list(late.values())
