"""Decide by the number of deliveries whether a message gets another attempt or is given up, and publish it then.

If a publish fails, the message is requeued and delivered again, so a wrong option would show only as a log line,
repeated forever. Therefore all that is known about it is checked first: the options when the consumer is created, the
producer and the dead-letter topic when it is entered, headers when the topic is looked up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.base.clock import monotonic
from nsq_ha.base.tasks import Tasks
from nsq_ha.base.threads import HandlerThreads, is_async
from nsq_ha.dead_letters.provenance import Failure, Provenance
from nsq_ha.dead_letters.writing import LetterForm, forms
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.single_use import SingleUseClient, check_entered
from nsq_ha.engine.waiting import is_foreign
from nsq_ha.errors import BodyError, ConfigError, MessageRefusedError, PublishError, TopicNotFoundError
from nsq_ha.message import Message, State, as_stored
from nsq_ha.options.config import ClientConfig, ConsumerConfig
from nsq_ha.policy.redelivery import MOST_REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from nsq_ha.base.identity import MessageIdentity
    from nsq_ha.consumer.machine import ConsumerMachine
    from nsq_ha.consumer.reports import MessageReports
    from nsq_ha.dead_letters.letter import Publishes
    from nsq_ha.policy.topology import TopicView

WARN_ATTEMPTS: Final = 10
"""Number of deliveries of a message at which a warning is logged, and again at each doubling."""

EXTRA_DELIVERIES: Final = WARN_ATTEMPTS
"""Deliveries beyond ``max_attempts`` after which a message is given up though no handler failed on it here.

nsqd counts deliveries, and some reach no handler: those to a client that restarts, or that time out in its queue. So a
message with more deliveries than ``max_attempts`` is still handled, and given up if that fails. But a message that
kills each process that handles it never fails, and must be given up, too.
"""

_MOST_THREADS: Final = 32
"""Number of plain ``on_give_up`` functions that run at the same time; others wait."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")

cause: ContextVar[BaseException | None] = ContextVar("nsq_ha cause of a requeue", default=None)
"""What a thread handled while it requeued a message, for the event loop."""


class GiveUpPublisher:
    """Publishes given-up messages, for ``on_give_up="republish"`` and ``"dead_letter"``.

    Args:
        config: The consumer's options.
        topic: The consumer's topic.
        producer: The producer. None for the policies that publish nothing.

    Attributes:
        config: The consumer's options.

    Raises:
        ConfigError: The producer is missing, unused or of another type; or the consumer would read its own dead
            letters.
    """

    def __init__(self, config: ConsumerConfig, topic: str, producer: Publishes[Awaitable[object]] | None) -> None:
        policy = config.on_give_up
        self._is_needed = policy in ("republish", "dead_letter")
        _check_type(producer)
        if self._is_needed and producer is None:
            raise ConfigError(f"on_give_up={policy!r} publishes: give producer=")
        if (policy is None or policy == "drop") and producer is not None:
            raise ConfigError(
                "producer= would not be used, since on_give_up='drop' (the default) loses messages permanently: give"
                " on_give_up='dead_letter' or 'republish', or no producer"
            )
        if config.dead_letter_topic == topic:
            raise ConfigError(
                f"dead_letter_topic {topic!r} is the consumer's own topic, so the consumer would read its dead letters:"
                f" name another topic, or give on_give_up='republish'"
            )
        self.config: ConsumerConfig = config
        self._topic = topic
        self._producer = producer
        options = getattr(producer, "config", None)
        self._is_direct = isinstance(options, ClientConfig) and bool(options.nsqd)
        self._asked = options if isinstance(options, ClientConfig) and options.lookupd else None
        self._view: TopicView | None = None  # of the topic to publish to

    def ask_nobody(self) -> None:
        """Make no lookups: the consumer is a fake one, without a cluster."""
        self._asked = None

    async def check(self) -> None:
        """Check the producer, and that its cluster has the topic to publish to.

        Dead letters may go to another cluster. Republished messages may not: they belong to the topic that is read.

        Raises:
            ConfigError: The producer was not entered, belongs to another event loop, or would republish to another
                cluster.
            ClosedError: The producer is closed.
            TopicNotFoundError: The dead-letter topic does not exist.
        """
        if not self._is_needed:
            return
        if isinstance(self._producer, SingleUseClient):
            check_entered(self._producer)
        topic, asked = self.config.dead_letter_topic, self._asked
        if asked is None:
            return  # another kind of producer, or nsqds that create topics automatically
        if topic is None:
            await self._check_same_cluster(asked)
            return
        view = await self._look_up_target()
        if view is None or view.is_plain:  # a plain nsqd creates the topic at the first publish
            return
        if not view.exists:
            raise TopicNotFoundError(
                f"dead_letter_topic {topic!r} does not exist in the producer's cluster (lookupd={_listed(asked)}):"
                f" create it there (nsq-ha topic create)"
            )
        if "channel" in view.note.lower():
            log.warning("dead_letter_topic %r accepts no messages yet (%s): subscribe to it once", topic, view.note)

    async def _look_up_target(self) -> TopicView | None:
        """Return what is known of the topic to publish to. None without nsqlookupds, or without their answer."""
        if self._view is None and self._asked is not None:
            self._view = await self._look_up(self.config.dead_letter_topic or self._topic, self._asked)
        return self._view

    async def _check_same_cluster(self, asked: ClientConfig) -> None:
        """Check that the producer republishes to the consumer's cluster, if both have nsqlookupds.

        Raises:
            ConfigError: Other nsqds lead the topic in the producer's cluster, or it has no such topic.
        """
        mine = self.config
        if not mine.lookupd or set(mine.lookupd) & set(asked.lookupd):
            return
        read, written = await asyncio.gather(self._look_up(self._topic, mine), self._look_up_target())
        if read is None or written is None or not read.leaders:
            return
        # An nsqd has the same address at every nsqlookupd.
        nodes = [{node.address for node in view.leaders.values()} for view in (read, written)]
        if not written.exists or (nodes[1] and not nodes[0] & nodes[1]):
            raise ConfigError(
                f"on_give_up='republish' would publish messages of topic {self._topic!r} to another cluster: the"
                f" producer's lookupd={_listed(asked)} names none of its nsqds, the consumer's"
                f" lookupd={_listed(mine)} names {', '.join(sorted(nodes[0]))}. Give a producer of the consumer's"
                f" cluster, or on_give_up='dead_letter', whose topic may be in another one"
            )

    async def publish(self, message: Message, why: Failure | None = None) -> None:
        """Publish a message by the policy; do nothing if the policy publishes nothing.

        Args:
            message: The message.
            why: Why it is given up. None if it was delivered too often, without a failure that this consumer knows.

        Raises:
            NsqError: It was not stored, or may not have been.
        """
        if self._producer is None or not self._is_needed:
            return
        message, topic, refusal = as_stored(message), self.config.dead_letter_topic, None
        view = await self._look_up_target()
        is_plain = self._is_direct or (view is not None and view.is_plain)
        options: dict[str, Any] = {}
        if not is_plain:  # nsqds without partitions know neither keys nor traces
            options["trace_id"] = message.trace_id or None
            if topic is None:
                options["partition"] = message.partition
            else:
                options["key"] = f"{message.topic}-{message.partition}"
        for written in self._forms(message, why, view, is_plain=is_plain):
            more: dict[str, Any] = {}
            if written.headers is not None or written.tag is not None:
                more = {"headers": written.headers, "tag": written.tag}
            try:
                await self._producer.publish(topic or message.topic, written.body, **options, **more)
            except (ConfigError, PublishError) as error:
                if topic is None or not _is_refused(error):
                    raise
                refusal = error
                continue
            if written.lacks:
                log.warning(
                    "the dead letter of %r lacks %s (%s), since the whole was refused: %s",
                    message,
                    written.lacks,
                    why,
                    refusal,
                )
            return
        raise ConfigError(
            f"dead_letter_topic {topic!r} accepts {message!r} in no form that keeps its headers: create it as an"
            f" extended topic, or raise the server's limit ({refusal})"
        ) from refusal

    def _forms(
        self, message: Message, why: Failure | None, view: TopicView | None, *, is_plain: bool
    ) -> Iterable[LetterForm]:
        """Return the forms in which to publish a message; the first one that the topic accepts is published."""
        if self.config.dead_letter_topic is None:
            return (LetterForm(message.body, message.headers if message.ext else None, message.tag),)
        meta = None if view is None else view.meta
        takes_headers = False if is_plain else None if meta is None else meta.extend_support
        origin = Provenance.of(message, why or Failure("redelivered"), time.time())
        return forms(message, origin, takes_headers=takes_headers)

    async def _look_up(self, topic: str, options: ClientConfig) -> TopicView | None:
        """Ask the nsqlookupds of ``options``. Return None if none answers in time."""
        lookups = Lookups(options, access="w")
        try:
            async with asyncio.timeout(self.config.start_timeout):
                await lookups.start()
                watch = lookups.watch(topic)
                await watch.next_round()
        except TimeoutError:
            return None
        finally:
            await lookups.aclose()
        return watch.view if watch.view.is_answered else None


def _take_cause() -> BaseException | None:
    """Return the exception that the application handles while it requeues a message, perhaps in a thread.

    None if it handles none. Tasks that start after this do not inherit it.
    """
    found = sys.exception() or cause.get()
    cause.set(None)
    return found


class GivingUp:
    """Decides what becomes of a message by the number of its deliveries.

    Args:
        publisher: Publishes given-up messages.
        machine: Has the messages.
        take_back: Hands one out again that has not failed.
        reports: Tells what happens to messages.

    Attributes:
        given_up: Number of messages that were given up.
    """

    def __init__(
        self,
        publisher: GiveUpPublisher,
        machine: ConsumerMachine,
        take_back: Callable[[Message, str], None],
        reports: MessageReports,
    ) -> None:
        self._publisher, self._config = publisher, publisher.config
        self._machine = machine
        self._take_back = take_back
        self._reports = reports
        self.given_up: int = 0
        self._busy: set[asyncio.Task[Any] | None] = set()
        self._apart = Tasks(log)  # those that only the end of the consumer cancels
        self._threads = HandlerThreads(_MOST_THREADS)
        # Why messages are given up that are redelivered only for that. None if no failure is known.
        self._not_given_up: dict[MessageIdentity, Failure | None] = {}

    def is_busy(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is giving up a message now."""
        return task in self._busy

    async def may_be_handled(self, message: Message) -> bool:
        """Warn about a message that keeps coming, or give it up; return whether to handle it."""
        attempts = message.attempts
        limit = self._config.max_attempts
        is_left = message.identity in self._not_given_up
        if limit is None or (attempts <= limit + EXTRA_DELIVERIES and not is_left):
            times, rest = divmod(attempts, WARN_ATTEMPTS)
            if times and not rest and not times & (times - 1):  # a power of two
                log.warning("%r is redelivered again and again: this is delivery %d", message, attempts)
            return True
        why = self._not_given_up.pop(message.identity, None)
        await self._give_up(message, why, ", which failed before" if is_left else " unhandled")
        return False

    async def failed(self, message: Message, error: BaseException) -> None:
        """Requeue a message whose handler failed, or give it up if that was its last attempt."""
        self._reports.failed(message, error)
        if not message.answered:
            self._machine.failed(message, monotonic())
            await self._failed(message, error, None)

    async def unreadable(self, message: Message, error: BodyError, delay: float) -> None:
        """Do the same with a message that no handler can get.

        Its publisher is at fault, so the consumer does not pause: others would stop it with such messages.
        """
        self._reports.unreadable(message, error)
        self._machine.forget_test(message, monotonic())
        await self._failed(message, error, delay)

    async def _failed(self, message: Message, error: BaseException, delay: float | None) -> None:
        if self._was_last(message) and not self._waits(message):
            await self._give_up(message, Failure.of("failed", error))
        else:
            message.requeue(delay)

    def gives_up(self, message: Message) -> bool:
        """Start giving up a requeued message if that was its last attempt; return whether it was."""
        if not self._was_last(message):
            return False
        # The exception that the application is handling now, in its `except` or leaving the block of the message.
        why = Failure.of("requeued", _take_cause())
        if self._waits(message):
            self._remember(message, why)
            return False
        # A copy, since the end of the caller's block must not finish this one while it is given up.
        again = self._machine.reopened(message)
        self._machine.begin_give_up(again, monotonic())
        self._apart.start(self._give_up(again, why), f"nsq_ha gives up {message!r}")
        return True

    async def aclose(self) -> None:
        """Cancel pending work; its messages are redelivered."""
        await self._apart.close()
        self._threads.close()

    def _was_last(self, message: Message) -> bool:
        limit = self._config.max_attempts
        return limit is not None and message.attempts >= limit and message.state is not State.ORPHANED

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

    async def _give_up(self, message: Message, why: Failure | None, how: str = "") -> None:
        did, limit = "" if how else " failed", self._config.max_attempts
        log.warning("giving up %r%s: delivery %d%s, max_attempts=%s", message, how, message.attempts, did, limit)
        task = asyncio.current_task()
        self._busy.add(task)
        self._machine.begin_give_up(message, monotonic())
        try:
            await self._apply(message, why)
        except (Exception, asyncio.CancelledError) as error:  # the application's function may raise anything
            self._remember(message, why)
            if not is_foreign(error):
                self._take_back(message, "giving it up was cancelled")
                raise
            log.warning("%r could not be given up and will be redelivered: %s", message, error)
            self._reports.gave_up(message, self._config.on_give_up, str(error) or repr(error))
            if not message.answered:
                message.requeue()
        except BaseException:  # ends the iteration or the run, which must not give the message up again
            if not message.answered:
                message.requeue(0)
            raise
        else:
            self.given_up += 1
            self._reports.gave_up(message, self._config.on_give_up, None)
            if not message.answered:
                message.finish()
        finally:
            self._busy.discard(task)

    async def _apply(self, message: Message, why: Failure | None) -> None:
        policy = self._config.on_give_up
        if callable(policy):
            outcome = policy(message) if is_async(policy) else await self._threads.call(policy, message)
            if inspect.isawaitable(outcome):
                await outcome
        else:
            await self._publisher.publish(message, why)


def _is_refused(error: ConfigError | PublishError) -> bool:
    """Return whether another form of the message may be accepted; this one was not stored."""
    return isinstance(error, ConfigError) or (
        not error.maybe_stored and isinstance(error.__cause__, MessageRefusedError)
    )


def _listed(options: ClientConfig) -> str:
    return ",".join(options.lookupd)


def _check_type(producer: object) -> None:
    if isinstance(producer, type):
        name = producer.__name__
        raise ConfigError(f"producer is the class {name}: give an object, as in `async with {name}(...) as producer`")
    is_for_threads = hasattr(producer, "__enter__") and not hasattr(producer, "__aenter__")
    if producer is not None and (is_for_threads or not callable(getattr(producer, "publish", None))):
        kind = type(producer)
        raise ConfigError(f"producer must be a nsq_ha.Producer, not {kind.__module__}.{kind.__name__}")
