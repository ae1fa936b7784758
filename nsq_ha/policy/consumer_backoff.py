"""When a consumer asks for messages again after its handlers failed.

A failure may have a cause that the next message meets, too, such as a database that is down, or may be the fault of
this one message. So the consumer looks at the messages that it hands out next: if the first of them that is answered
succeeds, nothing has happened. If it fails, too, the consumer pauses, then handles one message as a test. Its outcome
decides: a failure makes the next pause longer, and after a success messages flow again.

The invariants, for all events in any order:

* While messages are held back, at most one at a time is handed out.
* Only messages that were handed out after a failure decide what follows it. Handlers that began before have no say;
  otherwise ten that fail together would cause the longest pause at once.
* A message that failed before proves nothing by failing again: it begins no pause and makes none longer.
* A pause ends. A test that is lost, or that nobody answers, is followed by another one; its late outcome counts until
  then.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

from nsq_ha.policy.timing import delay_after

if TYPE_CHECKING:
    from nsq_ha.options.types import Backoff


class PauseState(enum.Enum):
    """Whether messages are handed out."""

    FLOWING = enum.auto()
    """All of them."""
    DOUBTED = enum.auto()
    """All of them: a handler failed, and the next outcome decides whether to pause."""
    PAUSED = enum.auto()
    """None, until the pause is over."""
    TESTING = enum.auto()
    """The next one, as a test."""
    IN_TEST = enum.auto()
    """None: a test is being handled."""


class ConsumerBackoff:
    """The back-off of one consumer.

    Args:
        backoff: The pause after each number of tests that failed in a row.
        chance: Returns a number from 0 to 1, for the jitter.

    Attributes:
        state: Whether messages are handed out.
        level: Number of tests that failed in a row; 0 while nothing is held back.
        seconds: Length of the pause that began last.
        until: When the pause is over. None outside of ``PAUSED``.
    """

    __slots__ = ("_backoff", "_chance", "_tests", "level", "seconds", "state", "until")

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self.state: PauseState = PauseState.FLOWING
        self.level: int = 0
        self.seconds: float = 0.0
        self.until: float | None = None
        self._tests = set[object]()  # the keys of those whose outcome decides
        self._backoff = backoff
        self._chance = chance

    @property
    def holds(self) -> bool:
        """Whether messages are held back."""
        return self.level > 0

    def failed(self, now: float, key: object, *, is_known: bool) -> bool:
        """Record that the handler of message ``key`` failed; return whether this changed anything.

        Args:
            now: The time.
            key: The message.
            is_known: It failed before.
        """
        if self.state is PauseState.FLOWING:
            if not is_known:
                self.state = PauseState.DOUBTED
            return not is_known
        return self.deferred(now, key) if is_known else self._decides(key) and self._pause(now, failures=1)

    def succeeded(self, key: object) -> bool:
        """Record that message ``key`` was finished; return whether this changed anything."""
        if not self._decides(key):
            return False
        self.state, self.level = PauseState.FLOWING, 0
        self._tests.clear()
        return True

    def deferred(self, now: float, key: object) -> bool:
        """Record that message ``key`` was requeued with a delay, or failed again, which says nothing about the cause.

        Return whether this changed anything.
        """
        return self._decides(key) and self.state is not PauseState.DOUBTED and self._pause(now, failures=0)

    def lost(self, key: object) -> bool:
        """Record that no outcome of message ``key`` is to be expected; return whether this changed anything."""
        if self.state is not PauseState.IN_TEST or key not in self._tests:
            return False
        self.state = PauseState.TESTING  # the key stays: a late outcome counts until the next test
        return True

    def look(self, now: float) -> bool:
        """Return whether the pause has just ended."""
        if self.until is None or now < self.until:
            return False
        self.state, self.until = PauseState.TESTING, None
        return True

    def handed_out(self, key: object, *, is_known: bool) -> bool:
        """Ask to hand out message ``key``; return whether it may be.

        Args:
            key: The message.
            is_known: It failed before.
        """
        if self.state is PauseState.DOUBTED and not is_known:
            self._tests.add(key)
        if not self.holds:
            return True
        if self.state is not PauseState.TESTING:
            return False
        self.state, self._tests = PauseState.IN_TEST, {key}
        return True

    def _decides(self, key: object) -> bool:
        if key not in self._tests:
            return False
        self._tests.discard(key)
        return True

    def _pause(self, now: float, *, failures: int) -> bool:
        self.level += failures
        self.seconds = delay_after(self._backoff, self.level, self._chance)
        self.state, self.until = PauseState.PAUSED, now + self.seconds
        self._tests.clear()
        return True
