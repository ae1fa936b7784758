"""Requests over HTTP: what is sent, how long they may take, and the text of each error."""

import asyncio
import contextlib
import errno
import logging
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable

import httpx
import pytest
import respx

from nsq_ha.engine.http import MAX_BODY_BYTES, _ours, ask, new_client
from nsq_ha.errors import (
    ConnectError,
    ConnectionLostError,
    NsqError,
    RemoteProtocolError,
)
from tests.engine.lookups.loopback import LIMIT, Fake, http_answer

Serve = Callable[[], Awaitable[Fake]]

URL = "http://lookupd.test:4161"


async def test_an_application_that_logs_at_info_gets_no_line_for_each_request(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle producer and consumer wrote 48 such lines in 30 s."""
    fake = await serve()
    fake.answer("/x", {"a": 1})
    caplog.set_level(logging.INFO)
    httpx_log = logging.getLogger("httpx")
    before = (httpx_log.level, httpx_log.disabled, httpx_log.propagate, [*httpx_log.filters], [*httpx_log.handlers])
    async with new_client() as client:
        await ask(client, "GET", f"{fake.url}/x", timeout=1.0)
    assert [record.getMessage() for record in caplog.records] == []
    assert before == (
        httpx_log.level,
        httpx_log.disabled,
        httpx_log.propagate,
        [*httpx_log.filters],
        [*httpx_log.handlers],
    )
    async with httpx.AsyncClient(trust_env=False) as own:
        await ask(own, "GET", f"{fake.url}/x", timeout=1.0)
    assert [record.name for record in caplog.records] == ["httpx"]


async def test_a_request_sends_its_query_and_its_body(serve: Serve) -> None:
    fake = await serve()
    fake.answer("/x", {"a": 1})
    async with new_client() as client:
        answer = await ask(client, "POST", f"{fake.url}/x", timeout=1.0, params={"b": "c"}, content=b"body")
    assert (answer.status, answer.data) == (200, b'{"a": 1}')
    assert fake.queries("/x") == [{"b": "c"}]
    assert fake.bodies == [b"body"]


@pytest.mark.real_time
@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_request_that_is_cancelled_leaves_no_dead_connection(turns: int) -> None:
    """httpcore closes what a server no longer uses, one after another; those after the cancellation stayed open."""
    arrived, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            arrived.release()
            await reader.read()
        ended.release()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
        async with new_client() as client:
            answers = [asyncio.ensure_future(ask(client, "GET", url, timeout=LIMIT)) for _ in range(4)]
            for _ in answers:
                await asyncio.wait_for(arrived.acquire(), LIMIT)
            for writer in writers:
                writer.write(http_answer(b"{}"))
            await asyncio.gather(*answers)
            for writer in writers:
                writer.write(b"unasked")  # httpcore takes a connection for dead as soon as something can be read
            late = asyncio.ensure_future(ask(client, "GET", url, timeout=LIMIT))
            for _ in range(turns):
                await asyncio.sleep(0)  # the turn of the cancellation is what is tested
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
        for _ in writers:
            await asyncio.wait_for(ended.acquire(), LIMIT)


# ---------------------------------------------------------------- answers that are not read


async def test_a_server_that_closes_during_the_tls_handshake_has_a_text() -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with new_client([url := f"https://127.0.0.1:{port}"]) as client:
        with pytest.raises(ConnectError, match=r"^cannot connect: (?!ConnectError)\S"):
            await ask(client, "GET", url + "/x", timeout=5.0)
    server.close()
    await server.wait_closed()


OK_HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED_HEAD = OK_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answer", [OK_HEAD + b"X: y\r\n" * 40_000, b"\xff" * 4000, CHUNKED_HEAD + b"\xff" * 60_000])
async def test_an_error_quotes_little_of_what_is_no_http(serve: Serve, answer: bytes) -> None:
    fake = await serve()

    async def behave(writer: asyncio.StreamWriter) -> None:
        writer.write(answer + b"\r\n\r\n")

    fake.behave = behave
    async with new_client() as client:
        with pytest.raises(RemoteProtocolError, match="the answer is not HTTP") as caught:
            await ask(client, "GET", fake.url + "/x", timeout=5.0)
    assert len(str(caught.value)) < 1_000


async def test_an_answer_may_have_just_the_largest_size(respx_mock: respx.MockRouter) -> None:
    route = respx_mock.get(f"{URL}/x").respond(200, content=b" " * (MAX_BODY_BYTES + 1))
    async with new_client() as client:
        with pytest.raises(RemoteProtocolError, match=r"^the answer is longer than 8388608 bytes$"):
            await ask(client, "GET", f"{URL}/x", timeout=1.0)
        route.respond(200, content=b" " * MAX_BODY_BYTES)
        assert len((await ask(client, "GET", f"{URL}/x", timeout=1.0)).data) == MAX_BODY_BYTES


REFUSED = OSError(errno.ECONNREFUSED, "refused")


def caused(text: str, cause: BaseException | None = None, context: BaseException | None = None) -> httpx.ConnectError:
    error = httpx.ConnectError(text)
    error.__cause__, error.__context__ = cause, context
    return error


LOST, NO_HTTP, CANNOT = ConnectionLostError, RemoteProtocolError, ConnectError
ALL_FAILED = "All connection attempts failed"


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (httpx.ReadError("reset"), LOST, "connection lost: reset"),
        (httpx.ReadError(""), LOST, "connection lost: ReadError"),
        (httpx.RemoteProtocolError("illegal line"), NO_HTTP, "the answer is not HTTP (illegal line): give the HTTP"),
        (UnicodeError("label too long"), CANNOT, "cannot connect: UnicodeError: label too long"),
        (httpx.InvalidURL("no host"), CANNOT, "cannot connect: no host"),
        (OSError("no route"), CANNOT, "cannot connect: no route"),
        (httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER]"), CANNOT, "the server does not answer in TLS: give its"),
        (caused(ALL_FAILED, socket.gaierror(-2, "No name")), CANNOT, "cannot connect: its name cannot be resolved (No"),
        (caused(ALL_FAILED), CANNOT, f"cannot connect: {ALL_FAILED}"),
        (caused(ALL_FAILED, caused("inner", cause=REFUSED)), CANNOT, "cannot connect: Connection refused"),
        (caused(ALL_FAILED, OSError("has no number"), REFUSED), CANNOT, f"cannot connect: {ALL_FAILED}"),
        (caused(ALL_FAILED, context=REFUSED), CANNOT, "cannot connect: Connection refused"),
    ],
)
def test_each_foreign_error_has_a_text_of_ours(raised: Exception, kind: type[NsqError], text: str) -> None:
    error = _ours(raised)
    assert type(error) is kind
    assert str(error).startswith(text)


# ---------------------------------------------------------------- what a client loads


def test_httpx_is_loaded_without_its_command_line() -> None:
    program = """
import sys
from nsq_ha.engine.http import new_client
new_client(["http://127.0.0.1:4161"])
assert "httpx" in sys.modules
assert not {"httpx._main", "rich", "click", "pygments"} & set(sys.modules)
import httpx._main  # it is there for whoever wants it
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
