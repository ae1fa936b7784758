"""The producer: the object that applications publish with.

Owns the public calls, and starts and stops topics and senders. ``producer.topic``
admits publishes, ``producer.choice`` chooses partitions, ``producer.sender``
writes.
"""

from __future__ import annotations

import asyncio
import random
import time
from asyncio import get_running_loop
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, Self, Unpack

from nsq_ha.engine import observe
from nsq_ha.engine.engine import Lookups
from nsq_ha.engine.observe import Observer
from nsq_ha.engine.shared import Connections
from nsq_ha.engine.single_use import Closing, SingleUseClient, options_of
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.options.checks import check_timeout, check_topic
from nsq_ha.options.config import ProducerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ProducerOptions
from nsq_ha.options.language import declared
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.sharding import Key
from nsq_ha.process.clients import clients
from nsq_ha.producer.batch import BatchCall, BatchPlan, as_list, at_position, single_mpub
from nsq_ha.producer.limits import PendingPublishes
from nsq_ha.producer.outcomes import PublishCounts
from nsq_ha.producer.requests import (
    KEY_TYPES,
    CheckedMessage,
    PubRequest,
    check_message,
    compressing,
    in_context,
    single_pub,
)
from nsq_ha.producer.sender import Sender
from nsq_ha.producer.statistics import producer_stats, producer_troubles
from nsq_ha.producer.topic import TopicPublisher, connect_all, unready
from nsq_ha.stats import ProducerStats

FORGET_INTERVAL: Final = 5.0
"""Seconds between two searches for unused topics."""


class Producer(SingleUseClient):
    """Publishes to any number of topics. Use it with ``async with``; one per process is enough.

    Entering connects to nothing; the first publish to a topic looks the topic up.

    Args:
        config: All options in one object. None takes them from ``options``.
        **options: The fields of :class:`~nsq_ha.ProducerConfig`, such as ``lookupd``, the HTTP address of one
            nsqlookupd or several. The client discovers the others.

    Raises:
        ConfigError: An option is unknown or out of range, or ``lookupd`` is missing.
    """

    def __init__(self, *, config: ProducerConfig | None = None, **options: Unpack[ProducerOptions]) -> None:
        self.config: ProducerConfig = options_of(ProducerConfig, config, options)
        self._trace = self.config.trace
        self._choose_path()
        self._largest = self.config.max_message_bytes
        self._observer = Observer(self.config.on_event)
        self._topics: dict[str, TopicPublisher] = {}
        self._batches: set[asyncio.Future[None]] = set()
        self._closing = asyncio.Event()  # new publishes are refused; those that wait go on
        self._ending = asyncio.Event()
        self._close = Closing(self._until_ended, self._end, "nsq_ha producer closes")
        self._lookups = Lookups(self.config, access="w", observer=self._observer)
        self._supervisor: asyncio.Task[None] | None = None
        self._group = asyncio.TaskGroup()
        self._sender_tasks: dict[Sender, asyncio.Task[None]] = {}
        self._pending: PendingPublishes | None = None
        self._past = PublishCounts()  # of forgotten topics
        self._connections = Connections(self.config)

    @classmethod
    def from_env(cls, **overrides: Unpack[ProducerOptions]) -> Self:
        """Create a producer with the options of ``NSQ_HA_*`` variables and of the TOML file of ``NSQ_HA_CONFIG``.

        Args:
            **overrides: Options that win over both.

        Raises:
            ConfigError: A name or a value is wrong, or no address is given. The error names the variable, or the key
                and the file.
        """
        return cls(config=config_from_env(ProducerConfig, overrides))

    @property
    def trace(self) -> bool | frozenset[str]:
        """Which publishes without ``trace_id`` are traced: none, all, or those to some topics.

        May be set at any time, also to any iterable of topic names.
        """
        return self._trace

    @trace.setter
    def trace(self, value: bool | Iterable[str]) -> None:
        self._trace = declared(ProducerConfig)["trace"].check(value)
        self._choose_path()

    def _choose_path(self) -> None:
        """Decide whether a publish of only a body needs more than the usual checks."""
        self._is_checked = bool(self._trace) or self.config.compress_body is not None or observe.is_traced()

    async def _open(self) -> None:
        await self._lookups.start()
        self._pending = PendingPublishes(self.config.publish_timeout)
        ready = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(ready), name="nsq_ha producer")
        await ready.wait()
        clients.opened("producer", self, on_watched=self._choose_path)
        self._choose_path()

    async def aclose(self) -> None:
        """Wait up to ``close_timeout`` for pending publishes, then close. May be called again.

        Publishes that are not acknowledged by then fail with a PublishError that
        says whether they may be stored.

        If cancelled, it closes without waiting.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        if self._loop is None or self._close.is_done:
            return
        self._check_loop()
        self._begin_to_close()
        await self._close.wait()

    async def _until_ended(self) -> None:
        """Wait until all pending publishes end, for ``close_timeout`` at most."""
        unended = [*self._batches, *(self._pending.futures() if self._pending is not None else ())]
        if unended:
            await asyncio.wait(unended, timeout=self.config.close_timeout)

    async def _end(self) -> None:
        """Close everything, even with publishes pending. May be called again."""
        self._ending.set()
        for sender in self._senders():
            sender.fail_all(ClosedError("the producer was closed"))
        if self._pending is not None:
            self._pending.close()
        for task in self._sender_tasks.values():
            task.cancel()
        if self._supervisor is not None:
            await asyncio.wait({self._supervisor})
        await self._lookups.aclose()
        self._observer.flush()
        clients.closed(self)

    async def _supervise(self, ready: asyncio.Event) -> None:
        """Own the senders' tasks until the end of the close, or until a bug ends one of them."""
        try:
            async with self._group:
                ready.set()
                while not self._ending.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FORGET_INTERVAL):
                            await self._ending.wait()
                    self._forget_idle()
        except BaseException as error:
            self._begin_to_close()
            closed = ClosedError("the producer failed: its background task ended with an error")
            closed.__cause__ = error
            for sender in self._senders():
                sender.fail_all(closed)
            raise
        finally:
            if self._pending is not None:
                self._pending.close()  # no sender runs anymore

    def _begin_to_close(self) -> None:
        """Refuse new publishes."""
        self._closing.set()
        if self._pending is not None:
            self._pending.is_open = False

    def _check_open(self) -> PendingPublishes:
        if self._pending is None:
            raise ClosedError("the producer is not open: use it with 'async with'")
        if self._closing.is_set():
            closed = ClosedError("the producer is closed")
            if self._supervisor is not None and self._supervisor.done() and not self._supervisor.cancelled():
                closed.__cause__ = self._supervisor.exception()
            raise closed
        self._check_loop()
        return self._pending

    def stats(self) -> ProducerStats:
        """Return the counts and states of all partitions in use. It may be called at any time, from any thread."""
        pending_bytes = 0 if self._pending is None else self._pending.total_bytes
        return producer_stats(tuple(self._topics.values()), self._past, self._lookups.counts, pending_bytes)

    def _stopped(self) -> str | None:
        if self._supervisor is not None and self._supervisor.done() and not self._closing.is_set():
            return "failed: the background task of the producer ended"
        if self._close.is_done:
            return "closed"
        return "closing" if self._closing.is_set() else super()._stopped()

    def _troubles(self) -> list[Trouble]:
        now = 0.0 if self._loop is None else self._loop.time()
        return producer_troubles(tuple(self._topics.values()), self._lookups.silence, now)

    async def wait_ready(self, *topics: str, timeout: float | None = None) -> None:
        """Connect to the leaders of all partitions of ``topics``, and wait until this is done.

        A service can call it before it accepts requests, so that the first publish need not look up and connect.
        Connections that are not used for ``idle_timeout`` are closed again.

        Args:
            *topics: The topics, at least one.
            timeout: Seconds. None for no limit.

        Raises:
            ResponseTimeoutError: Not all partitions had a leader that can be connected to in time; the text says
                which. It is a TimeoutError, too.
            TopicNotFoundError: No nsqlookupd of a partitioned cluster knows a topic.
            ConfigError: A name or ``timeout`` is not valid, or no topic is given.
            ClosedError: The producer is closed.

        If cancelled, connecting goes on in the background.
        """
        pending = self._check_open()
        if not topics:
            raise ConfigError("name the topics that wait_ready() should wait for")
        publishers = [self._publisher(topic, pending) for topic in dict.fromkeys(topics)]
        limit = None if timeout is None else check_timeout(timeout)
        try:
            async with asyncio.timeout(limit):
                await connect_all(publishers)
        except TimeoutError as error:
            if isinstance(error, NsqError):
                raise
            raise ResponseTimeoutError(
                f"the producer is not ready after {timeout:g} s: {unready(publishers, self._troubles())}"
            ) from None

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        key: Key | None = None,
        partition: int | None = None,
        trace_id: int | None = None,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Publish one message and return when the leader has stored it.

        Args:
            topic: The topic. On a partitioned cluster it must exist; plain nsqd creates it with the first message.
            body: 1 byte to ``max_message_bytes`` (1 MiB), including trace id and headers.
            key: Decides the partition. Publishes of one key by this producer
                keep their order. None for no key.
            partition: The partition. Publishes that name it keep their order.
                Not together with ``key``.
            trace_id: An unsigned 64-bit number; the receipt then has id, offset
                and size. None follows :attr:`trace`.
            headers: Extension header, on extended topics.
            tag: Dispatch tag, on extended topics.
            defer: Seconds until nsqd delivers the message, for plain nsqd only, which refuses more than its
                ``--max-req-timeout`` (1 hour). nsqd keeps waiting messages in memory: a crash loses them.
            timeout: Seconds for the whole call, including lookups and retries.
                None uses ``publish_timeout``.

        Raises:
            ConfigError: An argument is not valid, or the topic is ordered and
                neither key nor partition is given. Nothing was sent.
            PublishError: The publish was not acknowledged; ``maybe_stored`` says
                whether publishing again can store the message twice.
            ClosedError: The producer is closed.

        If cancelled before the message was written, nothing is sent; later the message may be stored.
        """
        if timeout is not None:
            timeout = check_timeout(timeout)
        pending = self._pending
        if pending is None or not pending.is_open or get_running_loop() is not pending.loop:
            pending = self._check_open()
        if (
            trace_id is None
            and partition is None
            and headers is None
            and tag is None
            and defer is None
            and not self._is_checked
            and type(body) is bytes
            and 0 < len(body) <= self._largest
            and (key is None or type(key) in KEY_TYPES)
        ):
            request = PubRequest(topic=topic, future=pending.new_future(), size=len(body), body=body, key=key)
        else:
            message = OutgoingMessage(body, key, partition, trace_id, headers, tag)
            if observe.is_traced():
                return await self._publish_traced(pending, topic, message, defer, timeout)
            request = self._checked_request(pending, topic, message, defer)
        try:
            publisher = self._topics[topic]
        except (KeyError, TypeError):  # a new topic, or not a name
            publisher = self._publisher(topic, pending)
        # As TopicPublisher.publish, without another coroutine for each publish.
        pending.add(request, timeout)
        try:
            if not publisher.try_admit(request):
                await publisher.wait_and_admit(request)
            return (await request.future)[0]
        except BaseException:
            pending.let_go(request)
            raise

    async def _publish_traced(
        self,
        pending: PendingPublishes,
        topic: str,
        message: OutgoingMessage,
        defer: float | None,
        timeout: float | None,
    ) -> Receipt:
        """Publish one message in a span, whose context goes into its headers if the topic is extended."""
        with observe.publishing(str(topic), (message,)) as span:
            request = self._checked_request(pending, topic, message, defer)
            if span.headers and defer is None:
                checked = CheckedMessage(request.body, request.trace_id, request.ext)
                request.ext_if_extended = in_context(checked, span.headers, self._largest).ext
                request.is_plain = request.is_plain and request.ext_if_extended is None  # else nobody looks for it
            receipts = await self._publisher(topic, pending).publish(request, timeout)
            span.returns(receipts)
            return receipts[0]

    def _checked_request(
        self, pending: PendingPublishes, topic: str, message: OutgoingMessage, defer: float | None
    ) -> PubRequest:
        """Return the request for a message that has more than a body and a key."""
        if not isinstance(topic, str):
            check_topic(topic)
        checked = check_message(message, self._trace_id(topic, message), self._largest, compressing(self.config, topic))
        return single_pub(
            topic,
            checked,
            pending.new_future(),
            began_ns=time.time_ns(),
            key=message.key,
            partition=message.partition,
            defer=defer,
        )

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        *,
        timeout: float | None = None,
    ) -> list[Receipt | PublishError]:
        """Publish many messages with few commands; return the outcome of each.

        The messages are split by partition and by the server's limits. Messages of
        one partition keep their order; each command is stored as a whole or not at
        all. Other calls run between the commands of a large batch, but no later
        publish to the same topic overtakes it. Messages that are not queued within
        the time limit are not sent.

        Args:
            topic: The topic, as in :meth:`publish`.
            messages: Bodies, or :class:`OutgoingMessage` with its own key, partition, trace and headers.
            timeout: Seconds for the whole call. None uses ``publish_timeout``.

        Returns:
            For each message, in the given order, its Receipt or the PublishError. In a batch with headers a
            receipt has no id, offset or size, even for a traced message.

        Raises:
            ConfigError: A message is not valid; the text names its position. Nothing was sent.
            ClosedError: The producer is closed.

        If cancelled, any part of the batch may be stored.
        """
        pending = self._check_open()
        if not isinstance(topic, str):
            check_topic(topic)
        messages = as_list(messages)
        if not messages:
            return []
        if timeout is not None:
            timeout = check_timeout(timeout)
        publisher = self._publisher(topic, pending)
        request = None if self._is_checked else single_mpub(topic, messages, pending.new_future, self.config)
        if request is None:
            return await self._publish_batch(pending, publisher, messages, timeout)
        try:
            return [*await publisher.publish(request, timeout)]
        except PublishError as error:
            return [error] * request.count
        except ConfigError as error:
            raise at_position(0, error) from error

    async def _publish_batch(
        self,
        pending: PendingPublishes,
        publisher: TopicPublisher,
        messages: list[bytes | OutgoingMessage],
        timeout: float | None,
    ) -> list[Receipt | PublishError]:
        """Publish a batch that needs more than one command, or has more than bodies."""
        topic, limit = publisher.watch.topic, self.config.publish_timeout if timeout is None else timeout
        with observe.publishing(topic, messages) as span:
            plan = BatchPlan(topic, messages, lambda message: self._trace_id(topic, message), self.config, span.headers)
            whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._batches.add(whole)
            try:
                outcomes = await BatchCall(plan, publisher, pending, limit).publish()
            finally:
                self._batches.discard(whole)
                whole.cancel()
            span.returns(outcomes)
            return outcomes

    def _trace_id(self, topic: str, message: OutgoingMessage) -> int | None:
        if message.trace_id is not None:
            return message.trace_id
        trace = self._trace
        is_traced = trace is True or (trace is not False and topic in trace)
        return random.getrandbits(63) | 1 if is_traced else None

    def _publisher(self, topic: str, pending: PendingPublishes) -> TopicPublisher:
        known = self._topics.get(topic) if type(topic) is str else None
        if known is not None:
            return known
        check_topic(topic)
        publisher = TopicPublisher(
            self._lookups.watch(topic),
            self.config,
            connections=self._connections,
            start=self._start,
            check_open=self._check_open,
            pending=pending,
        )
        self._topics[topic] = publisher
        return publisher

    def _senders(self) -> Iterator[Sender]:
        return (sender for publisher in self._topics.values() for sender in publisher.senders.values())

    def _start(self, sender: Sender) -> None:
        task = self._group.create_task(sender.run(), name=f"nsq_ha sender {sender.partition}")
        self._sender_tasks[sender] = task
        task.add_done_callback(lambda _: self._sender_tasks.pop(sender, None))

    def _forget_idle(self) -> None:
        """Forget unused topics; the next publish starts them again."""
        for topic, publisher in tuple(self._topics.items()):
            if not publisher.is_forgotten():
                continue
            del self._topics[topic]
            self._lookups.unwatch(topic)
            self._past.add(publisher.unsent)
            for sender in publisher.senders.values():
                self._past.add(sender.counts)
                if sender in self._sender_tasks:
                    self._sender_tasks[sender].cancel()
