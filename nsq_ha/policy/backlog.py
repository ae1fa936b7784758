"""Messages that wait in this client: how old the first one is, and how many may wait.

The server's clock for a message starts when it sends the message. A message that waits here behind slow ones times out
and is delivered again. So only as many may wait as the handlers can start well within the message timeout.

The invariants: with a steady handling time, the last message that may wait starts within ``WELL_WITHIN`` of the message
timeout. A message never counts as younger than it is; it may count as up to ``GRAIN`` older.
"""

from __future__ import annotations

from typing import Final

WELL_WITHIN: Final = 0.5
"""Share of the message timeout within which handling of the last waiting message should begin."""

FIRST_WAITING: Final = 10
"""Messages that may wait before the first was handled: enough to measure, and not too many if each takes seconds."""

QUICK: Final = 1.0
"""Seconds. If a full queue takes less, nothing in it can time out."""

_SETTLE_SECONDS: Final = 1.0
_SETTLE_COUNT: Final = 16
_LEAST: Final = 1e-9

GRAIN: Final = 0.05
"""Arrivals within this many seconds share a mark; otherwise a fast stream would need one per read."""


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
            weight = min(1.0, seconds / _SETTLE_SECONDS + count / _SETTLE_COUNT)
            self.seconds += (mean - self.seconds) * weight

    def waiting(self, msg_timeout: float, handlers: int) -> int:
        """Return how many messages may wait behind those that are being handled."""
        if self.seconds is None:
            return FIRST_WAITING
        return handlers * int(WELL_WITHIN * msg_timeout / max(self.seconds, _LEAST))

    def is_quick(self, msg_timeout: float, handlers: int, count: int) -> bool:
        """Return whether ``count`` messages are handled too quickly for any to time out."""
        return self.seconds is not None and count * self.seconds / handlers < min(QUICK, msg_timeout / 4)


class Ages:
    """The arrival times of one queue, without storing one per message.

    Marks hold the running number and time of arrivals. The queue hands out messages from its head, so its length gives
    the number of the message at the head. Report arrivals, and changes that are not at the head.
    """

    __slots__ = ("_marks", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._marks: list[tuple[float, int]] = []  # few, and an empty deque takes 600 bytes

    def arrived(self, now: float, count: int, waiting: int) -> None:
        """Record that ``count`` messages arrived behind the ``waiting`` ones."""
        marks = self._marks
        before = self._total
        self._total = total = before + count
        if marks and now - (at := marks[-1][0]) < GRAIN:
            marks[-1] = (at, total)
            return
        while marks and marks[0][1] <= before - waiting:
            del marks[0]
        marks.append((now, total))

    def head(self, waiting: int) -> float:
        """Return when the message at the head of ``waiting`` messages arrived."""
        marks = self._marks
        handed_out = self._total - waiting
        while len(marks) > 1 and marks[0][1] <= handed_out:
            del marks[0]
        return marks[0][0]

    def put_back(self, arrived: float, waiting: int) -> None:
        """Record that a message that arrived at ``arrived`` is back at the head of ``waiting`` messages."""
        self._marks.insert(0, (arrived, self._total - waiting + 1))

    def removed(self, before: int, waiting: int) -> None:
        """Record that messages were removed anywhere; those left count as old as the oldest.

        Args:
            before: The length of the queue before.
            waiting: Its length now.
        """
        if waiting:
            self.head(before)  # drops the marks of what was handed out
            # A message that was put back may be younger than those behind it.
            self._marks = [(min(at for at, _ in self._marks), self._total)]
