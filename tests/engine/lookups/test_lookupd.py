"""Questions to one nsqlookupd: what is sent, and what bad servers can do to us."""

import asyncio
import gzip
import json
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import respx

from nsq_ha.engine.http import MAX_BODY_BYTES, ask, new_client
from nsq_ha.engine.lookupd import Access, LookupClient
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    ConnectionLostError,
    LookupUnavailableError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.options.types import TlsConfig
from nsq_ha.policy.topology import LookupAnswer, Node, TopicMeta
from tests.engine.lookups.loopback import Behave, Fake, hang, http_answer, list_body, lookup_body, writes
from tests.support.certificates import CA_FILE, server_context
from tests.support.waiting import dawdle

Serve = Callable[[], Awaitable[Fake]]

URL = "http://lookupd.test:4161"


async def test_a_look_up_asks_for_meta_in_the_bare_form(respx_mock: respx.MockRouter) -> None:
    route = respx_mock.get(f"{URL}/lookup").respond(json=lookup_body({0: 4150, 1: 4160}, ordered=True))
    async with LookupClient(URL) as client:
        answer = await client.lookup("orders", "w")
    request = route.calls.last.request
    assert dict(request.url.params) == {"topic": "orders", "access": "w", "metainfo": "true"}
    assert request.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert request.headers["accept-encoding"] == "identity"
    assert answer.lookupd == URL
    assert not answer.leads
    assert answer.meta == TopicMeta(2, replica=3, ordered=True)
    assert answer.partitions == {0: Node("127.0.0.1", 4150, 4151), 1: Node("127.0.0.1", 4160, 4161)}


PEER = {"broadcast_address": "10.0.0.1", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
OTHER = {**PEER, "broadcast_address": "10.0.0.2"}
NODE, SPARE = Node("10.0.0.1", 4150, 4151), Node("10.0.0.2", 4150, 4151)


@pytest.mark.parametrize("access", ["r", "w"])
async def test_a_plain_nsqlookupd_names_the_nsqds_of_a_topic(respx_mock: respx.MockRouter, access: Access) -> None:
    body = {"channels": ["c"], "producers": [PEER, {**OTHER, "tcp_port": 0}]}
    respx_mock.get(f"{URL}/lookup").respond(json=body)
    async with LookupClient(URL) as client:
        answer = await client.lookup("orders", access)
    note = "an nsqd has an address '10.0.0.2:0', which is not valid: set nsqd's -broadcast-address"
    assert answer == LookupAnswer(URL, leads=False, meta=None, partitions={}, exists=True, nodes=(NODE,), note=note)
    assert answer.nodes is not None
    assert answer.nodes[0].is_plain


async def test_every_nsqd_of_a_plain_cluster_takes_a_new_topic(respx_mock: respx.MockRouter) -> None:
    respx_mock.get(f"{URL}/lookup").respond(404, json={"message": "TOPIC_NOT_FOUND"})
    marked = {**OTHER, "topics": ["a", "orders"], "tombstones": [False, True]}
    nodes = respx_mock.get(f"{URL}/nodes").respond(json={"producers": [PEER, OTHER]})
    async with LookupClient(URL) as client:
        unknown = await client.lookup("orders")
        answer = await client.lookup("orders", "w")
        nodes.respond(json={"producers": [PEER, marked]})
        without_marked = await client.lookup("orders", "w")
        nodes.respond(json={"producers": []})
        without_any = await client.lookup("orders", "w")
    assert (unknown.nodes, unknown.candidates, unknown.exists) == ((), (), False)
    assert (answer.nodes, answer.candidates, answer.exists) == ((), (NODE, SPARE), True)
    assert all(node.is_plain for node in answer.candidates)
    assert (without_marked.candidates, without_any.candidates, without_any.exists) == ((NODE,), (), False)


async def test_every_question_has_its_route(respx_mock: respx.MockRouter) -> None:
    respx_mock.get(f"{URL}/listlookup").respond(json=list_body("http://10.0.0.1:4161", "http://10.0.0.1:4161"))
    topics = respx_mock.get(f"{URL}/topics").respond(json={"topics": ["orders"]})
    channels = respx_mock.get(f"{URL}/channels").respond(json={"channels": ["billing"]})
    respx_mock.get(f"{URL}/nodes").respond(json={"producers": []})
    async with LookupClient(URL) as client:
        assert (await client.list_lookupd()).leader == "http://10.0.0.1:4161"
        assert [info.name for info in await client.topics()] == ["orders"]
        assert await client.channels("orders") == ("billing",)
        assert await client.channels("orders", 3) == ("billing",)
        assert await client.nodes() == ()
    assert dict(topics.calls.last.request.url.params) == {"metaInfo": "true"}
    asked = [dict(call.request.url.params) for call in channels.calls]
    assert asked == [{"topic": "orders"}, {"topic": "orders", "partition": "3"}]


@pytest.mark.parametrize("topic", ["", "a b", "a&topic=b", "x" * 65, "a\nb"])
async def test_a_bad_name_is_refused_before_anything_is_sent(topic: str) -> None:
    async with LookupClient("127.0.0.1:1") as client:
        with pytest.raises(ConfigError):
            await client.lookup(topic)
        with pytest.raises(ConfigError):
            await client.channels(topic)


async def test_after_closing_nothing_is_asked_but_a_shared_http_client_stays_open() -> None:
    async with new_client() as shared:
        client = LookupClient(URL, client=shared)
        for _ in range(2):
            await client.aclose()
        with pytest.raises(ClosedError):
            await client.lookup("orders")
        assert not shared.is_closed


@pytest.mark.parametrize("address", ["", "http://", "ftp://a:1", "a:0", "a,b"])
def test_a_client_asks_one_legal_address(address: str) -> None:
    with pytest.raises(ConfigError, match="not of 2: 'a,b'" if address == "a,b" else None):
        LookupClient(address)
    assert LookupClient("a").lookupd == "http://a:4161"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(500, json={"message": "broken"}), "HTTP status 500: broken"),
        (httpx.Response(200, html="<html>Welcome</html>"), "unexpected answer"),
        (httpx.Response(200), "unexpected answer"),
        (httpx.Response(301, headers={"location": "http://elsewhere.test/"}), "redirect"),
        (httpx.Response(307, headers={"location": f"{URL}/lookup"}), "redirect"),
        (httpx.Response(200, content=b"[" * 200_000), "unexpected answer"),
        (
            httpx.Response(200, headers={"content-encoding": "gzip"}, content=gzip.compress(b" " * 1000)),
            "compressed",
        ),
        (httpx.Response(204), "HTTP status 204"),
    ],
)
async def test_a_useless_answer_names_the_server_and_the_reason(
    respx_mock: respx.MockRouter, answer: httpx.Response, reason: str
) -> None:
    respx_mock.get(f"{URL}/lookup").mock(return_value=answer)
    async with LookupClient(URL) as client:
        with pytest.raises(LookupUnavailableError, match=reason) as caught:
            await client.lookup("orders")
    assert [server for server, _ in caught.value.causes] == [URL]
    assert len(respx_mock.calls) == 1
    assert caught.value.retriable


# ---------------------------------------------------------------- real sockets


async def one_byte_a_second(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await dawdle(0.02)


async def a_header_without_end(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Filler: " + b"x" * 1000 + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    ("behave", "wanted"),
    [
        pytest.param(hang, ResponseTimeoutError, id="accepts and is silent"),
        pytest.param(one_byte_a_second, ResponseTimeoutError, id="a byte now and then"),
        pytest.param(writes(http_answer(b"{}")[:-1], close=False), ResponseTimeoutError, id="cut, then silent"),
        pytest.param(writes(http_answer(b"{}")[:-1]), ConnectionLostError, id="cut, then closed"),
        pytest.param(writes(b""), ConnectionLostError, id="closed without a word"),
        pytest.param(writes(b"\x00\x00\x00\x0a\x00\x00\x00\x00_heartbeat_"), RemoteProtocolError, id="an nsqd"),
        pytest.param(writes(bytes(range(256)) * 40), RemoteProtocolError, id="garbage"),
        pytest.param(a_header_without_end, RemoteProtocolError, id="headers without end"),
        pytest.param(
            writes(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n"), RemoteProtocolError, id="bad chunk"
        ),
        pytest.param(writes(http_answer(b"", 302, "Location: /\r\n")), RemoteProtocolError, id="redirect to itself"),
    ],
)
async def test_a_bad_server_costs_no_more_than_the_limit(serve: Serve, behave: Behave, wanted: type[Exception]) -> None:
    fake = await serve()
    fake.behave = behave
    began = asyncio.get_running_loop().time()
    async with LookupClient(fake.url) as client:  # whose limit is a second
        with pytest.raises(LookupUnavailableError) as caught:
            await client.lookup("orders")
    assert isinstance(caught.value.__cause__, wanted)
    assert asyncio.get_running_loop().time() - began < 4.0
    assert len(fake.requests) == 1


async def test_a_body_of_100_megabytes_is_not_read(serve: Serve) -> None:
    fake = await serve()
    sent = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n")
        for _ in range(1600):
            writer.write(b" " * 65536)
            await writer.drain()
            sent += 65536

    fake.behave = flood
    async with LookupClient(fake.url, timeout=5.0) as client:
        with pytest.raises(LookupUnavailableError, match="longer than"):
            await client.lookup("orders")
    # What the kernel's buffers hold comes on top of what was read.
    assert sent < MAX_BODY_BYTES + 24 * 1024 * 1024


async def test_proxies_of_the_environment_and_cookies_are_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    fake = await serve()
    body = json.dumps(lookup_body({0: 4150})).encode()
    fake.behave = writes(http_answer(body, headers="Set-Cookie: a=b\r\n"), close=False)
    async with new_client([fake.url]) as http:
        assert (await LookupClient(fake.url, client=http).lookup("orders")).exists
        assert len(http.cookies.jar) == 0


# ---------------------------------------------------------------- the address of another server


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("scheme", "answer", "advice"),
    [
        ("http", b"\0\0\0\x0eE_BAD_PROTOCOL", "give the HTTP port, which is 4161"),
        ("https", http_answer(b"", 400), "does not answer in TLS: give its address with http://"),
    ],
)
async def test_another_port_is_recognised(scheme: str, answer: bytes, advice: str) -> None:
    """A server that says ``answer`` to whatever comes."""

    async def say(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, LookupClient(url) as client:
        with pytest.raises(LookupUnavailableError, match=advice):
            await client.lookup("orders", "w")


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), ("no PEM", "it has no certificate in PEM format")]
)
async def test_a_file_of_authorities_that_openssl_ignores_is_named(
    content: str | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error advised to set SSL_CERT_FILE, which was set."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    fake = await Fake(server_context()).start()
    fake.answer("/lookup", lookup_body({0: 4150}))
    async with LookupClient(fake.url, timeout=5.0) as client:
        with pytest.raises(LookupUnavailableError, match="or set the environment variable SSL_CERT_FILE") as raised:
            await client.lookup("orders")
    monkeypatch.setenv("SSL_CERT_FILE", CA_FILE)
    async with LookupClient(fake.url, timeout=5.0) as client:
        assert (await client.lookup("orders")).exists
    await fake.stop()
    assert f"(SSL_CERT_FILE is {str(file)!r} now, which cannot be used: {reason})" in str(raised.value)


@pytest.mark.parametrize("tls", [None, TlsConfig(ca_file=CA_FILE, minimum_version="1.3")])
def test_a_log_of_keys_that_cannot_be_written_is_named(tls: TlsConfig | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a FileNotFoundError of ssl, which names no variable."""
    monkeypatch.setenv("SSLKEYLOGFILE", "/no/such/folder/keys")
    with pytest.raises(
        ConfigError, match="SSLKEYLOGFILE names '/no/such/folder/keys', which cannot be written: No such"
    ):
        LookupClient("https://127.0.0.1:1", lookupd_tls=tls)


@pytest.mark.real_time
async def test_https_trusts_the_given_authorities() -> None:
    fake = await Fake(server_context()).start()
    fake.answer("/lookup", lookup_body({0: 4150}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CA_FILE)
    trusting = (TlsConfig(ca_file=CA_FILE), TlsConfig(ca_file=CA_FILE, server_name="localhost"), context)
    for tls in (*trusting, TlsConfig(verify=False)):
        async with LookupClient(fake.url, timeout=5.0, lookupd_tls=tls) as client:
            assert (await client.lookup("orders")).exists
    other_authority = r"; for a certificate of your own, give lookupd_tls=TlsConfig\(ca_file=...\), or set the"
    other_name = r"; give lookupd_tls=TlsConfig\(server_name=...\), the name that the certificate is for"
    refused: dict[TlsConfig | None, str] = {
        None: other_authority,
        TlsConfig(): other_authority,
        TlsConfig(ca_file=CA_FILE, server_name="a.example"): other_name,
    }
    for other, advice in refused.items():
        async with LookupClient(fake.url, timeout=5.0, lookupd_tls=other) as client:
            with pytest.raises(LookupUnavailableError, match=advice):
                await client.lookup("orders")
    await fake.stop()


async def test_a_shared_client_has_its_own_tls() -> None:
    async with new_client() as shared:
        with pytest.raises(ConfigError, match="give either client= or lookupd_tls="):
            LookupClient("https://a", client=shared, lookupd_tls=TlsConfig())


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"date": "Sun, 22 Nov 2026 12:00:07 GMT"}, 1795348807.0),
        ({"date": "soon"}, None),
        ({"date": "26 Nov 2 3:4646666635 -00"}, None),
        ({}, None),
    ],
)
async def test_the_clock_of_a_server_is_read(
    respx_mock: respx.MockRouter, headers: dict[str, str], seconds: float | None
) -> None:
    respx_mock.get(f"{URL}/ping").respond(200, headers=headers)
    async with new_client() as client:
        assert (await ask(client, "GET", f"{URL}/ping", timeout=1.0)).clock == seconds


async def test_a_refused_connection_says_so() -> None:
    """It was "All connection attempts failed", the text of the library below."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    async with LookupClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(LookupUnavailableError, match="cannot connect: Connection refused"):
            await client.topics()


def test_tls_for_addresses_without_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="lookupd_tls needs an address with https://"):
        new_client(["http://127.0.0.1:4161"], TlsConfig())
