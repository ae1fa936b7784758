"""Pause a consumer whose handlers fail, and find out with single messages when they work again.

``policy.consumer_backoff`` decides; this module has its timers, and keeps what arrived before the pause. Such messages
wait here, for at most half of their message timeout, and then go back to nsqd. They do not go back at once, since nsqd
counts an attempt for each redelivery.

A message has failed before if its attempts say so, or if it failed here: after a change of the leader, and after a
closed connection, the attempts of the partitioned server do not say so.

The invariants: while no handler has failed, this costs nothing per message. During a pause no message is handed out,
and after it one at a time, until one succeeds.

Source: server failures 3.10.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from typing import TYPE_CHECKING, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.delivery import give_back, source_of
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.events import BackoffChanged, BackoffState
from nsq_ha.policy.backlog import WELL_WITHIN
from nsq_ha.policy.consumer_backoff import ConsumerBackoff, PauseState
from nsq_ha.policy.redelivery import MOST_REMEMBERED
from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.consumer.queue import MessageQueue
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_LOOK_INTERVAL: Final = 0.25
"""Seconds between two checks for a test message; connections without messages take turns that long."""

_WHY: Final = "handlers fail and the consumer pauses"


class HandlerBackoff:
    """The back-off of a consumer.

    Args:
        name: Topic and channel, for the log.
        config: The consumer's options.
        queue: The messages that wait.
        share: Asks for fewer or more messages, and checks each one from a failure on until all is well.
        observer: The consumer's.

    Attributes:
        is_active: Whether each message must be admitted; cheap to check.
        on_pause: Called after a failure that matters. Others keep messages that were handed out to nobody yet.
    """

    def __init__(
        self,
        name: str,
        config: ConsumerConfig,
        queue: MessageQueue,
        share: Callable[[], None],
        observer: Observer = SILENT,
    ) -> None:
        self.is_active: bool = False
        self.on_pause: set[Callable[[], None]] = set()
        self._observer = observer
        self._name = name
        self._policy = (
            None if config.handler_backoff is None else ConsumerBackoff(config.handler_backoff, random.random)
        )
        self._queue = queue
        self._share = share
        self._parked: deque[tuple[Message, float]] = deque()  # with their arrival times
        self._returns_at = math.inf  # when the first of them goes back to nsqd, or earlier
        self._test: Message | None = None  # handed out last, while others are held back
        self._test_ends_at = 0.0  # when nsqd requeues it, unless it is touched
        self._failed: dict[MessageIdentity, None] = {}
        self._began_at = 0.0
        self._failures = 0
        self._is_logged = False
        self._timer: asyncio.TimerHandle | None = None
        self._rarely = Rarely()
        self._is_closed = False

    # -- what happens to messages

    def requeued(self, message: Message, delay: float | None) -> None:
        """Record that a message is requeued; without an explicit delay its handler failed."""
        if delay is None:
            self.failed(message)
        elif self._policy is not None and self._policy.deferred(monotonic(), message.identity):
            self._changed(self._policy)

    def failed(self, message: Message) -> None:
        """Record that the handler of a message failed."""
        policy = self._policy
        if policy is None or self._is_closed:
            return
        is_known, now = self._has_failed(message), monotonic()
        self._failed[message.identity] = None
        if len(self._failed) > MOST_REMEMBERED:
            del self._failed[next(iter(self._failed))]
        if policy.state is PauseState.FLOWING:
            self._began_at, self._failures, self._is_logged = now, 0, False
        self._failures += not is_known
        if policy.failed(now, message.identity, is_known=is_known):
            self._changed(policy)

    def finished(self, message: Message) -> None:
        """Record that a message is finished."""
        self._failed.pop(message.identity, None)
        if self._policy is not None and self._policy.succeeded(monotonic(), message.identity):
            self._changed(self._policy)

    def taken_back(self, message: Message) -> None:
        """Record that a message that was handed out is in the queue again, or goes back to nsqd."""
        if self._policy is not None and self._policy.lost(monotonic(), message.identity):
            self._look_for_test(self._policy)

    def keeps(self) -> bool:
        """Return whether :meth:`admits` would not hand out a message now."""
        return self._policy is not None and self._policy.state in {PauseState.PAUSED, PauseState.IN_TEST}

    def admits(self, message: Message, arrived_at: float) -> bool:
        """Return whether to hand out a message now; otherwise keep it, or give it back to nsqd."""
        policy = self._policy
        if policy is None:
            return True
        if self.keeps():
            if _returns_at(message, arrived_at) <= (policy.until or monotonic()):
                give_back(message, _WHY)
            else:
                self._park(policy, message, arrived_at)
            return False
        policy.handed_out(monotonic(), message.identity, is_known=self._has_failed(message))
        if policy.holds:
            self._test, self._test_ends_at = message, arrived_at + source_of(message).msg_timeout
            self._share()
            self._plan(policy)
        return True

    def left(self) -> None:
        """Record that a connection was lost."""
        self._parked = deque(entry for entry in self._parked if source_of(entry[0]).is_alive)
        if self._test is not None and not source_of(self._test).is_alive:
            self.taken_back(self._test)

    def close(self) -> list[Message]:
        """End; return the messages that were kept."""
        self._is_closed = True
        kept, self._policy = self.parked, None
        self._parked.clear()
        self._cancel()
        self.is_active = False
        return kept

    @property
    def parked(self) -> list[Message]:
        """The messages that are kept; may be asked from any thread."""
        return [message for message, _ in tuple(self._parked)]

    def _has_failed(self, message: Message) -> bool:
        return message.attempts > 1 or message.identity in self._failed

    # -- RDY

    @property
    def state(self) -> PauseState:
        """Whether messages are handed out; may be asked from any thread."""
        policy = self._policy
        return PauseState.FLOWING if policy is None else policy.state

    @property
    def wants_test(self) -> bool | None:
        """Whether one message is wanted as a test. None if messages flow."""
        if self._policy is None or not self._policy.holds:
            return None
        return self._policy.state is PauseState.TESTING and not self._queue.messages  # else one that waits will be it

    # -- the pauses

    def _changed(self, policy: ConsumerBackoff) -> None:
        """Follow a change of the state, or another pause of the same length."""
        now = monotonic()
        self._test = None
        self.is_active = policy.state is not PauseState.FLOWING
        self._log(policy, now)
        if self.is_active:
            for pause in self.on_pause:
                pause()
        if policy.state is PauseState.PAUSED:
            self._give_back_before(policy.until or now)
            self._plan(policy)
            self._report("paused", policy.seconds)
        elif self._timer is not None:  # messages were held back, and flow again
            self._report("ended")
            self._cancel()
            self._unpark(len(self._parked))
            self._queue.wake()
        self._share()

    def _look_for_test(self, policy: ConsumerBackoff) -> None:
        if self.wants_test:
            self._unpark(1)
        self._plan(policy)
        self._share()
        self._queue.wake()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, policy: ConsumerBackoff) -> None:
        """Set the timer for what comes next."""
        self._cancel()
        now = monotonic()
        if policy.until is not None:
            at = policy.until
        elif policy.state is PauseState.TESTING:
            at = now + _LOOK_INTERVAL
        else:
            at = self._ends_at
        delay = max(min(at, self._returns_at) - now, 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay, self._look, policy)

    @property
    def _ends_at(self) -> float:
        """When nsqd requeues the test; touching it makes this later."""
        watch = None if self._test is None else self._test.watch
        return self._test_ends_at if watch is None else max(self._test_ends_at, watch.deadline)

    def _look(self, policy: ConsumerBackoff) -> None:
        now = monotonic()
        self._give_back_before(now)
        is_unanswered = self._test is not None and now >= self._ends_at and policy.lost(now, self._test.identity)
        is_over = policy.look(now)
        if is_over:
            self._report("testing")
        if is_over or is_unanswered:
            self._look_for_test(policy)
            return
        self._plan(policy)
        if policy.state is PauseState.TESTING:
            self._share()

    def _report(self, state: BackoffState, seconds: float = 0.0) -> None:
        topic, _, channel = self._name.partition("/")
        self._observer.event(BackoffChanged(topic=topic, channel=channel, state=state, seconds=seconds))

    def _log(self, policy: ConsumerBackoff, now: float) -> None:
        if policy.state is PauseState.FLOWING:
            if self._is_logged:
                log.info(
                    "%s: handlers work again, after %.1f s and %d failures: asking for messages as before",
                    self._name,
                    now - self._began_at,
                    self._failures,
                )
        elif policy.holds and (missed := self._rarely.take(now)) is not None:
            self._is_logged = True
            log.warning(
                "%s: handlers fail: asking for no messages for %.1f s, then for one as a test (%d in a row failed%s)",
                self._name,
                policy.seconds,
                policy.level + 1,
                f"; {missed} changes before were not logged" if missed else "",
            )

    # -- messages that wait

    def _park(self, policy: ConsumerBackoff, message: Message, arrived_at: float) -> None:
        """Keep a message: of thousands that are kept one after the other, none looks at all."""
        self._parked.append((message, arrived_at))
        if (at := _returns_at(message, arrived_at)) < self._returns_at:
            self._returns_at = at
            self._plan(policy)

    def _give_back_before(self, until: float) -> None:
        """Give back the messages that cannot wait until then."""
        parked, self._parked, self._returns_at = self._parked, deque(), math.inf
        for message, arrived_at in parked:
            if (at := _returns_at(message, arrived_at)) <= until:
                give_back(message, _WHY)
            else:
                self._parked.append((message, arrived_at))
                self._returns_at = min(self._returns_at, at)

    def _unpark(self, count: int) -> None:
        """Put the first ``count`` messages back to the head of the queue."""
        first = [self._parked.popleft() for _ in range(min(count, len(self._parked)))]
        for message, arrived_at in reversed(first):
            self._queue.put_back(message, arrived_at)


def _returns_at(message: Message, arrived_at: float) -> float:
    """Return when a message goes back to nsqd at the latest."""
    return arrived_at + WELL_WITHIN * source_of(message).msg_timeout
