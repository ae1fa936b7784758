"""The ``source`` of the messages that one connection delivers: their answers come here, from any thread.

Plain handlers run in threads. Only one thread at a time may answer a message: there is no lock.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsq_ha.base.clock import monotonic
from nsq_ha.engine import observe
from nsq_ha.message import State

if TYPE_CHECKING:
    import asyncio

    from nsq_ha.consumer.inflight import Subscription
    from nsq_ha.consumer.machine import ConsumerMachine
    from nsq_ha.message import Message

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_watched: Final = observe.watched

_cause: ContextVar[BaseException | None] = ContextVar("nsq_ha cause of a requeue", default=None)


class SourceShell(Protocol):
    """What sources and their messages need of ``consumer.shell``, which needs them."""

    machine: ConsumerMachine
    is_due: bool
    loop: asyncio.AbstractEventLoop | None

    def due(self) -> None:
        """Do what the machine wants in this turn."""

    def drain(self) -> None:
        """Do it now."""

    def requeue(self, message: Message, delay: float | None) -> None:
        """Requeue a message."""

    def give_back(self, message: Message, why: str) -> None:
        """Requeue an unanswered message that has not failed."""

    def warn_if_closed(self, message: Message, answer: str) -> None:
        """Warn about an answer that has no effect since the consumer has closed."""


class Source:
    """Passes the answers of one connection's messages to the machine.

    Args:
        shell: The consumer's.
        conn: The connection.
        topic: The topic.
        channel: The channel.
        nsqd: ``host:port`` of the nsqd.

    Attributes:
        conn: The connection.
    """

    def __init__(self, shell: SourceShell, conn: Subscription, topic: str, channel: str, nsqd: str) -> None:
        self.topic: str = topic
        self.channel: str = channel
        self.partition: int = conn.partition.number
        self.nsqd: str = nsqd
        self.conn: Subscription = conn
        self._shell = shell
        self._thread = get_ident()

    def finish(self, message: Message) -> None:
        """Buffer a FIN; all FINs of one turn of the loop are written together."""
        if get_ident() != self._thread:
            self._in_loop("finish", message)
            return
        if _watched.is_any:
            observe.finished(self.topic, message)
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
        warn_of_no_effect(message, answer, f"the message was given back because {message.returned}")

    def _in_loop(self, answer: str, message: Message, *more: Any) -> None:  # noqa: ANN401 - the answer's
        loop = self._shell.loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(_answer, answer, message, *more)
        except RuntimeError:  # the loop is closed, and so is the connection
            self._shell.warn_if_closed(message, answer)


def _answer(answer: str, message: Message, delay: float | None = None, cause: BaseException | None = None) -> None:
    """Answer in the event loop what a thread has answered, perhaps over another connection by now."""
    source = message.source
    if answer != "requeue":
        getattr(source, answer)(message)
        return
    token = _cause.set(cause)
    try:
        source.requeue(message, delay)
    finally:
        _cause.reset(token)


def take_cause() -> BaseException | None:
    """Return the exception that the application handles while it requeues a message, perhaps in a thread.

    None if it handles none. Tasks that start after this do not inherit it.
    """
    cause = sys.exception() or _cause.get()
    _cause.set(None)
    return cause


def warn_of_no_effect(message: Message, answer: str, why: str, advice: str = "") -> None:
    """Warn about an answer that comes too late. nsqd replies to no answer, so the call cannot fail."""
    log.warning("%r: %s() has no effect: %s, and nsqd delivers the message again%s", message, answer, why, advice)


def facts(message: Message) -> dict[str, Any]:
    """Return the fields that the events about single messages share."""
    names = ("topic", "partition", "nsqd", "internal_id", "trace_id", "attempts")
    return {name: getattr(message, name) for name in names} | {"channel": message.source.channel}
