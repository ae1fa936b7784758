"""Share ``max_in_flight`` among the subscriptions of one consumer.

The invariant: granted RDY plus the unanswered messages of earlier grants never
exceed ``max_in_flight``. The limit is lower if bodies are so large that
``max_in_flight_bytes`` would be exceeded. ``policy.ready`` computes the shares.
While nothing is delivered there is no timer, so consumers at rest cost nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import ConfigError
from nsq_ha.policy import ready
from nsq_ha.policy.ready import LOOK_INTERVAL, Needs, Turns
from nsq_ha.protocol.encoding import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsq_ha.consumer.backoff import HandlerBackoff
    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.options.config import ConsumerConfig

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
        self._max_bytes = config.max_in_flight_bytes
        self._body = ready.BodySize(MAX_MESSAGE_BYTES)
        self._fitting = self._limit = ready.fitting(self.max_in_flight, self._max_bytes, self._body.bytes)
        self._paced: int | None = None
        self._subscriptions = subscriptions
        self._needs = Needs()
        self._turns = Turns()
        self._test_turns = Turns()
        self._backoff = backoff
        self.is_raise_due: bool = False
        self._is_stopped = False
        self._look_later: asyncio.TimerHandle | None = None
        self._is_resting = False
        self._share_later: asyncio.TimerHandle | None = None
        self._on_gathered = on_gathered

    def set(self, count: int) -> None:
        """Change ``max_in_flight``; 0 pauses.

        Raises:
            ConfigError: ``count`` is not an int of 0 or more.
        """
        given: object = count
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ConfigError(f"max_in_flight must be an int of 0 or more, not {given!r}")
        self.max_in_flight = count
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
        """Limit the messages in flight to ``count``, as the handlers' speed allows; None removes the limit."""
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
        self._fitting = ready.fitting(self.max_in_flight, self._max_bytes, self._body.bytes)
        self._limit = ready.paced(self._fitting, self._paced)

    def seen(self, body_bytes: int) -> None:
        """Record the size of a body; called for one body of each read."""
        if self._is_resting:
            self._plan_look()
        if self._fitting == self.max_in_flight and body_bytes * self._fitting <= self._max_bytes:
            return
        self._body.seen(body_bytes)
        fitting = ready.fitting(self.max_in_flight, self._max_bytes, self._body.bytes)
        # Not for each byte: send RDY if the number falls, or rises enough.
        if fitting < self._fitting or fitting == self.max_in_flight or fitting >= self._fitting * _WORTH_A_RAISE:
            self._fit()
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
        is_test = self._backoff.wants_test(None) if self._backoff.is_active else None
        if is_test is None:
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
        if self._backoff.is_active:
            for partition, subscription in live.items():
                is_test = self._backoff.wants_test(partition)
                if is_test is not None:
                    ceilings[partition] = min(ceilings[partition], subscription.in_flight + 1) if is_test else 0
        able = {p: s.seen for p, s in live.items() if ceilings[p] > 0}
        if len(able) > self._limit > 0:
            chosen = self._turns.choose(asyncio.get_running_loop().time(), self._limit, able)
            return {p: int(p in chosen) for p in live}
        return ready.share(self._limit, ceilings, needs=self._needs.by_partition)

    def _wanted_for_test(self, live: Mapping[int, Subscription], *, is_test: bool) -> dict[int, int]:
        """Return the RDY of each partition while all of them wait for one message, or for its outcome."""
        wanted = dict.fromkeys(live, 0)
        able = {p: s.seen for p, s in live.items() if s.in_flight < s.max_ready}
        if is_test and able and self._fitting > 0:
            now = asyncio.get_running_loop().time()
            chosen = self._test_turns.choose(now, 1, able)[0] if len(able) > 1 else next(iter(able))
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
