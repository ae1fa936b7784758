"""When a consumer asks for messages again after its handlers failed, as a table.

A failure usually has a cause that the next message meets, too, such as a database that is down. So the consumer pauses,
then handles one message as a test. Its outcome decides: a failure makes the next pause longer, a success makes it
shorter, and at level 0 messages flow again. ``consumer.backoff`` reports events and follows the table.

The invariants, for all events in any order:

* Outside of ``FLOWING`` at most one message at a time is handed out.
* Only the test's outcome changes the level. Handlers that began before the pause have no say; otherwise ten that fail
  together would cause the longest pause at once.
* A pause ends. A test that is lost, or that nobody answers, is followed by another one; its late outcome counts until
  then.

Source: nsq.io, "Building Client Libraries", Backoff; youzan/go-nsq ``consumer.go`` (``startStopContinueBackoff``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.policy.timing import delay_after

if TYPE_CHECKING:
    from nsq_ha.options.types import Backoff


class PauseState(enum.Enum):
    """Whether messages are handed out."""

    FLOWING = enum.auto()
    """All of them."""
    PAUSED = enum.auto()
    """None, until the pause is over."""
    TESTING = enum.auto()
    """The next one, as a test."""
    IN_TEST = enum.auto()
    """None: a test is being handled."""


class PauseEvent(enum.Enum):
    """What can happen."""

    FAILED = enum.auto()
    """A handler failed: any one while messages flow, otherwise the test's."""
    SUCCEEDED = enum.auto()
    """The test succeeded; the level stays above 0."""
    RECOVERED = enum.auto()
    """The test succeeded at level 1."""
    DEFERRED = enum.auto()
    """The test was requeued with a delay, which says nothing about the cause."""
    LOST = enum.auto()
    """The test was given back or timed out, or its connection was lost."""
    DUE = enum.auto()
    """The pause is over."""
    HANDED_OUT = enum.auto()
    """A message is handed out as the test."""


class PauseStep(NamedTuple):
    """A row of the table: the next state, and how the level changes."""

    state: PauseState
    level: int


_S = PauseState
_E = PauseEvent

TRANSITIONS: Final[Mapping[tuple[PauseState, PauseEvent], PauseStep]] = MappingProxyType(
    {
        (_S.FLOWING, _E.FAILED): PauseStep(_S.PAUSED, 1),
        (_S.PAUSED, _E.DUE): PauseStep(_S.TESTING, 0),
        (_S.TESTING, _E.HANDED_OUT): PauseStep(_S.IN_TEST, 0),
        (_S.IN_TEST, _E.LOST): PauseStep(_S.TESTING, 0),
        **{
            (state, event): step
            for state in (_S.TESTING, _S.IN_TEST)  # in TESTING, of a test that was lost
            for event, step in {
                _E.FAILED: PauseStep(_S.PAUSED, 1),
                _E.SUCCEEDED: PauseStep(_S.PAUSED, -1),
                _E.RECOVERED: PauseStep(_S.FLOWING, -1),
                _E.DEFERRED: PauseStep(_S.PAUSED, 0),
            }.items()
        },
    }
)
"""Maps state and event to the next step; other pairs change nothing."""


class ConsumerBackoff:
    """The back-off of one consumer, or of one of its connections.

    Args:
        backoff: The pause at each level.
        chance: Returns a number from 0 to 1, for the jitter.

    Attributes:
        state: Whether messages are handed out.
        level: Number of steps that lead back to ``FLOWING``; 0 there.
        seconds: Length of the pause that began last.
        until: When the pause is over. None outside of ``PAUSED``.
        test: The key of the message that was handed out as a test last. None without one, or after its outcome.
    """

    __slots__ = ("_backoff", "_chance", "level", "seconds", "state", "test", "until")

    def __init__(self, backoff: Backoff, chance: Callable[[], float]) -> None:
        self.state: PauseState = PauseState.FLOWING
        self.level: int = 0
        self.seconds: float = 0.0
        self.until: float | None = None
        self.test: object = None
        self._backoff = backoff
        self._chance = chance

    def failed(self, now: float, key: object) -> bool:
        """Record that the handler of message ``key`` failed; return whether this changed anything."""
        return self._is_decided_by(key) and self._take(PauseEvent.FAILED, now)

    def succeeded(self, now: float, key: object) -> bool:
        """Record that message ``key`` was finished; return whether this changed anything."""
        event = PauseEvent.SUCCEEDED if self.level > 1 else PauseEvent.RECOVERED
        return self._is_decided_by(key) and self._take(event, now)

    def deferred(self, now: float, key: object) -> bool:
        """Record that message ``key`` was requeued with a delay; return whether this changed anything."""
        return self._is_decided_by(key) and self._take(PauseEvent.DEFERRED, now)

    def lost(self, now: float, key: object) -> bool:
        """Record that no outcome of message ``key`` is to be expected; return whether this changed anything."""
        return self._is_decided_by(key) and self._take(PauseEvent.LOST, now)

    def look(self, now: float) -> bool:
        """Return whether the pause has just ended."""
        return self.until is not None and now >= self.until and self._take(PauseEvent.DUE, now)

    def handed_out(self, now: float, key: object) -> bool:
        """Ask to hand out message ``key``; return whether it may be, as the test or because messages flow."""
        if self.state is PauseState.FLOWING:
            return True
        if not self._take(PauseEvent.HANDED_OUT, now):
            return False
        self.test = key
        return True

    def _is_decided_by(self, key: object) -> bool:
        return self.state is PauseState.FLOWING or (self.test is not None and self.test == key)

    def _take(self, event: PauseEvent, now: float) -> bool:
        step = TRANSITIONS.get((self.state, event))
        if step is None:
            return False
        if step.level < 0 or (step.level > 0 and self._nominal(self.level + 1) > self._nominal(self.level)):
            self.level += step.level
        self.state = step.state
        self.until = None
        if event is not PauseEvent.LOST:
            self.test = None
        if step.state is PauseState.PAUSED:
            self.seconds = delay_after(self._backoff, self.level, self._chance)
            self.until = now + self.seconds
        return True

    def _nominal(self, level: int) -> float:
        return delay_after(self._backoff, level, lambda: 0.0)
