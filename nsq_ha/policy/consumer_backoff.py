"""When a consumer asks for messages again after its handlers failed, as a table.

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
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

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


class PauseEvent(enum.Enum):
    """What can happen."""

    FAILED = enum.auto()
    """A handler failed: any one while messages flow, otherwise a test's."""
    SUCCEEDED = enum.auto()
    """A test succeeded."""
    DEFERRED = enum.auto()
    """The test failed though it had failed before, or was requeued with a delay, which says nothing about the cause."""
    LOST = enum.auto()
    """The test was given back or timed out, or its connection was lost."""
    DUE = enum.auto()
    """The pause is over."""
    HANDED_OUT = enum.auto()
    """A message is handed out as the test."""


_S = PauseState
_E = PauseEvent

TRANSITIONS: Final[Mapping[tuple[PauseState, PauseEvent], PauseState]] = MappingProxyType(
    {
        (_S.FLOWING, _E.FAILED): _S.DOUBTED,
        (_S.DOUBTED, _E.FAILED): _S.PAUSED,
        (_S.DOUBTED, _E.SUCCEEDED): _S.FLOWING,
        (_S.PAUSED, _E.DUE): _S.TESTING,
        (_S.TESTING, _E.HANDED_OUT): _S.IN_TEST,
        (_S.IN_TEST, _E.LOST): _S.TESTING,
        **{
            (state, event): after
            for state in (_S.TESTING, _S.IN_TEST)  # in TESTING, of a test that was lost
            for event, after in {
                _E.FAILED: _S.PAUSED,
                _E.SUCCEEDED: _S.FLOWING,
                _E.DEFERRED: _S.PAUSED,
            }.items()
        },
    }
)
"""Maps state and event to the next state; other pairs change nothing."""


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
            return not is_known and self._take(PauseEvent.FAILED, now)
        return self._decides(key) and self._take(PauseEvent.DEFERRED if is_known else PauseEvent.FAILED, now)

    def succeeded(self, now: float, key: object) -> bool:
        """Record that message ``key`` was finished; return whether this changed anything."""
        return self._decides(key) and self._take(PauseEvent.SUCCEEDED, now)

    def deferred(self, now: float, key: object) -> bool:
        """Record that message ``key`` was requeued with a delay; return whether this changed anything."""
        return self._decides(key) and self._take(PauseEvent.DEFERRED, now)

    def lost(self, now: float, key: object) -> bool:
        """Record that no outcome of message ``key`` is to be expected; return whether this changed anything."""
        return key in self._tests and self._take(PauseEvent.LOST, now)

    def look(self, now: float) -> bool:
        """Return whether the pause has just ended."""
        return self.until is not None and now >= self.until and self._take(PauseEvent.DUE, now)

    def handed_out(self, now: float, key: object, *, is_known: bool) -> bool:
        """Ask to hand out message ``key``; return whether it may be.

        Args:
            now: The time.
            key: The message.
            is_known: It failed before.
        """
        if self.state is PauseState.DOUBTED and not is_known:
            self._tests.add(key)
        if not self.holds:
            return True
        if not self._take(PauseEvent.HANDED_OUT, now):
            return False
        self._tests = {key}
        return True

    def _decides(self, key: object) -> bool:
        if key not in self._tests:
            return False
        self._tests.discard(key)
        return True

    def _take(self, event: PauseEvent, now: float) -> bool:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        if after is PauseState.FLOWING:
            self.level = 0
        elif after is PauseState.PAUSED:
            self.level += event is PauseEvent.FAILED
            self.seconds = delay_after(self._backoff, self.level, self._chance)
        self.state = after
        self.until = now + self.seconds if after is PauseState.PAUSED else None
        if event is not PauseEvent.LOST:
            self._tests.clear()
        return True
