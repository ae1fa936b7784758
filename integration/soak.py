"""``python -m integration.soak [feature ...] [--seconds N] [--rate N] [--json FILE]``.

Use each feature of the wire for long enough that heartbeats, deadlines and timeouts matter: a minute by default. Each
feature has a topic of its own on the cluster that the contract suite uses too (``NSQ_HA_TEST_LOOKUPD``; without it an
embedded cluster). While messages flow at a steady rate, one in a hundred is requeued at once, one in a hundred is
requeued with a delay, one in a hundred is touched and held beyond its timeout, and a few are never answered (on ordered
topics: one in a thousand each).

A run fails if an acknowledged message is not delivered, if one that was requeued or ignored does not come again, if a
publish fails, if a message is delivered again for another reason, or if an ordered topic is out of order. Features that
a cluster lacks are named and skipped.
"""

import argparse
import asyncio
import collections
import dataclasses
import enum
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from integration.cluster import AUTH_VARIABLE, ClusterUnderTest, real_cluster
from integration.embedded import EmbeddedCluster
from integration.faults.waiting import beat, lasts, until
from nsq_ha import Compression, Consumer, Message, NsqError, OutgoingMessage, Producer, Receipt

MSG_TIMEOUT: Final = 5.0
"""Seconds after which an unanswered message is redelivered."""
DRAIN_LIMIT: Final = 60.0
"""Seconds within which all acknowledged messages must arrive after the last publish."""
SAMPLED: Final = 50
"""Percentage of messages that the feature ``sampling`` receives."""


class Fate(enum.Enum):
    """What the consumer does with a message at its first delivery."""

    FINISH = enum.auto()
    REQUEUE_NOW = enum.auto()
    REQUEUE_LATER = enum.auto()
    TOUCH = enum.auto()
    IGNORE = enum.auto()


FATES: Final = {17: Fate.REQUEUE_NOW, 37: Fate.REQUEUE_LATER, 57: Fate.TOUCH}
"""By the last two digits of a message's number."""
RARE_FATES: Final = {77: Fate.IGNORE, 317: Fate.REQUEUE_NOW, 537: Fate.REQUEUE_LATER, 757: Fate.TOUCH}
"""By the last three digits; for few messages, since an ordered partition waits meanwhile, and an ignored message fills
the window of an ordinary channel."""


def fate_of(number: int, *, ordered: bool = False) -> Fate:
    """Return what happens to message ``number`` at its first delivery."""
    if number % 1000 in RARE_FATES:
        return RARE_FATES[number % 1000]
    return Fate.FINISH if ordered else FATES.get(number % 100, Fate.FINISH)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature: options of both clients, the kind of topic, and how a message is published."""

    name: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    producer: dict[str, Any] = dataclasses.field(default_factory=dict)
    consumer: dict[str, Any] = dataclasses.field(default_factory=dict)
    ordered: bool = False
    extended: bool = False
    headers: bool = False
    batch: int = 1


def features(cluster: ClusterUnderTest) -> Iterator[Feature]:
    """Return the features that ``cluster`` offers."""
    snappy, deflate = {"compression": Compression.SNAPPY}, {"compression": Compression.DEFLATE}
    yield Feature(name="plain")
    yield Feature(name="ordered", ordered=True)
    yield Feature(name="snappy", options=snappy)
    yield Feature(name="deflate", options=deflate)
    yield Feature(name="headers", extended=True, headers=True)
    yield Feature(name="headers-ordered-traced", extended=True, ordered=True, headers=True, producer={"trace": True})
    yield Feature(name="traces", producer={"trace": True})
    yield Feature(name="batches", batch=20)
    yield Feature(name="batches-traced", batch=20, producer={"trace": True})
    yield Feature(name="sampling", consumer={"sample_rate": SAMPLED})
    if cluster.tls is not None:
        tls = {"tls": cluster.tls}
        yield Feature(name="tls", options=tls)
        yield Feature(name="tls-ordered", options=tls, ordered=True)
        yield Feature(name="tls-snappy", options=tls | snappy)
        yield Feature(name="tls-deflate", options=tls | deflate)


@dataclasses.dataclass(slots=True)
class Figures:
    """The figures of one feature's run. Times are milliseconds from publish to first delivery."""

    feature: str
    seconds: float = 0.0
    acknowledged: int = 0
    delivered: int = 0
    lost: int = 0
    not_again: int = 0
    unexplained_repeats: int = 0
    repeated_fates: dict[str, int] = dataclasses.field(default_factory=dict)
    explained_repeats: int = 0
    out_of_order: int = 0
    errors: list[str] = dataclasses.field(default_factory=list)
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0

    def broken(self, *, sampled: bool) -> list[str]:
        """Return the broken rules."""
        found = [f"{len(self.errors)} errors: {self.errors[0]}"] if self.errors else []
        # The partitioned nsqd may confirm a message that it leaves out before its reader has passed it ("confirm exceed
        # read" in its log); then it reads finished messages again.
        if self.unexplained_repeats and not sampled:
            fates = ", ".join(f"{count} of fate {fate}" for fate, count in self.repeated_fates.items())
            found.append(f"{self.unexplained_repeats} repeats without a reason ({fates})")
        if self.out_of_order:
            found.append(f"{self.out_of_order} out of order")
        if sampled:
            # 50 % of n: five standard deviations are 2.5 times the square root of n.
            spread = 2.5 * self.acknowledged**0.5
            if abs(self.delivered - self.acknowledged * SAMPLED / 100) > spread:
                found.append(f"sampled {self.delivered} of {self.acknowledged}")
        else:
            if self.lost:
                found.append(f"{self.lost} acknowledged and not delivered")
            if self.not_again:
                found.append(f"{self.not_again} requeued or ignored and not delivered again")
        return found


class Run:
    """One feature on a topic of its own."""

    def __init__(self, feature: Feature, topic: str, lookupd: Sequence[str], rate: float) -> None:
        self.figures = Figures(feature.name)
        self._feature = feature
        self._topic = topic
        self._rate = rate
        options = dict(feature.options)
        if secret := os.environ.get(AUTH_VARIABLE):
            options["auth_secret"] = secret
        self._producer = Producer(lookupd=lookupd, **options, **feature.producer)
        self._consumer = Consumer(
            topic, "soak", lookupd=lookupd, msg_timeout=MSG_TIMEOUT, **options, **feature.consumer
        )
        self._sent: dict[int, float] = {}
        self._acknowledged: set[int] = set()
        self._latencies: list[float] = []
        self._deliveries: collections.Counter[int] = collections.Counter()
        self._last_by_key: dict[int, int] = {}
        self._held: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> Figures:
        """Publish for ``seconds``, wait for the rest, and return the figures."""
        figures = self.figures
        async with self._consumer, self._producer:
            reading = asyncio.create_task(self._read())
            began = time.monotonic()
            await self._publish(began, seconds)
            figures.seconds = time.monotonic() - began
            await self._drain()
            reading.cancel()
            await asyncio.wait({reading})
            if not reading.cancelled() and (error := reading.exception()) is not None:
                figures.errors.append(repr(error))
        self._count()
        return figures

    async def _publish(self, began: float, seconds: float) -> None:
        calls: set[asyncio.Task[None]] = set()
        batch = self._feature.batch
        for number in range(0, int(seconds * self._rate), batch):
            await beat(began + number / self._rate)
            call = asyncio.create_task(self._call(range(number, number + batch)))
            calls.add(call)
            call.add_done_callback(calls.discard)
        if calls:
            await asyncio.wait(calls)

    async def _call(self, numbers: range) -> None:
        now = time.monotonic()
        self._sent.update(dict.fromkeys(numbers, now))
        try:
            outcomes = await self._publish_numbers(numbers)
        except NsqError as error:
            self.figures.errors.append(repr(error))
            return
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, Receipt):
                self._acknowledged.add(number)
            else:
                self.figures.errors.append(repr(outcome))

    async def _publish_numbers(self, numbers: range) -> Sequence[object]:
        messages = [
            OutgoingMessage(
                b"%d:" % number + b"x" * (number % 2000),
                key=number % 16 if self._feature.ordered else None,
                headers={"number": number} if self._feature.headers else None,
            )
            for number in numbers
        ]
        if len(messages) > 1:
            return await self._producer.publish_many(self._topic, messages)
        one = messages[0]
        return [await self._producer.publish(self._topic, one.body, key=one.key, headers=one.headers)]

    async def _read(self) -> None:
        async for message in self._consumer:
            number = int(message.body.partition(b":")[0])
            self._deliveries[number] += 1
            if self._deliveries[number] > 1:
                message.finish()
                continue
            self._latencies.append(time.monotonic() - self._sent[number])
            if self._feature.headers and message.headers != {"number": number}:
                self.figures.errors.append(f"headers of {number}: {message.headers}")
            if self._feature.ordered:
                key = number % 16
                self.figures.out_of_order += number < self._last_by_key.get(key, -1)
                self._last_by_key[key] = number
            self._meet(message, self._fate_of(number))

    def _fate_of(self, number: int) -> Fate:
        return fate_of(number, ordered=self._feature.ordered)

    def _meet(self, message: Message, fate: Fate) -> None:
        if fate is Fate.FINISH:
            message.finish()
        elif fate is Fate.REQUEUE_NOW:
            message.requeue(0)
        elif fate is Fate.REQUEUE_LATER:
            message.requeue(1.0)
        elif fate is Fate.TOUCH:
            task = asyncio.create_task(_touch_and_finish(message))
            self._held.add(task)
            task.add_done_callback(self._held.discard)

    async def _drain(self) -> None:
        await until(self._is_drained, DRAIN_LIMIT)
        if self._held:
            await asyncio.wait(self._held)

    def _is_drained(self) -> bool:
        seen = self._deliveries
        return all(
            seen[number] > (0 if self._fate_of(number) in (Fate.FINISH, Fate.TOUCH) else 1)
            for number in self._acknowledged
            if number in seen or self._feature.name != "sampling"
        )

    def _count(self) -> None:
        figures, seen = self.figures, self._deliveries
        figures.acknowledged = len(self._acknowledged)
        figures.delivered = len(seen)
        figures.lost = len(self._acknowledged - seen.keys())
        for number, count in seen.items():
            fate = self._fate_of(number)
            repeats = count - 1
            due = int(fate not in (Fate.FINISH, Fate.TOUCH))
            explained = min(repeats, due)
            figures.explained_repeats += explained
            figures.not_again += due - explained
            if repeats > explained:
                figures.unexplained_repeats += repeats - explained
                figures.repeated_fates[fate.name] = figures.repeated_fates.get(fate.name, 0) + repeats - explained
        times = sorted(self._latencies)
        if times:
            figures.p50_ms, figures.p99_ms, figures.max_ms = (
                round(times[min(int(len(times) * share), len(times) - 1)] * 1000, 1) for share in (0.5, 0.99, 1.0)
            )


async def _touch_and_finish(message: Message) -> None:
    """Hold a message for longer than its timeout."""
    for _ in range(3):
        await lasts(MSG_TIMEOUT / 2)  # the subject: time passes while the message is held
        message.touch()
    message.finish()


async def soak(
    cluster: ClusterUnderTest, chosen: Sequence[Feature], *, seconds: float, rate: float
) -> list[tuple[Feature, Figures]]:
    """Run the chosen features side by side and return their figures."""
    topics = [
        await asyncio.to_thread(cluster.create_topic, 2, 2, ordered=feature.ordered, extended=feature.extended)
        for feature in chosen
    ]
    runs = [Run(feature, topic, cluster.lookupd, rate) for feature, topic in zip(chosen, topics, strict=True)]
    figures = await asyncio.gather(*(run.run(seconds) for run in runs))
    return list(zip(chosen, figures, strict=True))


def main() -> int:
    """Run the command line; return 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m integration.soak", description=__doc__)
    parser.add_argument("features", nargs="*", help="names; none for all that the cluster offers")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=50.0, help="messages a second for each feature")
    parser.add_argument("--json", type=pathlib.Path, help="append each row as a line of JSON")
    arguments = parser.parse_args()
    cluster: ClusterUnderTest = real_cluster() or EmbeddedCluster()
    known = {feature.name: feature for feature in features(cluster)}
    unknown = [name for name in arguments.features if name not in known]
    if unknown:
        parser.error(f"not known or not offered here: {', '.join(unknown)}; there are: {', '.join(known)}")
    chosen = [known[name] for name in arguments.features] or list(known.values())
    try:
        rows = asyncio.run(soak(cluster, chosen, seconds=arguments.seconds, rate=arguments.rate))
    finally:
        cluster.close()
    failed = False
    for feature, figures in rows:
        broken = figures.broken(sampled="sample_rate" in feature.consumer)
        failed |= bool(broken)
        sys.stdout.write(
            f"{feature.name:24} {figures.seconds:5.0f} s  acknowledged {figures.acknowledged:6}  "
            f"delivered {figures.delivered:6}  repeats {figures.explained_repeats} explained, "
            f"{figures.unexplained_repeats} not  p50 {figures.p50_ms} ms  p99 {figures.p99_ms} ms  "
            f"max {figures.max_ms} ms  {'; '.join(broken) or 'ok'}\n"
        )
        if arguments.json is not None:
            with arguments.json.open("a") as file:
                file.write(json.dumps(dataclasses.asdict(figures) | {"broken": broken}) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
