"""Where the time of a message goes: the steps of the consumer's path, each timed by itself.

``python -m benchmarks.parts``. One read of nsqd's 16 KiB is taken apart, handed
on and finished; each step is repeated and the best time counts. What is between
the steps (event loop, system calls) is the rest of what a drain costs.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from benchmarks.canned_server import frames
from benchmarks.record import Record, load
from nsq_ha.consumer.delivery import Delivery, DeliveryCounts
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Identity, Layout
from nsq_ha.protocol.encoding import encode_fins
from nsq_ha.protocol.messages import reader_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nsq_ha.consumer.ledger import Ledger
    from nsq_ha.engine.connection import Connection
    from nsq_ha.message import Message

BATCH: Final = 126
"""Messages of 100 bytes in one read of 16 KiB."""

_TRIES: Final = 200


class _Nowhere:
    """Takes the place of a connection."""

    node = Node("127.0.0.1", 1, 2)
    identity = Identity(version="none")

    def write_now(self, data: bytes) -> None:
        """Drop the bytes."""


class _NoLedger:
    """Takes the place of a consumer's ledger."""

    topic = channel = "t"

    def freed(self) -> None:
        """Take the report."""


class _Handing:
    """Hands out a queue as the consumer does."""

    def __init__(self, messages: list[Message]) -> None:
        self._inbox = deque(messages)
        self._fine_below = 10

    def __aiter__(self) -> _Handing:
        return self

    async def __anext__(self) -> Message:
        inbox = self._inbox
        while inbox:
            message = inbox.popleft()
            if message.attempts < self._fine_below:
                return message
        raise StopAsyncIteration


async def _drained(messages: list[Message]) -> None:
    async for _ in _Handing(messages):
        pass


async def _best(step: Callable[[], Awaitable[None]]) -> float:
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        await step()
        times.append(time.perf_counter() - began)
    return min(times) / BATCH


async def measure() -> dict[str, float]:
    """Return seconds a message, by step."""
    data = frames(BATCH, 100)
    read = reader_for(Layout.PLAIN)
    delivery = Delivery(cast("Ledger", _NoLedger()), 0, DeliveryCounts(), is_ordered=False)
    delivery.attach(cast("Connection", _Nowhere()))
    delivery.is_arriving = True  # as while a read is handed on: what is answered leaves together
    messages: list[Message] = []
    read(data, 0, 1 << 20, delivery, messages)
    ids = [message.id for message in messages]

    async def taken_apart() -> None:
        read(data, 0, 1 << 20, delivery, [])

    async def handed_on() -> None:
        await _drained(messages)

    async def finished() -> None:
        delivery.in_flight = BATCH
        for message in messages:
            message.answered = False
            message.finish()
        delivery.flush()

    async def encoded() -> None:
        encode_fins(ids)

    return {
        "frames taken apart, messages made and dropped": await _best(taken_apart),
        "handed on, `async for`": await _best(handed_on),
        "`finish()`, up to the bytes of the FINs": await _best(finished),
        "of that, the bytes of the FINs": await _best(encoded),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts", description=__doc__)
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    before = load()
    found = asyncio.run(measure())
    print(table(found))
    Record(chosen.json).keep("parts", found, before)


def table(found: dict[str, float]) -> str:
    """Return the steps as a Markdown table."""
    lines = ["| step | ns a message |", "|---|---|"]
    return "\n".join([*lines, *(f"| {name} | {seconds * 1e9:.0f} |" for name, seconds in found.items())])


if __name__ == "__main__":
    main()
