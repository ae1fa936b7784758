"""Check and count the messages that arrive over a subscribed connection, and pass them to the consumer."""

from __future__ import annotations

import logging
from time import time_ns
from typing import TYPE_CHECKING

from nsq_ha.base.clock import monotonic
from nsq_ha.base.redaction import redact
from nsq_ha.consumer.inflight import WriteFinish, WriteRequeue
from nsq_ha.engine import observe
from nsq_ha.engine.connection import Callbacks
from nsq_ha.errors import NotInFlightError, NsqError, ServerError
from nsq_ha.policy.redelivery import is_damaged_for_good
from nsq_ha.policy.timing import FewLines
from nsq_ha.protocol.refusals import longest_delay

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsq_ha.consumer.inflight import Subscription
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.consumer.starting import Start
    from nsq_ha.message import Message
    from nsq_ha.policy.skipping import Skipping
    from nsq_ha.protocol import DamagedMessage

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Receiver:
    """Receives the messages of one partition, over any of its connections.

    Args:
        topic: The topic.
        name: The topic and the partition, if there are any.
        start: Checks the first messages after a start position.
        shell: Takes the messages.
        skipping: Decides which messages are finished unhandled. None hands out all.

    Attributes:
        start: As given.
    """

    def __init__(self, topic: str, name: str, start: Start, shell: ConsumerShell, skipping: Skipping | None) -> None:
        self._topic = topic
        self._name = name
        self.start: Start = start
        self._shell = shell
        self._skipping = skipping
        self._requeued = FewLines()
        self._finished = FewLines()
        self._refusal_lines = FewLines()

    def callbacks(self, conn: Subscription, lost: Callable[[NsqError], None]) -> Callbacks:
        """Return the callbacks for the connection ``conn``; ``lost`` is called when it ends."""

        def damaged(messages: list[DamagedMessage]) -> None:
            self._damaged(messages, conn)

        def refusals(errors: list[ServerError]) -> None:
            self._refusals(errors, conn)

        return Callbacks(lost, messages=self._messages, refusals=refusals, damaged=damaged)

    def _messages(self, messages: list[Message]) -> None:
        conn: Subscription = messages[0].source.conn  # type: ignore[attr-defined]  # it is a Source
        if self.start.is_checked:
            self.start.check(messages)
        if self._skipping is not None and not (messages := self._without_skipped(messages, conn, self._skipping)):
            return
        conn.partition.counts.lag_ns = max(time_ns() - messages[-1].timestamp_ns, 0)
        if observe.watched.is_any:
            observe.delivered(self._topic, messages)
        self._shell.arrived(conn, messages)

    def _without_skipped(self, messages: list[Message], conn: Subscription, skipping: Skipping) -> list[Message]:
        """Finish the messages that the options skip, and return the others."""
        kept: list[Message] = []
        for message in messages:
            why = skipping.why(message.ext)
            if why is None:
                kept.append(message)
            else:
                conn.partition.counts.skipped += 1
                self._answer(conn, WriteFinish(message.id))
                if observe.watched.is_any:
                    observe.delivered(self._topic, (message,))
                    observe.finished(self._topic, message)
                log.debug("%s: finished %r unhandled: %s", self._name, message, why)
        return kept

    def _answer(self, conn: Subscription, command: WriteFinish | WriteRequeue) -> None:
        conn.commands.append(command)
        self._shell.machine.dirty[conn] = None
        self._shell.due()

    def _damaged(self, damaged: list[DamagedMessage], conn: Subscription) -> None:
        for message in damaged:
            if is_damaged_for_good(message.attempts):  # it would block the channel forever
                self._answer(conn, WriteFinish(message.message_id))
                level, did, lines = logging.ERROR, "finished", self._finished
            else:
                self._answer(conn, WriteRequeue(message.message_id, 0.0))
                level, did, lines = logging.WARNING, "requeued", self._requeued
            if (more := lines.take(monotonic())) is not None:
                said = f"{did} a message that cannot be decoded: {redact(repr(message))}{more}"
                log.log(level, "%s: %s", self._name, said)

    def _refusals(self, refusals: list[ServerError], conn: Subscription) -> None:
        now = monotonic()
        for refusal in refusals:
            if (more := self._refusal_lines.take(now)) is not None:
                log.info("%s: %s%s", self._name, refusal, more)
            if (longest := longest_delay(refusal)) is not None:
                self._shorten(longest, conn)
            if isinstance(refusal, NotInFlightError) and (unfinished := refusal.unfinished) is not None:
                self._shell.machine.fin_refused(conn, unfinished, now)
            if (connecting := self._shell.connecting) is not None:
                connecting.refused(conn.partition, refusal, conn.source.nsqd)

    def _shorten(self, longest: float, conn: Subscription) -> None:
        if longest != conn.partition.longest_delay:
            log.warning(
                "%s: nsqd %s delays a requeue by at most %g s (--max-req-timeout) and closes the connection after a"
                " longer one: longer delays are shortened from now on",
                self._name,
                conn.source.nsqd,
                longest,
            )
        conn.partition.longest_delay = longest
