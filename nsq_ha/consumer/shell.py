"""The shell around a consumer's machine: it reads the clock, keeps the timer, writes, logs, and wakes tasks that wait.

The rules are in ``consumer.machine``; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from nsq_ha.base.clock import monotonic
from nsq_ha.base.resuming import complete
from nsq_ha.base.unexpected import report_unexpected
from nsq_ha.consumer.answers import HasFailed, Said
from nsq_ha.consumer.clock import TICK, Heartbeats, LoopClock
from nsq_ha.consumer.failures import facts
from nsq_ha.consumer.giving_up import GiveUpPublisher, GivingUp
from nsq_ha.consumer.inflight import Stage, WriteFinish, WriteReady, WriteTouch
from nsq_ha.consumer.machine import ConsumerMachine, FinishedCopy, Flooded
from nsq_ha.consumer.pause import Paused
from nsq_ha.engine import observe
from nsq_ha.engine.loops import Alarm
from nsq_ha.engine.observe import SILENT, Observer
from nsq_ha.errors import ClosedError, ConfigError, NsqError
from nsq_ha.events import BackoffChanged, FinishedAgain
from nsq_ha.message import State
from nsq_ha.policy.timing import Rarely
from nsq_ha.protocol.encoding import FIN, encode_fin, encode_fins, encode_ready, encode_req, encode_touch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from nsq_ha.consumer.inflight import Command, Subscription
    from nsq_ha.message import Message
    from nsq_ha.options.config import ConsumerConfig

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class ConsumerShell:
    """The messages of one consumer, and the tasks that wait for them.

    Args:
        name: Topic and channel.
        config: The consumer's options.
        publisher: Publishes given-up messages.
        observer: The consumer's.

    Attributes:
        name: Topic and channel.
        config: The consumer's options.
        machine: Decides.
        loop: Its event loop. None before it is started.
        giving_up: Decides whether a message is given up.
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
        self, name: str, config: ConsumerConfig, publisher: GiveUpPublisher, observer: Observer = SILENT
    ) -> None:
        self.name = name
        self.config: ConsumerConfig = config
        topic, _, _ = name.partition("/")
        self.machine: ConsumerMachine = ConsumerMachine(config, random.random, monotonic(), topic)
        self.heartbeats: Heartbeats = Heartbeats(name, config.heartbeat_interval, observer)
        self.clock: LoopClock = LoopClock(self.heartbeats.blocked)
        self.giving_up: GivingUp = GivingUp(config, publisher, self.machine, self.take_back, observer)
        self.busy: set[asyncio.Task[Any]] = set()
        self.closing: asyncio.Event = asyncio.Event()
        self.changed: asyncio.Event = asyncio.Event()
        self.is_watched: bool = False
        self.is_due: bool = False
        self.failure: NsqError | None = None
        self.acts: dict[type, Callable[[Any], object]] = {
            Said: lambda said: log.log(
                logging.WARNING if said.is_warning else logging.DEBUG, "%s: %s", self.name, said.text
            ),
            FinishedCopy: self._was_finished,
            HasFailed: self._has_failed,
            Flooded: self._was_flooded,
            Paused: self._paused,
        }
        self.on_pause: set[Callable[[], None]] = set()
        self.is_open: bool = False  # started, and neither closing nor refused
        self._observer = observer
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiters: list[asyncio.Future[None]] = []
        self._alarm = Alarm(self._tick)
        self._lines: defaultdict[str, Rarely] = defaultdict(Rarely)
        self._pauses = Rarely()
        self._is_pause_logged = False

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

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for the next message."""
        return any(not waiter.done() for waiter in self.waiters)

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
        complete(first)

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
            parts = [self.encoded(conn, command) for command in conn.commands]
            conn.commands.clear()
        if conn.finished:
            ids = self.machine.written(conn, now)
            parts.append(FIN % ids[0] if len(ids) == 1 else encode_fins(ids))
        if conn.handle is not None:
            conn.handle.write_now(parts[0] if len(parts) == 1 else b"".join(parts))
        if conn.stage is Stage.DRAINING:
            self.machine.subscriptions.answered(conn, now)

    def encoded(self, _: Subscription, command: Command) -> bytes:
        """Return the bytes of a command."""
        if isinstance(command, WriteReady):
            return encode_ready(command.number)
        if isinstance(command, WriteTouch):
            return encode_touch(command.message_id)
        if isinstance(command, WriteFinish):
            return encode_fin(command.message_id)
        return encode_req(command.message_id, round(command.delay * 1000))

    def _has_failed(self, action: HasFailed) -> None:
        if not action.message.answered:
            action.message.requeue()

    def _was_flooded(self, action: Flooded) -> None:
        connection = action.conn.handle
        if (more := self.may_log("flood")) is not None:
            log.warning("%s: closing the connection: %s%s", connection.name, action.reason, more)
        connection.abort(action.reason)

    def _was_finished(self, action: FinishedCopy) -> None:
        copy = action.message
        if (more := self.may_log("finished again")) is not None:  # after a connection is lost, there may be a thousand
            log.info(
                "%r was handled before, but its FIN was without effect: finishing this copy unhandled%s", copy, more
            )
        self._observer.event(FinishedAgain(**facts(copy)))
        if observe.watched.is_any:
            observe.answered("finish", copy)

    def _paused(self, change: Paused) -> None:
        if change.state != "ended":
            for pause in self.on_pause:
                pause()
        if change.state is not None:
            topic, _, channel = self.name.partition("/")
            self._observer.event(
                BackoffChanged(topic=topic, channel=channel, state=change.state, seconds=change.seconds)
            )
        if change.state == "paused" and (missed := self._pauses.take(monotonic())) is not None:
            self._is_pause_logged = True
            log.warning(
                "%s: handlers fail: asking for no messages for %.1f s, then for one as a test (%d in a row failed%s)",
                self.name,
                change.seconds,
                change.level + 1,
                f"; {missed} changes before were not logged" if missed else "",
            )
        elif change.state == "ended" and self._is_pause_logged:
            self._is_pause_logged = False
            log.info(
                "%s: handlers work again, after %.1f s and %d failures: asking for messages as before",
                self.name,
                change.since,
                change.failures,
            )

    def _plan(self, wake_at: float) -> None:
        if wake_at == math.inf or self.machine.is_closed:
            self._alarm.cancel()
        elif self.loop is not None:
            self._alarm.set(wake_at)

    def _tick(self, now: float) -> None:
        try:
            self.machine.tick(now, is_awaited=self.is_awaited)
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
