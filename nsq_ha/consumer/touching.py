"""Touch the messages that are being worked on; ``policy.touching`` decides when.

Held are the messages of running handlers, and those that a running task got by iterating and has not answered. One
timer serves all of them. The invariant: without the option there is no timer, and no cost.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING

from nsq_ha.consumer.delivery import delivery_of
from nsq_ha.policy.touching import Held, Touches, gap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from nsq_ha.consumer.ledger import Ledger
    from nsq_ha.consumer.pace import Pace
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class AutoTouch:
    """Touches the messages of one consumer.

    Args:
        name: Topic and channel, for the log.
        seconds: Seconds between two TOUCHes of a message. None for half of the message timeout.
        held: Returns the messages that are being worked on.
        ledger: Knows the arrival times of messages.
        pace: Knows the message timeout.
    """

    def __init__(
        self, name: str, seconds: float | None, held: Callable[[], Iterable[Message]], ledger: Ledger, pace: Pace
    ) -> None:
        self._name = name
        self._seconds = seconds
        self._held = held
        self._ledger = ledger
        self._pace = pace
        self._touches: Touches[tuple[Identity, int]] = Touches(seconds)
        self._looked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_warned = False

    def start(self) -> None:
        """Start, in the running event loop."""
        self._looked_at = monotonic()
        self._plan()

    def joined(self) -> None:
        """Record that the message timeout may be shorter from now on."""
        if self._timer is not None and self._timer.when() > self._next_at():
            self._timer.cancel()
            self._plan()

    def _plan(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(self._next_at(), self._turn)

    def _next_at(self) -> float:
        return asyncio.get_running_loop().time() + gap(self._seconds, self._pace.msg_timeout)

    def stop(self) -> None:
        """Touch nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def handed_out(self, message: Message, arrived_at: float) -> None:
        """Touch a message at once if it waited for long; called for those whose arrival time is known."""
        delivery, now = delivery_of(message), monotonic()
        if delivery is None or self._timer is None:
            return
        held = Held(arrived_at, delivery.msg_timeout, delivery.max_msg_timeout)
        if self._touches.is_urgent(now, held):
            self._touches.touched(now, _key(message), held)
            message.source.touch(message)

    def _turn(self) -> None:
        now = monotonic()
        messages: dict[tuple[Identity, int], Message] = {}
        held: dict[tuple[Identity, int], Held] = {}
        for message in self._held():
            delivery = delivery_of(message)
            if delivery is None or message.answered or not delivery.is_alive:
                continue
            arrived_at = self._ledger.arrived_before(message, self._looked_at)
            messages[_key(message)] = message
            held[_key(message)] = Held(arrived_at, delivery.msg_timeout, delivery.max_msg_timeout)
        turn = self._touches.turn(now, held)
        for key in turn.touched:
            self._ledger.watch(messages[key], held[key].arrived_at)
            messages[key].source.touch(messages[key])  # a thread may answer it just now, so touch() might raise
        for key in turn.over:
            self._warn(messages[key], held[key].max_msg_timeout)
        self._looked_at = now
        self._plan()

    def _warn(self, message: Message, most: float) -> None:
        level = logging.DEBUG if self._is_warned else logging.WARNING
        self._is_warned = True
        log.log(
            level,
            "%s: handling %r takes longer than %g s, for which nsqd keeps a touched message at most (-max-msg-timeout):"
            " it delivers the message again. Split the work, or finish the message before it",
            self._name,
            message,
            most,
        )


def _key(message: Message) -> tuple[Identity, int]:
    return message.identity, message.attempts
