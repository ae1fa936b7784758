"""The producer: the object that applications publish with.

Owns the public calls. ``producer.machine`` decides, and ``producer.shell`` does what it decides.
"""

from __future__ import annotations

import asyncio
import random
import time
from asyncio import get_running_loop
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Self, Unpack

from nsq_ha.engine import observe
from nsq_ha.engine.lookups import Lookups
from nsq_ha.engine.observe import Observer
from nsq_ha.engine.single_use import Closing, SingleUseClient, options_of
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.options.checks import check_timeout, check_topic
from nsq_ha.options.config import ProducerConfig
from nsq_ha.options.environment import config_from_env
from nsq_ha.options.keywords import ProducerOptions
from nsq_ha.options.language import declared
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.sharding import Key, lane_key
from nsq_ha.process.clients import clients
from nsq_ha.producer.batch import PublishBatch, as_list, at_position, single_mpub
from nsq_ha.producer.messages import KEY_TYPES, check_defer, check_message, compressing
from nsq_ha.producer.requests import PubRequest, single_pub
from nsq_ha.producer.shell import ProducerShell
from nsq_ha.producer.state import PublishRequest
from nsq_ha.producer.statistics import producer_stats, producer_troubles, unready
from nsq_ha.stats import ProducerStats


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
        self._shell: ProducerShell | None = None
        self._is_open = False
        self._batches: set[asyncio.Future[None]] = set()
        self._close = Closing(self._until_ended, self._end, "nsq_ha producer closes")
        self._lookups = Lookups(self.config, access="w", observer=self._observer)
        self._usual_limit = self.config.publish_timeout

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
        self._shell = ProducerShell(self.config, self._lookups, self._observer)
        self._is_open = True
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
        self._is_open = False
        await self._close.wait()

    async def _until_ended(self) -> None:
        """Wait until all pending publishes end, for ``close_timeout`` at most."""
        pending = () if self._shell is None else self._shell.machine.all_pending()
        unended = [*self._batches, *(request.ticket for request in pending)]
        if unended:
            await asyncio.wait(unended, timeout=self.config.close_timeout)

    async def _end(self) -> None:
        """Close everything, even with publishes pending. May be called again."""
        if self._shell is not None:
            await self._shell.aclose(ClosedError("the producer was closed"))
        await self._lookups.aclose()
        self._observer.flush()
        clients.closed(self)

    def _check_open(self) -> ProducerShell:
        if self._loop is None or self._shell is None:
            raise ClosedError("the producer is not open: use it with 'async with'")
        if self._close.has_begun:  # those that wait go on
            raise ClosedError("the producer is closed")
        self._check_loop()
        return self._shell

    def stats(self) -> ProducerStats:
        """Return the counts and states of all partitions in use. It may be called at any time, from any thread."""
        return producer_stats(self._shell, self._lookups.counts)

    def _troubles(self) -> list[Trouble]:
        return producer_troubles(self._shell, self._lookups.silence)

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
        shell = self._check_open()
        if not topics:
            raise ConfigError("name the topics that wait_ready() should wait for")
        names = list(dict.fromkeys(topics))
        for name in names:
            check_topic(name)
        limit = None if timeout is None else check_timeout(timeout)
        try:
            async with asyncio.timeout(limit):
                await shell.ready(names)
        except TimeoutError as error:
            if isinstance(error, NsqError):
                raise
            raise ResponseTimeoutError(
                f"the producer is not ready after {timeout:g} s: {unready(shell, names, self._troubles())}"
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
        limit = self._usual_limit if timeout is None else check_timeout(timeout)
        shell = self._shell
        if shell is None or not self._is_open or get_running_loop() is not shell.loop:
            shell = self._check_open()
        if (
            trace_id is not None
            or partition is not None
            or headers is not None
            or tag is not None
            or defer is not None
            or self._is_checked
            or type(body) is not bytes
            or not 0 < len(body) < self._largest
            or (key is not None and type(key) not in KEY_TYPES)
        ):
            message = OutgoingMessage(body, key, partition, trace_id, headers, tag)
            with observe.publishing(str(topic), (message,)) as span:
                checked = self._checked_request(topic, message, defer, limit)
                if span.headers and defer is None:
                    checked.context, checked.needs_check = span.headers, True
                receipts = await self._published(shell, checked)
                span.returns(receipts)
                return receipts[0]
        request = PubRequest(topic=topic, size=len(body), limit=limit, body=body)
        if key is not None:
            request.key, request.keys = key, (lane_key(key),)
        if type(topic) is not str or topic not in shell.watches:
            shell.use(topic)
        # As _published, without another coroutine for each publish.
        request.ticket = ticket = shell.new_future()
        try:
            if shell.machine.publish(request, shell.clock()):
                if not shell.is_held:
                    shell.drain()
            elif not shell.is_due:
                shell.drain_soon()
            receipt: Receipt = (await ticket)[0]
            return receipt
        finally:
            if request.receipts is None:
                shell.let_go(request)

    async def _published(self, shell: ProducerShell, request: PublishRequest) -> list[Receipt]:
        """Publish a request; return what the leader answers."""
        shell.use(request.topic)
        try:
            receipts: list[Receipt] = await shell.publish(request)
            return receipts
        finally:
            shell.let_go(request)

    def _checked_request(self, topic: str, message: OutgoingMessage, defer: float | None, limit: float) -> PubRequest:
        """Return the request for a message that has more than a body and a key."""
        if not isinstance(topic, str):
            check_topic(topic)
        codec = compressing(self.config, topic)
        checked = check_message(message, self._trace_id(topic, message), self._largest, codec)
        request = single_pub(topic, checked, limit, time.time_ns(), check_defer(defer, checked))
        request.key, request.partition = message.key, message.partition
        if message.key is not None or message.partition is not None:
            request.keys = (lane_key(message.key),)
        request.compresses = codec is not None
        request.needs_check = request.compresses or not request.is_plain or request.size >= self._largest
        return request

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
        shell = self._check_open()
        if not isinstance(topic, str):
            check_topic(topic)
        messages = as_list(messages)
        if not messages:
            return []
        limit = self._usual_limit if timeout is None else check_timeout(timeout)
        shell.use(topic)
        request = None if self._is_checked else single_mpub(topic, messages, limit, self.config)
        if request is None:
            return await self._publish_batch(shell, topic, messages, limit)
        try:
            return [*await self._published(shell, request)]
        except PublishError as error:
            return [error] * request.count
        except ConfigError as error:
            raise at_position(0, error) from error

    async def _publish_batch(
        self, shell: ProducerShell, topic: str, messages: list[bytes | OutgoingMessage], limit: float
    ) -> list[Receipt | PublishError]:
        """Publish a batch that needs more than one command, or has more than bodies."""
        with observe.publishing(topic, messages) as span:
            traced, config = partial(self._trace_id, topic), self.config
            whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._batches.add(whole)
            try:
                outcomes = await PublishBatch(shell, topic, messages, traced, config, limit, span.headers).publish()
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
