"""Names whose resolver hangs, and who must not wait for them."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from nsq_ha import Producer
from nsq_ha.engine.http import ask, new_client
from nsq_ha.engine.tcp import TcpStream
from nsq_ha.errors import ConnectError
from tests.engine.lookups.loopback import Fake
from tests.support.nsqd import LIMIT, FakeNsqd
from tests.support.waiting import eventually, turn

pytestmark = pytest.mark.real_time  # threads


class Resolver:
    """Names that begin with ``slow`` take until ``goes_on``; all are those of the loopback.

    Attributes:
        asked: The names.
        threads: Of the names that are resolved now.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.goes_on = threading.Event()
        self._resolve = socket.getaddrinfo

    def __call__(self, host: str | bytes, port: int, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        host = host.decode() if isinstance(host, bytes) else host
        self.asked.append(host)
        if host.startswith("slow"):
            self.threads.add(threading.get_ident())
            self.goes_on.wait(LIMIT)
            self.threads.discard(threading.get_ident())
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._resolve("127.0.0.1", port, *args, **options)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    resolver = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.goes_on.set()


async def connect(host: str, port: int) -> None:
    stream = await TcpStream.open(lambda _: None, lambda _: None, host, port, limit=LIMIT)
    stream.abort()
    await turn(2)


async def test_names_that_hang_hold_up_neither_the_application_nor_other_names(resolver: Resolver) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    waiting = [asyncio.create_task(connect(f"slow{number % 9}", port)) for number in range(100)]
    await eventually(lambda: len(resolver.threads) == 9)
    async with asyncio.timeout(LIMIT):
        assert await asyncio.to_thread(lambda: "called") == "called"
        await connect("well", port)
        await connect("127.0.0.1", port)  # nothing is resolved
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    again = asyncio.create_task(connect("slow0", port))
    await turn(2)
    assert len(resolver.threads) == 9
    resolver.goes_on.set()
    for task in (waiting[0], again):
        with pytest.raises(ConnectError, match="Temporary failure"):
            await task
    server.close()
    await server.wait_closed()


async def test_a_name_that_does_not_resolve_is_an_error_that_names_it(resolver: Resolver) -> None:
    resolver.goes_on.set()
    with pytest.raises(ConnectError, match=r"^cannot connect to slow:4150: .*Temporary failure in name resolution"):
        await connect("slow", 4150)


async def test_each_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    infos = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    await connect("well", port)
    fake = await Fake().start()
    infos[:] = [(*info[:4], (info[4][0], fake.port)) for info in infos]
    fake.answer("/ping", b"OK")
    async with new_client() as client:
        assert (await ask(client, "GET", f"http://well:{fake.port}/ping", timeout=LIMIT)).data == b"OK"
    await fake.stop()
    server.close()
    await server.wait_closed()


@pytest.fixture
async def dropping() -> AsyncIterator[int]:
    """Return a port of 127.0.0.2 that answers no packet: the backlog of its listener is full. 127.0.0.1 has it free."""
    kept = socket.socket()  # a server may listen there, and the system gives the port to nobody else
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    port, loop = kept.getsockname()[1], asyncio.get_running_loop()
    full = socket.create_server(("127.0.0.2", port), backlog=0)
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            filler.connect(("127.0.0.2", port))
    probe = socket.socket()
    probe.setblocking(False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await loop.sock_connect(probe, ("127.0.0.2", port))
    yield port
    for each in (kept, full, probe, *fillers):
        each.close()


def named(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Let ``well`` have these addresses, in this order."""
    resolve = socket.getaddrinfo

    def found(host: str | bytes, port: int, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - passed on
        if host not in ("well", b"well"):
            return resolve(host, port, *args, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", found)


async def test_an_nsqd_whose_first_address_drops_packets_gets_publishes(
    monkeypatch: pytest.MonkeyPatch, dropping: int
) -> None:
    """It never connected, whatever connect_timeout was: the first address took all of it."""
    named(monkeypatch, "127.0.0.2", "127.0.0.1")
    nsqd = FakeNsqd()
    nsqd.port = dropping
    async with nsqd, Producer(nsqd=[f"well:{dropping}"], connect_timeout=2.0, publish_timeout=LIMIT) as producer:
        receipt = await producer.publish("orders", b"x")
    assert (receipt.nsqd, receipt.attempts) == (f"well:{dropping}", 1)


async def test_an_http_server_whose_first_address_drops_packets_answers(
    monkeypatch: pytest.MonkeyPatch, dropping: int
) -> None:
    named(monkeypatch, "127.0.0.2", "127.0.0.1")
    fake = Fake()
    fake.port = dropping
    await fake.start()
    fake.answer("/ping", b"OK")
    async with new_client() as client:
        assert (await ask(client, "GET", f"http://well:{dropping}/ping", timeout=2.0)).data == b"OK"
    await fake.stop()
