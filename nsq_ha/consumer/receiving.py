"""Check and count the messages that arrive over a subscribed connection, and pass them to the consumer."""

from __future__ import annotations

import asyncio
import logging
import math
from time import time_ns
from typing import TYPE_CHECKING

from nsq_ha.base.redaction import redact
from nsq_ha.consumer.delivery import Delivery
from nsq_ha.engine import observe
from nsq_ha.engine.connection import Callbacks
from nsq_ha.errors import NotInFlightError, NsqError, RemoteProtocolError, ServerError
from nsq_ha.policy.redelivery import is_damaged_for_good
from nsq_ha.policy.timing import FewLines
from nsq_ha.protocol.refusals import longest_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.starting import Start
    from nsq_ha.message import Message
    from nsq_ha.policy.overrun import Granted
    from nsq_ha.policy.skipping import Skipping
    from nsq_ha.protocol import DamagedMessage

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Receiver:
    """Receives the messages of one partition, over any of its connections.

    Args:
        topic: The topic.
        name: The topic and the partition, if there are any.
        start: Checks the first messages after a start position.
        arrived: Receives the messages of one read.
        refused: Called with each error that answers no request, and the nsqd's address.
        skipping: Decides which messages are finished unhandled. None hands out all.

    Attributes:
        longest_delay: Seconds by which nsqd delays a requeue at most, as far as is known.
    """

    def __init__(
        self,
        topic: str,
        name: str,
        start: Start,
        arrived: Callable[[list[Message]], None],
        refused: Callable[[ServerError, str], None] = lambda _error, _nsqd: None,
        *,
        skipping: Skipping | None = None,
    ) -> None:
        self.longest_delay: float = math.inf
        self._skipping = skipping
        self._refused = refused
        self._topic = topic
        self._name = name
        self._start = start
        self._arrived = arrived
        self._loop = asyncio.get_running_loop()
        self._floods = FewLines()
        self._requeued = FewLines()
        self._finished = FewLines()
        self._refusal_lines = FewLines()

    def callbacks(self, delivery: Delivery, lost: Callable[[NsqError], None]) -> Callbacks:
        """Return the callbacks for the connection of ``delivery``; ``lost`` is called when it ends."""

        def damaged(messages: list[DamagedMessage]) -> None:
            self._damaged(messages, delivery)

        def refusals(errors: list[ServerError]) -> None:
            self._refusals(errors, delivery)

        return Callbacks(lost, messages=self._messages, refusals=refusals, damaged=damaged)

    def _messages(self, messages: list[Message]) -> None:
        delivery = messages[0].source
        if not isinstance(delivery, Delivery):
            return
        if not delivery.is_alive:
            delivery.refuse(messages)
            return
        if self._start.is_checked:
            self._start.check(messages)
        if (self._skipping is not None or delivery.may_repeat) and not (messages := self._kept(messages, delivery)):
            return
        count = len(messages)
        delivery.delivered += count
        counts = delivery.counts
        counts.delivered += count
        counts.lag_ns = max(time_ns() - messages[-1].timestamp_ns, 0)
        before = delivery.in_flight
        delivery.in_flight = in_flight = before + count
        granted = delivery.granted
        if in_flight > granted.ready and _is_flood(granted, self._loop.time(), before, messages):
            reason = RemoteProtocolError(
                f"{delivery.nsqd} ignores RDY: {in_flight} messages are in flight, RDY is {granted.ready} and was"
                f" {granted.most} at most"
            )
            if (more := self._floods.take(self._loop.time())) is not None:
                log.warning("%s: closing the connection: %s%s", self._name, reason, more)
            delivery.abort(reason)
            return
        if in_flight > delivery.peak:  # noqa: PLR1730 - max() would be a call for each read
            delivery.peak = in_flight
        if delivery.is_ordered:
            delivery.follows(messages)
        if observe.watched.is_any:
            observe.delivered(self._topic, messages)
        delivery.is_arriving = True
        # This resumes the task that waits for messages, so that its answers are sent together, below.
        self._arrived(messages)
        delivery.passed_on()

    def _kept(self, messages: list[Message], delivery: Delivery) -> list[Message]:
        """Return the messages without those that are skipped, and without the copy of the first one."""
        if self._skipping is not None:
            messages = self._without_skipped(messages, delivery, self._skipping)
        return delivery.without_repeat(messages) if delivery.may_repeat else messages

    def _without_skipped(self, messages: list[Message], delivery: Delivery, skipping: Skipping) -> list[Message]:
        """Finish the messages that the options skip, and return the others."""
        kept: list[Message] = []
        for message in messages:
            why = skipping.why(message.ext)
            if why is None:
                kept.append(message)
            else:
                delivery.counts.skipped += 1
                delivery.finish_unseen(message.id)
                if observe.watched.is_any:
                    observe.delivered(self._topic, (message,))
                    observe.finished(self._topic, message)
                log.debug("%s: finished %r unhandled: %s", self._name, message, why)
        return kept

    def _damaged(self, damaged: list[DamagedMessage], delivery: Delivery) -> None:
        for message in damaged:
            if is_damaged_for_good(message.attempts):  # it would block the channel forever
                delivery.finish_unseen(message.message_id)
                level, did, lines = logging.ERROR, "finished", self._finished
            else:
                delivery.requeue_unseen(message.message_id)
                level, did, lines = logging.WARNING, "requeued", self._requeued
            if (more := lines.take(self._loop.time())) is not None:
                said = f"{did} a message that cannot be decoded: {redact(repr(message))}{more}"
                log.log(level, "%s: %s", self._name, said)

    def _refusals(self, refusals: list[ServerError], delivery: Delivery) -> None:
        for refusal in refusals:
            if (more := self._refusal_lines.take(self._loop.time())) is not None:
                log.info("%s: %s%s", self._name, refusal, more)
            if (longest := longest_delay(refusal)) is not None:
                self._shorten(longest, delivery)
            if isinstance(refusal, NotInFlightError) and (unfinished := refusal.unfinished) is not None:
                delivery.fin_refused(unfinished)
            self._refused(refusal, delivery.nsqd)

    def _shorten(self, longest: float, delivery: Delivery) -> None:
        if longest != self.longest_delay:
            log.warning(
                "%s: nsqd %s delays a requeue by at most %g s (--max-req-timeout) and closes the connection after a"
                " longer one: longer delays are shortened from now on",
                self._name,
                delivery.nsqd,
                longest,
            )
        self.longest_delay = longest


def _is_flood(granted: Granted, now: float, before: int, messages: list[Message]) -> bool:
    """Return whether these messages are more than requested, by number or by size."""
    in_flight = before + len(messages)
    return (in_flight > granted.ceiling and granted.is_overrun(now, before, in_flight)) or granted.is_outweighed(
        now, before, in_flight, sum(len(message.body) for message in messages)
    )
