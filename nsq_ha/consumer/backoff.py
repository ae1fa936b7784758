"""Pause a consumer whose handlers fail, and find out with single messages when they work again.

``policy.consumer_backoff`` decides; this module has its timers, and keeps what arrived before the pause. Such messages
wait here, for at most half of their message timeout, and then go back to nsqd. They do not go back at once, since nsqd
counts an attempt for each redelivery.

The invariants: while no handler has failed, this costs nothing per message. During a pause no message is handed out,
and after it one at a time, until all is well.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Final

from nsq_ha.consumer.delivery import give_back, source_of
from nsq_ha.events import BackoffChanged, BackoffState
from nsq_ha.observe import SILENT, Observer
from nsq_ha.policy.backlog import WELL_WITHIN
from nsq_ha.policy.consumer_backoff import ConsumerBackoff, PauseState
from nsq_ha.policy.timing import Rarely

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from nsq_ha.consumer.queue import MessageQueue
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_LOOK_INTERVAL: Final = 0.25
"""Seconds between two checks for a test message; connections without messages take turns that long."""

_WHY: Final = "handlers fail and the consumer pauses"


class _Pause:
    """The back-off of one consumer or of one partition.

    Args:
        policy: Decides.
        partition: The partition. None for all.
        began_at: The time.

    Attributes:
        parked: Messages that are not handed out yet, with their arrival times.
        returns_at: When the first of them goes back to nsqd, or earlier: those that left are not taken out of it.
        test: The message that was handed out as a test last. None without one.
        test_ends_at: When nsqd requeues the test if nobody answers or touches it.
        failures: Number of failures since it began.
        is_logged: A warning was logged since it began.
        timer: For what comes next.
    """

    def __init__(self, policy: ConsumerBackoff, partition: int | None, began_at: float) -> None:
        self.policy = policy
        self.partition = partition
        self.began_at = began_at
        self.parked: deque[tuple[Message, float]] = deque()
        self.returns_at = math.inf
        self.test: Message | None = None
        self.test_ends_at = 0.0
        self.failures = 0
        self.is_logged = False
        self.timer: asyncio.TimerHandle | None = None

    def next_at(self, now: float) -> float:
        """Return when to look at it again."""
        policy = self.policy
        if policy.until is not None:
            return min(policy.until, self.returns_at)
        if policy.state is PauseState.TESTING:
            return min(now + _LOOK_INTERVAL, self.returns_at)
        return min(self.ends_at, self.returns_at)

    def park(self, message: Message, arrived_at: float) -> None:
        """Keep a message: of thousands that are kept one after the other, none looks at all."""
        self.parked.append((message, arrived_at))
        self.returns_at = min(self.returns_at, _returns_at(message, arrived_at))

    @property
    def ends_at(self) -> float:
        """When nsqd requeues the test; touching it makes this later."""
        watch = None if self.test is None else self.test.watch
        return self.test_ends_at if watch is None else max(self.test_ends_at, watch.deadline)

    def cancel(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class HandlerBackoff:
    """The back-off of a consumer.

    Args:
        name: Topic and channel, for the log.
        config: The consumer's options.
        queue: The messages that wait.
        share: Asks for fewer or more messages, and checks each one while a pause lasts.
        observer: The consumer's.

    Attributes:
        is_active: Whether any message may have to wait; cheap to check.
        on_pause: Called when this becomes true. Others keep messages that were handed out to nobody yet.
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
        self._backoff = config.handler_backoff
        self._scope = config.handler_backoff_scope
        self._queue = queue
        self._share = share
        self._pauses: dict[int | None, _Pause] = {}
        self._rarely = Rarely()
        self._is_closed = False

    # -- what happens to messages

    def requeued(self, message: Message, delay: float | None) -> None:
        """Record that a message is requeued; without an explicit delay its handler failed."""
        if delay is None:
            self.failed(message)
        else:
            pause = self._pauses.get(self._key(message))
            if pause is not None and pause.policy.deferred(monotonic(), message.identity):
                self._changed(pause)

    def failed(self, message: Message) -> None:
        """Record that the handler of a message failed."""
        if self._backoff is None or self._is_closed:
            return
        key, now = self._key(message), monotonic()
        pause = self._pauses.get(key)
        if pause is None:
            pause = self._pauses[key] = _Pause(ConsumerBackoff(self._backoff, random.random), key, now)
        if pause.policy.failed(now, message.identity):
            pause.failures += 1
            self._changed(pause)

    def finished(self, message: Message) -> None:
        """Record that a message is finished."""
        pause = self._pauses.get(self._key(message))
        if pause is not None and pause.policy.succeeded(monotonic(), message.identity):
            self._changed(pause)

    def taken_back(self, message: Message) -> None:
        """Record that a message that was handed out is in the queue again, or goes back to nsqd."""
        pause = self._pauses.get(self._key(message))
        if pause is not None and pause.policy.lost(monotonic(), message.identity):
            self._look_for_test(pause)

    def keeps(self, message: Message) -> bool:
        """Return whether :meth:`admits` would not hand out a message now."""
        pause = self._pauses.get(self._key(message))
        return pause is not None and pause.policy.state is not PauseState.TESTING

    def admits(self, message: Message, arrived_at: float) -> bool:
        """Return whether to hand out a message now; otherwise keep it, or give it back to nsqd."""
        pause = self._pauses.get(self._key(message))
        if pause is None:
            return True
        is_test = pause.policy.handed_out(monotonic(), message.identity)
        if is_test:
            pause.test, pause.test_ends_at = message, arrived_at + source_of(message).msg_timeout
            self._share()
        else:
            self._park(pause, message, arrived_at)
        self._plan(pause)
        return is_test

    def left(self, partitions: Container[int]) -> None:
        """Record that a connection was lost, and which partitions are still read."""
        for pause in list(self._pauses.values()):
            pause.parked = deque(entry for entry in pause.parked if source_of(entry[0]).is_alive)
            if pause.partition is not None and pause.partition not in partitions:
                self._end(pause)
            elif pause.test is not None and not source_of(pause.test).is_alive:
                self.taken_back(pause.test)

    def close(self) -> list[Message]:
        """End; return the messages that were kept."""
        self._is_closed = True
        kept = self.parked
        for pause in self._pauses.values():
            pause.cancel()
        self._pauses = {}
        self.is_active = False
        return kept

    @property
    def parked(self) -> list[Message]:
        """The messages that are kept; may be asked from any thread."""
        return [message for pause in tuple(self._pauses.values()) for message, _ in tuple(pause.parked)]

    # -- RDY

    @property
    def states(self) -> dict[int | None, PauseState]:
        """The state of each back-off, by partition; None stands for all partitions together. Empty in normal times."""
        return {partition: pause.policy.state for partition, pause in tuple(self._pauses.items())}

    @property
    def is_in_test(self) -> bool:
        """Whether all partitions wait for the outcome of one message."""
        pause = self._pauses.get(None)
        return pause is not None and pause.policy.state is PauseState.IN_TEST

    def wants_test(self, partition: int | None) -> bool | None:
        """Return whether one message is wanted as a test. None if messages flow.

        Args:
            partition: The partition. None asks about the back-off of all partitions together.
        """
        return self.wanted_tests((partition,)).get(partition)

    def wanted_tests(self, partitions: Iterable[int | None]) -> dict[int | None, bool]:
        """Return the same for each of these that has a back-off, with one look at what waits."""
        waiting = {self._key(message) for message in self._queue.messages}  # a message that waits will be the test
        return {
            partition: pause.policy.state is PauseState.TESTING and partition not in waiting
            for partition in partitions
            if (pause := self._pauses.get(partition)) is not None
        }

    def _key(self, message: Message) -> int | None:
        is_for_all = self._scope == "consumer" or (self._scope == "auto" and not source_of(message).is_ordered)
        return None if is_for_all else message.partition

    # -- the pauses

    def _changed(self, pause: _Pause) -> None:
        """Follow a change of the level, or another pause at the same one."""
        policy, now = pause.policy, monotonic()
        pause.test = None
        self._log(pause, now)
        if policy.state is PauseState.FLOWING:
            self._end(pause)
            return
        self._activate()
        self._give_back_before(pause, policy.until or now)
        self._plan(pause)
        self._share()
        self._report(pause, "paused", policy.seconds)

    def _activate(self) -> None:
        is_active = bool(self._pauses)
        if self.is_active is not is_active:
            self.is_active = is_active
            for pause in self.on_pause if is_active else ():
                pause()

    def _end(self, pause: _Pause) -> None:
        """Let messages flow again."""
        self._report(pause, "ended")
        pause.cancel()
        del self._pauses[pause.partition]
        self._unpark(pause, len(pause.parked))
        self._activate()
        self._share()
        self._queue.wake()

    def _look_for_test(self, pause: _Pause) -> None:
        if self.wants_test(pause.partition):
            self._unpark(pause, 1)
        self._plan(pause)
        self._share()
        self._queue.wake()

    def _plan(self, pause: _Pause) -> None:
        """Set the timer for what comes next."""
        pause.cancel()
        now = monotonic()
        pause.timer = asyncio.get_running_loop().call_later(max(pause.next_at(now) - now, 0.0), self._look, pause)

    def _look(self, pause: _Pause) -> None:
        policy, now = pause.policy, monotonic()
        self._give_back_before(pause, now)
        is_unanswered = pause.test is not None and now >= pause.ends_at and policy.lost(now, pause.test.identity)
        is_over = policy.look(now)
        if is_over:
            self._report(pause, "testing")
        if is_over or is_unanswered:
            self._look_for_test(pause)
            return
        self._plan(pause)
        if policy.state is PauseState.TESTING:
            self._share()

    def _report(self, pause: _Pause, state: BackoffState, seconds: float = 0.0) -> None:
        topic, _, channel = self._name.partition("/")
        self._observer.event(
            BackoffChanged(topic=topic, channel=channel, partition=pause.partition, state=state, seconds=seconds)
        )

    def _log(self, pause: _Pause, now: float) -> None:
        policy = pause.policy
        where = self._name if pause.partition is None else f"{self._name}, partition {pause.partition}"
        if policy.state is PauseState.FLOWING:
            if pause.is_logged:
                seconds = now - pause.began_at
                log.info(
                    "%s: handlers work again, after %.1f s and %d failures: asking for messages as before",
                    where,
                    seconds,
                    pause.failures,
                )
        elif (missed := self._rarely.take(now)) is not None:
            pause.is_logged = True
            log.warning(
                "%s: a handler failed: asking for no messages for %.1f s, then for one as a test (back-off level %d%s)",
                where,
                policy.seconds,
                policy.level,
                f"; {missed} changes before were not logged" if missed else "",
            )

    # -- messages that wait

    def _park(self, pause: _Pause, message: Message, arrived_at: float) -> None:
        if _returns_at(message, arrived_at) <= (pause.policy.until or monotonic()):
            give_back(message, _WHY)
        else:
            pause.park(message, arrived_at)

    def _give_back_before(self, pause: _Pause, until: float) -> None:
        """Give back the messages that cannot wait until then."""
        parked, pause.parked, pause.returns_at = pause.parked, deque(), math.inf
        for message, arrived_at in parked:
            if _returns_at(message, arrived_at) <= until:
                give_back(message, _WHY)
            else:
                pause.park(message, arrived_at)

    def _unpark(self, pause: _Pause, count: int) -> None:
        """Put the first ``count`` messages back to the head of the queue."""
        first = [pause.parked.popleft() for _ in range(min(count, len(pause.parked)))]
        for message, arrived_at in reversed(first):
            self._queue.put_back(message, arrived_at)


def _returns_at(message: Message, arrived_at: float) -> float:
    """Return when a message goes back to nsqd at the latest."""
    return arrived_at + WELL_WITHIN * source_of(message).msg_timeout
