"""IDENTIFY, upgrades and AUTH: what is agreed, what is refused, and what it leaves."""

import asyncio
import logging
import re
import ssl
import sys
import threading
import traceback
from pathlib import Path

import pytest

from nsq_ha import ClientConfig, Compression, TlsConfig
from nsq_ha.engine.connection import Connection
from nsq_ha.engine.tls import ssl_context, trust_hint
from nsq_ha.errors import ConnectError, NsqError, ServerError
from nsq_ha.options.values import SecretFunction
from nsq_ha.protocol import Command, Identity
from nsq_ha.protocol.commands import Auth, Identify
from nsq_ha.protocol.server.answers import encode_identity
from tests.support.certificates import CA_FILE, server_context
from tests.support.nsqd import LIMIT, FakeNsqd, Peer, Script, error, instead, response
from tests.support.recorder import Recorder, linked

SECRET = "open sesame 4711"


async def refused(nsqd: FakeNsqd, config: ClientConfig | None = None) -> NsqError:
    """Open a connection, which must fail, and return why."""
    recorder = Recorder()
    with pytest.raises(NsqError) as caught:
        await Connection.open(config or ClientConfig(), nsqd.node, recorder.callbacks)
    await nsqd.until(lambda: not nsqd.open_peers)
    assert recorder.lost == []
    return caught.value


@pytest.mark.real_time
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.2 is no address of the machine")
async def test_the_source_address_is_the_given_one(nsqd: FakeNsqd) -> None:
    async with linked(nsqd, ClientConfig(local_addr="127.0.0.2")) as link:
        assert link.peer.host == "127.0.0.2"
    reason = await refused(nsqd, ClientConfig(local_addr="192.0.2.1"))
    assert isinstance(reason, ConnectError)
    assert str(reason).endswith("; the source address is local_addr='192.0.2.1', which must belong to this machine")


def answering(data: bytes) -> Script:
    """Return a script that answers IDENTIFY with these bytes."""

    def script(peer: Peer, command: Command) -> bool:
        if isinstance(command, Identify):
            peer.write(data)
        return True

    return script


# ------------------------------------------------------------ layers


@pytest.mark.parametrize("compression", [Compression.SNAPPY, Compression.DEFLATE])
async def test_a_server_without_tls_is_left_before_anything_else_is_agreed(
    nsqd: FakeNsqd, compression: Compression
) -> None:
    snappy = compression is Compression.SNAPPY
    # The confirmation of the compression never comes: nobody may wait for it.
    nsqd.script = answering(response(encode_identity(Identity(snappy=snappy, deflate=not snappy))))
    reason = await refused(nsqd, ClientConfig(tls=TlsConfig(), compression=compression))
    assert "does not offer TLS" in str(reason)


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        (TlsConfig(), "self-signed .*; .*give ca_file= with its PEM file"),
        (
            TlsConfig(ca_file=CA_FILE, server_name="nsqd.example"),
            "give server_name=, the name that the certificate is for",
        ),
    ],
)
async def test_a_certificate_that_is_not_accepted_says_what_to_give(nsqd: FakeNsqd, tls: TlsConfig, text: str) -> None:
    nsqd.identity, nsqd.tls = Identity(tls_v1=True), server_context()
    reason = await refused(nsqd, ClientConfig(tls=tls))
    assert isinstance(reason, ConnectError)
    assert re.search(text, str(reason)), reason


async def test_a_server_without_a_recent_version_of_tls_is_refused(nsqd: FakeNsqd) -> None:
    nsqd.identity, nsqd.tls = Identity(tls_v1=True), server_context()
    nsqd.tls.maximum_version = ssl.TLSVersion.TLSv1_2
    async with linked(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE))):
        pass
    reason = await refused(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE, minimum_version="1.3")))
    assert isinstance(reason, ConnectError)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_demands_a_certificate_says_which_option_gives_it(version: ssl.TLSVersion) -> None:
    server = server_context()
    server.load_verify_locations(CA_FILE)
    server.verify_mode = ssl.CERT_REQUIRED
    server.maximum_version = version
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl_context(TlsConfig(ca_file=CA_FILE)).wrap_bio(to_client, to_server, server_hostname="localhost")
    peer = server.wrap_bio(to_server, to_client, server_side=True)
    reasons = []
    for each in (client, peer, client, peer, client):
        try:
            each.do_handshake()
            each.read()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError as error:
            reasons.append(trust_hint(error))
    assert reasons[-1] == "; the server may demand a client certificate: give cert_file= with its PEM file"
    assert trust_hint(None) == trust_hint(OSError()) == ""
    old = ssl.SSLCertVerificationError()
    old.reason, old.verify_code = "", 10
    assert trust_hint(old) == "; the server needs a newer certificate, or a clock is wrong"


def test_a_version_of_tls_that_is_not_accepted_says_which_option_decides() -> None:
    server = server_context()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    newer = ssl_context(TlsConfig(ca_file=CA_FILE, minimum_version="1.3"))
    client = newer.wrap_bio(to_client, to_server, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError):
        server.wrap_bio(to_server, to_client, server_side=True).do_handshake()
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()
    assert trust_hint(caught.value) == "; the server speaks no version of TLS that minimum_version= allows"


async def test_an_encrypted_key_opens_a_server_that_demands_a_certificate(nsqd: FakeNsqd) -> None:
    nsqd.identity, nsqd.tls = Identity(tls_v1=True), server_context()
    nsqd.tls.load_verify_locations(CA_FILE)
    nsqd.tls.verify_mode = ssl.CERT_REQUIRED
    nsqd.tls.maximum_version = ssl.TLSVersion.TLSv1_2  # a refusal then ends the handshake itself
    key, password = str(Path(CA_FILE).with_name("encrypted.key")), "xyzzy-key"
    tls = TlsConfig(ca_file=CA_FILE, cert_file=CA_FILE, key_file=key, key_password=password)
    async with linked(nsqd, ClientConfig(tls=tls)):
        pass
    assert isinstance(await refused(nsqd, ClientConfig(tls=TlsConfig(ca_file=CA_FILE))), ConnectError)


async def test_a_context_of_the_users_own_decides_what_is_trusted(nsqd: FakeNsqd) -> None:
    nsqd.identity, nsqd.tls = Identity(tls_v1=True), server_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert isinstance(await refused(nsqd, ClientConfig(tls=context)), ConnectError)
    context.load_verify_locations(CA_FILE)
    async with linked(nsqd, ClientConfig(tls=context)):
        pass


async def test_a_tls_handshake_that_never_comes(nsqd: FakeNsqd) -> None:
    def script(peer: Peer, command: Command) -> bool:
        peer.write(response(encode_identity(Identity(tls_v1=True))))
        nsqd.is_silent = True
        return True

    nsqd.script = script
    reason = await asyncio.wait_for(refused(nsqd, ClientConfig(tls=TlsConfig(), connect_timeout=0.3)), LIMIT)
    assert isinstance(reason, ConnectError)
    assert "connect_timeout=0.3" in str(reason)


# ------------------------------------------------------------ AUTH


async def test_auth_is_sent_when_it_is_asked_for(nsqd: FakeNsqd, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    nsqd.identity = Identity(auth_required=True)
    config = ClientConfig(auth_secret=SECRET)
    async with linked(nsqd, config) as link:
        assert [type(command) for command in link.peer.commands] == [Identify, Auth]
        assert link.peer.commands[1] == Auth(SECRET.encode())
        assert SECRET not in repr(link.connection.__dict__) + repr(link.peer.commands)
    assert SECRET not in caplog.text
    assert SECRET not in repr(config)


async def test_no_secret_is_sent_unasked(nsqd: FakeNsqd) -> None:
    async with linked(nsqd, ClientConfig(auth_secret=SECRET)) as link:
        assert [type(command) for command in link.peer.commands] == [Identify]


@pytest.mark.parametrize(
    "answer",
    [
        error("E_AUTH_FAILED AUTH failed"),
        error(f"E_AUTH_FAILED AUTH failed for {SECRET}"),
        error("E_AUTH_FAILED AUTH failed: Get /auth?secret=open+sesame+4711"),
        error("E_UNAUTHORIZED AUTH No authorizations found"),
        error("E_AUTH_DISABLED AUTH Disabled"),
    ],
)
async def test_auth_is_refused(nsqd: FakeNsqd, caplog: pytest.LogCaptureFixture, answer: bytes) -> None:
    caplog.set_level(logging.DEBUG)
    nsqd.identity = Identity(auth_required=True)

    nsqd.script = instead(Auth, answer)
    reason = await refused(nsqd, ClientConfig(auth_secret=SECRET))
    assert isinstance(reason, ServerError)
    assert "4711" not in f"{reason!r} {reason} {caplog.text}"


class Vault:
    """An object that returns the secret when it is called."""

    async def __call__(self) -> str:
        return SECRET


async def asynchronous() -> str:
    return SECRET


@pytest.mark.parametrize("function", [lambda: SECRET, asynchronous, lambda: asynchronous(), Vault()])  # noqa: PLW0108
async def test_a_function_returns_the_secret(nsqd: FakeNsqd, function: SecretFunction) -> None:
    nsqd.identity = Identity(auth_required=True)
    config = ClientConfig(auth_secret=function)
    async with linked(nsqd, config) as link:
        assert link.peer.commands[1] == Auth(SECRET.encode())
    assert SECRET not in repr(config)


async def test_a_plain_function_does_not_block_the_event_loop(nsqd: FakeNsqd) -> None:
    nsqd.identity = Identity(auth_required=True)
    called_in: list[threading.Thread] = []

    def function() -> str:
        called_in.append(threading.current_thread())
        return SECRET

    async with linked(nsqd, ClientConfig(auth_secret=function)):
        pass
    assert called_in != [threading.current_thread()]
    assert called_in[0].daemon


async def test_a_function_is_called_for_each_connection_that_asks_for_the_secret(nsqd: FakeNsqd) -> None:
    secrets = iter(["first", "second"])
    config = ClientConfig(auth_secret=lambda: next(secrets))
    async with linked(nsqd, config):
        pass
    nsqd.identity = Identity(auth_required=True)
    for expected in (b"first", b"second"):
        async with linked(nsqd, config):
            assert nsqd.peers[-1].commands[1] == Auth(expected)


def returning(value: object) -> SecretFunction:
    return lambda: value  # type: ignore[return-value]


def raising(error: BaseException) -> SecretFunction:
    def function() -> str:
        raise error

    return function


async def failing() -> str:
    raise LookupError(SECRET)


async def cancelled() -> str:
    raise asyncio.CancelledError(SECRET)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raising(ValueError(SECRET)), "raised ValueError; its text is not shown"),
        (raising(StopIteration(SECRET)), "raised RuntimeError; its text is not shown"),
        (failing, "raised LookupError; its text is not shown"),
        (cancelled, "raised CancelledError; its text is not shown"),
        (returning(None), "returned no secret: auth_secret must be a str"),
        (returning(SECRET.encode()), "returned no secret: auth_secret must be a str"),
        (returning(""), "returned no secret: auth_secret must not be empty"),
        (returning(SECRET + "\ud800"), "returned no secret: auth_secret must be text that UTF-8 can encode"),
        (returning(SECRET * 5000), "returned no secret: auth_secret must have at most"),
    ],
)
async def test_a_function_without_a_secret_is_an_error_that_shows_nothing(
    nsqd: FakeNsqd, caplog: pytest.LogCaptureFixture, function: SecretFunction, problem: str
) -> None:
    caplog.set_level(logging.DEBUG)
    nsqd.identity = Identity(auth_required=True)
    reason = await refused(nsqd, ClientConfig(auth_secret=function))
    assert isinstance(reason, ConnectError)
    assert reason.retriable
    assert f"asks for AUTH, but the function auth_secret {problem}" in str(reason)
    assert "4711" not in "".join(traceback.format_exception(reason)) + caplog.text


async def test_a_function_that_takes_too_long_is_named(nsqd: FakeNsqd) -> None:
    nsqd.identity = Identity(auth_required=True)
    end = threading.Event()

    async def never() -> str:
        await asyncio.Event().wait()
        return SECRET

    def late() -> str:
        end.wait(LIMIT)
        return SECRET

    for function in (never, late):
        config = ClientConfig(auth_secret=function, connect_timeout=0.3)
        reason = await asyncio.wait_for(refused(nsqd, config), LIMIT)
        assert isinstance(reason, ConnectError)
        assert "the function auth_secret returned no secret within connect_timeout=0.3 s" in str(reason)
    end.set()
