"""The producer: what an application holds to publish.

Owns the public calls, their time limits and back-pressure. Which partition a
message takes is ``producer.topic``'s, how it gets there ``producer.sender``'s.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import get_running_loop
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.config import ProducerConfig, traced_topics
from nsq_ha.discovery.watcher import Directory
from nsq_ha.errors import ClosedError, ConfigError, PublishError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.names import check_topic
from nsq_ha.option_checks import is_number
from nsq_ha.producer.batch import Batch, as_list, check_kind, small_plain_batch
from nsq_ha.producer.many import Many
from nsq_ha.producer.outgoing import MAX_MESSAGE_BYTES, Outgoing, Plain, Single, lane_key, prepare
from nsq_ha.producer.topic import NO_KEY, TopicPublisher
from nsq_ha.producer.turn import turn_of
from nsq_ha.producer.under_way import UnderWay
from nsq_ha.transport.closing import Closing
from nsq_ha.transport.entering import EnteredOnce
from nsq_ha.transport.options import options_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nsq_ha.policy.sharding import Key
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.sender import Sender


FORGET_INTERVAL: Final = 5.0
"""Seconds between two checks for unused topics."""


class Producer(EnteredOnce):
    """Publishes to any number of topics. Use it with ``async with``; one a process is enough.

    Entering only starts it; the first look-up of a topic is made by its first publish.

    Args:
        lookupd: One nsqlookupd's HTTP address or several; the others are found from it.
        config: Options as a value. None to take them from ``options``.
        **options: The fields of :class:`~nsq_ha.config.ProducerConfig`.

    Raises:
        ConfigError: An option is unknown or out of range, or no lookupd is given.
    """

    def __init__(
        self,
        *,
        lookupd: str | Iterable[str] = (),
        config: ProducerConfig | None = None,
        **options: Any,  # noqa: ANN401 - checked against the fields of ProducerConfig
    ) -> None:
        """Check the options; connects nothing before ``async with``."""
        self.config = options_of(ProducerConfig, config, lookupd, options)
        self._trace = self.config.trace
        self._topics: dict[str, TopicPublisher] = {}
        self._batches: set[asyncio.Future[None]] = set()
        self._closing = asyncio.Event()
        self._close = Closing(self._until_ended, self._end, "nsq_ha producer closes")
        self._directory: Directory | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._sender_tasks: dict[Sender, asyncio.Task[None]] = {}
        self._under_way: UnderWay | None = None

    @property
    def trace(self) -> bool | frozenset[str]:
        """Which publishes are traced that name no trace id: none, all, or those of these topics.

        May be set at any time; also to any iterable of topic names.
        """
        return self._trace

    @trace.setter
    def trace(self, value: bool | Iterable[str]) -> None:
        self._trace = traced_topics(value)

    async def _open(self) -> None:
        self._directory = Directory(self.config, access="w")
        await self._directory.start()
        self._under_way = UnderWay(_expire, self.config.publish_timeout, self.config.max_pending_bytes)
        ready = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(ready), name="nsq_ha producer")
        await ready.wait()

    async def aclose(self) -> None:
        """Let what is under way end, then close; takes ``close_timeout`` at most. May be called again.

        What is not acknowledged by then fails with a PublishError that says
        whether it may be stored.

        Cancelled, it does not wait for what is under way, and closes.

        Raises:
            ConfigError: Called from another event loop than the one that entered it. Nothing was changed.
        """
        if self._directory is None or self._close.is_done:
            return
        self._check_loop()
        self._begin_to_close()
        await self._close.wait()

    async def _until_ended(self) -> None:
        """Wait for the pending publishes, for ``close_timeout`` at most."""
        unended = [*self._batches, *(self._under_way.futures() if self._under_way is not None else ())]
        if unended:
            await asyncio.wait(unended, timeout=self.config.close_timeout)

    async def _end(self) -> None:
        """End everything, even with publishes pending; may be called again."""
        for publisher in self._topics.values():
            for sender in publisher.senders.values():
                sender.fail_all(ClosedError("the producer was closed"))
        if self._under_way is not None:
            self._under_way.close()
        for task in self._sender_tasks.values():
            task.cancel()
        if self._supervisor is not None:
            await asyncio.wait({self._supervisor})
        if self._directory is not None:
            await self._directory.aclose()

    async def _supervise(self, ready: asyncio.Event) -> None:
        """Hold the senders' tasks; ends when closed, or by a bug of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ready.set()
                while not self._closing.is_set():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(FORGET_INTERVAL):
                            await self._closing.wait()
                    self._forget_idle()
        except BaseExceptionGroup as error:
            self._begin_to_close()
            self._died(error)
            raise

    def _begin_to_close(self) -> None:
        """Take no more publishes."""
        self._closing.set()
        if self._under_way is not None:
            self._under_way.is_open = False

    def _died(self, error: BaseException) -> None:
        for publisher in self._topics.values():
            for sender in publisher.senders.values():
                closed = ClosedError("the producer's supervisor died")
                closed.__cause__ = error
                sender.fail_all(closed)

    def _check_open(self) -> UnderWay:
        if self._under_way is None:
            raise ClosedError("use the producer with 'async with'")
        if self._closing.is_set():
            closed = ClosedError("the producer is closed")
            if self._supervisor is not None and self._supervisor.done() and not self._supervisor.cancelled():
                closed.__cause__ = self._supervisor.exception()
            raise closed
        self._check_loop()
        return self._under_way

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
        timeout: float | None = None,
    ) -> Receipt:
        """Publish one message and return when the leader has stored it.

        Args:
            topic: An existing topic; publishing never creates one.
            body: 1 byte to 1 MiB, trace id and headers counted.
            key: Goes to the partition of this key, in order with all that this
                producer publishes with it. None for no key.
            partition: Goes to this partition, in order with all that name it
                without a key.
            trace_id: Unsigned 64 bit; the receipt then has the id, offset and
                size. None leaves it to :attr:`trace`.
            headers: Extension header, on extended topics.
            tag: Dispatch tag, on extended topics.
            timeout: Seconds for the whole call, look-ups and retries included.
                None for ``publish_timeout``.

        Raises:
            ConfigError: An argument is not legal, or the ordered topic is given
                neither key nor partition. Nothing was sent.
            PublishError: It was not acknowledged; ``maybe_stored`` tells
                whether to publish it again can store it twice.
            ClosedError: The producer is closed.

        Cancelled before it was written, nothing is sent; afterwards it may be stored.
        """
        under_way = self._under_way
        if under_way is None or not under_way.is_open or get_running_loop() is not under_way.loop:
            under_way = self._check_open()
        try:
            publisher = self._topics.get(topic)
        except TypeError:  # it cannot be looked up, so it is no name
            check_topic(topic)
            raise
        if (
            trace_id is None
            and partition is None
            and headers is None
            and tag is None
            and timeout is None
            and not self._trace
            and type(body) is bytes
            and 0 < (size := len(body)) <= MAX_MESSAGE_BYTES
            and publisher is not None
            and (sender := publisher.quick_sender(key)) is not None
            and not (line := sender.line).waiting
            and (not line.held or line.held + under_way.pending_bytes + size <= under_way.max_bytes)
        ):
            plain = Plain(topic, body, size, under_way.new_future(), sender)
            if key is not None:
                plain.keys = (lane_key(key),)
            under_way.add_usual(plain)
            line.held += size
            try:
                sender.lane.submit(plain)
                if not sender.pump_is_due:
                    sender.write_soon()
                return (await plain.future)[0]
            except BaseException:
                under_way.let_go(plain)
                raise
        message = OutgoingMessage(body, key, partition, trace_id, headers, tag)
        return await self._publish(under_way, topic, message, self._limit(timeout))

    async def _publish(self, under_way: UnderWay, topic: str, message: OutgoingMessage, limit: float) -> Receipt:
        """Publish what the short way does not take."""
        prepared = prepare(message, self._trace_id(topic, message))
        publisher = self._topics.get(topic) or self._publisher(topic, under_way)
        outgoing = Single(topic, prepared, under_way.new_future())
        under_way.add(outgoing, limit)
        try:
            view = publisher.watch.view
            if not publisher.queued and publisher.is_usable(view):
                _admit_single(publisher, outgoing, message, view)
            else:
                async with turn_of(publisher, outgoing.deadline, is_quick=True):
                    view = await publisher.view()
                    self._check_open()
                    _admit_single(publisher, outgoing, message, view)
            return (await outgoing.future)[0]
        except BaseException:
            under_way.let_go(outgoing)
            raise

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        *,
        timeout: float | None = None,
    ) -> list[Receipt | PublishError]:
        """Publish many messages with few commands; tell the outcome of each.

        They are split by partition and by the server's limits. Messages of one
        partition keep their order; each command is stored wholly or not at all.
        Others run between the commands of a large batch, but nothing that is
        published to its topic later passes it; what is not queued within the
        limit is not sent.

        Args:
            topic: An existing topic.
            messages: Bodies, or :class:`OutgoingMessage` with key, partition, trace and headers of its own.
            timeout: Seconds for the whole call. None for ``publish_timeout``.

        Returns:
            For each message, in the order given, its Receipt or the PublishError. In a batch with headers a
            receipt has no id, offset or size, even for a traced message.

        Raises:
            ConfigError: One of the messages is not legal (its position is named). Nothing was sent.
            ClosedError: The producer is closed.

        Cancelled, any part of it may be stored.
        """
        under_way = self._check_open()
        if not isinstance(topic, str):
            check_topic(topic)
        messages = as_list(messages)
        if (
            timeout is None
            and not self._trace
            and (publisher := self._topics.get(topic)) is not None
            and (whole := small_plain_batch(topic, messages, under_way.new_future)) is not None
            and (sender := publisher.quick_sender(None)) is not None
            and sender.line.takes(whole.size)
        ):
            whole.sender = sender
            under_way.add_usual(whole)
            sender.line.held += whole.size
            try:
                sender.submit(whole)
                return [*await whole.future]
            except PublishError as error:
                under_way.let_go(whole)
                return [error] * len(messages)
            except BaseException:
                under_way.let_go(whole)
                raise
        return await self._publish_batch(under_way, topic, messages, timeout)

    async def _publish_batch(
        self, under_way: UnderWay, topic: str, messages: list[bytes | OutgoingMessage], timeout: float | None
    ) -> list[Receipt | PublishError]:
        """Publish what the short way does not take."""
        if not messages:
            return []
        publisher = self._topics.get(topic) or self._publisher(topic, under_way)
        many = Many(
            Batch(topic, messages, lambda message: self._trace_id(topic, message)),
            publisher,
            under_way,
            self._limit(timeout),
            check_open=self._check_open,
            is_dead=self._is_dead,
        )
        whole: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._batches.add(whole)
        try:
            return await many.publish()
        finally:
            self._batches.discard(whole)
            whole.cancel()

    def _is_dead(self) -> bool:
        """Tell whether what is queued now would never end: closed, and not only about to be, or died."""
        return (
            self._under_way is None or self._under_way.is_closed or self._supervisor is None or self._supervisor.done()
        )

    def _limit(self, timeout: object) -> float:
        if timeout is None:
            return self.config.publish_timeout
        if not is_number(timeout) or not 0 < timeout <= 86400.0:
            raise ConfigError(f"timeout must be a number of seconds above 0 and up to a day, not {timeout!r}")
        return timeout

    def _trace_id(self, topic: str, message: OutgoingMessage) -> int | None:
        if message.trace_id is not None:
            return message.trace_id
        trace = self._trace
        is_traced = trace is True or (trace is not False and topic in trace)
        return random.getrandbits(63) | 1 if is_traced else None

    def _publisher(self, topic: str, under_way: UnderWay) -> TopicPublisher:
        check_topic(topic)
        directory = self._directory
        if directory is None:
            raise ClosedError("use the producer with 'async with'")
        publisher = TopicPublisher(
            directory.watch(topic),
            self.config,
            admit=self._admit,
            start=self._start,
            under_way=under_way,
        )
        self._topics[topic] = publisher
        return publisher

    def _start(self, sender: Sender) -> None:
        if self._group is None:
            raise ClosedError("the producer is closed")
        task = self._group.create_task(sender.run(), name=f"nsq_ha sender {sender.partition}")
        self._sender_tasks[sender] = task
        task.add_done_callback(lambda _: self._sender_tasks.pop(sender, None))

    def _forget_idle(self) -> None:
        """Forget unused topics; the next publish starts them again."""
        for topic, publisher in tuple(self._topics.items()):
            if self._directory is None or not publisher.is_forgotten():
                continue
            del self._topics[topic]
            self._directory.unwatch(topic)
            for sender in publisher.senders.values():
                if sender in self._sender_tasks:
                    self._sender_tasks[sender].cancel()

    def _admit(self, makes_room: bool) -> bool:
        """Return whether one more connection may be opened; if that helps, close the longest idle one first."""
        senders = [s for p in self._topics.values() for s in p.senders.values() if s.connections]
        if sum(sender.connections for sender in senders) < self.config.max_connections:
            return True
        idle = sorted(senders, key=lambda sender: sender.last_used) if makes_room else ()
        return any(sender.close_idle() for sender in idle)


def _expire(outgoing: Outgoing) -> None:
    """End a publish at its time limit; one that stands in line has a limit of its own there."""
    if outgoing.sender is not None:
        outgoing.sender.expire(outgoing)


def _admit_single(publisher: TopicPublisher, outgoing: Single, message: OutgoingMessage, view: TopicView) -> None:
    check_kind(view, outgoing.message)
    chosen, is_free = publisher.partition_for(message, view)
    keys = () if is_free else (NO_KEY if message.key is None else lane_key(message.key),)
    publisher.submit(outgoing, chosen, keys)
