"""Pause a consumer whose handlers fail, and find out with single messages when they work again.

``policy.consumer_backoff`` decides. What arrived before the pause stays in the queue, for at most half of its message
timeout, and then goes back to nsqd. It does not go back at once, since nsqd counts an attempt for each redelivery.

A message has failed before if its attempts say so, or if it failed here: after a change of the leader, and after a
closed connection, the attempts of the partitioned server do not say so.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.

Source: server failures 3.10.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from nsq_ha.consumer.inflight import IN_TIME, conn_of
from nsq_ha.message import State
from nsq_ha.options.types import Backoff
from nsq_ha.policy.backlog import WELL_WITHIN
from nsq_ha.policy.consumer_backoff import ConsumerBackoff, PauseState
from nsq_ha.policy.ready import LOOK_INTERVAL
from nsq_ha.policy.redelivery import MOST_REMEMBERED

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.events import BackoffState
    from nsq_ha.message import Message

WHY: Final = "handlers fail and the consumer pauses"


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
        backoff: The option ``handler_backoff``.
        chance: Returns a number from 0 to 1, for the jitter.
        queue: The messages that wait.

    Attributes:
        is_active: A failure decides what follows, so outcomes are recorded.
        is_blocking: No message is handed out now.
        wake_at: When to call :meth:`tick`.
        records: Finished messages are recorded.
        reports: Changes to report.
    """

    def __init__(self, backoff: Backoff | None, chance: Callable[[], float], queue: deque[Message]) -> None:
        self.is_active: bool = False
        self.is_blocking: bool = False
        self.wake_at: float = math.inf
        self.records: bool = False
        self.reports: list[Paused] = []
        self._is_on = backoff is not None
        self._policy = ConsumerBackoff(backoff or Backoff(), chance)
        self._queue = queue
        self._failed: dict[MessageIdentity, None] = {}
        self._test: Message | None = None
        self._has_paused = False
        self._began_at = 0.0
        self._failures = 0

    @property
    def state(self) -> PauseState:
        """Whether messages are handed out; may be asked from any thread."""
        return self._policy.state if self._is_on else PauseState.FLOWING

    @property
    def wants_test(self) -> bool | None:
        """Whether one message is wanted as a test. None if messages flow."""
        policy = self._policy
        if not (self._is_on and policy.holds):
            return None
        return policy.state is PauseState.TESTING and not self._queue  # else one that waits will be it

    # -- what happens to messages; each returns whether something changed

    def failed(self, message: Message, now: float) -> bool:
        """Record that the handler of a message failed."""
        policy = self._policy
        if not self._is_on:
            return False
        is_known = self._has_failed(message)
        self._failed[message.identity] = None
        self.records = True
        if len(self._failed) > MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]
        if policy.state is PauseState.FLOWING:
            self._began_at, self._failures = now, 0
        self._failures += not is_known
        return policy.failed(now, message.identity, is_known=is_known) and self._changed(now)

    def deferred(self, message: Message, now: float) -> bool:
        """Record that a message was requeued with a delay of the application's."""
        return self._is_on and self._policy.deferred(now, message.identity) and self._changed(now)

    def finished(self, message: Message, now: float) -> bool:
        """Record that a message is finished; call this while :attr:`records`."""
        self._failed.pop(message.identity, None)
        self.records = self.is_active or bool(self._failed)
        return self._is_on and self._policy.succeeded(message.identity) and self._changed(now)

    def lost(self, message: Message, now: float) -> bool:
        """Record that no outcome of a message that was handed out is to be expected."""
        if not self.is_active or not self._policy.lost(message.identity):
            return False
        self._plan(now)
        return True

    def handed_out(self, message: Message, now: float) -> bool:
        """Record that a message is handed out; call this while :attr:`is_active`."""
        policy = self._policy
        policy.handed_out(message.identity, is_known=self._has_failed(message))
        if not policy.holds:
            return False
        self._test = message
        self._plan(now)
        return True

    def left(self, now: float) -> bool:
        """Record that a connection was lost."""
        test = self._test
        return test is not None and test.state is State.ORPHANED and self.lost(test, now)

    def close(self) -> None:
        """End."""
        self._test = None
        self._is_on = self.is_active = self.is_blocking = self.records = False
        self.wake_at = math.inf

    def _has_failed(self, message: Message) -> bool:
        return message.attempts > 1 or message.identity in self._failed

    # -- time

    def tick(self, now: float) -> bool:
        """Do what is due; return whether a test may be handed out, or should be asked for elsewhere."""
        policy, test = self._policy, self._test
        if now < self.wake_at:
            return False
        # Touching a test makes its end later.
        is_unanswered = test is not None and now >= _ends_at(test) and policy.lost(test.identity)
        is_over = policy.look(now)
        if is_over:
            self._report("testing", now)
        self._plan(now)
        return is_over or is_unanswered or policy.state is PauseState.TESTING

    def too_long(self, now: float) -> list[Message]:
        """Return the messages of the queue that cannot wait for the end of the pause, or any longer in it."""
        policy = self._policy
        if not self.is_blocking:
            return []
        until = max(now, policy.until or now)
        late = [message for message in self._queue if _returns_at(message) <= until]
        others = (_returns_at(message) for message in self._queue if message.state is State.QUEUED)
        self.wake_at = min(self.wake_at, min((at for at in others if at > until), default=math.inf))
        return late

    def _changed(self, now: float) -> bool:
        policy = self._policy
        self._test = None
        self.is_active = policy.state is not PauseState.FLOWING
        self.records = self.is_active or bool(self._failed)
        if policy.state is PauseState.PAUSED:
            self._has_paused = True
            self._report("paused", now)
        elif policy.state is PauseState.FLOWING and self._has_paused:
            self._has_paused = False
            self._report("ended", now)
        elif self.is_active:
            self._report(None, now)
        self._plan(now)
        return True

    def _report(self, state: BackoffState | None, now: float) -> None:
        policy = self._policy
        seconds = policy.seconds if state == "paused" else 0.0
        self.reports.append(Paused(state, seconds, policy.level, now - self._began_at, self._failures))

    def _plan(self, now: float) -> None:
        policy, test = self._policy, self._test
        self.is_blocking = policy.state in {PauseState.PAUSED, PauseState.IN_TEST}
        if policy.until is not None:
            self.wake_at = policy.until
        elif policy.state is PauseState.TESTING:
            self.wake_at = now + LOOK_INTERVAL  # connections without messages take turns that long
        elif policy.state is PauseState.IN_TEST and test is not None:
            self.wake_at = max(_ends_at(test), now)
        else:
            self.wake_at = math.inf


def _ends_at(message: Message) -> float:
    """Return when nsqd requeues a message."""
    return message.deadline + (1 - IN_TIME) * conn_of(message).msg_timeout


def _returns_at(message: Message) -> float:
    """Return when a message goes back to nsqd at the latest."""
    return message.deadline - (IN_TIME - WELL_WITHIN) * conn_of(message).msg_timeout
