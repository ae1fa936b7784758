"""How fast messages are asked for: by ``max_in_flight``, ``max_rate`` and the speed of handling, and with pauses.

The invariants: granted RDY plus the unanswered messages of earlier grants never
exceed ``max_in_flight``. The limit is lower if bodies are so large that
``max_in_flight_bytes`` would be exceeded. While handling is quick, there is no
extra work for each message. While nothing is delivered there is no timer, so
consumers at rest cost nothing.

``policy.ready`` computes the shares of the partitions, ``policy.rate`` the turns of the messages, and
``consumer.backoff`` pauses after failures.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.consumer.backoff import HandlerBackoff
from nsq_ha.consumer.delivery import give_back
from nsq_ha.consumer.giving_up import checked_from
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.options.config import ConsumerConfig
from nsq_ha.options.language import declared
from nsq_ha.policy import ready
from nsq_ha.policy.backlog import Speed
from nsq_ha.policy.rate import MaxRate
from nsq_ha.policy.ready import LOOK_INTERVAL, Needs, Rotation
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsq_ha.consumer.queue import MessageQueue
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.message import Message

_WINDOW: Final = 0.01
"""Seconds of quick iteration that are measured together."""

_SAMPLE: Final = 16
"""Messages after which the speed of an iteration is measured, if no others arrive meanwhile."""

_WORTH_A_RAISE: Final = 1.25
_WORTH_A_CUT: Final = 0.75


class Flow:
    """Sends RDY to the subscriptions whenever something changed.

    Args:
        config: The consumer's options.
        subscriptions: One for each partition.
        backoff: Asks for fewer messages after failures.
        on_gathered: Called after changes of many partitions, to share.

    Attributes:
        max_in_flight: Maximum number of unanswered messages over all partitions.
        max_bytes: Maximum bytes of their bodies, ``max_in_flight_bytes``.
        is_raise_due: A higher RDY waits until messages are answered.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        subscriptions: Mapping[int, Subscription],
        backoff: HandlerBackoff,
        on_gathered: Callable[[], None],
    ) -> None:
        self.max_in_flight: int = config.max_in_flight
        self.max_bytes: int = config.max_in_flight_bytes
        self._body = ready.BodySize(MAX_MESSAGE_BYTES)
        self._fitting = self._limit = ready.fitting(self.max_in_flight, self.max_bytes, self._body.bytes)
        self._paced: int | None = None
        self._subscriptions = subscriptions
        self._needs = Needs()
        self._rotation = Rotation()
        self._test_rotation = Rotation()
        self._backoff = backoff
        self.is_raise_due: bool = False
        self._is_stopped = False
        self._is_held = False
        self._look_later: asyncio.TimerHandle | None = None
        self._is_resting = False
        self._share_later: asyncio.TimerHandle | None = None
        self._on_gathered = on_gathered

    def set(self, count: int) -> None:
        """Change ``max_in_flight``; 0 pauses.

        Raises:
            ConfigError: ``count`` is out of the option's range.
        """
        self.max_in_flight = declared(ConsumerConfig)["max_in_flight"].check(count)
        self._fit()
        self.share()

    @property
    def in_flight(self) -> int:
        """Number of messages delivered and not answered."""
        return sum(one.in_flight + one.replaced_in_flight for one in self._subscriptions.values())

    @property
    def is_full(self) -> bool:
        """Whether nothing will be delivered until a message is answered."""
        live = [one for one in self._subscriptions.values() if one.max_ready > 0]
        return self.in_flight >= self._fitting or (bool(live) and all(one.in_flight >= one.max_ready for one in live))

    def limit_to(self, count: int | None) -> None:
        """Limit the messages in flight to ``count``, as their handling allows; None removes the limit."""
        if count == self._paced:
            return
        self._paced = count
        limit, before = ready.paced(self._fitting, count), self._limit
        # Send RDY only for a change that matters, or if nothing would arrive without it.
        if (
            limit >= before * _WORTH_A_RAISE
            or limit <= before * _WORTH_A_CUT
            or (limit > before and (count is None or self.in_flight >= before))
        ):
            self._limit = limit
            self.share()

    def _fit(self) -> None:
        self._fitting = ready.fitting(self.max_in_flight, self.max_bytes, self._body.bytes)
        self._limit = ready.paced(self._fitting, self._paced)

    def seen(self, body_bytes: int) -> None:
        """Record the size of a body; called for one body of each read."""
        if self._is_resting:
            self._plan_look()
        if self._fitting == self.max_in_flight and body_bytes * self._fitting <= self.max_bytes:
            return
        self._body.seen(body_bytes)
        fitting = ready.fitting(self.max_in_flight, self.max_bytes, self._body.bytes)
        # Not for each byte: send RDY if the number falls, or rises enough.
        if fitting < self._fitting or fitting == self.max_in_flight or fitting >= self._fitting * _WORTH_A_RAISE:
            self._fit()
            self.share()

    def hold(self, *, is_held: bool) -> None:
        """Ask for nothing until this is called again: what is given back now is for other consumers."""
        if is_held is not self._is_held:
            self._is_held = is_held
            self.share()

    def stop(self) -> None:
        """Send no more RDY."""
        self._is_stopped = True
        for timer in (self._look_later, self._share_later):
            if timer is not None:
                timer.cancel()

    def freed(self) -> None:
        """Record that messages were answered for which a raise had to wait; call this if ``is_raise_due``."""
        self.is_raise_due = False
        if not self.gathers():
            asyncio.get_running_loop().call_soon(self.share)

    def gathers(self) -> bool:
        """If there are many partitions, gather changes for a moment, and then call ``on_gathered``, which shares.

        Returns:
            False if there are few, which the caller should share now.
        """
        delay = ready.gathering(len(self._subscriptions))
        if not delay:
            return False
        if self._share_later is None and not self._is_stopped:
            self._share_later = asyncio.get_running_loop().call_later(delay, self._gathered)
        return True

    def _gathered(self) -> None:
        self._share_later = None
        self._on_gathered()

    def share(self) -> None:
        """Share ``max_in_flight`` again. Send lower RDY first, and a higher one only when the limit allows it."""
        if self._is_stopped:
            return
        live = {p: s for p, s in self._subscriptions.items() if s.max_ready > 0}
        # Replaced connections have RDY 0, but their messages are still unanswered.
        limit = self._limit - sum(s.replaced_in_flight for s in self._subscriptions.values())
        is_test = self._backoff.wants_test
        if self._is_held:
            wanted = dict.fromkeys(live, 0)
        elif is_test is None:
            wanted = self._wanted(live)
        else:
            wanted = self._wanted_for_test(live, is_test=is_test)
            limit = min(self._fitting, sum(s.in_flight for s in live.values()) + 1)
        sent, in_flight = {p: s.ready for p, s in live.items()}, {p: s.in_flight for p, s in live.items()}
        plan = ready.plan(limit, sent, in_flight, wanted)
        for partition, count in (*plan.lower.items(), *plan.raised.items()):
            live[partition].set_ready(count)
        self.is_raise_due |= plan.is_raise_due
        if len(live) > 1 and self._look_later is None:
            self._plan_look()

    def _plan_look(self) -> None:
        self._is_resting = False
        if not self._is_stopped:
            self._look_later = asyncio.get_running_loop().call_later(LOOK_INTERVAL, self._look)

    def _wanted(self, live: Mapping[int, Subscription]) -> dict[int, int]:
        """Return the RDY of each partition."""
        ceilings = {p: s.max_ready for p, s in live.items()}
        if len(live) > self._limit > 0:
            seen = {p: s.seen for p, s in live.items()}
            chosen = self._rotation.choose(asyncio.get_running_loop().time(), self._limit, seen)
            return {p: int(p in chosen) for p in live}
        return ready.share(self._limit, ceilings, needs=self._needs.by_partition)

    def _wanted_for_test(self, live: Mapping[int, Subscription], *, is_test: bool) -> dict[int, int]:
        """Return the RDY of each partition while all of them wait for one message, or for its outcome."""
        wanted = dict.fromkeys(live, 0)
        able = {p: s.seen for p, s in live.items() if s.in_flight < s.max_ready}
        if is_test and able and self._limit > 0:
            now = asyncio.get_running_loop().time()
            chosen = self._test_rotation.choose(now, 1, able)[0] if len(able) > 1 else next(iter(able))
            wanted[chosen] = live[chosen].in_flight + 1
        return wanted

    def _look(self) -> None:
        """Share the messages in flight by the partitions' backlogs."""
        self._look_later = None
        live = {p: s for p, s in self._subscriptions.items() if s.max_ready > 0}
        before = self._needs.by_partition
        is_one_full = self._needs.look({p: s.seen for p, s in live.items()})
        for subscription in live.values():
            subscription.reset_peak()
        # Send nothing while no partition can use more.
        if is_one_full or len(live) > self._limit:
            self.share()
        elif len(live) > 1:
            # The same needs, and all as low as they become: nothing has been delivered for a while.
            self._is_resting = self._needs.by_partition == before and all(need == 1 for need in before.values())
            if not self._is_resting:
                self._plan_look()


class ConsumerPace:
    """The pace of one consumer.

    Args:
        name: Topic and channel, for the log.
        config: The consumer's options.
        queue: The messages that wait.
        subscriptions: One for each partition.
        on_gathered: Called after changes of many partitions; calls :meth:`joined`.
        observer: The consumer's.

    Attributes:
        flow: Asks for messages.
        backoff: Holds messages back after failures.
        handlers: Number of handlers that may run at the same time; 0 if tasks iterate.
        handler_calls: Number of calls of handlers whose time was recorded.
        handler_seconds: How long they took together.
        is_careful: Each message is checked when it is handed out.
        msg_timeout: The shortest of all connections, in seconds.
        rate: The turns of the messages, by ``max_rate``. None without a limit.
        limited_seconds: How long messages have waited for their turns, while nothing else held them up.
        speed: How long handling takes.
    """

    def __init__(  # noqa: PLR0917 - the parts of one consumer
        self,
        name: str,
        config: ConsumerConfig,
        queue: MessageQueue,
        subscriptions: Mapping[int, Subscription],
        on_gathered: Callable[[], None],
        observer: Observer = SILENT,
    ) -> None:
        self.backoff: HandlerBackoff = HandlerBackoff(name, config, queue, self._share_paused, observer)
        self.flow: Flow = Flow(config, subscriptions, self.backoff, on_gathered)
        self.handlers: int = 0
        self.handler_calls: int = 0
        self.handler_seconds: float = 0.0
        self.is_careful: bool = True
        self.msg_timeout: float = 60.0
        self.rate: MaxRate | None = None
        if config.max_rate is not None:
            self.rate = MaxRate(config.max_rate, monotonic())
        self.limited_seconds: float = 0.0
        self.speed: Speed = Speed()
        self._turn_later: asyncio.TimerHandle | None = None
        self._ask_later: asyncio.TimerHandle | None = None
        # Redelivered messages are compared with those that are being worked on.
        self._fine_below = min(checked_from(config), 2)
        self._queue = queue
        self._subscriptions = subscriptions
        self._partitions = 0
        self._arrived = 0
        self._handed_out = 0
        self._window: tuple[float, int] | None = None
        self._careful_until = 0.0
        self._count = 0
        self._count_at = 0.0
        self._checks_all = False

    @property
    def has_many(self) -> bool:
        """Whether there are so many partitions that their changes are gathered."""
        return ready.gathering(len(self._subscriptions)) > 0

    # -- what happens

    def used_by(self, handlers: int) -> None:
        """Record that so many more handlers may run, or fewer."""
        self.handlers += handlers
        self.review()  # each handler can begin one more

    def joined(self) -> None:
        """Record that subscriptions succeeded."""
        deliveries = [one.delivery for one in self._subscriptions.values() if one.delivery is not None]
        self.msg_timeout = min((one.msg_timeout for one in deliveries if one.is_alive), default=60.0)
        self._partitions = len(deliveries)
        self.share()

    def left(self) -> None:
        """Record that a connection was lost, with its messages in the queue."""
        self._window = None
        self.review()
        self.backoff.left()
        if not self.flow.gathers():
            self.flow.share()

    def arrived(self, now: float, count: int) -> None:
        """Record that ``count`` messages arrived; call this before they are put into the queue."""
        waiting, arrived = len(self._queue.messages), self._arrived
        if self._window is None:
            self._window = (now, arrived - waiting)
        elif not self.handlers:
            self._measure(now, waiting, in_hand=1)
        self._arrived = arrived + count

    def emptied(self) -> None:
        """Record that the queue is empty and a task waits for messages."""
        if self._window is not None:
            if not self.handlers:
                now = monotonic()
                if self.is_careful or now - self._window[0] >= _WINDOW:  # with RDY 1, this is for each message
                    self._measure(now, 0, in_hand=0)
            self._window = None

    def handed_out(self, now: float) -> None:
        """Record that a message was handed out with a check."""
        self._handed_out += 1
        if not self.handlers and self._handed_out % _SAMPLE == 0:
            self._measure(now, len(self._queue.messages), in_hand=1)
        else:
            self.review()

    def freed(self) -> None:
        """Record that messages were answered."""
        if self.flow.is_raise_due:
            self.flow.freed()
        if self.is_careful and (not self.handlers or self.rate is not None) and not self.flow.gathers():
            self.review()

    def handled(self, count: int, seconds: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages."""
        self.handler_calls += count
        self.handler_seconds += seconds
        self.speed.took(count, seconds)
        self.review()

    def dropped(self, count: int) -> None:
        """Record that ``count`` messages left the queue unhandled."""
        self._arrived -= count

    def unmeasured(self) -> None:
        """Do not take the messages that left the queue just now for handled ones."""
        self._window = None

    # -- max_rate

    def limit_rate(self, per_second: float | None) -> None:
        """Change ``max_rate``; None removes the limit.

        A new limit begins without a burst. Waiting messages that would have their turns too late go back.
        """
        now, before = monotonic(), self.rate
        tokens = 0.0 if before is None else before.tokens(now)
        self.rate = None if per_second is None else MaxRate(per_second, now, tokens)
        self._cancel()
        self._queue.wake()
        self.share()
        if self.rate is not None:
            in_time = self.rate.in_time(self.msg_timeout)
            late = {id(message) for message in [*self._queue.messages][in_time:]}
            for message in self._queue.remove(lambda message: id(message) in late):
                self.dropped(1)
                give_back(message, "max_rate was lowered")

    def is_due(self, message: Message) -> bool:
        """Take the turn of a message; if it has none yet, wake the queue when it has."""
        if self.rate is None or self.backoff.keeps():  # such a one has its turn after the pause
            return True
        wait = self.rate.take(monotonic())
        if wait and self._turn_later is None:
            self._turn_later = asyncio.get_running_loop().call_later(wait, self._turn, wait)
        return not wait

    def _turn(self, waited: float) -> None:
        self._turn_later = None
        self.limited_seconds += waited
        self._queue.wake()

    def _ask(self, waited: float) -> None:
        self._ask_later = None
        if self._queue.is_awaited:  # the message waited at its nsqd
            self.limited_seconds += waited
        self.share()

    def _cancel(self) -> None:
        for timer in (self._turn_later, self._ask_later):
            if timer is not None:
                timer.cancel()
        self._turn_later = self._ask_later = None

    def stop(self) -> None:
        """Ask for no more messages."""
        self._cancel()
        self.flow.stop()

    # -- what follows

    def check_all(self) -> None:
        """Check each message from now on, whatever its attempts."""
        self._checks_all = True
        self._queue.fine_below = 0

    def be_careful(self, until: float) -> None:
        """Check each message until then, or for as long as was asked before; 0 ends that."""
        self._careful_until = max(until, self._careful_until) if until else 0.0
        if not (until and self.is_careful):  # a lost connection asks a thousand times
            self.review()

    def share(self) -> None:
        """Ask for as many messages as wanted now."""
        self.review()
        self.flow.share()

    def _share_paused(self) -> None:
        """Share after a change of a pause; with many partitions, those of many pauses together."""
        self.review()
        if not self.flow.gathers():
            self.flow.share()

    def review(self) -> None:
        """Update how many messages to ask for, and whether to check each one."""
        most, handlers, queue = self.flow.max_in_flight, max(self.handlers, 1), self._queue
        is_quick = self.speed.is_quick(self.msg_timeout, handlers, most)
        now, rate = monotonic(), self.rate
        is_careful = not is_quick or rate is not None or self.backoff.is_active or now < self._careful_until
        if is_careful is not self.is_careful:
            self.is_careful = is_careful
            queue.fine_below = 0 if is_careful or self._checks_all else self._fine_below
        if is_quick and rate is None:
            self.flow.limit_to(None)
            return
        in_hand = self._counted(now) - len(queue.messages)
        limit = most
        if not is_quick:
            waiting = self.speed.waiting(self.msg_timeout, handlers)
            if self.speed.seconds is None:
                waiting = max(waiting, self._partitions)  # else some partitions would have to take turns
            # An iterating task works on the last message that it got, or has put it aside and wants the next one.
            limit = max(self.handlers, in_hand) + max(waiting, 0 if self.handlers else 1)
        if rate is not None:
            # If none may wait, none may come while the last one is answered, either.
            limit = min(limit, in_hand + waiting) if (waiting := self._may_wait(rate, now)) else 0
        self.flow.limit_to(limit)

    def _counted(self, now: float) -> int:
        """Return the messages in flight; with many partitions as they were a moment ago, and soon look again.

        To count looks at each partition, and thousands of handlers may end in one turn.
        """
        if now >= self._count_at or not self.flow.gathers():
            self._count, self._count_at = self.flow.in_flight, now + ready.gathering(len(self._subscriptions))
        return self._count

    def _may_wait(self, rate: MaxRate, now: float) -> int:
        """Return how many messages may wait for their turns; if none may yet, ask again later."""
        waiting = rate.waiting(self._partitions, self.msg_timeout)
        if waiting or not self._partitions:
            return waiting
        later = rate.soon(now, self.msg_timeout)
        if later and self._ask_later is None:
            self._ask_later = asyncio.get_running_loop().call_later(later, self._ask, later)
        return int(not later)

    def _measure(self, now: float, waiting: int, in_hand: int) -> None:
        if self._window is None:
            return
        began, taken_before = self._window
        if not self.is_careful and now - began < _WINDOW:
            return
        # The last message handed out is still being handled, unless a task waits for the next one.
        done = self._arrived - waiting - taken_before - in_hand
        if done > 0:
            self._window = (now, taken_before + done)
            self.speed.took(done, now - began)
            self.review()
