"""Messages that wait in this client: how many may.

The server's clock for a message starts when it sends the message. A message that waits here behind slow ones times out
and is delivered again. So only as many may wait as the handlers can start well within the message timeout.

The invariant: with a steady handling time, the last message that may wait starts within ``WELL_WITHIN`` of the message
timeout.
"""

from __future__ import annotations

from typing import Final

WELL_WITHIN: Final = 0.5
"""Share of the message timeout within which handling of the last waiting message should begin."""

FIRST_WAITING: Final = 10
"""Messages that may wait before the first was handled: enough to measure, and not too many if each takes seconds."""

QUICK: Final = 1.0
"""Seconds. If a full queue takes less, nothing in it can time out."""

_SETTLE_COUNT: Final = 16
_LEAST: Final = 1e-9


class Speed:
    """Learns how long one handler takes for one message.

    Attributes:
        seconds: The recent mean. None before the first message was handled.
    """

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds: float | None = None

    def took(self, count: int, seconds: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages in a row."""
        mean = seconds / count
        if self.seconds is None:
            self.seconds = mean
        else:
            # One message of a second counts as much as many quick ones, since the time matters.
            weight = min(1.0, seconds / QUICK + count / _SETTLE_COUNT)
            self.seconds += (mean - self.seconds) * weight

    def waiting(self, msg_timeout: float, handlers: int) -> int:
        """Return how many messages may wait behind those that are being handled."""
        if self.seconds is None:
            return FIRST_WAITING
        return handlers * int(WELL_WITHIN * msg_timeout / max(self.seconds, _LEAST))

    def is_quick(self, msg_timeout: float, handlers: int, count: int) -> bool:
        """Return whether ``count`` messages are handled too quickly for any to time out."""
        return self.seconds is not None and count * self.seconds / handlers < min(QUICK, msg_timeout / 4)
