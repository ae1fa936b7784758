"""What one connection delivers, and what is answered to it: the ``source`` of its messages.

Messages arrive in the event loop. Plain handlers run in threads, so answers come from any thread. Only one thread at a
time may answer a message: there is no lock.
"""

from __future__ import annotations

import logging
import sys
from threading import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.base.redaction import redact
from nsq_ha.consumer.actions import PartitionEvent
from nsq_ha.consumer.failures import cause
from nsq_ha.consumer.inflight import WriteFinish, WriteRequeue
from nsq_ha.engine import observe
from nsq_ha.errors import NotInFlightError
from nsq_ha.message import State
from nsq_ha.policy.redelivery import is_damaged_for_good
from nsq_ha.protocol.encoding import encode_ready
from nsq_ha.protocol.refusals import longest_delay

if TYPE_CHECKING:
    from nsq_ha.consumer.inflight import Subscription
    from nsq_ha.consumer.shell import ConsumerShell
    from nsq_ha.consumer.starting import Start
    from nsq_ha.errors import ServerError
    from nsq_ha.message import Message
    from nsq_ha.policy.skipping import Skipping
    from nsq_ha.protocol import DamagedMessage

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_watched: Final = observe.watched


class Source:
    """Passes what arrives over one connection, and the answers to it, to the machine.

    Args:
        shell: The consumer's.
        conn: The connection.
        topic: The topic.
        channel: The channel.
        nsqd: ``host:port`` of the nsqd.
        start: Checks the first messages after a start position. None without one.
        skipping: Decides which messages are finished unhandled. None hands out all.

    Attributes:
        conn: The connection.
    """

    def __init__(  # noqa: PLR0917 - what a message shows, and what looks at it
        self,
        shell: ConsumerShell,
        conn: Subscription,
        topic: str,
        channel: str,
        nsqd: str,
        start: Start | None = None,
        skipping: Skipping | None = None,
    ) -> None:
        self.topic: str = topic
        self.channel: str = channel
        self.partition: int = conn.partition.number
        self.nsqd: str = nsqd
        self.conn: Subscription = conn
        self._shell = shell
        self._start = start
        self._skipping = skipping
        self._thread = get_ident()

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition}" if self.conn.meta.is_partitioned else self.topic

    # ------------------------------------------------------------ what arrives

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""
        conn, shell = self.conn, self._shell
        if self._start is not None and self._start.is_checked:
            self._start.check(messages)
        if self._skipping is not None and not (messages := self._without_skipped(messages, self._skipping)):
            return
        conn.partition.counts.lag_ns = max(time_ns() - messages[-1].timestamp_ns, 0)
        if _watched.is_any:
            observe.delivered(self.topic, messages)
        now, machine, clock = monotonic(), shell.machine, shell.clock
        is_late = now > clock.late_at
        if not is_late:
            clock.turned = now
        if shell.is_due:
            shell.drain()  # what was answered before
        shell.is_due = True  # answers from here on leave together, below
        try:
            machine.arrived(conn, messages, clock.ticked if is_late else now, now)
            messages.clear()  # else their bodies would stay in memory until the next read
            if is_late:  # answer heartbeats first
                shell.wake()
            elif machine.queue:
                shell.wake_now()
        finally:
            shell.drain()
        if conn.repeats_ready and conn.ready and conn.handle is not None:
            conn.handle.write(encode_ready(conn.ready))

    def _without_skipped(self, messages: list[Message], skipping: Skipping) -> list[Message]:
        """Finish the messages that the options skip, and return the others."""
        kept: list[Message] = []
        for message in messages:
            why = skipping.why(message.ext)
            if why is None:
                kept.append(message)
            else:
                self.conn.partition.counts.skipped += 1
                self._command(WriteFinish(message.id))
                if _watched.is_any:
                    observe.delivered(self.topic, (message,))
                    observe.answered("finish", message)
                log.debug("%s: finished %r unhandled: %s", self._name, message, why)
        return kept

    def _command(self, command: WriteFinish | WriteRequeue) -> None:
        self.conn.commands.append(command)
        self._shell.machine.dirty[self.conn] = None
        self._shell.due()

    def damaged(self, messages: list[DamagedMessage]) -> None:
        """Answer messages that cannot be decoded: they would block the channel forever."""
        for message in messages:
            is_final = is_damaged_for_good(message.attempts)
            message_id = message.message_id
            self._command(WriteFinish(message_id) if is_final else WriteRequeue(message_id, 0.0))
            did = "finished" if is_final else "requeued"
            if (more := self._shell.may_log(did)) is not None:
                log.log(
                    logging.ERROR if is_final else logging.WARNING,
                    "%s: %s a message that cannot be decoded: %s%s",
                    self._name,
                    did,
                    redact(repr(message)),
                    more,
                )

    def refused(self, errors: list[ServerError]) -> None:
        """Take errors that answer no request."""
        conn, machine = self.conn, self._shell.machine
        for error in errors:
            if (more := self._shell.may_log("refused")) is not None:
                log.info("%s: %s%s", self._name, error, more)
            if (longest := longest_delay(error)) is not None:
                self._shorten(longest)
            if isinstance(error, NotInFlightError) and (unfinished := error.unfinished) is not None:
                machine.fin_refused(conn, unfinished, monotonic())
            machine.actions.append(PartitionEvent("refused", conn.partition, conn.node, error))
        self._shell.due()

    def _shorten(self, longest: float) -> None:
        partition = self.conn.partition
        if longest != partition.longest_delay:
            log.warning(
                "%s: nsqd %s delays a requeue by at most %g s (--max-req-timeout) and closes the connection after a"
                " longer one: longer delays are shortened from now on",
                self._name,
                self.nsqd,
                longest,
            )
        partition.longest_delay = longest

    # ------------------------------------------------------------ answers

    def finish(self, message: Message) -> None:
        """Buffer a FIN; all FINs of one turn of the loop are written together."""
        if get_ident() != self._thread:
            self._in_loop("finish", message)
            return
        if _watched.is_any:
            observe.answered("finish", message)
        shell = self._shell
        if message.state is State.ORPHANED:
            shell.warn_if_closed(message, "finish")
            shell.machine.finish_orphan(message, monotonic())
        else:
            shell.machine.finish(self.conn, message)
        if not shell.is_due:
            shell.due()

    def requeue(self, message: Message, delay: float | None) -> None:
        """Buffer a REQ, or keep the message here until its delay is over (ordered)."""
        if get_ident() != self._thread:
            self._in_loop("requeue", message, delay, sys.exception())
        else:
            self._shell.requeue(message, delay)

    def touch(self, message: Message) -> None:
        """Buffer a TOUCH."""
        if get_ident() != self._thread:
            self._in_loop("touch", message)
            return
        if not self._shell.machine.touch(message, monotonic()):
            self._shell.warn_if_closed(message, "touch")
        self._shell.due()

    def interrupted(self, message: Message) -> bool:
        """Return whether the consumer takes over a message whose ``async with`` block was cancelled."""
        if get_ident() != self._thread:
            return False
        self._shell.machine.interrupted(message, monotonic())
        self._shell.due()
        return True

    def warn_of_no_effect(self, message: Message, answer: str) -> None:
        """Warn about an answer to a message that the library has returned."""
        self._shell.warn_of_no_effect(message, answer, f"the message was given back because {message.returned}")

    def _in_loop(self, answer: str, message: Message, *more: Any) -> None:  # noqa: ANN401 - the answer's
        loop = self._shell.loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(_answer, answer, message, *more)
        except RuntimeError:  # the loop is closed, and so is the connection
            self._shell.warn_if_closed(message, answer)


def _answer(answer: str, message: Message, *more: Any) -> None:  # noqa: ANN401 - the answer's
    """Answer in the event loop what a thread has answered, perhaps over another connection by now."""
    *delay, raised = more or (None,)
    token = cause.set(raised)
    try:
        getattr(message.source, answer)(message, *delay)
    finally:
        cause.reset(token)
