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
from typing import Final, Unpack

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.consumer.consumer import Consumer
from nsq_ha.consumer.delivery import Delivery, DeliveryCounts
from nsq_ha.consumer.statistics import consumer_stats
from nsq_ha.dead_letters.letter import Publishes
from nsq_ha.errors import ClosedError, ConfigError
from nsq_ha.message import Message, OutgoingMessage
from nsq_ha.options.checks import MAX_INT64, check_partition
from nsq_ha.options.keywords import ConsumerOptions
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.skipping import skipping_of
from nsq_ha.producer.requests import check_message
from nsq_ha.stats import ConsumerStats

_ID: Final = struct.Struct(">QQ")
_MOST_ATTEMPTS: Final = 65_535
NSQD: Final = "127.0.0.1:4150"
"""The nsqd that all messages name."""


@dataclass(frozen=True, slots=True)
class Requeued:
    """One message that was requeued.

    Attributes:
        message: The message.
        delay: Seconds as given. None for the option ``requeue_backoff``.
    """

    message: Message
    delay: float | None


class _Source(Delivery):
    """Takes the answers of the messages of one partition."""

    def __init__(self, consumer: FakeConsumer, partition: int) -> None:
        super().__init__(consumer._inbox.ledger, partition, consumer._counts, is_ordered=False)  # noqa: SLF001 - one unit
        self._consumer = consumer
        self.nsqd = NSQD
        self.is_alive = True

    def finish(self, message: Message) -> None:
        """Remember that the message is finished."""
        if message.watch is not None:
            self.finish_watched(message, message.watch)
        else:
            self._consumer._finished(message)  # noqa: SLF001 - one unit

    def requeue(self, message: Message, delay: float | None) -> None:
        """Remember that the message is requeued."""
        if not self._ledger.requeued(message, delay):
            self._consumer._requeued(message, delay)  # noqa: SLF001 - one unit

    def give_back(self, message: Message) -> None:
        """Remember that the message is requeued, though it has not failed."""
        self._ledger.given_back(message)
        self._consumer._requeued(message, 0)  # noqa: SLF001 - one unit

    def touch(self, message: Message) -> None:
        """Remember that the message is touched."""
        self._consumer.touched.append(message)

    def dropped(self) -> None:
        """Forget a message that needs no answer."""
        self.counts.timed_out += 1
        self._consumer._answered()  # noqa: SLF001 - one unit


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
        self._counts = DeliveryCounts()
        self._skipping = skipping_of(self.config.skip_header, self.config.ext_filter)

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
        source = _Source(self, check_partition(partition))
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

    def _arrive(self, messages: list[Message]) -> None:
        if not self._is_started:
            self._early += messages
            return
        self._unanswered += len(messages)
        wanted = [message for message in messages if not self._is_skipped(message)]
        self._counts.delivered += len(wanted)
        if wanted:
            self._inbox.arrived(wanted)

    def _is_skipped(self, message: Message) -> bool:
        """Finish a message that the options skip, and return whether they do."""
        if self._skipping is None or self._skipping.why(message.ext) is None:
            return False
        message.answered = True
        self._counts.skipped += 1
        asyncio.get_running_loop().call_soon(self._answered)  # the caller is about to run or iterate
        return True

    async def _open(self) -> None:
        await self._give_up_publisher.check()
        self._inbox.start()
        if self.config.decompress:
            self._inbox.look_for_compressed()
        self._is_started = True  # but not the lookups
        self._arrive(self._early)

    async def wait_subscribed(self) -> None:
        """Return at once."""
        self._inbox.check_open()

    async def wait_ready(self, *, timeout: float | None = None) -> None:
        """Return at once."""
        self._inbox.check_open()

    def stats(self) -> ConsumerStats:
        """Return the counts; there are no partitions."""
        stats, finished = consumer_stats(self._inbox, None, self._counts, self._lookups.counts), len(self.finished)
        return replace(stats, finished=finished, in_flight=stats.finished - finished)

    def _troubles(self) -> list[Trouble]:
        return []

    def _finished(self, message: Message) -> None:
        self.finished.append(message)
        self._answered()

    def _requeued(self, message: Message, delay: float | None) -> None:
        self.requeued.append(Requeued(message, delay))
        self._counts.requeued += 1
        if self._redelivers and not self._close.has_begun:
            again = copy.copy(message)
            again.attempts += 1
            again.answered = False
            again.source = _Source(self, message.partition)
            self._arrive([again])
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        self._inbox.ledger.freed()
        if self._unanswered == 0 and not self._stays_open:
            self._begin_close()
