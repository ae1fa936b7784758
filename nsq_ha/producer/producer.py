"""The producer: what an application holds to publish.

Owns the public calls, their time limits and back-pressure. Which partition a
message takes is ``producer.topic``'s, how it gets there ``producer.sender``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from typing import TYPE_CHECKING, Any, Self

from nsq_ha import tracelog
from nsq_ha.config import ProducerConfig
from nsq_ha.discovery.watcher import Directory
from nsq_ha.errors import ClosedError, ConfigError, NsqError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.names import check_topic
from nsq_ha.producer.batch import Batch, Part, check_kind
from nsq_ha.producer.outgoing import Outgoing, lane_key, prepare
from nsq_ha.producer.topic import NO_KEY, TopicPublisher
from nsq_ha.transport.tls import ssl_context

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from types import TracebackType

    from nsq_ha.policy.sharding import Key
    from nsq_ha.policy.topology import TopicView
    from nsq_ha.producer.sender import Sender
    from nsq_ha.producer.topic import Ticket


class Producer:
    """Publishes to any number of topics. Use it with ``async with``; one a process is enough.

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
        if config is not None and (options or lookupd):
            raise ConfigError("give either config= or options, not both")
        self.config = config or ProducerConfig.of({"lookupd": lookupd, **options})
        if not self.config.lookupd and not self.config.nsqd:
            raise ConfigError("give lookupd=, the address of an nsqlookupd")
        if self.config.tls is not None:
            ssl_context(self.config.tls)
        self._trace = self.config.trace
        self._topics: dict[str, TopicPublisher] = {}
        self._pending_bytes = 0
        self._active: set[asyncio.Future[list[Receipt]]] = set()
        self._room = asyncio.Event()
        self._closing = asyncio.Event()
        self._closed: asyncio.Event | None = None
        self._started = False
        self._directory: Directory | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._sender_tasks: set[asyncio.Task[None]] = set()

    @property
    def trace(self) -> bool | frozenset[str]:
        """Which publishes are traced that name no trace id: none, all, or those of these topics.

        May be set at any time; also to any iterable of topic names.
        """
        return self._trace

    @trace.setter
    def trace(self, value: bool | Iterable[str]) -> None:
        self._trace = value if isinstance(value, bool) else frozenset(value)

    async def __aenter__(self) -> Self:
        """Start; the first look-up of a topic is made by its first publish."""
        if self._started:
            raise ClosedError("a Producer is used once: make a new one")
        self._started = True
        self._directory = Directory(self.config, access="w")
        await self._directory.start()
        ready = asyncio.Event()
        self._supervisor = asyncio.create_task(self._supervise(ready), name="nsq_ha producer")
        await ready.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, see :meth:`aclose`."""
        await self.aclose()

    async def aclose(self) -> None:
        """Let what is under way end, then close; takes ``close_timeout`` at most. May be called again.

        What is not acknowledged by then fails with a PublishError that says
        whether it may be stored.

        Cancelled, it does not wait for what is under way, and closes.
        """
        directory = self._directory
        if directory is None:
            return
        if self._closed is not None:
            await self._closed.wait()
            return
        self._closed = asyncio.Event()
        self._closing.set()
        try:
            if self._active:
                await asyncio.wait(self._active, timeout=self.config.close_timeout)
        finally:  # cancelled, it still ends what it started
            for publisher in self._topics.values():
                for sender in publisher.senders.values():
                    sender.fail_all(ClosedError("the producer was closed"))
            self._room.set()
            for task in self._sender_tasks:
                task.cancel()
            if self._supervisor is not None:
                await asyncio.wait({self._supervisor})
            await directory.aclose()
            self._closed.set()

    async def _supervise(self, ready: asyncio.Event) -> None:
        """Hold the senders' tasks; ends when closed, or by a bug of ours."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                ready.set()
                await self._closing.wait()
        except BaseExceptionGroup as error:
            self._closing.set()
            self._died(error)
            raise

    def _died(self, error: BaseException) -> None:
        for publisher in self._topics.values():
            for sender in publisher.senders.values():
                closed = ClosedError("the producer's supervisor died")
                closed.__cause__ = error
                sender.fail_all(closed)

    def _check_open(self) -> Directory:
        if self._directory is None:
            raise ClosedError("use the producer with 'async with'")
        if self._closing.is_set():
            closed = ClosedError("the producer is closed")
            if self._supervisor is not None and self._supervisor.done() and not self._supervisor.cancelled():
                closed.__cause__ = self._supervisor.exception()
            raise closed
        return self._directory

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
            trace_id: Unsigned 64 bit; the receipt then tells id, offset and
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
        message = OutgoingMessage(body, key, partition, trace_id, headers, tag)
        directory = self._check_open()
        prepared = prepare(message, self._trace_id(topic, message))
        publisher = self._topics.get(topic) or self._publisher(directory, topic)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit(timeout)
        future: asyncio.Future[list[Receipt]] = loop.create_future()
        outgoing = Outgoing(topic, (prepared,), future, batch=False)

        def submit(view: TopicView) -> Ticket:
            check_kind(view, prepared)
            chosen, is_free = publisher.partition_for(message, view)
            return publisher.submit(outgoing, chosen, [] if is_free else [NO_KEY if key is None else lane_key(key)])

        return (await self._carry(publisher, outgoing, deadline, submit))[0]

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

        Args:
            topic: An existing topic.
            messages: Bodies, or :class:`OutgoingMessage` with key, partition, trace and headers of its own.
            timeout: Seconds for the whole call. None for ``publish_timeout``.

        Returns:
            For each message, in the order given, its Receipt or the PublishError.

        Raises:
            ConfigError: One of the messages is not legal (its position is named). Nothing was sent.
            ClosedError: The producer is closed.

        Cancelled, any part of it may be stored.
        """
        directory = self._check_open()
        batch = Batch(topic, messages, lambda message: self._trace_id(topic, message))
        if not batch.messages:
            return []
        publisher = self._topics.get(topic) or self._publisher(directory, topic)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limit(timeout)
        whole: asyncio.Future[list[Receipt]] = loop.create_future()
        self._active.add(whole)
        outcomes: list[asyncio.Task[list[Receipt]]] = []

        def admit(part: Part, view: TopicView) -> None:
            ticket = self._admitted(part.outgoing, lambda view: part.submit(publisher, view), view)
            outcomes.append(loop.create_task(self._outcome(part.outgoing, ticket, deadline)))

        try:
            failure = await self._queue_batch(publisher, batch, deadline, admit)
            return batch.results(await asyncio.gather(*outcomes, return_exceptions=True), failure)
        except BaseException:
            for outcome in outcomes:
                outcome.cancel()
            await asyncio.gather(*outcomes, return_exceptions=True)
            raise
        finally:
            self._active.discard(whole)
            whole.cancel()

    async def _queue_batch(
        self, publisher: TopicPublisher, batch: Batch, deadline: float, admit: Callable[[Part, TopicView], None]
    ) -> PublishError | None:
        """Queue all commands of a batch in one turn; return why the last of them could not be, or None."""
        view = publisher.watch.view
        if not publisher.queued and publisher.is_usable(view) and self._has_room(batch.size):
            for part in batch.parts(publisher, view):
                admit(part, view)
            return None
        try:
            async with self._turn(publisher, deadline):
                view = await publisher.view()
                for part in batch.parts(publisher, view):
                    await self._until_room(part.outgoing.size)
                    admit(part, view)
        except PublishError as error:
            return error
        return None

    async def _carry(
        self,
        publisher: TopicPublisher,
        outgoing: Outgoing,
        deadline: float,
        submit: Callable[[TopicView], Ticket],
    ) -> list[Receipt]:
        """Queue a command in its turn and wait for its end, within the limit."""
        future = outgoing.future
        self._active.add(future)
        try:
            view = publisher.watch.view
            if not publisher.queued and publisher.is_usable(view) and self._has_room(outgoing.size):
                ticket = self._admitted(outgoing, submit, view)
            else:
                async with self._turn(publisher, deadline):
                    view = await publisher.view()
                    await self._until_room(outgoing.size)
                    ticket = self._admitted(outgoing, submit, view)
        except BaseException:
            future.cancel()
            self._active.discard(future)
            raise
        return await self._outcome(outgoing, ticket, deadline)

    async def _outcome(self, outgoing: Outgoing, ticket: Ticket, deadline: float) -> list[Receipt]:
        """Wait for the end of a queued command, within the limit."""
        future = outgoing.future
        handle = asyncio.get_running_loop().call_at(deadline, _expire, ticket)
        try:
            return await future
        except asyncio.CancelledError:
            ticket.sender.give_up(ticket.entry)
            raise
        finally:
            handle.cancel()
            self._active.discard(future)
            self._pending_bytes -= outgoing.size
            self._room.set()

    @contextlib.asynccontextmanager
    async def _turn(self, publisher: TopicPublisher, deadline: float) -> AsyncIterator[None]:
        """Hold the front of the topic's line.

        What cannot be queued at once (no look-up yet, no room) stands in one line for its topic: a later publish of
        the same key must not pass.
        """
        publisher.queued += 1
        try:
            async with asyncio.timeout_at(deadline), publisher.queue:
                yield
        except TimeoutError:
            reason = publisher.trouble
            if publisher.is_usable(publisher.watch.view):
                reason = ResponseTimeoutError(
                    f"no room within the limit: max_pending_bytes={self.config.max_pending_bytes} wait already"
                )
            raise _unsent(publisher, reason) from reason
        except (ConfigError, PublishError):
            raise
        except NsqError as error:
            raise _unsent(publisher, error) from error
        finally:
            publisher.queued -= 1

    async def _until_room(self, size: int) -> None:
        while not self._has_room(size) and not self._closing.is_set():
            self._room.clear()
            await self._room.wait()
        self._check_open()

    def _admitted(self, outgoing: Outgoing, submit: Callable[[TopicView], Ticket], view: TopicView) -> Ticket:
        ticket = submit(view)
        self._pending_bytes += outgoing.size
        return ticket

    def _has_room(self, size: int) -> bool:
        return not self._pending_bytes or self._pending_bytes + size <= self.config.max_pending_bytes

    def _limit(self, timeout: object) -> float:
        if timeout is None:
            return self.config.publish_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise ConfigError(f"timeout must be a number of seconds above 0, not {timeout!r}")
        return timeout

    def _trace_id(self, topic: str, message: OutgoingMessage) -> int | None:
        if message.trace_id is not None:
            return message.trace_id
        trace = self._trace
        if trace is True or (trace is not False and topic in trace):
            return random.getrandbits(63) | 1
        return None

    def _publisher(self, directory: Directory, topic: str) -> TopicPublisher:
        check_topic(topic)
        publisher = TopicPublisher(
            directory.watch(topic), self.config, admit=self._admit, start=self._start, on_stored=_log_stored
        )
        self._topics[topic] = publisher
        return publisher

    def _start(self, sender: Sender) -> None:
        if self._group is None:
            raise ClosedError("the producer is closed")
        task = self._group.create_task(sender.run(), name=f"nsq_ha sender {sender.partition}")
        self._sender_tasks.add(task)
        task.add_done_callback(self._sender_tasks.discard)

    def _admit(self) -> bool:
        """Tell whether one more connection may be opened; the longest idle one makes room."""
        connected = [s for p in self._topics.values() for s in p.senders.values() if s.is_connected]
        if len(connected) < self.config.max_connections:
            return True
        return any(sender.close_idle() for sender in sorted(connected, key=lambda sender: sender.last_used))


def _expire(ticket: Ticket) -> None:
    """End a publish at its time limit."""
    entry, sender = ticket.entry, ticket.sender
    if entry.item.future.done():
        return
    reason = sender.trouble or ResponseTimeoutError("the leader did not answer in time")
    sender.give_up(entry)
    sender.fail(entry, reason)


def _unsent(publisher: TopicPublisher, error: BaseException) -> PublishError:
    return PublishError(str(error), topic=publisher.watch.topic, partition=None, attempts=0, maybe_stored=False)


def _log_stored(outgoing: Outgoing, receipts: list[Receipt]) -> None:
    if tracelog.switch.is_on(outgoing.topic):
        for receipt in receipts:
            if receipt.offset is not None:
                tracelog.log_publish(receipt, outgoing.began_ns)
