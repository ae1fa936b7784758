"""What one visitor may take from the others: places for requests, guesses of the token."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import httpx
import pytest

from nsq_ha.admin import AdminClient
from nsq_ha.dashboard.app import Dashboard, DashboardOptions, serve
from nsq_ha.dashboard.guard import FREE_TRIES, MAX_CONNECTIONS, MAX_TRIERS, MAX_UNFINISHED, TRY_SECONDS, WrongTokens
from tests.support.waiting import eventually
from tests.support.web import NO_CERTIFICATES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Message

TOKEN = "correct horse battery"
LIMIT = 20.0

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Serve a dashboard of a cluster that does not answer."""
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with AdminClient("127.0.0.1:1") as admin:
        options = DashboardOptions(port=0, token=TOKEN)
        serving = asyncio.create_task(serve(admin, options, started=started.set_result))
        yield await started
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


class Visitors:
    """Connections that a test opens."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rstrip("/").rpartition(":")[2])
        self.opened: list[Opened] = []
        self._reading: list[asyncio.Task[None]] = []

    async def say(self, data: bytes) -> Opened:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data)
        self.opened.append((reader, writer))
        return reader, writer

    async def half(self, data: bytes) -> None:
        reader, _ = await self.say(data)
        self._reading.append(asyncio.create_task(self._read(reader)))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()

    def ended(self) -> int:
        return sum(task.done() for task in self._reading)

    async def leave(self) -> None:
        for _, writer in self.opened:
            writer.transport.abort()
        await asyncio.gather(*self._reading)


@pytest.fixture
async def visitors(url: str) -> AsyncIterator[Visitors]:
    made = Visitors(url)
    yield made
    await made.leave()


async def answered(url: str) -> int:
    async with asyncio.timeout(LIMIT), httpx.AsyncClient(verify=NO_CERTIFICATES) as client:
        return (await client.get(url + "sign-in")).status_code


HALVES = (
    b"",
    b"GET / HTTP/1.1\r\nHost: lo",
    b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\na",
)


@pytest.mark.few(1)
@pytest.mark.parametrize("half", HALVES)
async def test_half_sent_requests_lock_nobody_out(url: str, visitors: Visitors, half: bytes) -> None:
    for _ in range(MAX_CONNECTIONS):
        await visitors.half(half)
    assert await answered(url) == 200
    await eventually(lambda: visitors.ended() >= MAX_CONNECTIONS - MAX_UNFINISHED, LIMIT)


def test_wrong_tokens_are_slowed() -> None:
    now = 100.0
    tokens = WrongTokens(lambda: now)
    for _ in range(FREE_TRIES):
        assert tokens.wait("a") == 0
        tokens.wrong("a")
    assert (tokens.wait("a"), tokens.wait("b")) == (TRY_SECONDS, 0)
    now += TRY_SECONDS
    assert tokens.wait("a") == 0
    tokens.wrong("a")
    assert tokens.wait("a") == TRY_SECONDS
    now += FREE_TRIES * TRY_SECONDS
    tokens.wrong("a")
    assert tokens.wait("a") == 0
    for number in range(MAX_TRIERS):
        tokens.wrong(str(number))
    assert len(tokens) == MAX_TRIERS


async def test_guesses_are_refused(url: str) -> None:
    async with httpx.AsyncClient(verify=NO_CERTIFICATES, headers={"origin": url.rstrip("/")}) as client:

        async def sign_in(token: str) -> httpx.Response:
            return await client.post(url + "sign-in", data={"token": token})

        assert [(await sign_in("wrong")).status_code for _ in range(FREE_TRIES)] == [403] * FREE_TRIES
        refused = await sign_in(TOKEN)
    assert refused.status_code == 429
    assert "Too many wrong tokens came from your address: wait 10 s." in refused.text


async def test_a_form_whose_sender_leaves_is_no_error() -> None:
    """Anybody could fill the log: each was an error with a traceback."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "path": "/sign-out", "query_string": b"", "headers": headers}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    async with AdminClient("127.0.0.1:1") as admin:
        await Dashboard(admin, DashboardOptions(token=TOKEN)).app()(scope, receive, send)
    assert sent[0]["status"] == 400
