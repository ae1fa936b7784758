"""One topic's load: messages over some keys through the library, at a steady rate, and their audit."""

import asyncio
import collections
import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from integration.faults.audit import LIMIT_GRACE, Ack, Audit, Delivered, Failure
from integration.faults.holdups import HoldUps
from integration.faults.pace import REAL, Pace
from integration.faults.probing import MARK
from integration.faults.waiting import beat, lasts, until
from integration.history.recording import History
from nsq_ha import Consumer, Message, NsqError, Producer, PublishError, Receipt, StartFrom

MOST_CALLS: Final = 20_000
"""Publishes under way at most, as in a service that bounds its work: a machine that cannot keep up would otherwise
spend its time on those that fail."""
MOST_FOREIGN: Final = 5
QUIET: Final = 10.0
LONG: Final = 120.0
OVER: Final = 5.0
"""Seconds beyond its limit for which a call is waited for."""


class HandlerError(Exception):
    """What a handler fails with."""


class Load:
    """Publishes to a topic and reads it back. Start it, let it run, stop it.

    Args:
        topic: An existing topic.
        ordered: Publish with keys. Without, any partition may take a message and
            the key is only a label.
        channel: A channel of its own.
        lookupds: What producer and consumer are configured with.
        pace: Rate, keys, limits and options.
        handled: Read by :meth:`~nsq_ha.Consumer.run` with a handler, which fails where ``fails`` says so.
        history: The file for the load's history. None for none.
        partitioned: The cluster has partitions, so that an id names a message wherever it is delivered.

    Attributes:
        foreign: Some of the errors that no publish may end with: those that are not the library's.
    """

    def __init__(
        self,
        topic: str,
        *,
        ordered: bool,
        channel: str,
        lookupds: tuple[str, ...],
        pace: Pace = REAL,
        handled: bool = False,
        history: Path | None = None,
        partitioned: bool = True,
    ) -> None:
        self.topic = topic
        self.ordered = ordered
        self.channel = channel
        self.lookupds = lookupds
        self.pace = pace
        self.partitioned = partitioned
        self.audit = Audit([f"k{number:02}" for number in range(pace.keys)], pace.limit)
        # Only a traced publish has a receipt that a history can be compared with.
        traced = {"trace": True} if history is not None and partitioned else {}
        self.producer, self.consumer = self._clients(pace.producer_options | traced, pace.consumer_options)
        self._history: History | None = None
        if history is not None:
            kind = {"ordered": ordered, "partitioned": partitioned}
            self._history = History(history, topic, channel, limit=pace.limit, **kind)
        self.fails: Callable[[Message], bool] = lambda _: False
        self.hold_ups = HoldUps()
        self.unreadable = 0
        self.most_at_once = MOST_CALLS
        self.most_calls = self.left_out = 0
        self.notes: list[str] = []
        self.foreign: list[str] = []
        self._handled = handled
        # When each began that is under way.
        self._calls: dict[asyncio.Task[None], float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing: asyncio.Task[None] | None = None
        self._consuming: asyncio.Task[None] | None = None

    def _clients(self, producer: dict[str, Any], consumer: dict[str, Any]) -> tuple[Any, Any]:
        """Return the two clients with these options; each can be entered, closed, and asked for its ``config``."""
        lookupds = self.lookupds
        return Producer(lookupd=lookupds, **producer), Consumer(self.topic, self.channel, lookupd=lookupds, **consumer)

    async def start(self) -> None:
        """Subscribe, then publish; returns when all partitions are subscribed."""
        if self._history is not None:
            self._history.__enter__()
        await self.consumer.__aenter__()
        self._consuming = asyncio.create_task(self._handle() if self._handled else self._consume())
        self._tasks.append(self._consuming)
        await self.producer.__aenter__()
        self._publishing = asyncio.create_task(self._publish())
        self._tasks.append(asyncio.create_task(self.hold_ups.watch()))

    def end_new_calls(self) -> None:
        """Publish nothing more."""
        if self._publishing is not None:
            self._publishing.cancel()

    async def end_publishing(self) -> None:
        """Publish nothing more and wait for the calls under way; each ends by its limit, or counts as slow."""
        self.end_new_calls()
        if self._calls:
            await asyncio.wait(self._calls, timeout=self.pace.limit + OVER)
        if self._calls:
            self.audit.called(min(self._calls.values()), time.monotonic())

    @property
    def under_way(self) -> int:
        """Number of calls that have not ended."""
        return len(self._calls)

    def slowest(self) -> float:
        """Return the seconds of the slowest call so far, ended or not."""
        now = time.monotonic()
        return max(self.audit.slowest, now - min(self._calls.values(), default=now))

    def slowest_held(self) -> float:
        """Return the seconds for which the machine held up the slowest call."""
        ended = self.audit.slowest_ended
        return self.hold_ups.machine_between(ended - self.audit.slowest, ended)

    def overdue(self) -> list[str]:
        """Say that a call took longer than its limit, and than the machine held it up; nothing if none did."""
        audit = self.audit
        is_late = audit.slowest > audit.limit + LIMIT_GRACE + self.slowest_held()
        return [f"a call took {audit.slowest:.1f} s"] if is_late else []

    async def drain(self, limit: float) -> None:
        """Wait until all that was acknowledged is delivered, or until nothing of it arrives for ``limit`` seconds.

        A busy machine delivers an ordered partition more slowly than it was published to, and what is late is not lost.
        """
        while missing := len(self.audit.waiting):
            if not await until(partial(self._is_nearer, missing), limit):
                break
        # What was called "not stored" and yet is must have its chance to come, too: nothing tells when it is over.
        await lasts(max(1.0 * self.pace.cluster, self.pace.least / 10))

    def _is_nearer(self, missing: int) -> bool:
        return len(self.audit.waiting) < missing

    async def close(self) -> None:
        """Close both sides."""
        self.end_new_calls()
        for call in self._calls:
            call.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._calls, return_exceptions=True)
        await self.consumer.aclose()
        await self.producer.aclose()
        if self._history is not None:
            self._history.__exit__(None, None, None)

    def why_consuming_ended(self) -> BaseException | None:
        """Return the error with which consuming ended, if it did; then what is missing was never asked for."""
        task = self._consuming
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    def kept_back(self) -> dict[int, int]:
        """Count what is acknowledged and not delivered, by partition."""
        return collections.Counter(ack.partition for _, ack in self.audit.undelivered())

    async def story_of_missing(self, since: float, most: int = 20) -> list[str]:
        """Tell of messages that are lost who acknowledged them, and whether the topic still holds them."""
        missing = self.audit.undelivered()
        if not missing:
            return []
        # Nothing of a plain nsqd can be read twice.
        held = await self._held() if self.partitioned else None
        return [
            f"lost: {key}:{ack.seq}, acknowledged at {ack.at - since:.3f} by {ack.nsqd} for partition {ack.partition}"
            f" in attempt {ack.attempts}" + ("" if held is None else self._where((key, ack.seq), held))
            for key, ack in missing[:most]
        ]

    @staticmethod
    def _where(one: tuple[str, int], held: set[tuple[str, int]]) -> str:
        return ", is in the topic" if one in held else f", is not in the topic ({len(held)} others are)"

    async def _held(self) -> set[tuple[str, int]]:
        """Read the topic from its beginning."""
        held: set[tuple[str, int]] = set()
        last = time.monotonic()
        options = {**self.pace.consumer_options, "start_from": StartFrom.beginning()}
        async with Consumer(self.topic, "all", lookupd=self.lookupds, **options) as consumer:

            async def read() -> None:
                nonlocal last
                async for message in consumer:
                    last = time.monotonic()
                    message.finish()
                    if message.body != MARK:
                        key, _, seq = message.body.decode().partition(":")
                        held.add((key, int(seq)))

            reading = asyncio.create_task(read())
            await until(lambda: reading.done() or time.monotonic() - last > QUIET, LONG)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        return held

    def has_recovered(self, since: float, now: float) -> bool:
        """Tell whether every key was acknowledged and delivered quite lately."""
        audit, since_when = self.audit, now - self.pace.recent
        for key in audit.keys:
            acks, deliveries = audit.acks[key], audit.deliveries[key]
            if not acks or acks[-1].at < since_when or not deliveries or deliveries[-1].at < since_when:
                return False
        return now - since > 1.0

    def standing_still(self, since: float) -> list[str]:
        """Return the keys of which nothing was acknowledged, or nothing delivered, after ``since``."""
        acks, deliveries = self.audit.acks, self.audit.deliveries
        return [
            key for key in self.audit.keys if not all(of and of[-1].at > since for of in (acks[key], deliveries[key]))
        ]

    async def _publish(self) -> None:
        began = time.monotonic()
        rate = self.pace.rate_of(ordered=self.ordered)
        for number in itertools.count():
            await beat(began + number / rate)
            if len(self._calls) >= self.most_at_once:
                self.left_out += 1
                continue
            self.begin(self.audit.keys[number % self.pace.keys], number // self.pace.keys)

    def begin(self, key: str, seq: int) -> None:
        """Begin one call."""
        call = asyncio.create_task(self._call(key, seq))
        self._calls[call] = time.monotonic()
        self.most_calls = max(self.most_calls, len(self._calls))
        call.add_done_callback(self._calls.pop)

    async def _call(self, key: str, seq: int) -> None:
        audit, history = self.audit, self._history
        audit.started += 1
        began = time.monotonic()
        if history is not None:
            history.called(key, seq)
        body = b"%s:%d" % (key.encode(), seq)
        try:
            receipt = await self._send(body, key if self.ordered else None)
        except PublishError as error:
            audit.failed(Failure(time.monotonic(), key, seq, error.maybe_stored, str(error)), began)
            if history is not None:
                history.failed(key, seq, maybe_stored=error.maybe_stored)
        except Exception as error:  # noqa: BLE001 - it counts as an error of the library, whatever it is
            if not isinstance(error, NsqError) and len(self.foreign) < MOST_FOREIGN:
                self.foreign.append(f"a publish to {self.topic} ended with {error!r}")
            audit.failed(Failure(time.monotonic(), key, seq, None, repr(error)), began)
            if history is not None:
                history.failed(key, seq, maybe_stored=None)
        else:
            audit.acked(key, Ack(time.monotonic(), seq, receipt.partition, receipt.nsqd, receipt.attempts), began)
            if history is not None:
                history.stored(key, seq, receipt)

    async def _send(self, body: bytes, key: str | None) -> Receipt:
        receipt: Receipt = await self.producer.publish(self.topic, body, key=key)
        return receipt

    async def _consume(self) -> None:
        async for message in self.consumer:
            try:
                self.take(message)
            except ValueError:
                # A flipped bit of a frame's size can make a body of the frames that follow, which have no checksum.
                self.unreadable += 1
                message.requeue(0)
            else:
                message.finish()

    async def _handle(self) -> None:
        async def handler(message: Message) -> None:
            if self.fails(message):
                raise HandlerError
            self.take(message)

        await self.consumer.run(handler, concurrency=8)

    def take(self, message: Message) -> None:
        """Enter a delivery of now; probes are only counted.

        Raises:
            ValueError: Its body is not one that was published.
        """
        self.enter(*delivery_of(message))

    def enter(self, key: str, delivery: Delivered, offset: int | None = None) -> None:
        """Enter a delivery to this program or another one; a probe has no key."""
        self.record(key, delivery, offset)
        self.count(key, delivery)

    def record(self, key: str, delivery: Delivered, offset: int | None = None) -> None:
        """Write a delivery into the history; any thread may do so."""
        if self._history is not None:
            self._history.seen(
                key,
                delivery.seq,
                at=delivery.at,
                nsqd=delivery.nsqd,
                partition=delivery.partition,
                internal_id=delivery.internal_id,
                offset=offset,
            )

    def count(self, key: str, delivery: Delivered) -> None:
        """Enter a delivery into the books."""
        if key:  # a probe has none
            self.audit.delivered(key, delivery)


def delivery_of(message: Message) -> tuple[str, Delivered, int | None]:
    """Return what is entered of a message that is delivered now: its key, the delivery, and the offset.

    Raises:
        ValueError: Its body is not one that was published.
    """
    key, seq = "", "0"
    if message.body != MARK:
        key, _, seq = message.body.decode().partition(":")
    delivery = Delivered(time.monotonic(), int(seq), message.partition, message.internal_id, message.nsqd)
    return key, delivery, message.offset
