"""Decide by the number of deliveries whether a message gets another attempt or is given up."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.consumer.causes import take_cause
from nsq_ha.consumer.closing import Returned, is_returned_at_end, leave_to_end
from nsq_ha.dead_letters.provenance import Failure
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.events import GaveUp
from nsq_ha.observe import SILENT
from nsq_ha.policy.redelivery import MOST_REMEMBERED
from nsq_ha.threads import HandlerThreads, is_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.giving_up import GiveUpPublisher
    from nsq_ha.dead_letters.provenance import Reason
    from nsq_ha.identity import Identity
    from nsq_ha.message import Message
    from nsq_ha.observe import Observer
    from nsq_ha.options.config import ConsumerConfig

SPARE_DELIVERIES: Final = 10
"""Deliveries beyond ``max_attempts`` after which a message is given up though no handler failed on it here.

nsqd counts deliveries, and some reach no handler: those to a client that restarts, or that time out in its queue. So a
message with more deliveries than ``max_attempts`` is still handled, and given up if that fails. But a message that
kills each process that handles it never fails, and must be given up, too.
"""

_MOST_THREADS: Final = 32
"""Number of plain ``on_give_up`` functions that run at the same time; others wait."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class AttemptPolicy:
    """Decides what becomes of a message by the number of its deliveries.

    Attributes:
        fine_below: A message with fewer attempts needs no check.
        on_failed: Called with each message whose handler failed.
        given_up: Number of messages that were given up.
    """

    def __init__(self, config: ConsumerConfig, publisher: GiveUpPublisher, observer: Observer = SILENT) -> None:
        self._config = config
        self._publisher = publisher
        self._observer = observer
        self.given_up: int = 0
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = HandlerThreads(_MOST_THREADS)
        # Why messages are given up that are redelivered only for that. None if no failure is known.
        self._not_given_up: dict[Identity, Failure | None] = {}
        self._exempt: set[int] = set()  # ids of messages that are requeued whatever their attempts
        self.on_failed: Callable[[Message], None] = lambda _: None
        warn = config.warn_attempts or 65536
        self.fine_below: int = min(warn, (config.max_attempts or 65535) + 1)

    def is_busy(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is giving up a message now."""
        return task in self._busy

    async def may_be_handled(self, message: Message) -> bool:
        """Warn about a message that keeps coming, or give it up; return whether to handle it."""
        attempts, warn = message.attempts, self._config.warn_attempts
        limit = self._config.max_attempts
        is_left = bool(self._not_given_up) and message.identity in self._not_given_up
        if limit is None or (attempts <= limit + SPARE_DELIVERIES and not is_left):
            if warn and attempts >= warn and attempts % warn == 0 and _is_power_of_two(attempts // warn):
                log.warning("%r is redelivered again and again: this is delivery %d", message, attempts)
            return True
        how = ", which failed before" if is_left else " unhandled"
        why = self._not_given_up.pop(message.identity, None)
        log.warning("giving up %r%s: delivery %d, max_attempts=%d", message, how, attempts, limit)
        await self._give_up(message, why)
        return False

    async def failed(self, message: Message, error: BaseException, what: str = "handler failed on") -> None:
        """Requeue a message whose handler failed, or give it up if that was its last attempt; ``what`` is logged."""
        log.warning("%s %r: %r", what, message, error, exc_info=error)
        if message.answered:
            return
        self.on_failed(message)
        if not self._was_last(message) or self._waits(message):
            message.requeue()
            return
        self._log_last(message)
        try:
            await self._give_up(message, _failure("failed", error))
        except asyncio.CancelledError:
            if not message.answered:
                self.give_back(message, "giving it up was cancelled")
            raise

    def gives_up(self, message: Message) -> bool:
        """Start giving up a requeued message if that was its last attempt; return whether it was."""
        if not self._was_last(message):
            return False
        # The exception that the application is handling now, in its `except` or leaving the block of the message.
        why = _failure("requeued", take_cause())
        if self._waits(message):
            self._remember(message, why)
            return False
        # A copy, since the end of the caller's block must not finish this one while it is given up.
        again = copy.copy(message)
        again.answered = False
        self._log_last(message)
        task = asyncio.create_task(self._give_up(again, why), name=f"nsq_ha gives up {message!r}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def give_back(self, message: Message, why: str) -> None:
        """Requeue a message that has not failed, without delay.

        Args:
            message: The message, unanswered.
            why: Completes "the message was given back because ...", for an answer that comes later.
        """
        self._exempt.add(id(message))
        try:
            message.requeue(0)
        finally:
            self._exempt.discard(id(message))
        message.source = Returned(message.source, why)

    def spare(self, message: Message, why: str) -> None:
        """Return a message of a closing consumer to nsqd, without counting an attempt if attempts matter.

        After a requeue nsqd redelivers it immediately and counts an attempt. The end of the connection, which comes
        within ``close_timeout``, counts none. A plain nsqd counts every delivery, and returns nothing at that end.
        """
        if self._config.max_attempts is None or not is_returned_at_end(message):
            self.give_back(message, why)
        else:
            leave_to_end(message)

    def is_exempt(self, message: Message) -> bool:
        """Return whether the message is being requeued, or given up, by this library."""
        return id(message) in self._exempt

    @property
    def is_giving_up(self) -> bool:
        """Whether a message is being given up now."""
        return bool(self._busy or self._tasks)

    async def aclose(self) -> None:
        """Cancel pending work; its messages are redelivered."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def end_threads(self) -> None:
        """End the threads of a plain ``on_give_up``, when no message can be given up anymore."""
        self._threads.close()

    def _was_last(self, message: Message) -> bool:
        limit = self._config.max_attempts
        return (
            limit is not None
            and message.attempts >= limit
            and id(message) not in self._exempt
            and getattr(message.source, "is_alive", True)
        )

    def _waits(self, message: Message) -> bool:
        """Return whether to delay the message once before giving it up.

        Otherwise a message republished with ``max_attempts=1`` would fail and be republished without a pause.
        """
        return message.attempts == 1 and self._config.on_give_up == "republish"

    def _remember(self, message: Message, why: Failure | None) -> None:
        """Give the message up when it is delivered again, without handling it."""
        if len(self._not_given_up) >= MOST_REMEMBERED:  # one of those may be handled once more
            self._not_given_up.clear()
        self._not_given_up[message.identity] = why

    def _log_last(self, message: Message) -> None:
        limit = self._config.max_attempts
        if limit is not None and message.attempts > limit:
            log.warning("giving up %r: delivery %d failed, max_attempts=%d", message, message.attempts, limit)
        else:
            log.warning("giving up %r: attempt %d of %s failed", message, message.attempts, limit)

    async def _give_up(self, message: Message, why: Failure | None) -> None:
        task = asyncio.current_task()
        self._busy.add(task)
        self._exempt.add(id(message))
        try:
            await self._apply(message, why)
        except (Exception, asyncio.CancelledError) as error:  # the application's function may raise anything
            if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
                raise
            log.warning("%r could not be given up and will be redelivered: %s", message, error)
            self._report(message, str(error) or repr(error))
            self._remember(message, why)
            if not message.answered:
                message.requeue()
        except BaseException:  # ends the iteration or the run, which must not give the message up again
            if not message.answered:
                message.requeue(0)
            raise
        else:
            self.given_up += 1
            self._report(message, None)
            if not message.answered:
                message.finish()
        finally:
            self._busy.discard(task)
            self._exempt.discard(id(message))

    def _report(self, message: Message, error: str | None) -> None:
        policy, source = self._config.on_give_up, message.source
        self._observer.event(
            GaveUp(
                topic=source.topic,
                channel=source.channel,
                partition=source.partition,
                nsqd=source.nsqd,
                internal_id=message.internal_id,
                trace_id=message.trace_id,
                attempts=message.attempts,
                policy="function" if callable(policy) else policy or "drop",
                error=error,
            )
        )

    async def _apply(self, message: Message, why: Failure | None) -> None:
        policy = self._config.on_give_up
        if callable(policy):
            outcome = policy(message) if is_async(policy) else await self._threads.call(policy, message)
            if inspect.isawaitable(outcome):
                await outcome
        else:
            await self._publisher.publish(message, why)


def _failure(reason: Reason, error: BaseException | None) -> Failure:
    return Failure.of(reason, error)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
