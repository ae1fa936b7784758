"""Messages that a channel has delivered or delayed, and that no consumer has finished.

Source: server protocol 7-9; youzan/nsq ``nsqd/channel.go``.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.log import Record

DISK_DELAY: Final = 900.0
"""A message with a longer delay leaves memory; its id is then unknown."""


class Consumer(Protocol):
    """One subscribed connection."""

    client_id: int
    tag: str
    ready: int
    holds: int
    msg_timeout: float
    max_msg_timeout: float

    def wants(self, record: Record) -> bool:
        """Return whether to deliver the record here; False confirms it for the channel (sampling, filters)."""

    def deliver(self, record: Record, attempts: int, *, at_once: bool) -> None:
        """Send one message; ``at_once`` forbids buffering."""

    def drop(self) -> None:
        """Close the connection without an error frame."""


class Refusal(Exception):  # noqa: N818 - an answer of the server, not a failure of this program
    """FIN, REQ or TOUCH is refused; the text goes into the error frame."""


@dataclass(eq=False, slots=True)
class InFlight:
    """One delivered, unanswered message. FIN of a stray one does not confirm it, since the reader was reset."""

    record: Record
    index: int
    attempts: int
    consumer: Consumer
    delivered: float
    deadline: float
    stray: bool


class Delayed:
    """Messages that were requeued with a delay."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, int, int]] = []  # heap: due, id, index, attempts
        self._in_memory: set[int] = set()

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, internal_id: int) -> bool:
        """Return whether the message is delayed and its id is still known."""
        return internal_id in self._in_memory

    def add(self, entry: InFlight, delay: float, now: float, *, is_ephemeral: bool) -> None:
        """Delay a message; an ephemeral channel keeps all of them in memory."""
        internal_id = entry.record.internal_id
        heapq.heappush(self._due, (now + delay, internal_id, entry.index, entry.attempts))
        if delay <= DISK_DELAY or is_ephemeral:
            self._in_memory.add(internal_id)

    def pop_due(self, now: float) -> list[tuple[int, int]]:
        """Remove the messages whose delay has ended; return index and attempts of each."""
        found: list[tuple[int, int]] = []
        while self._due and self._due[0][0] <= now:
            _, internal_id, index, attempts = heapq.heappop(self._due)
            self._in_memory.discard(internal_id)
            found.append((index, attempts))
        return found

    def clear(self) -> list[int]:
        """Remove all; return their indexes."""
        indexes = [index for _, _, index, _ in self._due]
        self._due.clear()
        self._in_memory.clear()
        return indexes
