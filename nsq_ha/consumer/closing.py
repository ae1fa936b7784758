"""How a consumer drains, and what happens to answers that come too late.

What nobody will answer goes back at once: messages that were not handed out, and those of a task that leaves or has
ended. What a running handler or task holds is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol

from nsq_ha.consumer.delivery import Delivery
from nsq_ha.unexpected import log_traceback

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable

    from nsq_ha.consumer.subscription import Subscription
    from nsq_ha.message import Message, MessageSource

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

CLOSED: Final = "the consumer was closed before it was answered"
"""Why closing gives a message back."""


class LateAnswers:
    """Warns about answers that come after the consumer has closed: no answer has a reply, so the call cannot know.

    Attributes:
        are_lost: The consumer has closed. Earlier losses come from a lost connection, as in any fail-over.
    """

    def __init__(self, is_ours: Callable[[Message], bool]) -> None:
        """Stay silent until ``are_lost``.

        Args:
            is_ours: Returns whether this library requeues the message at this moment.
        """
        self.are_lost = False
        self._is_ours = is_ours

    def __call__(self, message: Message, answer: str) -> None:
        """Record a late ``finish``, ``requeue`` or ``touch``; may be called from any thread."""
        if self.are_lost and not self._is_ours(message):
            advice = ". Answer messages before the consumer closes, or raise close_timeout"
            _warn(message, answer, "the consumer has closed", advice)


class Returned:
    """The source of a message that this library gave back: it says so if the message is answered later.

    Attributes:
        topic: As of the source before.
        channel: As of the source before.
        partition: As of the source before.
        nsqd: As of the source before.
        is_alive: False: nothing can be answered through it.
        is_ordered: As of the source before.
    """

    __slots__ = ("_why", "channel", "is_alive", "is_ordered", "nsqd", "partition", "topic")

    def __init__(self, source: MessageSource, why: str) -> None:
        """Take the place of ``source``; ``why`` completes "the message was given back because ..."."""
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
    """Whoever may still answer a message that was handed out."""

    def tasks(self) -> Iterable[asyncio.Task[object]]:
        """Return the tasks that iterate; when one of them ends, its messages are requeued."""

    def may_answer(self) -> bool:
        """Return whether somebody who is still running may answer a message."""

    def returned(self) -> Collection[Message]:
        """Return, once each, the unanswered messages whose holder leaves or has ended."""

    def failed(self) -> Iterable[Message]:
        """Return, once each, the unanswered messages of a task that an exception ended."""


class WayBack(Protocol):
    """How a message goes back to the server; ``consumer.attempts`` implements it."""

    def give_back(self, message: Message, why: str) -> None:
        """Requeue a message at once, which counts an attempt."""

    def spare(self, message: Message, why: str) -> None:
        """Give a message back at once, or without an attempt if attempts matter."""


async def drain(
    subscriptions: Iterable[Subscription],
    unseen: deque[Message],
    changed: asyncio.Event,
    holders: Holders,
    back: WayBack,
) -> None:
    """Ask for no more messages, give back what nobody will answer, and wait until the rest is answered.

    Args:
        subscriptions: The consumer's.
        unseen: Messages that nobody will answer, most of them not handed out; more may arrive while this runs.
        changed: Set when a message was answered, a subscription left, or what ``holders`` returns may have changed.
        holders: Who holds the messages that were handed out.
        back: Gives messages back.

    If cancelled, it stops waiting for answers.
    """
    live = list(subscriptions)
    await asyncio.gather(*(subscription.stop_messages() for subscription in live))
    _give_back_failed(holders, back)
    returned = holders.returned()
    # The close gives back what nobody saw, at once and without counting an attempt. Where the close has to wait for
    # an answer, other consumers are not made to wait with it; an ordered channel must, or its order would be lost.
    waits = holders.may_answer() and sum(subscription.unanswered for subscription in live) > len(unseen) + len(returned)
    for message in returned:
        _hand_back(message, back.spare if waits else None)
    while unseen:
        _hand_back(unseen.popleft(), back.give_back if waits else None)
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


def _hand_back(message: Message, back: Callable[[Message, str], None] | None) -> None:
    """Give a message back by ``back``, or by the end of its connection if there is none or order matters."""
    if back is not None and not getattr(message.source, "is_ordered", True):
        back(message, CLOSED)
    else:
        leave_to_end(message)


def leave_to_end(message: Message) -> None:
    """Leave a message to the end of its connection: nsqd delivers it again, and counts no attempt."""
    source = message.source
    delivery = getattr(source, "origin", source)  # a watched message has another source in front
    if isinstance(delivery, Delivery) and delivery.is_alive:
        delivery.in_flight -= 1
    message.answered = True
    message.source = Returned(source, CLOSED)


async def supervisor_ended(supervisor: asyncio.Task[None] | None, name: str) -> None:
    """Wait for the end of a consumer's own task; tell when it had died."""
    if supervisor is None:
        return
    await asyncio.wait({supervisor})
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        log_traceback(log, f"{name}: the consumer's own task had died", error)
