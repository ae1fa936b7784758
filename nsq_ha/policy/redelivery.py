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

from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.policy.timing import delay_after
from nsq_ha.policy.touching import LEAST_GAP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.options.config import ConsumerConfig

TOUCH_SHARE: Final = 0.5
"""Share of the message timeout after which a waiting message is touched again."""

REMEMBERED: Final = 600.0
"""Seconds for which a finished message is remembered; a copy may wait that long at the server."""

MOST_REMEMBERED: Final = 10_000
"""Maximum number of remembered messages; the oldest are forgotten first."""

MOST_UNSETTLED: Final = 1_000
"""Maximum number of FINs of one connection that are kept in case they are refused."""

SETTLES_WITHIN: Final = 15.0
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


class Look(NamedTuple):
    """What to do now, and when to check again.

    Attributes:
        is_over: Send REQ without delay; this is the end.
        touch: Send TOUCH.
        again_at: When to check again.
    """

    is_over: bool
    touch: bool
    again_at: float


class OrderedRequeue:
    """One failed message that waits for its REQ. Call :meth:`look` at once, and then at each ``again_at``.

    Args:
        now: The time.
        delay: Seconds of backoff.
        delivered_at: When the message was delivered.
        msg_timeout: Seconds after which the server times out a message that was not touched.
        max_msg_timeout: Seconds from the delivery after which a TOUCH has no effect.

    Attributes:
        until: When to send the REQ.
    """

    __slots__ = ("_touch_interval", "until")

    def __init__(
        self, now: float, delay: float, delivered_at: float, *, msg_timeout: float, max_msg_timeout: float
    ) -> None:
        self._touch_interval = max(msg_timeout * TOUCH_SHARE, LEAST_GAP)
        # Leave time for the REQ to arrive, and for small clock differences.
        self.until: float = min(now + delay, delivered_at + max_msg_timeout - self._touch_interval)

    def look(self, now: float) -> Look:
        """Return what to do now.

        The first call touches, too, since the handler may have used nearly all of the timeout.
        """
        if now >= self.until:
            return Look(is_over=True, touch=False, again_at=now)
        return Look(is_over=False, touch=True, again_at=min(now + self._touch_interval, self.until))


class Finished:
    """Messages whose FIN may have been without effect."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[MessageIdentity, float] = {}

    def __len__(self) -> int:
        """Return the number of remembered messages."""
        return len(self._known)

    def ids(self) -> Iterator[bytes]:
        """Return the ids of the remembered messages."""
        return (message.id for message in self._known)

    def remember(self, message: MessageIdentity, now: float) -> None:
        """Remember a message whose FIN may have been without effect."""
        known = self._known
        known.pop(message, None)
        known[message] = now + REMEMBERED
        while len(known) > MOST_REMEMBERED or next(iter(known.values())) <= now:
            del known[next(iter(known))]

    def claim(self, message: MessageIdentity, now: float) -> bool:
        """Return whether this message was finished before, and forget it."""
        until = self._known.pop(message, None)
        return until is not None and now < until


class Unsettled:
    """The latest FINs of one connection: no answer says that they had an effect, but a refusal says that one had none.

    On an ordered channel the next message proves the FIN before it. Elsewhere nothing does, so a FIN counts as
    unsettled for a while.
    """

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[
            bytes, tuple[MessageIdentity, float]
        ] = {}  # by the id that a refusal names, on this one connection

    def sent(self, message: MessageIdentity, now: float) -> None:
        """Record that a FIN is sent."""
        self._sent[message.id] = message, now
        if len(self._sent) > MOST_UNSETTLED:
            del self._sent[next(iter(self._sent))]

    def refused(self, message_id: bytes) -> MessageIdentity | None:
        """Return the message whose FIN was refused. None if it is not one of the latest."""
        found = self._sent.pop(message_id, None)
        return None if found is None else found[0]

    def arrived(self, message: MessageIdentity, attempts: int, now: float) -> bool:
        """Return whether an ordered channel delivers a message again whose FIN was sent; another one proves all FINs.

        After a while only a delivery that counts as a further attempt is one: a channel that an operator has reset
        begins with attempt 1 again.
        """
        found = self._sent.pop(message.id, None)
        if found is None:
            self._sent.clear()
            return False
        finished, sent_at = found
        return finished == message and (attempts > 1 or now - sent_at <= SETTLES_WITHIN)

    def lost(self, now: float) -> list[MessageIdentity]:
        """Return the messages whose FIN may not have reached the server, since the connection was lost."""
        sent, self._sent = self._sent, {}
        return [message for message, sent_at in sent.values() if now - sent_at <= LOST_WITHIN]
