"""Messages that the server delivers again: failed, finished and damaged ones.

Ordered channels: the server silently drops a delayed REQ and redelivers the message only after the message timeout. So
the client waits itself. It touches the message during the delay, and then sends a REQ without delay. The invariant:
from the failure to the REQ the message never times out at the server, however long the handler took and the backoff is.
A TOUCH keeps a message only up to ``max_msg_timeout`` from its delivery, so a longer backoff is shortened.

Finished messages: a FIN has no answer. If it is refused, if it is sent after the message timeout, or if its connection
is lost, it may be without effect, and the server delivers the message again although it was handled. The client
recognises the copy by its identity. The invariant: a message is claimed at most once for each such FIN, and only within
``REMEMBERED``; a channel that is reset on purpose later delivers as usual.

Damaged messages: the frame cannot be decoded. If the damage happened on the way, the next delivery is good, so
finishing the message would lose it. If it is in the log, each delivery is damaged. The invariant: such a message is
finished only after ``DAMAGED_ATTEMPTS`` deliveries.

Source: server failures 3.10, 4.3; server protocol 9.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from nsq_ha.policy.liveness import OVERDUE_AFTER
from nsq_ha.policy.timing import LONGEST_SILENCE, delay_after

if TYPE_CHECKING:
    from nsq_ha.options.config import ConsumerConfig

REMEMBERED: Final = LONGEST_SILENCE
"""Seconds for which a finished message is remembered; a copy may wait that long at the server."""

MOST_REMEMBERED: Final = 10_000
"""Maximum number of remembered messages; the oldest are forgotten first."""

MOST_UNSETTLED: Final = 1_000
"""Maximum number of FINs of one connection that are kept in case they are refused; beyond it, half are forgotten."""

SETTLES_WITHIN: Final = OVERDUE_AFTER
"""Seconds after which a FIN that was not refused counts as received on an open connection; nsqd waits 12 for a replica
that died."""

LOST_WITHIN: Final = 30.0
"""The same on a connection that was lost; nsqd takes up to 24 to work without a replica that died."""

DAMAGED_ATTEMPTS: Final = 5
"""Deliveries after which a message that cannot be decoded is damaged in the log."""


def is_damaged_for_good(attempts: int) -> bool:
    """Return whether a message that could not be decoded would be damaged at each further delivery, too."""
    return attempts >= DAMAGED_ATTEMPTS


def requeue_delay(config: ConsumerConfig, attempts: int, *, is_ordered: bool) -> float:
    """Return the seconds until a failed message is delivered again.

    On an ordered topic it blocks its partition, so it waits no longer than a consumer pauses after as many failures.
    """
    delay, pause = delay_after(config.requeue_backoff, attempts, lambda: 0.0), config.handler_backoff
    return min(delay, delay_after(pause, attempts, lambda: 0.0)) if is_ordered and pause is not None else delay


Stamp = tuple[int, int | None]
"""Time of the publish, and offset: they tell a message from a later one that has its id again."""


class Finished:
    """Messages whose FIN may have been without effect.

    Attributes:
        known: Their stamps, and until when they are remembered, by partition and id.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[tuple[int, bytes], tuple[Stamp, float]] = {}

    def remember(self, partition: int, message_id: bytes, stamp: Stamp, now: float) -> None:
        """Remember a message whose FIN may have been without effect."""
        known, key = self.known, (partition, message_id)
        known.pop(key, None)
        known[key] = stamp, now + REMEMBERED
        while len(known) > MOST_REMEMBERED or next(iter(known.values()))[1] <= now:
            del known[next(iter(known))]

    def claim(self, partition: int, message_id: bytes, stamp: Stamp, now: float) -> bool:
        """Return whether this message was finished before, and forget it."""
        found = self.known.get((partition, message_id))
        if found is None or found[0] != stamp:
            return False
        del self.known[partition, message_id]
        return now < found[1]


class SentFins:
    """The latest FINs of one connection: no answer says that they had an effect, but a refusal says that one had none.

    On an ordered channel the next message proves the FIN before it. Elsewhere nothing does, so a FIN counts as
    unsettled for a while.

    Attributes:
        writes: When FINs were written together, and which, by the ids that a refusal would name.
        count: How many they are. Beyond ``MOST_UNSETTLED`` call :meth:`forget_oldest`.
    """

    __slots__ = ("count", "writes")

    def __init__(self) -> None:
        self.writes: deque[tuple[float, dict[bytes, Stamp]]] = deque()
        self.count: int = 0

    def forget_oldest(self) -> None:
        """Forget half of the FINs, but none of the last write."""
        while self.count > MOST_UNSETTLED / 2 and len(self.writes) > 1:
            self.count -= len(self.writes.popleft()[1])

    def refused(self, message_id: bytes) -> Stamp | None:
        """Return the stamp of the message whose FIN was refused. None if it is not one of the latest."""
        found = self._pop(message_id)
        return None if found is None else found[0]

    def arrived(self, message_id: bytes, stamp: Stamp, attempts: int, now: float) -> bool:
        """Return whether an ordered channel delivers a message again whose FIN was sent; another one proves all FINs.

        After a while only a delivery that counts as a further attempt is one: a channel that an operator has reset
        begins with attempt 1 again.
        """
        found = self._pop(message_id)
        if found is None:
            self._clear()
            return False
        finished, sent_at = found
        return finished == stamp and (attempts > 1 or now - sent_at <= SETTLES_WITHIN)

    def lost(self, now: float) -> list[tuple[bytes, Stamp]]:
        """Return the messages whose FIN may not have reached the server, since the connection was lost."""
        lost = [entry for sent_at, fins in self.writes if now - sent_at <= LOST_WITHIN for entry in fins.items()]
        self._clear()
        return lost[-MOST_UNSETTLED:]

    def _pop(self, message_id: bytes) -> tuple[Stamp, float] | None:
        for sent_at, fins in self.writes:
            if (found := fins.pop(message_id, None)) is not None:
                self.count -= 1
                return found, sent_at
        return None

    def _clear(self) -> None:
        self.writes.clear()
        self.count = 0
