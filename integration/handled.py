"""``python -m integration.handled [--share F] [--json FILE] NSQD NSQD ...``.

Publish to several plain nsqds at the same moment, so that those with one node id give equal ids, and count which
messages a handler gets: with async and sync consumers, with 1, 8 and 100 handlers that take 0, 50 and 1,000 ms. Each
NSQD is ``host:tcp:http``. The exit code is 1 if a message is not handled, or if an nsqd counts more FINs than messages
that were handled.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import itertools
import json
import pathlib
import sys
import threading
import time
import uuid
from typing import Any, Final, NamedTuple

import nsq_ha.sync
from nsq_ha import Consumer, Message, Producer
from tests.support import web

COUNTS: Final = {
    (1, 0.0): 3400,
    (8, 0.0): 3400,
    (100, 0.0): 3400,
    (1, 0.05): 400,
    (8, 0.05): 3200,
    (100, 0.05): 8000,
    (1, 1.0): 20,
    (8, 1.0): 240,
    (100, 1.0): 3000,
}
"""Messages by number of handlers and seconds of each: at most half a minute of handling."""
LIMIT: Final = 240.0
CHANNEL: Final = "ch"


class Nsqd(NamedTuple):
    """The addresses of one nsqd."""

    tcp: str
    http: str

    def finished(self, topic: str) -> int:
        """Return how many FINs it has counted on the topic's connections."""
        url = f"http://{self.http}/stats?format=json&topic={topic}&channel={CHANNEL}"
        topics = web.get(url).raise_for_status().json()["topics"]
        channels = itertools.chain.from_iterable(each["channels"] for each in topics)
        return sum(client["finish_count"] for channel in channels for client in channel["clients"] or ())


class Outcome(NamedTuple):
    """What one run counted; messages are counted by their bodies, which are distinct."""

    front: str
    concurrency: int
    seconds: float
    published: int
    handled: int
    repeated: int
    fins: int
    finished_unhandled: int
    equal_ids: int

    @property
    def is_good(self) -> bool:
        """Whether each message was handled, and each FIN is explained."""
        return self.handled == self.published and self.fins == self.handled + self.repeated + self.finished_unhandled


def nsqd_of(text: str) -> Nsqd:
    """Return the nsqd of ``host:tcp:http``."""
    host, tcp, http = text.rsplit(":", 2)
    return Nsqd(f"{host}:{tcp}", f"{host}:{http}")


async def publish(nsqds: list[Nsqd], topic: str, count: int) -> int:
    """Publish distinct bodies to all nsqds at once, and return how many were acknowledged."""

    async def fill(nsqd: Nsqd, number: int) -> int:
        async with Producer(nsqd=nsqd.tcp) as producer:
            bodies = [b"%d-%d" % (number, each) for each in range(count // len(nsqds))]
            outcomes = [
                outcome
                for at in range(0, len(bodies), 50)
                for outcome in await producer.publish_many(topic, bodies[at : at + 50])
            ]
            return sum(not isinstance(outcome, Exception) for outcome in outcomes)

    return sum(await asyncio.gather(*(fill(nsqd, number) for number, nsqd in enumerate(nsqds))))


class Seen:
    """Counts what handlers get; from any thread."""

    def __init__(self) -> None:
        self.bodies: collections.Counter[bytes] = collections.Counter()
        self.ids: collections.defaultdict[bytes, set[bytes]] = collections.defaultdict(set)
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self.bodies[message.body] += 1
            self.ids[message.id].add(message.body)

    def outcome(self, front: str, concurrency: int, seconds: float, **counts: int) -> Outcome:
        """Return what a run has counted."""
        return Outcome(
            front,
            concurrency,
            seconds,
            handled=len(self.bodies),
            repeated=self.bodies.total() - len(self.bodies),
            equal_ids=sum(len(bodies) for bodies in self.ids.values() if len(bodies) > 1),
            **counts,
        )


def is_settled(nsqds: list[Nsqd], topic: str, seen: Seen, stats: Any, published: int) -> bool:  # noqa: ANN401
    """Return whether all messages were finished: those that no handler gets count, too, so that a loss ends the run."""
    fins = sum(nsqd.finished(topic) for nsqd in nsqds)
    return fins >= published and fins >= seen.bodies.total() + stats.finished_unhandled


async def run_async(nsqds: list[Nsqd], concurrency: int, seconds: float, count: int) -> Outcome:
    """Handle ``count`` messages with coroutines."""
    topic, seen = f"handled-{uuid.uuid4().hex[:12]}", Seen()

    async def handle(message: Message) -> None:
        if seconds:
            await asyncio.sleep(seconds)
        seen(message)

    options: Any = {"max_in_flight": max(200, 2 * concurrency)}
    async with Consumer(topic, CHANNEL, nsqd=[nsqd.tcp for nsqd in nsqds], **options) as consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=concurrency))
        published = await publish(nsqds, topic, count)
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            if await asyncio.to_thread(is_settled, nsqds, topic, seen, consumer.stats(), published):
                break
            await asyncio.sleep(0.2)
        fins, unhandled = sum(nsqd.finished(topic) for nsqd in nsqds), consumer.stats().finished_unhandled
        await consumer.aclose()
        await running
    return seen.outcome("async", concurrency, seconds, published=published, fins=fins, finished_unhandled=unhandled)


def run_sync(nsqds: list[Nsqd], concurrency: int, seconds: float, count: int) -> Outcome:
    """Handle ``count`` messages with threads."""
    topic, seen = f"handled-{uuid.uuid4().hex[:12]}", Seen()

    def handle(message: Message) -> None:
        if seconds:
            time.sleep(seconds)
        seen(message)

    options: Any = {"max_in_flight": max(200, 2 * concurrency)}
    with nsq_ha.sync.Consumer(topic, CHANNEL, nsqd=[nsqd.tcp for nsqd in nsqds], **options) as consumer:
        thread = threading.Thread(target=lambda: consumer.run(handle, concurrency=concurrency))
        thread.start()
        published = asyncio.run(publish(nsqds, topic, count))
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and not is_settled(nsqds, topic, seen, consumer.stats(), published):
            time.sleep(0.2)
        fins, unhandled = sum(nsqd.finished(topic) for nsqd in nsqds), consumer.stats().finished_unhandled
    thread.join()
    return seen.outcome("sync", concurrency, seconds, published=published, fins=fins, finished_unhandled=unhandled)


def main(arguments: list[str] | None = None) -> int:
    """Run all combinations and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nsqds", nargs="+", type=nsqd_of)
    parser.add_argument("--share", type=float, default=1.0, help="share of the messages, for a short run")
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args(arguments)
    outcomes = []
    for front in ("async", "sync"):
        for (concurrency, seconds), most in COUNTS.items():
            count = max(len(given.nsqds), int(most * given.share))
            if front == "async":
                outcome = asyncio.run(run_async(given.nsqds, concurrency, seconds, count))
            else:
                outcome = run_sync(given.nsqds, concurrency, seconds, count)
            outcomes.append(outcome)
            sys.stdout.write(f"{'ok    ' if outcome.is_good else 'FAILED'} {outcome}\n")
            sys.stdout.flush()
    if given.json:
        given.json.write_text(json.dumps([outcome._asdict() for outcome in outcomes], indent=1) + "\n")
    total = [sum(each) for each in zip(*((o.published, o.handled, o.equal_ids) for o in outcomes), strict=True)]
    sys.stdout.write(f"published {total[0]:,}, handled {total[1]:,}, with an id of another one {total[2]:,}\n")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
