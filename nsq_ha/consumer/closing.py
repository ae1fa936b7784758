"""How a consumer drains, and what happens to answers that come too late.

Messages that nobody will answer are returned to nsqd at once: those that were not handed out, and those of a task that
leaves or has ended. The close waits for messages that a running handler or task holds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.consumer.watched import delivery_of
from nsq_ha.unexpected import log_traceback

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable

    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.message import Message, MessageSource

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

CLOSED: Final = "the consumer was closed before it was answered"
"""Why the close returned a message."""


class LateAnswers:
    """Warns about answers that come after the consumer has closed. nsqd replies to no answer, so the call cannot fail.

    Args:
        is_ours: Returns whether this library is requeueing the message itself.

    Attributes:
        are_lost: The consumer has closed. Earlier losses come from a lost connection, as in any failover.
    """

    def __init__(self, is_ours: Callable[[Message], bool]) -> None:
        self.are_lost = False
        self._is_ours = is_ours

    def __call__(self, message: Message, answer: str) -> None:
        """Record a late ``finish``, ``requeue`` or ``touch``; may be called from any thread."""
        if self.are_lost and not self._is_ours(message):
            advice = ". Answer messages before the consumer closes, or raise close_timeout"
            _warn(message, answer, "the consumer has closed", advice)


class Returned:
    """Replaces the source of a message that this library returned to nsqd; warns if the message is answered later.

    Args:
        source: The source to replace.
        why: Completes "the message was given back because ...".

    Attributes:
        topic: From ``source``.
        channel: From ``source``.
        partition: From ``source``.
        nsqd: From ``source``.
        is_alive: False, since no answer has an effect.
        is_ordered: From ``source``.
    """

    __slots__ = ("_why", "channel", "is_alive", "is_ordered", "nsqd", "partition", "topic")

    def __init__(self, source: MessageSource, why: str) -> None:
        self.topic: str = source.topic
        self.channel: str = source.channel
        self.partition: int = source.partition
        self.nsqd: str = source.nsqd
        self.is_ordered: bool = getattr(source, "is_ordered", False)
        self.is_alive: bool = False
        self._why = why

    def returned(self, message: Message, answer: str) -> None:
        """Warn that an answer has no effect."""
        _warn(message, answer, f"the message was given back because {self._why}")

    def finish(self, message: Message) -> None:
        """Warn."""
        self.returned(message, "finish")

    def requeue(self, message: Message, delay: float | None) -> None:
        """Warn."""
        self.returned(message, "requeue")

    def touch(self, message: Message) -> None:
        """Warn."""
        self.returned(message, "touch")


def _warn(message: Message, answer: str, why: str, advice: str = "") -> None:
    log.warning("%r: %s() has no effect: %s, and nsqd delivers the message again%s", message, answer, why, advice)


class Holders(Protocol):
    """Knows the tasks that may still answer messages."""

    def tasks(self) -> Iterable[asyncio.Task[object]]:
        """Return the tasks that iterate; when one of them ends, its messages are requeued."""

    def may_answer(self) -> bool:
        """Return whether a running task may still answer a message."""

    def returned(self) -> Collection[Message]:
        """Return the unanswered messages of tasks that leave or have ended, each message once."""

    def failed(self) -> Iterable[Message]:
        """Return the unanswered messages of a task that an exception ended, each message once."""


class WayBack(Protocol):
    """Returns messages to the server; ``consumer.attempts`` implements it."""

    def give_back(self, message: Message, why: str) -> None:
        """Requeue a message at once, which counts an attempt."""

    def spare(self, message: Message, why: str) -> None:
        """Return a message at once, or without counting an attempt if attempts matter and the server allows that."""


async def drain(
    subscriptions: Iterable[Subscription],
    unseen: deque[Message],
    changed: asyncio.Event,
    holders: Holders,
    back: WayBack,
) -> None:
    """Stop asking for messages, return those that nobody will answer, and wait until the rest is answered.

    Args:
        subscriptions: The consumer's.
        unseen: Messages that nobody will answer, most of them not handed out; more may arrive while this runs.
        changed: Set when a message was answered, a subscription left, or the answers of ``holders`` may have changed.
        holders: Knows the tasks that hold messages.
        back: Returns messages to nsqd.

    If cancelled, it stops waiting for answers.
    """
    live = list(subscriptions)
    await asyncio.gather(*(subscription.stop_messages() for subscription in live))
    _give_back_failed(holders, back)
    returned = holders.returned()
    # On the partitioned server, the end of the connection returns unseen messages without counting an attempt. If the
    # close must wait for answers, requeue them now, so that other consumers need not wait. Not on an ordered channel:
    # that would lose the order.
    waits = holders.may_answer() and sum(subscription.unanswered for subscription in live) > len(unseen) + len(returned)
    for message in returned:
        _hand_back(message, back, back.spare if waits else None)
    while unseen:
        _hand_back(unseen.popleft(), back, back.give_back if waits else None)
    tasks = list(holders.tasks())

    def ended(_: asyncio.Task[object]) -> None:
        changed.set()

    for task in tasks:
        task.add_done_callback(ended)
    try:
        while any(subscription.unanswered for subscription in live) and holders.may_answer():
            changed.clear()
            await changed.wait()
            for message in holders.returned():
                back.spare(message, CLOSED)
            _give_back_failed(holders, back)
    finally:
        for task in tasks:
            task.remove_done_callback(ended)


def _give_back_failed(holders: Holders, back: WayBack) -> None:
    for message in holders.failed():
        back.give_back(message, CLOSED)


def _hand_back(message: Message, back: WayBack, prompt: Callable[[Message, str], None] | None) -> None:
    """Return a message by ``prompt``; without it, or on an ordered channel, leave it to the end of its connection.

    A plain nsqd returns nothing at that end, so its messages are requeued in any case.
    """
    if not is_returned_at_end(message):
        back.give_back(message, CLOSED)
    elif prompt is not None and not getattr(message.source, "is_ordered", True):
        prompt(message, CLOSED)
    else:
        leave_to_end(message)


def is_returned_at_end(message: Message) -> bool:
    """Return whether nsqd requeues the message when its connection ends."""
    delivery = delivery_of(message)
    return delivery is None or delivery.is_returned_at_end


def leave_to_end(message: Message) -> None:
    """Leave a message unanswered: nsqd requeues it when the connection ends, and counts no attempt."""
    delivery = delivery_of(message)
    if delivery is not None and delivery.is_alive:
        delivery.in_flight -= 1
        delivery.counts.returned += 1
    message.answered = True
    message.source = Returned(message.source, CLOSED)


async def supervisor_ended(supervisor: asyncio.Task[None] | None, name: str) -> None:
    """Wait for the end of a consumer's own task; log its error if it died."""
    if supervisor is None:
        return
    await asyncio.wait({supervisor})
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log_traceback(log, f"{name}: the consumer's own task died", error)
