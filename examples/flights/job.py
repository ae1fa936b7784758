"""The demo's job: publish every flight, consume every aircraft's flights in order, and count both.

This module has both sides and decides when they are done. ``stage`` sets up the
cluster and the topic, ``faults`` disturbs them, and the CLI shows the progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from examples.flights.audit import Audit
from nsq_ha import Consumer, Producer
from nsq_ha.errors import NoLeaderError, NsqError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from examples.flights.flights import Flight

CHANNEL: Final = "demo"

RATE: Final = 1000.0
"""Messages a second unless another rate is chosen: what a small machine does without queues, so that latencies mean
something."""

_SHOWN_ERRORS: Final = 5


class _Marks(msgspec.Struct):
    """The fields that the job adds to the flight in each body."""

    run: str
    number: int
    key: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How to run the job.

    Attributes:
        rate: Maximum number of messages per second. None for no limit; then latencies are mostly queues.
        in_flight: Maximum number of pending publishes; the producer keeps those of each aircraft in order.
        stall_limit: Seconds without any acknowledgement and delivery after which the job gives up;
            longer than an election (22 s).
    """

    rate: float | None = RATE
    in_flight: int = 500
    stall_limit: float = 60.0


class Job:
    """One run. Watch its progress in :attr:`audit`; wait for a part of it with :meth:`reached`.

    Args:
        lookupd: Addresses of the cluster's nsqlookupds.
        topic: An ordered topic with a leader for every partition.
        flights: The flights to publish, in this order.
        options: How to run the job.
        tell: Called in the event loop with each event, as one line.

    Attributes:
        audit: The counts.
        topic: The topic.
        run_id: Names this run in each message.
    """

    def __init__(
        self,
        lookupd: Sequence[str],
        topic: str,
        flights: Sequence[Flight],
        options: JobOptions,
        *,
        tell: Callable[[str], None],
    ) -> None:
        self.audit: Audit = Audit(len(flights))
        self.topic = topic
        self.run_id: str = secrets.token_hex(4)
        self._lookupd = lookupd
        self._flights = flights
        self._options = options
        self._tell = tell
        self._clock = asyncio.get_running_loop().time
        self._moved_at = self._clock()
        self._ended = asyncio.Event()
        self._marks: list[_Mark] = []
        self._refusal: NsqError | None = None

    async def run(self) -> None:
        """Publish and consume everything; return when all is consumed, or after too long without progress.

        Raises:
            NsqError: Subscribing to the topic failed, or the cluster later refused it permanently.

        If cancelled, it closes producer and consumer; published messages stay in the topic.
        """
        try:
            async with Consumer(self.topic, CHANNEL, lookupd=self._lookupd) as consumer:
                # A channel starts at the end of the topic: messages published before are never delivered to it.
                await self._subscribed(consumer)
                async with Producer(lookupd=self._lookupd) as producer, asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._publish(producer)), group.create_task(self._consume(consumer))]
                    await self._watch()
                    for task in tasks:
                        task.cancel()
        finally:
            self._ended.set()
            self._note()
        if self._refusal is not None:
            raise self._refusal

    @property
    def has_ended(self) -> bool:
        """Whether the job has finished or given up."""
        return self._ended.is_set()

    async def reached(self, share: float) -> None:
        """Wait until this share (0..1) of all messages is acknowledged, or the job has ended."""
        mark = _Mark(math.ceil(share * self.audit.total))
        self._marks.append(mark)
        self._note()
        await mark.passed.wait()

    async def _subscribed(self, consumer: Consumer) -> None:
        try:
            async with asyncio.timeout(self._options.stall_limit):
                await consumer.wait_subscribed()
        except TimeoutError:
            limit = self._options.stall_limit
            raise NoLeaderError(f"{self.topic}: not all partitions could be subscribed within {limit:g} s") from None

    async def _watch(self) -> None:
        self._moved_at = self._clock()
        self._note()
        while not self._ended.is_set():
            left = self._moved_at + self._options.stall_limit - self._clock()
            if left <= 0:
                self._tell(f"gave up: no progress for {self._options.stall_limit:g} s")
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._ended.wait()
        self.audit.publish_stall.measure(self._clock())
        self.audit.consume_stall.measure(self._clock())

    def _note(self) -> None:
        """Wake all waiters whose condition is met."""
        if self.audit.is_settled:
            self._ended.set()
        for mark in [mark for mark in self._marks if self.audit.acknowledged >= mark.count or self._ended.is_set()]:
            mark.passed.set()
            self._marks.remove(mark)

    def _progress(self) -> None:
        self._moved_at = self._clock()
        if self._marks or self.audit.is_settled:
            self._note()

    async def _publish(self, producer: Producer) -> None:
        """Pass everything to the producer in order; tasks start in the order of their creation."""
        room = asyncio.Semaphore(self._options.in_flight)
        limit = RateLimit(self._options.rate, self._clock)
        sequences: dict[str, int] = {}
        async with asyncio.TaskGroup() as group:
            for flight in self._flights:
                await limit.wait()
                await room.acquire()
                sequence = sequences[flight.key] = sequences.get(flight.key, -1) + 1
                number = self.audit.publish(self._clock())
                body = flight.body({"run": self.run_id, "number": number, "key": flight.key, "sequence": sequence})
                task = group.create_task(self._publish_one(producer, number, flight.key, body))
                task.add_done_callback(lambda _: room.release())

    async def _publish_one(self, producer: Producer, number: int, key: str, body: bytes) -> None:
        audit = self.audit
        try:
            receipt = await producer.publish(self.topic, body, key=key, trace_id=number)
        except NsqError as error:
            audit.fail(number, self._clock(), maybe_stored=getattr(error, "maybe_stored", False))
            if audit.failed <= _SHOWN_ERRORS:
                self._tell(f"error: {error}")
        else:
            before = audit.acknowledge(number, receipt.partition, receipt.nsqd, self._clock())
            if before is not None:
                self._tell(f"partition {receipt.partition} is now written by {receipt.nsqd} (before: {before})")
        self._progress()

    async def _consume(self, consumer: Consumer) -> None:
        decoder = msgspec.json.Decoder(_Marks)
        try:
            async for message in consumer:
                self._count(decoder, message.body)
                message.finish()
                self._progress()
        except NsqError as error:
            self._refusal = error
            self._ended.set()

    def _count(self, decoder: msgspec.json.Decoder[_Marks], body: bytes) -> None:
        try:
            marks = decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.audit.foreign += 1
            return
        self.audit.consume(marks.number if marks.run == self.run_id else 0, marks.key, marks.sequence, self._clock())


class _Mark:
    """A number of acknowledged messages that a caller waits for."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.passed = asyncio.Event()


class RateLimit:
    """Spreads messages evenly over time; after a stall it catches up by at most one second's messages.

    Args:
        rate: Messages a second. None for no limit.
        clock: Returns the time in seconds.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._clock = clock
        self._next = clock()

    async def wait(self) -> None:
        """Wait until the next message may be published."""
        if not self._interval:
            return
        self._next = max(self._next + self._interval, self._clock() - 1.0)
        ahead = self._next - self._clock()
        if ahead > 0:
            await asyncio.sleep(ahead)
