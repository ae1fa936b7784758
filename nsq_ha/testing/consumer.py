"""A consumer that gets its messages from the test, for unit tests.

It is the real consumer without connections: handlers, attempts, giving up and closing work as with a server. Its
messages remember their answers.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import struct
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Unpack

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.consumer.consumer import Consumer
from nsq_ha.consumer.inflight import ReadPartition, Subscription, WriteRequeue, WriteTouch
from nsq_ha.consumer.shell import ConsumerShell, Source
from nsq_ha.consumer.statistics import consumer_stats
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.errors import ClosedError, ConfigError
from nsq_ha.message import Message, OutgoingMessage, State
from nsq_ha.options.checks import MAX_INT64, check_partition
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.topology import Node, TopicMeta
from nsq_ha.producer.messages import check_message
from nsq_ha.protocol.identify import Identity
from nsq_ha.stats import ConsumerStats

_ID: Final = struct.Struct(">QQ")
_MOST_ATTEMPTS: Final = 65_535
_LED: Final = Node("127.0.0.1", 4150, 4151), TopicMeta(1)
"""The nsqd that all messages name, and the settings of all topics."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """One message that was requeued.

    Attributes:
        message: The message.
        delay: Seconds as given. None for the option ``requeue_backoff``.
    """

    message: Message
    delay: float | None


class _Source(Source):
    """Takes the answers of the messages of one partition, at once."""

    def finish(self, message: Message) -> None:
        """Remember that the message is finished."""
        shell = self._shell
        if isinstance(shell, _Shell):
            shell.latest[message.id] = message
        super().finish(message)
        shell.drain()

    def requeue(self, message: Message, delay: float | None) -> None:
        """Remember that the message is requeued."""
        super().requeue(message, delay)
        self._shell.drain()

    def touch(self, message: Message) -> None:
        """Remember that the message is touched."""
        super().touch(message)
        self._shell.drain()


class _Shell(ConsumerShell):
    """Keeps what would be written."""

    consumer: FakeConsumer
    latest: dict[bytes, Message]

    def _write(self, conn: Subscription, now: float) -> None:
        commands, conn.commands = conn.commands, []
        for message_id in self.machine.written(conn, now) if conn.finished else ():
            self.consumer._finish(self.latest.pop(message_id))  # noqa: SLF001 - one unit
        for command in commands:
            if isinstance(command, WriteRequeue) and command.message is not None:
                self.consumer._requeue(command.message, command.given)  # noqa: SLF001 - one unit
            elif isinstance(command, WriteTouch):
                self.consumer.touched.append(command.message)


class FakeConsumer(Consumer):
    """A :class:`~nsq_ha.Consumer` for unit tests: it connects to nothing, and the test delivers its messages.

    Deliver messages with :meth:`deliver`, before or inside ``async with``. When the last one is answered, the consumer
    closes, so that ``run`` and iterations end; with ``stays_open`` it waits for more. A failed handler causes no
    back-off, unless ``handler_backoff`` is given.

    Answer from the event loop only, as ``run`` does, also for plain handlers.

    Args:
        topic: The topic.
        channel: The channel.
        stays_open: Wait for more messages when all are answered.
        redelivers: Deliver a requeued message again at once, with one more attempt.
        producer: As of :class:`~nsq_ha.Consumer`, for example a :class:`FakeProducer`.
        **options: As of :class:`~nsq_ha.Consumer`; ``lookupd`` is not needed.

    Attributes:
        finished: The finished messages, in order.
        requeued: The requeued ones, in order.
        touched: The touched ones, once for each touch.

    Raises:
        ConfigError: An option is wrong.
    """

    _shell_type: ClassVar[type[ConsumerShell]] = _Shell

    def __init__(
        self,
        topic: str = "test",
        channel: str = "test",
        *,
        stays_open: bool = False,
        redelivers: bool = False,
        producer: Publishes[Awaitable[object]] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        if not options.get("lookupd") and not options.get("nsqd"):
            options["lookupd"] = "http://127.0.0.1:4161"
        options.setdefault("handler_backoff", None)
        super().__init__(topic, channel, producer=producer, **options)
        self._give_up_publisher.ask_nobody()
        self.finished: list[Message] = []
        self.requeued: list[Requeued] = []
        self.touched: list[Message] = []
        self._stays_open = stays_open
        self._redelivers = redelivers
        self._numbers = itertools.count(1)
        self._is_started = False
        self._early: list[Message] = []
        self._unanswered = 0
        self._conns: dict[int, Subscription] = {}
        assert isinstance(self._shell, _Shell)  # noqa: S101 - for the type
        self._shell.consumer, self._shell.latest = self, {}
        self._latest = self._shell.latest

    def deliver(
        self,
        *bodies: bytes,
        partition: int = 0,
        attempts: int = 1,
        trace_id: int = 0,
        headers: Mapping[str, object] | None = None,
        tag: str | None = None,
    ) -> list[Message]:
        """Deliver one message for each body, and return the messages.

        Args:
            *bodies: The bodies.
            partition: The partition.
            attempts: Number of deliveries, as the server counts them.
            trace_id: The trace id. 0 for none.
            headers: Extension header. None for none.
            tag: Dispatch tag. None for none.

        Raises:
            ConfigError: No body is given, or no server delivers such a message.
            ClosedError: The consumer is closing, since all messages were answered: use ``stays_open=True``.
        """
        if not bodies:
            raise ConfigError("deliver() needs one body or more")
        if not 1 <= attempts <= _MOST_ATTEMPTS:
            raise ConfigError(f"attempts must be 1..{_MOST_ATTEMPTS}, not {attempts}")
        given = (OutgoingMessage(body, headers=headers or None, tag=tag) for body in bodies)
        checked = [check_message(message, trace_id or None, MAX_INT64) for message in given]
        if self._close.has_begun:
            raise ClosedError("the consumer closes when all messages are answered: give it stays_open=True")
        source = self._conn(check_partition(partition)).source
        messages = [
            Message(
                id=_ID.pack(partition << PARTITION_SHIFT | next(self._numbers), trace_id),
                body=each.body,
                attempts=attempts,
                timestamp_ns=time.time_ns(),
                source=source,
                ext=each.ext,
            )
            for each in checked
        ]
        self._arrive(list(messages))
        return messages

    def _conn(self, number: int) -> Subscription:
        """Return what stands for the connection of a partition."""
        conn = self._conns.get(number)
        if conn is None:
            partition = self._shell.machine.partitions[number] = ReadPartition(number)
            conn = partition.conn = self._conns[number] = Subscription(partition, is_ordered=False, led=_LED)
            conn.opened(Identity(max_rdy_count=1))
            conn.most = MAX_INT64
            conn.source = _Source(self._shell, conn)
        return conn

    def _arrive(self, messages: list[Message]) -> None:
        if not self._is_started:
            self._early += messages
            return
        self._unanswered += len(messages)
        wanted = [message for message in messages if not self._is_skipped(message)]
        self._latest.update((message.id, message) for message in wanted)
        for number in dict.fromkeys(message.partition for message in wanted):
            self._conns[number].source.arrived([each for each in wanted if each.partition == number])

    def _is_skipped(self, message: Message) -> bool:
        """Finish a message that the options skip, and return whether they do."""
        if (skipping := self._shell.skipping) is None or skipping.why(message.ext) is None:
            return False
        message.answered = True
        self._conns[message.partition].partition.counts.skipped += 1
        asyncio.get_running_loop().call_soon(self._answered)  # the caller is about to run or iterate
        return True

    async def _open(self) -> None:
        await self._give_up_publisher.check()
        self._shell.start()
        self._is_started = True  # but not the lookups
        self._arrive(self._early)

    async def wait_subscribed(self) -> None:
        """Return at once."""
        self._shell.check_open()

    async def wait_ready(self, *, timeout: float | None = None) -> None:
        """Return at once."""
        self._shell.check_open()

    def stats(self) -> ConsumerStats:
        """Return the counts; there are no partitions."""
        stats, finished = consumer_stats(self._shell, None, self._lookups.counts), len(self.finished)
        in_flight = stats.in_flight + stats.finished - finished
        return replace(stats, partitions=(), finished=finished, in_flight=in_flight)

    def _troubles(self) -> list[Trouble]:
        return []

    def _finish(self, message: Message) -> None:
        """Keep a message that is finished."""
        self.finished.append(message)
        self._answered()

    def _requeue(self, message: Message, delay: float | None) -> None:
        """Keep a message that is requeued."""
        self.requeued.append(Requeued(message, delay))
        if self._redelivers and not self._close.has_begun:
            again = copy.copy(message)
            again.attempts += 1
            again.answered, again.state, again.arrived_at = False, State.QUEUED, 0.0
            self._arrive([again])
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if self._unanswered == 0 and not self._stays_open:
            self._begin_close()
