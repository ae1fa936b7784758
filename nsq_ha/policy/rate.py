"""At most so many messages a second: a token bucket, and how many messages may wait for their turn.

RDY limits what is in flight, not how much of it in a second, so a consumer with a ``max_rate`` keeps a few messages
here and hands them out at its rate.

The invariants: in any ``t`` seconds at most ``burst + rate * (t + LATE)`` messages have their turn, where the burst is
what one second allows, and 1 at least. With messages
that wait all the time, the mean is the rate, though timers are up to ``LATE`` seconds late. The last message that
waits has its turn within ``WELL_WITHIN`` of the message timeout.
"""

from __future__ import annotations

from typing import Final

from nsq_ha.policy.handling_speed import WELL_WITHIN
from nsq_ha.policy.timing import LATE

_NEARLY: Final = 1 - 1e-6
"""What counts as a token: a timer may end some nanoseconds early."""


class MaxRate:
    """The turns of one consumer's messages.

    Args:
        per_second: Messages a second.
        now: The time.
        tokens: Messages that may have their turn now. None for ``burst``.

    Attributes:
        per_second: Messages a second.
        burst: Messages at once, after a time without any.
    """

    __slots__ = ("_at", "_most", "_tokens", "burst", "per_second")

    def __init__(self, per_second: float, now: float, tokens: float | None = None) -> None:
        self.per_second: float = per_second
        self.burst: int = max(int(per_second), 1)
        self._most = self.burst + per_second * LATE
        self._tokens = float(self.burst) if tokens is None else min(tokens, self._most)
        self._at = now

    def tokens(self, now: float) -> float:
        """Return how many messages may have their turn now."""
        self._tokens = min(self._tokens + max(now - self._at, 0.0) * self.per_second, self._most)
        self._at = now
        return self._tokens

    def take(self, now: float) -> float:
        """Take the turn of one message; return 0, or the seconds until there is one."""
        if self.tokens(now) < _NEARLY:
            return (1 - self._tokens) / self.per_second
        self._tokens -= 1
        return 0.0

    def in_time(self, msg_timeout: float) -> int:
        """Return how many messages have their turns well within the message timeout."""
        return int(self.per_second * WELL_WITHIN * msg_timeout)

    def waiting(self, partitions: int, msg_timeout: float) -> int:
        """Return how many messages may wait for their turn; 0 if not even one has it in time.

        Args:
            partitions: Number of partitions. With one message for each, no partition has to take turns.
            msg_timeout: Seconds after which the server redelivers a message.
        """
        return min(max(self.burst, partitions), self.in_time(msg_timeout))

    def soon(self, now: float, msg_timeout: float) -> float:
        """Return the seconds after which a message may be asked for, so that it has its turn in time."""
        return max((1 - self.tokens(now)) / self.per_second - WELL_WITHIN * msg_timeout, 0.0)
