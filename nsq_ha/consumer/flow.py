"""How many messages are asked for: by ``max_in_flight``, ``max_rate``, the speed of handling and the size of bodies.

The invariants: granted RDY plus the unanswered messages of earlier grants never exceed ``max_in_flight``. The limit is
lower if bodies are so large that ``max_in_flight_bytes`` would be exceeded. While nothing is delivered, no time is
planned, so consumers at rest cost nothing.

``policy.ready`` computes the shares of the partitions, ``policy.rate`` the turns of the messages.

Part of the pure machine (``consumer.machine``): no event loop, no clock, no log.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from nsq_ha.policy import ready
from nsq_ha.policy.handling_speed import Speed
from nsq_ha.policy.rate import MaxRate
from nsq_ha.policy.ready import LOOK_INTERVAL, Needs, Rotation
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Mapping

    from nsq_ha.consumer.inflight import ReadPartition, Subscription
    from nsq_ha.consumer.pause import Pause
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig

_WINDOW: Final = 0.01
"""Seconds of iteration that are measured together."""

_WORTH: Final = 0.25
"""Share of a limit by which a change is worth an RDY."""


class Flow:
    """The RDY of all connections of one consumer.

    Args:
        config: The consumer's options.
        partitions: What it reads.
        queue: The messages that wait.
        pause: Asks for fewer messages after failures.
        dirty: Takes the connections that have something to write.
        now: The time.

    Attributes:
        max_in_flight: Maximum number of unanswered messages over all partitions.
        max_bytes: Maximum bytes of their bodies, ``max_in_flight_bytes``.
        handlers: Number of handlers that may run at the same time; 0 if tasks iterate.
        handler_calls: Number of calls of handlers whose time was recorded.
        handler_seconds: How long they took together.
        speed: How long handling takes.
        msg_timeout: The shortest of all connections, in seconds.
        rate: The turns of the messages, by ``max_rate``. None without a limit.
        limited_seconds: How long messages have waited for their turns, while nothing else held them up.
        taken: Number of messages that were handed out.
        is_held: Nothing is asked for.
        check_at: When the next message is handed out after this, call :meth:`handed_out`.
        wake_at: When to call :meth:`tick`, or earlier.
        usual_bytes: Bodies up to this size change nothing; see :meth:`arrived`.
        is_resting: Nothing has been delivered for a while; see :meth:`arrived`.
        is_limited: The speed of handling, or ``max_rate``, limits what is asked for; see :meth:`freed`.
        is_raise_due: An RDY is to be raised when messages are answered; see :meth:`freed`.
    """

    def __init__(  # noqa: PLR0917 - the parts of one consumer
        self,
        config: ConsumerConfig,
        partitions: Mapping[int, ReadPartition],
        queue: deque[Message],
        pause: Pause,
        dirty: dict[Subscription, None],
        now: float,
    ) -> None:
        self.max_in_flight: int = config.max_in_flight
        self.max_bytes: int = config.max_in_flight_bytes
        self.handlers: int = 0
        self.handler_calls: int = 0
        self.handler_seconds: float = 0.0
        self.speed: Speed = Speed()
        self.msg_timeout: float = 60.0
        self.rate: MaxRate | None = None if config.max_rate is None else MaxRate(config.max_rate, now)
        self.limited_seconds: float = 0.0
        self.taken: int = 0
        self.check_at: float = -math.inf
        self.wake_at: float = math.inf
        self._partitions = partitions
        self._queue = queue
        self._pause = pause
        self._dirty = dirty
        self._body = ready.BodySize(MAX_MESSAGE_BYTES)
        self._paced: int | None = None
        self._fitting: int = 0
        self._limit: int = 0
        self.usual_bytes: float = 0.0
        self._fit()
        self._needs = Needs()
        self._rotation = Rotation()
        self._test_rotation = Rotation()
        self.is_held: bool = False
        self.is_raise_due: bool = False
        self.is_limited: bool = True
        self.is_resting: bool = False
        self._is_stopped = False
        self._share_at = self._look_at = self._ask_at = math.inf
        self._waits_since = 0.0
        self._count, self._count_at = 0, -math.inf
        self._window: tuple[float, int] | None = None  # since when, and what was handed out before

    @property
    def in_flight(self) -> int:
        """Number of messages delivered and not answered."""
        count = 0
        for partition in tuple(self._partitions.values()):  # in one call, since it is counted for each message
            if (conn := partition.conn) is not None:
                count += len(conn.messages)
            for conn in partition.replaced:
                count += len(conn.messages)
        return count

    @property
    def is_full(self) -> bool:
        """Whether nothing will be delivered until a message is answered."""
        live = self._live().values()
        return self.in_flight >= self._fitting or (
            bool(live) and all(len(conn.messages) >= conn.max_ready for conn in live)
        )

    # -- what happens

    def set(self, count: int, now: float) -> None:
        """Change ``max_in_flight``; 0 pauses."""
        self.max_in_flight = count
        self._fit()
        self.share(now)

    def hold(self, now: float, *, is_held: bool) -> None:
        """Ask for nothing until this is called again: what is given back now is for other consumers."""
        if is_held is not self.is_held:
            self.is_held = is_held
            self.share(now)

    def stop(self) -> None:
        """Ask for no more messages."""
        self._is_stopped = True
        self.wake_at = self._share_at = self._look_at = self._ask_at = math.inf

    def used_by(self, handlers: int, now: float) -> None:
        """Record that so many more handlers may run, or fewer."""
        self.handlers += handlers
        self._window = None
        self.review(now)  # each handler can begin one more

    def joined(self, now: float) -> None:
        """Record that a connection was subscribed, or that one is not any more."""
        self.msg_timeout = min((conn.msg_timeout for conn in self._live().values()), default=60.0)
        self.due(now)

    def arrived(self, body_bytes: int, now: float) -> None:
        """Record that messages arrived, and the size of one body.

        Call this while messages are iterated over or nothing has been delivered for a while, and for an unusual size.
        """
        if self.is_resting:
            self._look_later(now)
        if not self.handlers:
            self._window = self._window or (now, self.taken)
            self._measure(now, in_hand=1)
        if body_bytes > self.usual_bytes:
            self.seen(body_bytes, now)

    def seen(self, body_bytes: int, now: float) -> None:
        """Record the size of a body."""
        self._body.seen(body_bytes)
        fitting = ready.fitting(self.max_in_flight, self.max_bytes, self._body.bytes)
        # Not for each byte: send RDY if the number falls, or rises enough.
        if fitting < self._fitting or fitting == self.max_in_flight or fitting >= self._fitting * (1 + _WORTH):
            self._fit()
            self.due(now)

    def emptied(self, now: float) -> None:
        """Record that the queue is empty and a task waits for messages."""
        self._measure(now, in_hand=0)
        self._window = None

    def handed_out(self, now: float) -> None:
        """Record that a message was handed out; call this from ``check_at`` on."""
        if not self.handlers:
            self._measure(now, in_hand=1)
        if self.is_limited:
            self.review(now)
        else:
            self.check_at = now + _WINDOW

    def freed(self, now: float) -> None:
        """Record that messages were answered; call this while ``is_limited`` or ``is_raise_due``."""
        if self.is_raise_due:
            self.is_raise_due = False
            self.due(now)
        if self.is_limited:
            self.review(now)

    def handled(self, count: int, seconds: float, now: float) -> None:
        """Record that one handler took ``seconds`` for ``count`` messages."""
        self.handler_calls += count
        self.handler_seconds += seconds
        self.speed.took(count, seconds)
        self.review(now)

    def tick(self, now: float, *, is_awaited: bool) -> None:
        """Do what is due.

        Args:
            now: The time.
            is_awaited: Somebody waits for a message.
        """
        if now >= self._ask_at:
            if is_awaited:  # the message waited at its nsqd
                self.limited_seconds += now - self._waits_since
            self._ask_at = math.inf
            self.review(now)
            self.due(now)
        if now >= self._look_at:
            self._look(now)
        if now >= self._share_at:
            self.share(now)
        self.wake_at = min(self._share_at, self._look_at, self._ask_at)

    # -- max_rate

    def limit_rate(self, per_second: float | None, now: float) -> list[Message]:
        """Change ``max_rate``; None removes the limit. A new limit begins without a burst.

        Returns:
            Waiting messages that would have their turns too late.
        """
        tokens = 0.0 if self.rate is None else self.rate.tokens(now)
        self.rate = None if per_second is None else MaxRate(per_second, now, tokens)
        self._ask_at = math.inf
        self.review(now)
        self.share(now)
        return [] if self.rate is None else [*self._queue][self.rate.in_time(self.msg_timeout) :]

    # -- how many may be in flight

    def review(self, now: float) -> None:
        """Update the limit by the speed of handling and ``max_rate``."""
        most, handlers, rate = self.max_in_flight, max(self.handlers, 1), self.rate
        is_quick = self.speed.is_quick(self.msg_timeout, handlers, most)
        self.is_limited = not is_quick or rate is not None
        if not self.is_limited:
            self.check_at = math.inf if self.handlers else now + _WINDOW
            self._limit_to(None, now)
            return
        self.check_at = -math.inf
        in_hand = self.counted(now) - len(self._queue)
        limit = most
        if not is_quick:
            waiting = self.speed.waiting(self.msg_timeout, handlers)
            if self.speed.seconds is None:
                waiting = max(waiting, len(self._live()))  # else some partitions would have to take turns
            # An iterating task works on the last message that it got, or has put it aside and wants the next one.
            limit = max(self.handlers, in_hand) + max(waiting, 0 if self.handlers else 1)
        if rate is not None:
            # If none may wait, none may come while the last one is answered, either.
            limit = min(limit, in_hand + waiting) if (waiting := self._may_wait(rate, now)) else 0
        self._limit_to(limit, now)

    def counted(self, now: float) -> int:
        """Return the messages in flight; with many partitions as they were a moment ago, since counting takes long."""
        if now >= self._count_at:
            self._count, self._count_at = self.in_flight, now + ready.gathering(len(self._partitions))
        return self._count

    def _may_wait(self, rate: MaxRate, now: float) -> int:
        """Return how many messages may wait for their turns; if none may yet, ask again later."""
        live = len(self._live())
        waiting = rate.waiting(live, self.msg_timeout)
        if waiting or not live:
            return waiting
        later = rate.soon(now, self.msg_timeout)
        if later and self._ask_at == math.inf:
            self._waits_since, self._ask_at = now, now + later
            self.wake_at = min(self.wake_at, self._ask_at)
        return int(not later)

    def _measure(self, now: float, *, in_hand: int) -> None:
        """Learn the speed of an iteration; the last message may be still worked on."""
        if self._window is None:
            return
        began, taken_before = self._window
        if not self.is_limited and now - began < _WINDOW:
            return
        done = self.taken - taken_before - in_hand
        if done > 0:
            self._window = now, taken_before + done
            self.speed.took(done, now - began)
            self.review(now)

    def _limit_to(self, count: int | None, now: float) -> None:
        """Limit the messages in flight to ``count``, as their handling allows; None removes the limit."""
        if count == self._paced:
            return
        self._paced = count
        limit, before = self._fitting if count is None else min(self._fitting, count), self._limit
        # Send RDY only for a change that matters, or if nothing would arrive without it.
        if (
            limit >= before * (1 + _WORTH)
            or limit <= before * (1 - _WORTH)
            or (limit > before and (count is None or self.counted(now) >= before))
        ):
            self._limit = limit
            self.due(now)

    def _fit(self) -> None:
        self._fitting = ready.fitting(self.max_in_flight, self.max_bytes, self._body.bytes)
        self._limit = self._fitting if self._paced is None else min(self._fitting, self._paced)
        # While large bodies lower the number, each one may raise it again.
        is_lowered = self._fitting != self.max_in_flight
        self.usual_bytes = -math.inf if is_lowered else self.max_bytes / max(self._fitting, 1)

    # -- RDY

    def due(self, now: float) -> None:
        """Share when all inputs of this moment have come; with many partitions, those of a longer moment."""
        if not self._is_stopped:
            self._share_at = min(self._share_at, now + ready.gathering(len(self._partitions)))
            self.wake_at = min(self.wake_at, self._share_at)

    def _live(self) -> dict[int, Subscription]:
        found = self._partitions.items()
        return {p: conn for p, each in found if (conn := each.conn) is not None and conn.is_reading}

    def share(self, now: float) -> None:
        """Share ``max_in_flight`` again. Ask for less first, and for more only when the limit allows it."""
        self._share_at = math.inf
        if self._is_stopped:
            return
        live = self._live()
        # Replaced connections have RDY 0, but their messages are still unanswered.
        replaced = sum(len(conn.messages) for each in self._partitions.values() for conn in each.replaced)
        limit, is_test = self._limit - replaced, self._pause.wants_test
        in_flight = {p: len(conn.messages) for p, conn in live.items()}
        if self.is_held:
            wanted = dict.fromkeys(live, 0)
        elif is_test is None:
            wanted = self._wanted(live, now)
        else:
            wanted = self._wanted_for_test(live, now, is_test=is_test)
            limit = min(self._fitting - replaced, sum(in_flight.values()) + 1)
        plan = ready.plan(limit, {p: conn.ready for p, conn in live.items()}, in_flight, wanted)
        for partition, count in (*plan.lower.items(), *plan.raised.items()):
            conn = live[partition]
            conn.set_ready(count)
            self._dirty[conn] = None
        self.is_raise_due |= plan.is_raise_due
        if len(live) > 1 and self._look_at == math.inf:
            self._look_later(now)

    def _wanted(self, live: Mapping[int, Subscription], now: float) -> dict[int, int]:
        """Return the RDY of each partition."""
        if len(live) > self._limit > 0:
            chosen = self._rotation.choose(now, self._limit, {p: conn.seen for p, conn in live.items()})
            return {p: int(p in chosen) for p in live}
        return ready.share(self._limit, {p: conn.max_ready for p, conn in live.items()}, needs=self._needs.by_partition)

    def _wanted_for_test(self, live: Mapping[int, Subscription], now: float, *, is_test: bool) -> dict[int, int]:
        """Return the RDY of each partition while all of them wait for one message, or for its outcome."""
        wanted = dict.fromkeys(live, 0)
        able = {p: conn.seen for p, conn in live.items() if len(conn.messages) < conn.max_ready}
        if is_test and able and self._limit > 0:
            chosen = self._test_rotation.choose(now, 1, able)[0] if len(able) > 1 else next(iter(able))
            wanted[chosen] = len(live[chosen].messages) + 1
        return wanted

    def _look(self, now: float) -> None:
        """Share the messages in flight by what the partitions use."""
        self._look_at = math.inf
        live = self._live()
        before = self._needs.by_partition
        is_one_full = self._needs.look({p: conn.seen for p, conn in live.items()})
        for conn in live.values():
            conn.peak = len(conn.messages)
        # Send nothing while no partition can use more.
        if is_one_full or len(live) > self._limit:
            self.share(now)
        elif len(live) > 1:
            # The same needs, and all as low as they become: nothing has been delivered for a while.
            self.is_resting = self._needs.by_partition == before and all(need == 1 for need in before.values())
            if not self.is_resting:
                self._look_later(now)

    def _look_later(self, now: float) -> None:
        self.is_resting, self._look_at = False, now + LOOK_INTERVAL
        self.wake_at = min(self.wake_at, self._look_at)
