"""Discovery by name while the application fills asyncio's default executor, and names with several addresses."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from nsq_ha import Consumer, Producer
from nsq_ha.events import Event, LookupdFailed
from tests.support.nsqd import LIMIT
from tests.support.stage import TOPIC, Stage

pytestmark = pytest.mark.real_time  # threads

NAME = "nsqlookupd.example"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str | bytes, *args: object, **options: object) -> object:
        is_known = host in (NAME, NAME.encode())
        return resolve("127.0.0.1" if is_known else host, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture
def busy() -> Iterator[threading.Event]:
    """End the application's work in the default executor at the end of the test."""
    free = threading.Event()
    yield free
    free.set()


async def test_a_full_default_executor_holds_up_no_discovery(named: None, busy: threading.Event) -> None:
    events: list[Event] = []
    async with Stage() as stage:
        address = f"{NAME}:{stage.lookupd.port}"
        work = [asyncio.get_running_loop().run_in_executor(None, busy.wait, 60.0) for _ in range(64)]
        async with (
            Producer(lookupd=address, on_event=events.append) as producer,
            Consumer(TOPIC, "ch", lookupd=address, on_event=events.append),
        ):
            async with asyncio.timeout(LIMIT):
                assert (await producer.publish(TOPIC, b"x")).nsqd == stage.nsqd.node.address
                await stage.nsqd.subscriber()
            assert not [event for event in events if isinstance(event, LookupdFailed)]
            assert producer.health(patience=0.0).reason == "ok"
        busy.set()
        await asyncio.gather(*work)
