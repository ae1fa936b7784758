"""Pause a consumer whose handlers fail, and find out with single messages when they work again.

A failure may have a cause that the next message meets, too, such as a database that is down, or may be the fault of
this one message. So the consumer looks at the messages that it hands out next: if the first of them that is answered
succeeds, nothing has happened. If it fails, too, the consumer pauses, then handles one message as a test. Its outcome
decides: a failure makes the next pause longer, and after a success messages flow again.

What arrived before the pause stays in the queue, for at most half of its message timeout, and then goes back to nsqd.
It does not go back at once, since nsqd counts an attempt for each redelivery.

A message has failed before if its attempts say so, or if it failed here: after a change of the leader, and after a
closed connection, the attempts of the partitioned server do not say so.

The invariants, for all events in any order:

* While messages are held back, at most one at a time is handed out.
* Only messages that were handed out after a failure decide what follows it. Handlers that began before have no say;
  otherwise ten that fail together would cause the longest pause at once.
* A message that failed before proves nothing by failing again: it begins no pause and makes none longer.
* A pause ends. A test that is lost, or that nobody answers, is followed by another one; its late outcome counts until
  then.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.

Source: server failures 3.10.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.consumer.inflight import IN_TIME, conn_of
from nsq_ha.message import State
from nsq_ha.policy.handling_speed import WELL_WITHIN
from nsq_ha.policy.ready import LOOK_INTERVAL
from nsq_ha.policy.redelivery import MOST_REMEMBERED
from nsq_ha.policy.timing import delay_after

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.events import BackoffState
    from nsq_ha.message import Message
    from nsq_ha.options.types import Backoff

WHY: Final = "handlers fail and the consumer pauses"


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


class Paused(NamedTuple):
    """Report a change of the pause.

    Attributes:
        state: What begins. None for a failure that holds nothing back yet.
        seconds: Length of the pause.
        level: Tests in a row that failed.
        since: Seconds since the first failure.
        failures: Messages that failed since then.
    """

    state: BackoffState | None
    seconds: float
    level: int
    since: float
    failures: int


class Pause:
    """The pause of one consumer.

    Args:
        backoff: The option ``handler_backoff``: the pause after each number of tests that failed in a row.
        chance: Returns a number from 0 to 1, for the jitter.
        queue: The messages that wait.

    Attributes:
        state: Whether messages are handed out; may be asked from any thread.
        level: Number of tests in a row that failed; 0 while nothing is held back.
        until: When the last pause is over.
        is_active: A failure decides what follows, so outcomes are recorded.
        is_blocking: No message is handed out now.
        wake_at: When to call :meth:`tick`.
        records: Finished messages are recorded.
        reports: Changes to report.
    """

    def __init__(self, backoff: Backoff | None, chance: Callable[[], float], queue: deque[Message]) -> None:
        self.state: PauseState = PauseState.FLOWING
        self.level: int = 0
        self.until: float = -math.inf
        self.is_active: bool = False
        self.is_blocking: bool = False
        self.wake_at: float = math.inf
        self.records: bool = False
        self.reports: list[Paused] = []
        self._backoff = backoff
        self._chance = chance
        self._queue = queue
        self._failed: dict[MessageIdentity, None] = {}
        self._tests: set[MessageIdentity] = set()  # those whose outcome decides
        self._test: Message | None = None  # the last one
        self._has_paused = False
        self._began_at = 0.0
        self._failures = 0

    @property
    def wants_test(self) -> bool | None:
        """Whether one message is wanted as a test. None if messages flow."""
        if not self.level:
            return None
        return self.state is PauseState.TESTING and not self._queue  # else one that waits will be it

    # -- what happens to messages; each returns whether something changed

    def failed(self, message: Message, now: float) -> bool:
        """Record that the handler of a message failed."""
        if self._backoff is None:
            return False
        is_known = self._has_failed(message)
        self._failed[message.identity] = None
        self.records = True
        if len(self._failed) > MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]
        if is_known:
            return self.deferred(message, now)
        if self.state is PauseState.FLOWING:
            self._began_at, self._failures = now, 1
            self._enter(PauseState.DOUBTED, now)
            self._report(None, now)
            return True
        self._failures += 1
        return self._decides(message) and self._pause(now, failures=1)

    def deferred(self, message: Message, now: float) -> bool:
        """Record that a message was requeued with a delay, or failed again, which says nothing about the cause."""
        return self._decides(message) and self.state is not PauseState.DOUBTED and self._pause(now, failures=0)

    def finished(self, message: Message, now: float) -> bool:
        """Record that a message is finished; call this while :attr:`records`."""
        self._failed.pop(message.identity, None)
        self.records = self.is_active or bool(self._failed)
        if not self._decides(message):
            return False
        self.level = 0
        self._enter(PauseState.FLOWING, now)
        if self._has_paused:
            self._has_paused = False
            self._report("ended", now)
        return True

    def lost(self, message: Message, now: float) -> bool:
        """Record that no outcome of a message that was handed out is to be expected."""
        if self.state is not PauseState.IN_TEST or message.identity not in self._tests:
            return False
        self._enter(PauseState.TESTING, now)  # a late outcome counts until the next test
        return True

    def handed_out(self, message: Message, now: float) -> bool:
        """Record that a message is handed out; call this while :attr:`is_active`."""
        if self.state is PauseState.TESTING:
            self._test, self._tests = message, {message.identity}
            self._enter(PauseState.IN_TEST, now)
            return True
        if self.state is PauseState.DOUBTED and not self._has_failed(message):
            self._tests.add(message.identity)
        return False

    def left(self, now: float) -> bool:
        """Record that a connection was lost."""
        test = self._test
        return test is not None and test.state is State.ORPHANED and self.lost(test, now)

    def close(self) -> None:
        """End."""
        self._backoff = None
        self.level = 0
        self._failed.clear()
        self._enter(PauseState.FLOWING, 0.0)

    def _has_failed(self, message: Message) -> bool:
        return message.attempts > 1 or message.identity in self._failed

    def _decides(self, message: Message) -> bool:
        if message.identity not in self._tests:
            return False
        self._tests.discard(message.identity)
        return True

    # -- time

    def tick(self, now: float) -> bool:
        """Do what is due; return whether a test may be handed out, or should be asked for elsewhere."""
        state, test = self.state, self._test
        if state is PauseState.PAUSED and now >= self.until:
            state = PauseState.TESTING
            self._report("testing", now)
        elif state is PauseState.IN_TEST and test is not None and now >= _ends_at(test):  # touching makes this later
            state = PauseState.TESTING
        self._enter(state, now)
        return state is PauseState.TESTING

    def too_long(self, now: float) -> list[Message]:
        """Return the messages of the queue that cannot wait for the end of the pause, or any longer in it."""
        if not self.is_blocking:
            return []
        until = max(now, self.until)
        late = [message for message in self._queue if _returns_at(message) <= until]
        others = (_returns_at(message) for message in self._queue if message.state is State.QUEUED)
        self.wake_at = min(self.wake_at, min((at for at in others if at > until), default=math.inf))
        return late

    def _pause(self, now: float, *, failures: int) -> bool:
        assert self._backoff is not None  # noqa: S101 - nothing decides without it
        self.level += failures
        seconds = delay_after(self._backoff, self.level, self._chance)
        self.until = now + seconds
        self._has_paused = True
        self._enter(PauseState.PAUSED, now)
        self._report("paused", now, seconds)
        return True

    def _enter(self, state: PauseState, now: float) -> None:
        self.state = state
        self.is_active = state is not PauseState.FLOWING
        self.is_blocking = state in {PauseState.PAUSED, PauseState.IN_TEST}
        self.records = self.is_active or bool(self._failed)
        if state in {PauseState.FLOWING, PauseState.PAUSED}:
            self._tests.clear()
            self._test = None
        self.wake_at = math.inf
        if state is PauseState.PAUSED:
            self.wake_at = self.until
        elif state is PauseState.TESTING:
            self.wake_at = now + LOOK_INTERVAL  # connections without messages take turns that long
        elif state is PauseState.IN_TEST and self._test is not None:
            self.wake_at = max(_ends_at(self._test), now)

    def _report(self, state: BackoffState | None, now: float, seconds: float = 0.0) -> None:
        self.reports.append(Paused(state, seconds, self.level, now - self._began_at, self._failures))


def _ends_at(message: Message) -> float:
    """Return when nsqd requeues a message."""
    return message.deadline + (1 - IN_TIME) * conn_of(message).msg_timeout


def _returns_at(message: Message) -> float:
    """Return when a message goes back to nsqd at the latest."""
    return message.deadline - (IN_TIME - WELL_WITHIN) * conn_of(message).msg_timeout
