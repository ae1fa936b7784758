"""How a consumer drains.

Messages that nobody will answer are returned to nsqd at once: those that were not handed out, and those of a task that
leaves or has ended. The close waits for messages that a running handler or task holds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nsq_ha.base.unexpected import log_traceback
from nsq_ha.consumer.delivery import CLOSED, give_back, leave_to_end, source_of
from nsq_ha.consumer.ledger import is_returned_at_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.inbox import ConsumerInbox
    from nsq_ha.message import Message

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


async def drain(inbox: ConsumerInbox) -> None:
    """Stop asking for messages, return those that nobody will answer, and wait until the rest is answered.

    If cancelled, it stops waiting for answers.
    """
    live, ledger, unseen = list(inbox.subscriptions.values()), inbox.ledger, inbox.queue.unseen
    await asyncio.gather(*(subscription.link.stop() for subscription in live))
    _give_back_failed(inbox)
    returned = inbox.returned()
    # On the partitioned server, the end of the connection returns unseen messages without counting an attempt. If the
    # close must wait for answers, requeue them now, so that other consumers need not wait. Not on an ordered channel:
    # that would lose the order.
    waits = inbox.may_answer() and sum(subscription.unanswered for subscription in live) > len(unseen) + len(returned)
    for message in returned:
        _hand_back(message, ledger.return_at_close if waits else None)
    while unseen:
        _hand_back(unseen.popleft(), (lambda message: give_back(message, CLOSED)) if waits else None)
    while any(subscription.unanswered for subscription in live) and inbox.may_answer():
        ledger.changed.clear()
        await ledger.changed.wait()
        for message in inbox.returned():
            ledger.return_at_close(message)
        _give_back_failed(inbox)


def _give_back_failed(inbox: ConsumerInbox) -> None:
    for message in inbox.failed():
        give_back(message, CLOSED)


def _hand_back(message: Message, prompt: Callable[[Message], None] | None) -> None:
    """Return a message by ``prompt``; without it, or on an ordered channel, leave it to the end of its connection.

    A plain nsqd returns nothing at that end, so its messages are requeued in any case.
    """
    if not is_returned_at_end(message):
        give_back(message, CLOSED)
    elif prompt is not None and not source_of(message).is_ordered:
        prompt(message)
    else:
        leave_to_end(message)


async def supervisor_ended(supervisor: asyncio.Task[None] | None, name: str) -> None:
    """Wait for the end of a consumer's own task; log its error if it died."""
    if supervisor is None:
        return
    await asyncio.wait({supervisor})
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log_traceback(log, f"{name}: the consumer's own task died", error)
