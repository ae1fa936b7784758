"""How a consumer drains: what nobody saw goes back, what was handed out is waited for."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsq_ha.consumer.delivery import Delivery
from nsq_ha.unexpected import log_traceback

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable

    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.message import Message

log = logging.getLogger("nsq_ha.consumer")


class LateAnswers:
    """Warns once that a message was finished too late; FIN has no answer, so ``finish()`` cannot know.

    Attributes:
        are_lost: The consumer has closed. Earlier losses come from a lost connection, as in any fail-over.
    """

    def __init__(self, name: str) -> None:
        self.are_lost = False
        self._name = name

    def __call__(self) -> None:
        """Record a late answer; may be called from any thread."""
        if self.are_lost:
            self.are_lost = False
            log.warning(
                "%s: a message was finished after the consumer closed, so nsqd delivers it again. Finish messages"
                " before the block ends, or raise close_timeout (this is logged once)",
                self._name,
            )


async def drain(
    subscriptions: Iterable[Subscription],
    unseen: deque[Message],
    changed: asyncio.Event,
    abandoned: Iterable[Message],
    give_back: Callable[[Message], None],
) -> None:
    """Ask for no more messages, give back what was not handed out, and wait until the rest is answered.

    Args:
        subscriptions: The consumer's.
        unseen: Messages not handed out; more may arrive while this runs.
        changed: Set when a message was answered, or a subscription left.
        abandoned: Messages of a task that failed; they are requeued at once.
        give_back: Requeues a message.

    If cancelled, it stops waiting for answers.
    """
    live = list(subscriptions)
    await asyncio.gather(*(subscription.stop_messages() for subscription in live))
    for message in abandoned:
        if not message.answered:
            give_back(message)
    # The close gives back what nobody saw, at once and without counting an attempt. Where the close has to wait for
    # an answer, other consumers are not made to wait with it; an ordered channel must, or its order would be lost.
    waits = sum(subscription.unanswered for subscription in live) > len(unseen)
    while unseen:
        message = unseen.popleft()
        if waits and not getattr(message.source, "is_ordered", True):
            give_back(message)
        else:
            _given_back(message)
    while any(subscription.unanswered for subscription in live):
        changed.clear()
        await changed.wait()


def _given_back(message: Message) -> None:
    delivery = message.source
    if isinstance(delivery, Delivery) and delivery.is_alive:
        delivery.in_flight -= 1


async def supervisor_ended(supervisor: asyncio.Task[None] | None, name: str) -> None:
    """Wait for the end of a consumer's own task; tell when it had died."""
    if supervisor is None:
        return
    await asyncio.wait({supervisor})
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log_traceback(log, f"{name}: the consumer's own task had died", error)
