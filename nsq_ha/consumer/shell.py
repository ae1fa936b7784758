"""The shell around a consumer's machine: what arrives and is handed out, what is written and when, and who is woken.

The rules are in ``consumer.machine``; nothing is decided here. Messages arrive in the event loop. Plain handlers run in
threads, so answers come from any thread. Only one thread at a time may answer a message: there is no lock.

The invariant: a message is handed out only while its connection is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import sys
from collections import defaultdict
from threading import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.base.redaction import redact
from nsq_ha.base.resuming import detached, resume
from nsq_ha.base.threads import in_thread
from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.consumer.answers import CLOSED, HasFailed, Said
from nsq_ha.consumer.clock import TICK, Heartbeats, LoopClock
from nsq_ha.consumer.giving_up import WARN_ATTEMPTS, GiveUpPublisher, GivingUp, cause
from nsq_ha.consumer.inflight import Stage, WriteFinish, WriteReady, WriteRequeue, WriteTouch, conn_of
from nsq_ha.consumer.machine import ConsumerMachine, FinishedCopy, Flooded
from nsq_ha.consumer.pause import Paused, PauseState
from nsq_ha.consumer.reports import MessageReports
from nsq_ha.consumer.subscriptions import PartitionEvent
from nsq_ha.engine import observe
from nsq_ha.engine.loops import Alarm
from nsq_ha.engine.observe import Observer
from nsq_ha.errors import BodyError, ClosedError, ConfigError, NotInFlightError, NsqError, RemoteProtocolError
from nsq_ha.message import State
from nsq_ha.policy.redelivery import is_damaged_for_good, requeue_delay
from nsq_ha.policy.skipping import Skipping, skipping_of
from nsq_ha.policy.timing import Rarely
from nsq_ha.protocol.body_codec import AT_ONCE_BYTES, MARK, PackedBody, packed_body
from nsq_ha.protocol.encoding import FIN, encode_fin, encode_fins, encode_ready, encode_req, encode_touch
from nsq_ha.protocol.refusals import longest_delay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsq_ha.consumer.inflight import Command, Recipient, Subscription
    from nsq_ha.errors import ServerError
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig
    from nsq_ha.protocol import DamagedMessage

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

_watched: Final = observe.watched


class ConsumerShell:
    """The messages of one consumer, and the tasks that wait for them.

    Args:
        name: Topic and channel.
        config: The consumer's options.
        publisher: Publishes given-up messages.
        check_loop: Raises if the running event loop is not the consumer's.

    Attributes:
        name: Topic and channel.
        config: The consumer's options.
        topic: The topic.
        channel: The channel.
        skipping: Decides which messages are finished unhandled. None hands out all.
        observer: Passes on what the application wants to be told.
        machine: Decides.
        loop: Its event loop. None before it is started.
        giving_up: Decides whether a message is given up.
        checked_from: Number of attempts from which on a message may be given up.
        expands: Bodies may be compressed.
        clock: The event loop's.
        heartbeats: How often nsqd should send heartbeats.
        busy: The tasks that run a handler now.
        closing: Set when no more messages are handed out.
        changed: Set when a subscription has changed; while :attr:`is_watched`, also when messages were answered.
        is_watched: Somebody waits for answers.
        is_due: What the machine wants will be done in this turn.
        failure: An error that retrying cannot fix. None if there is none.
        acts: What to do for each type of the machine's actions; those about connections are added at the start.
        waiters: Complete when there may be a message, for tasks that wait for one.
        on_pause: Called after a failure that matters: others keep messages that were handed out to nobody yet.
    """

    def __init__(
        self, name: str, config: ConsumerConfig, publisher: GiveUpPublisher, check_loop: Callable[[], None]
    ) -> None:
        self.name = name
        self.config: ConsumerConfig = config
        self.topic: str = name.partition("/")[0]
        self.channel: str = name.partition("/")[2]
        self.skipping: Skipping | None = skipping_of(config.skip_header, config.ext_filter)
        self.observer: Observer = Observer(config.on_event)
        self.machine: ConsumerMachine = ConsumerMachine(config, random.random, monotonic(), self.topic)
        self.heartbeats: Heartbeats = Heartbeats(name, config.heartbeat_interval, self.observer)
        self.clock: LoopClock = LoopClock(self.heartbeats.blocked)
        self._reports = reports = MessageReports(name, self.observer)
        self.giving_up: GivingUp = GivingUp(publisher, self.machine, self.take_back, reports)
        self.checked_from: int = min(WARN_ATTEMPTS, config.max_attempts or WARN_ATTEMPTS)
        self.expands: bool = config.decompress
        self.busy: set[asyncio.Task[Any]] = set()
        self.closing: asyncio.Event = asyncio.Event()
        self.changed: asyncio.Event = asyncio.Event()
        self.is_watched: bool = False
        self.is_due: bool = False
        self.failure: NsqError | None = None
        self.acts: dict[type, Callable[[Any], object]] = {
            Said: reports.said,
            FinishedCopy: reports.finished_copy,
            HasFailed: self._has_failed,
            Flooded: self._was_flooded,
            Paused: self._paused,
        }
        self.on_pause: set[Callable[[], None]] = set()
        self.is_open: bool = False  # started, and neither closing nor refused
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self._check_loop = check_loop
        self._expanding_bytes = 0  # what bodies may become that are being expanded in threads
        self._alarm = Alarm(self._tick)
        self._lines: defaultdict[str, Rarely] = defaultdict(Rarely)

    def start(self) -> None:
        """Start, in the running event loop."""
        self.loop = asyncio.get_running_loop()
        self.is_open = True
        self.clock.start()
        self.machine.flow.review(monotonic())

    def check_open(self) -> asyncio.AbstractEventLoop:
        """Return the event loop.

        Raises:
            NsqError: nsqd refused, and retrying cannot help.
            ClosedError: The consumer is closed, or was not started.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)  # or it would grow with each call
        if self.loop is None:
            raise ClosedError("use the consumer with 'async with'")
        if self.closing.is_set():
            raise ClosedError("the consumer is closed")
        return self.loop

    def refused(self, error: NsqError) -> None:
        """Record an error that retrying cannot fix; the application's next call raises it."""
        self.failure = error
        self.is_open = False
        self.wake()

    # ------------------------------------------------------------ what the application wants

    def requeue(self, message: Message, delay: float | None) -> None:
        """Requeue a message, or give it up if that was its last attempt."""
        now, machine = monotonic(), self.machine
        is_given_up = machine.is_given_up(message)
        machine.was_requeued(message, delay, now)
        if is_given_up or not self.giving_up.gives_up(message):
            if observe.watched.is_any:
                observe.answered("requeue", message)
            if not machine.requeue(message, delay, now):
                self.warn_if_closed(message, "requeue")
        self.due()

    def take_back(self, message: Message, why: str) -> None:
        """Take back a handed-out message that has not failed, and hand it out again without counting an attempt."""
        self.machine.take_back(message, why, monotonic())
        self.due()

    def give_back(self, message: Message, why: str) -> None:
        """Requeue an unanswered message that has not failed, without delay."""
        self.machine.give_back(message, why, monotonic())
        self.due()

    def warn_if_closed(self, message: Message, answer: str) -> None:
        """Warn, from any thread, about an answer that has no effect since the consumer has closed.

        Earlier ones come from a lost connection, as in any failover.
        """
        if self.machine.is_closed and not self.machine.is_given_up(message):
            advice = ". Answer messages before the consumer closes, or raise close_timeout"
            self.warn_of_no_effect(message, answer, "the consumer has closed", advice)

    @staticmethod
    def warn_of_no_effect(message: Message, answer: str, why: str, advice: str = "") -> None:
        """Warn about an answer that comes too late. nsqd replies to no answer, so the call cannot fail."""
        log.warning("%r: %s() has no effect: %s, and nsqd delivers the message again%s", message, answer, why, advice)

    def may_log(self, what: str) -> str | None:
        """Return what to append to a line of which there may be thousands. None if it is one too many."""
        return self._lines[what].more(monotonic())

    @contextlib.contextmanager
    def running(self, handlers: int) -> Iterator[None]:
        """Hand the messages to so many handlers while the block runs."""
        machine = self.machine
        machine.is_run = True
        machine.flow.hold(monotonic(), is_held=False)
        self.wake()  # iterating tasks now get an error
        machine.flow.used_by(handlers, monotonic())
        self.due()
        try:
            yield
        finally:
            machine.is_run = False
            machine.flow.used_by(-handlers, monotonic())
            self.due()
            self.changed.set()

    def check_free(self) -> None:
        """Check that a call of ``run`` may begin.

        Raises:
            NsqError: An error that retries cannot fix.
            ClosedError: It is closed, or was not started.
            ConfigError: Another call is active.
        """
        self.check_open()
        if self.machine.is_run:
            raise ConfigError(
                f"{self.name}: run() is active already: raise its concurrency= for more handlers at once, or make"
                f" another Consumer for another handler"
            )

    def is_busy(self, task: asyncio.Task[object] | None) -> bool:
        """Return whether ``task`` is running a handler or giving up a message now."""
        return self.giving_up.is_busy(task) or task in self.busy

    # ------------------------------------------------------------ tasks that wait

    def wake(self) -> None:
        """Resume all tasks that wait, in the next turn of the loop."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.changed.set()

    def wake_now(self) -> None:
        """Resume the only task that waits inside this call if no task is running; else resume all in the next turn."""
        waiters = self.waiters
        if not waiters:
            return
        first = waiters[0]
        if len(waiters) > 1 or first.done():
            self.wake()
            return
        waiters.clear()
        waiting = detached(first) if asyncio.current_task(self.loop) is None else None
        first.set_result(None)
        if waiting is not None:
            resume(waiting)

    # ------------------------------------------------------------ before a message is handed out

    def check_iterable(self) -> None:
        """Check that ``run`` does not take the messages.

        Raises:
            ConfigError: It does.
        """
        if self.machine.is_run and not self.closing.is_set():
            raise ConfigError(
                f"{self.name} cannot be iterated while run() hands its messages to a handler: iterate before or after"
                f" run(), or make another Consumer"
            )

    def is_exhausted(self) -> bool:
        """Return whether no message will come until one is answered."""
        machine = self.machine
        return machine.pause.state is PauseState.IN_TEST or (not machine.queue and machine.flow.is_full)

    def check_waits(self, taker: Recipient) -> None:
        """Check that somebody may wait for a message; a task that iterates asks for messages now.

        Raises:
            StopAsyncIteration: The consumer was closed.
            ConfigError: ``run`` takes the messages, or another event loop runs.
        """
        self._check_loop()
        if not self.is_open:
            if self.closing.is_set() and self.failure is None:
                raise StopAsyncIteration
            self.check_open()
        machine = self.machine
        if not taker.is_handler:
            self.check_iterable()
            if machine.flow.is_held and not machine.is_run:
                machine.flow.hold(monotonic(), is_held=False)
            if not machine.queue:
                machine.flow.emptied(monotonic())

    async def may_be_handled(self, message: Message) -> bool:
        """Return whether to hand out a message; if not, it is answered or will be redelivered."""
        try:
            if message.attempts >= self.checked_from and not await self.giving_up.may_be_handled(message):
                return False
            header = message.ext
            return not self.expands or header is None or MARK not in header or await self._expanded(message, header)
        except asyncio.CancelledError:
            self.take_back(message, "the task that waited for it was cancelled")
            raise

    async def _expanded(self, message: Message, ext: bytes) -> bool:
        """Decompress the body of a message if it is compressed; return False if it counts as failed."""
        try:
            packed = packed_body(message.body, ext, self.config.max_decompressed_bytes)
            if packed is None:
                return True
            body = await self._expand(packed)
        except ValueError as error:
            delay = requeue_delay(self.config, message.attempts, is_ordered=conn_of(message).is_ordered)
            failure = BodyError(
                "cannot be decompressed",
                f"it {error}",
                topic=message.topic,
                partition=message.partition,
                message_id=message.internal_id,
            )
            await self.giving_up.unreadable(message, failure, delay)
            return False
        if self.closing.is_set():
            self.take_back(message, CLOSED)
            return False
        if message.answered or message.state is State.ORPHANED:  # its connection was lost meanwhile
            return False
        message.compressed = (message.body, ext)
        message.body, message.ext = body, packed.ext
        self.machine.flow.seen(len(body), monotonic())
        self.due()
        return True

    async def _expand(self, packed: PackedBody) -> bytes:
        """Expand a body once it has room, in a thread if it is large.

        RDY cannot limit what bodies expand to. So they wait here, as they would wait at nsqd if they were that large.
        A cancellation leaves the message to the next caller.
        """
        while self._is_crowded(packed.bound) and not self.closing.is_set():
            self.is_watched = True
            self.changed.clear()
            await self.changed.wait()
        if packed.bound <= AT_ONCE_BYTES:
            return packed.expand()
        self._expanding_bytes += packed.bound
        try:
            return await in_thread(packed.expand)
        finally:
            self._expanding_bytes -= packed.bound

    def _is_crowded(self, more: int) -> bool:
        machine = self.machine
        expanded = machine.expanded_bytes() + self._expanding_bytes
        return expanded > 0 and expanded + more > machine.flow.max_bytes

    def held_bytes(self) -> int:
        """Return the bytes of all bodies that wait here, or were handed out and are unanswered as far as is known.

        Compressed bodies count as they are, and expanded ones as they became.
        """
        return self.machine.held_bytes() + self._expanding_bytes

    # ------------------------------------------------------------ what the machine wants

    def due(self) -> None:
        """Do what the machine wants in this turn: at once if nothing can follow in it."""
        if not self.is_due and self.loop is not None:
            self.is_due = True
            self.loop.call_soon(self.drain)

    def drain(self) -> None:
        """Do what the machine wants."""
        machine = self.machine
        self.is_due = False
        now = monotonic()
        while True:
            conns = tuple(machine.dirty)
            machine.dirty.clear()
            for conn in conns:
                self._write(conn, now)
            machine.settle(now)
            if not machine.dirty:
                break
        if machine.wakes:
            machine.wakes = False
            self.wake()
        elif self.is_watched or machine.actions:
            self.changed.set()
        if machine.wake_at != self._alarm.at:
            self._plan(machine.wake_at)
        try:
            while machine.actions:
                action = machine.actions.pop(0)
                self.acts[type(action)](action)
        finally:
            if machine.actions:  # one has failed
                self.due()

    def _write(self, conn: Subscription, now: float) -> None:
        parts = []
        if conn.commands:
            parts = [_encoded(command) for command in conn.commands]
            conn.commands.clear()
        if conn.finished:
            ids = self.machine.written(conn, now)
            parts.append(FIN % ids[0] if len(ids) == 1 else encode_fins(ids))
        if conn.handle is not None:
            conn.handle.write_now(parts[0] if len(parts) == 1 else b"".join(parts))
        if conn.stage is Stage.DRAINING:
            self.machine.subscriptions.answered(conn, now)

    def _has_failed(self, action: HasFailed) -> None:
        if not action.message.answered:
            action.message.requeue()

    def _was_flooded(self, action: Flooded) -> None:
        connection = action.conn.handle
        if (more := self.may_log("flood")) is not None:
            log.warning("%s: closing the connection: %s%s", connection.name, action.reason, more)
        connection.abort(action.reason)

    def _paused(self, change: Paused) -> None:
        if change.state != "ended":
            for pause in self.on_pause:
                pause()
        self._reports.paused(change)

    def _plan(self, wake_at: float) -> None:
        if wake_at == math.inf or self.machine.is_closed:
            self._alarm.cancel()
        elif self.loop is not None:
            self._alarm.set(wake_at)

    def _tick(self, now: float) -> None:
        try:
            self.machine.tick(now, is_awaited=not all(waiter.done() for waiter in self.waiters))
        except Exception as error:  # noqa: BLE001 - a later one may work
            report_unexpected(log, f"the clock of {self.name}", error)
            self.machine.subscriptions.wake_at = now + TICK
        self.drain()

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Hand out no more messages, and ask for no more."""
        self.machine.close(monotonic())
        self.due()
        self.is_open = False
        self.is_watched = True
        self.closing.set()
        self.wake()

    async def drained(self) -> None:
        """Return the messages that nobody will answer, after :meth:`close`, and wait until the rest is answered.

        Nobody will answer those that were not handed out, and those of a task that leaves or has ended. A running
        handler or task may answer what it holds. If cancelled, this stops waiting for answers.
        """
        machine = self.machine
        while not machine.subscriptions.are_stopped:
            self.changed.clear()
            await self.changed.wait()
        waits = bool(machine.handed_out() or machine.in_state(State.GIVING_UP))
        machine.return_left(monotonic(), waits=waits)
        for message in machine.in_state(State.QUEUED):
            machine.hand_back(message, monotonic(), waits=waits)
        while True:
            self.drain()
            may_answer = machine.is_run or machine.in_state(State.GIVING_UP) or machine.handed_out()
            if not machine.unanswered or not may_answer:
                return
            self.changed.clear()
            await self.changed.wait()
            machine.return_left(monotonic())

    def end(self) -> None:
        """Forget all messages: their answers come too late from now on."""
        self.clock.stop()
        self.machine.is_closed = True
        self._alarm.cancel()


def _encoded(command: Command) -> bytes:
    if isinstance(command, WriteReady):
        return encode_ready(command.number)
    if isinstance(command, WriteTouch):
        return encode_touch(command.message_id)
    if isinstance(command, WriteFinish):
        return encode_fin(command.message_id)
    return encode_req(command.message_id, round(command.delay * 1000))


class Source:
    """Passes what arrives over one connection, and the answers to it, to the machine.

    Args:
        shell: The consumer's.
        conn: The connection.

    Attributes:
        conn: The connection.
    """

    def __init__(self, shell: ConsumerShell, conn: Subscription) -> None:
        self.topic: str = shell.topic
        self.channel: str = shell.channel
        self.partition: int = conn.partition.number
        self.nsqd: str = conn.node.address
        self.conn: Subscription = conn
        self._shell = shell
        self._thread = get_ident()

    @property
    def _name(self) -> str:
        return f"{self.topic}-{self.partition}" if self.conn.meta.is_partitioned else self.topic

    # ------------------------------------------------------------ what arrives

    def arrived(self, messages: list[Message]) -> None:
        """Take the messages of one read."""
        conn, shell = self.conn, self._shell
        if conn.is_checked:
            self._check(messages)
        if shell.skipping is not None and not (messages := self._without_skipped(messages, shell.skipping)):
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

    def _check(self, messages: list[Message]) -> None:
        """Check that messages belong to the partition."""
        for message in messages:
            number = message.internal_id >> 50 & 1023
            if number != self.partition:
                raise RemoteProtocolError(
                    f"{self.nsqd} delivers partition {number} instead of {self._name}: it leads both, and SUB with"
                    f" a start position does not choose between them"
                )

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
            longest = longest_delay(error)
            if longest is not None and longest != conn.partition.longest_delay:
                conn.partition.longest_delay = longest
                log.warning(
                    "%s: nsqd %s delays a requeue by at most %g s (--max-req-timeout) and closes the connection after a"
                    " longer one: longer delays are shortened from now on",
                    self._name,
                    self.nsqd,
                    longest,
                )
            if isinstance(error, NotInFlightError) and (unfinished := error.unfinished) is not None:
                machine.fin_refused(conn, unfinished, monotonic())
            machine.actions.append(PartitionEvent("refused", conn.partition, conn.node, error))
        self._shell.due()

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
