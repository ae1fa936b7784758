"""The connection of Spark's readers against a hostile nsqd, over real sockets: it blocks, so the nsqd has a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Final

from integration.floods.case import CONSUMER
from integration.floods.running import MEMORY, above, rest
from nsq_ha import NsqError
from nsq_ha.policy.topology import Node
from nsq_ha.protocol import Layout
from nsq_ha.protocol.commands import SubAdvanced
from nsq_ha.spark import connection
from nsq_ha.spark.connection import BlockingSubscription
from nsq_ha.spark.options import ConnectionOptions
from tests.support.nsqd import FakeNsqd, Peer

if TYPE_CHECKING:
    import pytest

    from integration.floods.case import Case

LIMIT: Final = 0.5
"""Seconds for each step: connecting, subscribing, and reading."""
LATE: Final = 1.0
MOST_TEXT: Final = 5000


def applies(case: Case) -> bool:
    """Return whether a case is one of an nsqd that a reader subscribes to, and has no options of a consumer alone."""
    return not case.is_lookup and bool(case.clients & CONSUMER) and case.options.keys() <= {"compression"}


def read_case(case: Case, monkeypatch: pytest.MonkeyPatch, tries: int = 3) -> list[str]:
    """Subscribe to a hostile nsqd and read from it; return what should not have happened.

    A busy machine may let the limits pass before the case meets the reader.
    """
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", LIMIT)
    layout = Layout((case.extended, True))
    loop, nsqd, met = asyncio.new_event_loop(), FakeNsqd(), set[Peer]()
    nsqd.script = case.script(layout, met)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    broken: list[str] = []
    try:
        asyncio.run_coroutine_threadsafe(nsqd.start(), loop).result()
        idle = rest()
        began = time.thread_time(), time.monotonic()
        node = Node("127.0.0.1", nsqd.port, 1)
        options = ConnectionOptions(**case.options)
        reader = BlockingSubscription(node, options, ("orders", "ch", 0), extended=case.extended)
        try:
            _read(reader, layout)
        except NsqError as error:
            if len(str(error)) > MOST_TEXT:
                broken.append(f"{case.name}: an error of {len(str(error))} characters")
        except Exception as error:  # noqa: BLE001 - a reader must not fail with it
            broken.append(f"{case.name}: {error!r}")
        finally:
            reader.close()
        cpu, took = time.thread_time() - began[0], time.monotonic() - began[1]
        if cpu > 3 * LIMIT or took > 3 * LIMIT + LATE + 2 * cpu:
            broken.append(f"{case.name}: took {took:.2f} s, {cpu:.2f} s of CPU")
        if (memory := above(idle)) > MEMORY:
            broken.append(f"{case.name}: memory: {memory / 2**20:.0f} MiB")
        if not met and tries == 1:
            broken.append(f"{case.name}: the case met nobody")
    finally:
        asyncio.run_coroutine_threadsafe(nsqd.stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return broken if met or broken or tries == 1 else read_case(case, monkeypatch, tries - 1)


def _read(reader: BlockingSubscription, layout: Layout) -> None:
    reader.subscribe(SubAdvanced("orders", "ch", 0), layout, 100)
    reader.set_ready(100)
    until = time.monotonic() + LIMIT
    while True:
        received = reader.connection.receive(until)
        for message in reader.messages_of(received):
            reader.finish(message)
