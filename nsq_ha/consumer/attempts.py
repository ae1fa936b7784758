"""Decide by the number of deliveries whether a message gets another attempt or is given up.

This module also publishes given-up messages, and checks that this will work.

If that publish fails, the message is requeued and delivered again, so a wrong option would show only as a log line,
repeated forever. Therefore all that is known is checked first: the options when the consumer is created, the producer
and the dead-letter topic when it is entered, headers when the topic is looked up.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol

from nsq_ha.config import ClientConfig
from nsq_ha.consumer.closing import Returned, is_returned_at_end, leave_to_end
from nsq_ha.discovery.watcher import Directory
from nsq_ha.errors import ConfigError, TopicNotFoundError
from nsq_ha.events import GaveUp
from nsq_ha.observe import SILENT
from nsq_ha.policy.redelivery import MOST_REMEMBERED
from nsq_ha.threads import HandlerThreads, is_async
from nsq_ha.transport.single_use import SingleUseClient, check_entered
from nsq_ha.transport.waiting import is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nsq_ha.config import ConsumerConfig
    from nsq_ha.message import Message
    from nsq_ha.observe import Observer
    from nsq_ha.policy.topology import TopicMeta, TopicView

SPARE_DELIVERIES: Final = 10
"""Deliveries beyond ``max_attempts`` after which a message is given up though no handler failed on it here.

nsqd counts deliveries, and some reach no handler: those to a client that restarts, or that time out in its queue. So a
message with more deliveries than ``max_attempts`` is still handled, and given up if that fails. But a message that
kills each process that handles it never fails, and must be given up, too.
"""

_MOST_THREADS: Final = 32
"""Number of plain ``on_give_up`` functions that run at the same time; others wait."""

log: logging.Logger = logging.getLogger("nsq_ha.consumer")


class Publisher(Protocol):
    """The part of :class:`~nsq_ha.Producer` that the give-up policies need."""

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
    ) -> object:
        """Publish one message."""


class GiveUpPublisher:
    """Publishes given-up messages, for ``on_give_up="republish"`` and ``"dead_letter"``.

    Args:
        config: The consumer's options.
        topic: The consumer's topic.
        producer: The producer. None for the policies that publish nothing.

    Raises:
        ConfigError: The producer is missing, unused or of another type; or the consumer would read its own dead
            letters.
    """

    def __init__(self, config: ConsumerConfig, topic: str, producer: Publisher | None) -> None:
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
        self._config = config
        self._topic = topic
        self._producer = producer
        options = getattr(producer, "config", None)
        self._options = options if isinstance(options, ClientConfig) else None
        # Whether the producer's cluster is a plain one. None if only a lookup can tell.
        self._is_plain: bool | None = False
        if self._options is not None:
            self._is_plain = True if self._options.nsqd else None
        self._has_no_headers = False

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
        topic, options = self._config.dead_letter_topic, self._options
        if options is None or not options.lookupd:
            return  # another kind of producer, or nsqds that create topics automatically
        if topic is None:
            await self._check_same_cluster(options)
            return
        view = await self._look_up(topic, options)
        if view is None:
            return
        self._is_plain = view.is_plain
        if view.is_plain:  # nsqd creates the topic at the first publish
            return
        if not view.exists:
            raise TopicNotFoundError(
                f"dead_letter_topic {topic!r} does not exist in the producer's cluster (lookupd={_listed(options)}):"
                f" create it there (nsq-ha topic create)"
            )
        if "channel" in view.note.lower():
            log.warning("dead_letter_topic %r accepts no messages yet (%s): subscribe to it once", topic, view.note)
        self._has_no_headers = view.meta is not None and not view.meta.extend_support

    async def _check_same_cluster(self, options: ClientConfig) -> None:
        """Check that the producer republishes to the consumer's cluster, if both have nsqlookupds.

        Raises:
            ConfigError: Other nsqds lead the topic in the producer's cluster, or it has no such topic.
        """
        mine = self._config
        if not mine.lookupd or set(mine.lookupd) & set(options.lookupd):
            return
        read, written = await asyncio.gather(self._look_up(self._topic, mine), self._look_up(self._topic, options))
        if read is None or written is None or not read.leaders:
            return
        # An nsqd has the same address at every nsqlookupd.
        nodes = [{node.address for node in view.leaders.values()} for view in (read, written)]
        if not written.exists or (nodes[1] and not nodes[0] & nodes[1]):
            raise ConfigError(
                f"on_give_up='republish' would publish messages of topic {self._topic!r} to another cluster: the"
                f" producer's lookupd={_listed(options)} names none of its nsqds, the consumer's"
                f" lookupd={_listed(mine)} names {', '.join(sorted(nodes[0]))}. Give a producer of the consumer's"
                f" cluster, or on_give_up='dead_letter', whose topic may be in another one"
            )

    def refusal(self, topic: str, meta: TopicMeta) -> ConfigError | None:
        """Return an error if messages of the topic may have headers but the dead-letter topic accepts none."""
        letters = self._config.dead_letter_topic
        has_no_headers = self._is_plain or self._has_no_headers
        if letters is None or not has_no_headers or not meta.extend_support:
            return None
        cure = (
            "plain nsqd has no headers, so name a topic of a partitioned cluster, or give on_give_up= a function"
            if self._is_plain
            else "create it as an extended topic (nsq-ha topic create --extended)"
        )
        return ConfigError(
            f"messages of topic {topic!r} may have headers or a tag, and dead_letter_topic {letters!r} takes neither:"
            f" {cure}"
        )

    async def publish(self, message: Message) -> None:
        """Publish a message by the policy; do nothing if the policy publishes nothing.

        Raises:
            NsqError: It was not stored, or may not have been.
        """
        if self._producer is None or not self._is_needed:
            return
        options: dict[str, Any] = {}
        if message.ext:
            options |= {"headers": message.headers, "tag": message.tag}
        letters, producer_options = self._config.dead_letter_topic, self._options
        if self._is_plain is None and producer_options is not None:
            view = await self._look_up(letters or message.topic, producer_options)
            self._is_plain = None if view is None else view.is_plain
        if not self._is_plain:  # nsqds without partitions know neither keys nor traces
            options["trace_id"] = message.trace_id or None
            if letters is None:
                options["partition"] = message.partition
            else:
                options["key"] = f"{message.topic}-{message.partition}"
        await self._producer.publish(message.topic if letters is None else letters, message.body, **options)

    async def _look_up(self, topic: str, options: ClientConfig) -> TopicView | None:
        """Ask the nsqlookupds of ``options``. Return None if none answers in time."""
        directory = Directory(options, access="w")
        try:
            async with asyncio.timeout(self._config.start_timeout):
                await directory.start()
                watch = directory.watch(topic)
                await watch.next_round()
        except TimeoutError:
            return None
        finally:
            await directory.aclose()
        return watch.view


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
        self._not_given_up: set[bytes] = set()  # ids of messages that are redelivered only to be given up
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
        if limit is None or (attempts <= limit + SPARE_DELIVERIES and message.id not in self._not_given_up):
            if warn and attempts >= warn and attempts % warn == 0 and _is_power_of_two(attempts // warn):
                log.warning("%r is redelivered again and again: this is delivery %d", message, attempts)
            return True
        how = ", which failed before" if message.id in self._not_given_up else " unhandled"
        self._not_given_up.discard(message.id)
        log.warning("giving up %r%s: delivery %d, max_attempts=%d", message, how, attempts, limit)
        await self._give_up(message)
        return False

    async def failed(self, message: Message, error: BaseException) -> None:
        """Requeue a message whose handler failed, or give it up if that was its last attempt."""
        log.warning("handler failed on %r: %r", message, error, exc_info=error)
        if message.answered:
            return
        self.on_failed(message)
        if not self._was_last(message) or self._waits(message):
            message.requeue()
            return
        self._log_last(message)
        try:
            await self._give_up(message)
        except asyncio.CancelledError:
            if not message.answered:
                self.give_back(message, "giving it up was cancelled")
            raise

    def gives_up(self, message: Message) -> bool:
        """Start giving up a requeued message if that was its last attempt; return whether it was."""
        if not self._was_last(message):
            return False
        if self._waits(message):
            self._remember(message)
            return False
        # A copy, since the end of the caller's block must not finish this one while it is given up.
        again = copy.copy(message)
        again.answered = False
        self._log_last(message)
        task = asyncio.create_task(self._give_up(again), name=f"nsq_ha gives up {message!r}")
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

    def _remember(self, message: Message) -> None:
        """Give the message up when it is delivered again, without handling it."""
        if len(self._not_given_up) >= MOST_REMEMBERED:  # one of those may be handled once more
            self._not_given_up.clear()
        self._not_given_up.add(message.id)

    def _log_last(self, message: Message) -> None:
        limit = self._config.max_attempts
        if limit is not None and message.attempts > limit:
            log.warning("giving up %r: delivery %d failed, max_attempts=%d", message, message.attempts, limit)
        else:
            log.warning("giving up %r: attempt %d of %s failed", message, message.attempts, limit)

    async def _give_up(self, message: Message) -> None:
        task = asyncio.current_task()
        self._busy.add(task)
        self._exempt.add(id(message))
        try:
            await self._apply(message)
        except (Exception, asyncio.CancelledError) as error:  # the application's function may raise anything
            if isinstance(error, asyncio.CancelledError) and not is_foreign(error):
                raise
            log.warning("%r could not be given up and will be redelivered: %s", message, error)
            self._report(message, str(error) or repr(error))
            self._remember(message)
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

    async def _apply(self, message: Message) -> None:
        policy = self._config.on_give_up
        if callable(policy):
            outcome = policy(message) if is_async(policy) else await self._threads.call(policy, message)
            if inspect.isawaitable(outcome):
                await outcome
        else:
            await self._publisher.publish(message)


def _listed(options: ClientConfig) -> str:
    return ",".join(options.lookupd)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _check_type(producer: object) -> None:
    if isinstance(producer, type):
        name = producer.__name__
        raise ConfigError(f"producer is the class {name}: give an object, as in `async with {name}(...) as producer`")
    if producer is not None and not callable(getattr(producer, "publish", None)):
        raise ConfigError(f"producer must be a Producer, not {type(producer).__name__}")
