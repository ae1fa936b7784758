"""A producer that stores nothing and remembers everything, for unit tests.

It checks arguments and chooses partitions as the real one does, but it knows no topics: each one exists, with as many
partitions as the test says. What no server of either kind takes, it refuses with the error of the real one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Unpack

from nsq_ha.base.identity import PARTITION_SHIFT
from nsq_ha.errors import ConfigError, PublishError, ResponseTimeoutError
from nsq_ha.message import OutgoingMessage, Receipt
from nsq_ha.options.checks import check_timeout, check_topic
from nsq_ha.options.keywords import ProducerOptions
from nsq_ha.policy.health import Trouble
from nsq_ha.policy.sharding import Key, partition_for
from nsq_ha.policy.topology import TopicMeta, TopicView
from nsq_ha.producer.batch import as_list, at_position
from nsq_ha.producer.lanes import NEEDS_PARTITIONS
from nsq_ha.producer.messages import CheckedMessage, check_accepted, check_defer, check_message, compressing
from nsq_ha.producer.producer import Producer
from nsq_ha.producer.shell import ProducerShell
from nsq_ha.stats import ProducerStats

NSQD: Final = "127.0.0.1:4150"
"""The nsqd that all receipts name."""

_OVERHEAD: Final = 30
"""Bytes that a message takes in the queue besides its body."""


@dataclass(frozen=True, slots=True)
class Published:
    """One message that a :class:`FakeProducer` took.

    Attributes:
        topic: The topic.
        message: What was published, with the trace id that was used.
        defer: Seconds of ``defer=``. None if it was not given.
        receipt: What the caller got.
    """

    topic: str
    message: OutgoingMessage
    defer: float | None
    receipt: Receipt

    @property
    def body(self) -> bytes:
        """The body."""
        return self.message.body

    @property
    def key(self) -> Key | None:
        """The sharding key."""
        return self.message.key


class FakeProducer(Producer):
    """A :class:`~nsq_ha.Producer` for unit tests: it connects to nothing and remembers what was published.

    Arguments are checked, keys and partitions are mapped, and errors are raised as by the real one. It knows no topics,
    so it accepts headers and traces everywhere; a topic that gets headers counts as extended.

    Args:
        partitions: The number of partitions: of all topics, or by topic; a topic that is not named has one.
        ordered: The ordered topics: a publish to them needs a key or a partition.
        extended: The extended topics: they take a byte less for each message, and no delay.
        **options: As of :class:`~nsq_ha.Producer`; ``lookupd`` is not needed.

    Attributes:
        published: All messages, in the order of the calls.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        *,
        partitions: int | Mapping[str, int] = 1,
        ordered: Iterable[str] = (),
        extended: Iterable[str] = (),
        **options: Unpack[ProducerOptions],
    ) -> None:
        if not options.get("lookupd") and not options.get("nsqd"):
            options["lookupd"] = "http://127.0.0.1:4161"
        super().__init__(**options)
        self.published: list[Published] = []
        self._partition_nums = partitions
        self._ordered = frozenset(ordered)
        self._extended = set(extended)
        self._turns: Counter[str] = Counter()
        self._ends: Counter[tuple[str, int]] = Counter()
        self._ids = itertools.count(1)
        self._failures: deque[tuple[str | None, Exception | None, bool]] = deque()
        self._uncertain = 0
        self._failed = 0

    def fail(
        self,
        error: Exception | None = None,
        *,
        times: int = 1,
        topic: str | None = None,
        maybe_stored: bool = False,
    ) -> None:
        """Let the next publishes fail with a :class:`~nsq_ha.PublishError`.

        Args:
            error: Its cause. None stands for a leader that does not answer.
            times: How many messages fail.
            topic: Only messages to this topic. None for any.
            maybe_stored: Whether the messages count as in doubt. They are not in ``published`` in either case.
        """
        self._failures.extend([(topic, error, maybe_stored)] * times)

    def bodies(self, topic: str | None = None) -> list[bytes]:
        """Return the bodies that were published: to ``topic``, or to all topics."""
        return [each.body for each in self.published if topic in (None, each.topic)]

    async def _open(self) -> None:
        self._shell = ProducerShell(self.config, self._lookups, self._observer)

    async def aclose(self) -> None:
        """Close. May be called again."""
        self._close.has_begun = self._close.is_done = True

    def _troubles(self) -> list[Trouble]:
        return []

    def stats(self) -> ProducerStats:
        """Return the counts; there are no partitions."""
        published, failed, uncertain = len(self.published), self._failed, self._uncertain
        return replace(super().stats(), published=published, failed=failed, uncertain=uncertain)

    async def wait_ready(self, *topics: str, timeout: float | None = None) -> None:
        """Check the names; there is nothing to wait for."""
        self._check_open()
        if not topics:
            raise ConfigError("name the topics that wait_ready() should wait for")
        for topic in topics:
            check_topic(topic)
        if timeout is not None:
            check_timeout(timeout)

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
        """Remember one message and return a receipt, see :meth:`nsq_ha.Producer.publish`."""
        if timeout is not None:
            check_timeout(timeout)
        message = OutgoingMessage(body, key, partition, trace_id, headers, tag)
        outcome = self._take(topic, message, defer)
        await asyncio.sleep(0)  # other tasks run, as with the real one
        if isinstance(outcome, PublishError):
            raise outcome
        return outcome

    async def publish_many(
        self,
        topic: str,
        messages: Iterable[bytes | OutgoingMessage],
        *,
        timeout: float | None = None,
    ) -> list[Receipt | PublishError]:
        """Remember many messages and return their receipts, see :meth:`nsq_ha.Producer.publish_many`."""
        self._check_open()
        if timeout is not None:
            check_timeout(timeout)
        wanted = [each if isinstance(each, OutgoingMessage) else OutgoingMessage(each) for each in as_list(messages)]
        for position, message in enumerate(wanted):
            try:
                self._checked(topic, message, None)
            except ConfigError as error:
                raise at_position(position, error) from error
        outcomes = [self._take(topic, message, None, in_batch=True) for message in wanted]
        await asyncio.sleep(0)
        return outcomes

    def _checked(self, topic: str, message: OutgoingMessage, defer: float | None) -> CheckedMessage:
        """Return what is sent of the message.

        Raises:
            ConfigError: The message is not valid.
        """
        check_topic(topic)
        if topic in self._ordered and message.key is None and message.partition is None:
            raise ConfigError(f"topic {topic!r} is ordered: give key= or partition=")
        trace_id = self._trace_id(topic, message)
        checked = check_message(message, trace_id, self.config.max_message_bytes, compressing(self.config, topic))
        check_defer(defer, checked)
        self._check_kind(topic, message, checked, defer)
        partition_num = self._partition_num(topic)
        if message.key is not None:
            partition_for(message.key, partition_num, self.config.sharding)
        if message.partition is not None and message.partition >= partition_num:
            raise ConfigError(f"topic {topic!r} has no partition {message.partition}: it has {partition_num}")
        return checked

    def _check_kind(self, topic: str, message: OutgoingMessage, checked: CheckedMessage, defer: float | None) -> None:
        """Check that a server of one of the kinds takes the message."""
        is_extended = topic in self._extended or checked.ext is not None
        if defer is not None and (message.key is not None or message.partition is not None):
            raise ConfigError(NEEDS_PARTITIONS)
        if defer is not None and is_extended:
            raise ConfigError(f"defer= needs plain nsqd, and topic {topic!r} is extended")
        meta = TopicMeta(self._partition_num(topic), extend_support=is_extended)
        view = TopicView(topic, meta, {}, complete=True, exists=True)
        check_accepted(view, checked, self.config.max_message_bytes)

    def _take(
        self, topic: str, message: OutgoingMessage, defer: float | None, *, in_batch: bool = False
    ) -> Receipt | PublishError:
        self._check_open()
        checked = self._checked(topic, message, defer)
        trace_id, size = checked.trace_id, _OVERHEAD + len(checked.body) + len(checked.ext or b"")
        if checked.ext is not None:
            self._extended.add(topic)
        partition = self._partition(topic, message)
        failure = next((each for each in self._failures if each[0] in (None, topic)), None)
        if failure is not None:
            self._failures.remove(failure)
            return self._failure(topic, partition, failure[1], maybe_stored=failure[2])
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += size
        receipt = Receipt(topic, partition, NSQD)
        if trace_id is not None and in_batch and checked.ext is not None:
            receipt = Receipt(topic, partition, NSQD, 1, None, trace_id)  # the answer to such a batch has no ids
        elif trace_id is not None:
            number = partition << PARTITION_SHIFT | next(self._ids)
            receipt = Receipt(topic, partition, NSQD, 1, number, trace_id, offset, size)
        sent = OutgoingMessage(message.body, message.key, message.partition, trace_id, message.headers, message.tag)
        self.published.append(Published(topic, sent, defer, receipt))
        return receipt

    def _failure(self, topic: str, partition: int, cause: Exception | None, *, maybe_stored: bool) -> PublishError:
        self._failed += 1
        self._uncertain += maybe_stored
        cause = cause or ResponseTimeoutError(f"{NSQD} did not answer in time")
        error = PublishError(
            str(cause), topic=topic, partition=partition, attempts=1, maybe_stored=maybe_stored, nsqd=NSQD
        )
        error.__cause__ = cause
        return error

    def _partition_num(self, topic: str) -> int:
        nums = self._partition_nums
        return nums if isinstance(nums, int) else nums.get(topic, 1)

    def _partition(self, topic: str, message: OutgoingMessage) -> int:
        partition_num = self._partition_num(topic)
        if message.key is not None:
            return partition_for(message.key, partition_num, self.config.sharding)
        if message.partition is None:
            self._turns[topic] += 1
            return (self._turns[topic] - 1) % partition_num
        return message.partition
