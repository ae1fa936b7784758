"""HTTP requests with hard limits, and the mapping of httpx's errors.

Owns the total time limit (a server that sends one byte a second is as bad as a
silent one), the size limit of answers, the mapping of httpx's errors to ours, and
the connections to a server, private or shared. It uses no redirects, cookies,
compressed bodies or proxies of the environment.

Source: server failures 2, 5.2.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
from importlib import import_module
from typing import TYPE_CHECKING, Final, Self

from nsq_ha.base.forks import OfOneProcess
from nsq_ha.base.redaction import beginning, harmless
from nsq_ha.base.time_limits import time_limit
from nsq_ha.engine.body import MAX_TEXT, Body, unwrap
from nsq_ha.engine.tls import broken_cert_file, server_name, ssl_context, trusting
from nsq_ha.errors import (
    ClosedError,
    ConfigError,
    ConnectError,
    ConnectionLostError,
    NsqError,
    RemoteProtocolError,
    ResponseTimeoutError,
)
from nsq_ha.options.types import TlsConfig, check_lookupd_tls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import httpx
else:

    class _LateModule:
        """httpx, loaded when it is first used: it takes 4 MB, and clients with ``nsqd=`` do not need it."""

        def __getattr__(self, name: str) -> object:
            from nsq_ha.engine import quiet  # noqa: PLC0415 - see there

            return getattr(quiet.httpx, name)

    httpx = _LateModule()


def load() -> None:
    """Load httpx and what its first request would load, which takes 70 ms."""
    import_module("nsq_ha.engine.quiet")


MAX_BODY_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of an answer; a cluster of 10,000 partitions needs a third of it."""

_NO_REASON: Final = "All connection attempts failed"
"""The text of anyio's error for a refused connection; its cause says why."""

UNRESOLVED: Final = "its name cannot be resolved"
"""How the text begins for a host name without an address."""

_OTHER_AUTHORITY: Final = (
    "; for a certificate of your own, give lookupd_tls=TlsConfig(ca_file=...), or set the environment variable"
    " SSL_CERT_FILE to its PEM file"
)
_OTHER_NAME: Final = "; give lookupd_tls=TlsConfig(server_name=...), the name that the certificate is for"

_NO_TLS: Final = "WRONG_VERSION_NUMBER"
"""OpenSSL's text if the peer does not speak TLS."""
_CLOSED: Final = ("Server disconnected", "peer closed connection")
"""How the words of httpx begin if a server closed before the end of its answer; it has no class for that."""


def new_client(
    urls: Iterable[str] = (), tls: TlsConfig | ssl.SSLContext | None = None, local_addr: str | None = None
) -> httpx.AsyncClient:
    """Return an HTTP client that keeps no state but open connections.

    Args:
        urls: The servers to ask; certificates are loaded only if one of them uses https.
        tls: The option ``lookupd_tls``. None trusts the system's authorities.
        local_addr: Host of the source address. None lets the system choose.

    Raises:
        ConfigError: ``tls`` cannot be used.
    """
    urls = tuple(urls)
    check_lookupd_tls(tls, urls)
    from nsq_ha.engine.quiet import QuietClient  # noqa: PLC0415 - as above

    verify: ssl.SSLContext | None = None
    if tls is not None:
        verify = ssl_context(tls, "lookupd_tls")
    elif any(url.startswith("https:") for url in urls):
        verify = trusting()
    return QuietClient(verify, None if tls is None else server_name(tls, ""), local_addr)


async def ask(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    timeout: float,
    params: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> Body:
    """Send one request and read the whole answer.

    Args:
        client: From :func:`new_client`.
        method: ``GET`` or ``POST``.
        url: Without query.
        timeout: Seconds for connecting, sending, and reading to the end.
        params: The query.
        content: Body of the request. None sends no body.

    Returns:
        The answer without envelope, with any status (redirects are errors).

    Raises:
        ConnectError: Connecting failed.
        ConnectionLostError: The connection broke; a change may have been made.
        ResponseTimeoutError: The answer was not complete in time; a change may have been made.
        RemoteProtocolError: The answer is not HTTP, too long, compressed or a redirect.

    If cancelled, it closes the connection; a change may have been made.
    """
    try:
        async with (
            time_limit(timeout),
            client.stream(method, url, params=params, content=content, timeout=(timeout, None, None, None)) as response,
        ):
            body = unwrap(response.status_code, await _read(response))
            return dataclasses.replace(body, date=response.headers.get("date", ""))
    except TimeoutError as error:
        raise ResponseTimeoutError(f"no complete answer within {timeout:g} s") from error
    except NsqError:
        raise
    except Exception as error:  # noqa: BLE001 - mapped to ours
        # httpx passes on errors of resolvers, codecs and ssl: UnicodeError, ValueError, RuntimeError and others.
        raise _ours(error) from harmless(error)


class HttpPeer(OfOneProcess):
    """A client of one HTTP server. Use it as an async context manager, or call :meth:`aclose`.

    Args:
        url: Its base URL.
        timeout: Seconds for one request, from connecting to the end of the answer.
        client: An HTTP client to share. None creates a private one.
        tls: For https, without ``client``. None trusts the system's authorities.
        local_addr: Host of the source address, without ``client``. None lets the system choose.

    Raises:
        ConfigError: ``tls`` cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float,
        client: httpx.AsyncClient | None,
        tls: TlsConfig | ssl.SSLContext | None = None,
        local_addr: str | None = None,
    ) -> None:
        if client is not None and tls is not None:
            raise ConfigError("give either client= or lookupd_tls=, not both: a shared client has its own TLS")
        self._url = url
        self._timeout = timeout
        self._owned = client is None
        self._client: httpx.AsyncClient | None = new_client([url], tls, local_addr) if client is None else client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; a second call does nothing. A shared HTTP client stays open."""
        client, self._client = self._client, None
        if self._owned and client is not None:
            await client.aclose()

    async def _exchange(
        self, method: str, path: str, params: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> Body:
        if self._client is None:
            raise ClosedError(f"the {type(self).__name__} was closed")
        return await ask(self._client, method, self._url + path, timeout=self._timeout, params=params, content=content)


async def _read(response: httpx.Response) -> bytes:
    if response.is_redirect:
        raise RemoteProtocolError(
            f"the server answered with a redirect ({response.status_code}): give the address that it redirects to"
        )
    if response.headers.get("content-encoding", "identity") != "identity":
        raise RemoteProtocolError("the answer is compressed, which was not requested")
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise RemoteProtocolError(f"the answer is longer than {MAX_BODY_BYTES} bytes")
    return bytes(body)


def _ours(error: Exception) -> NsqError:
    """Return our error for one from httpx, the system or an invalid address."""
    is_known = isinstance(error, httpx.HTTPError | httpx.InvalidURL | httpx.StreamError | OSError) and str(error)
    said = str(error) if is_known or not str(error) else f"{type(error).__name__}: {error}"
    if not said:
        is_early = isinstance(error, httpx.ConnectError)  # during the TLS handshake
        said = "the server closed the connection" if is_early else type(error).__name__
    text = beginning(said, MAX_TEXT)  # h11 quotes what it got
    if isinstance(error, httpx.ReadError | httpx.WriteError | httpx.CloseError) or text.startswith(_CLOSED):
        return ConnectionLostError(f"connection lost: {text}")
    if isinstance(error, httpx.RemoteProtocolError | httpx.DecodingError | httpx.StreamError):
        return RemoteProtocolError(
            f"the answer is not HTTP ({text}): give the HTTP port, which is 4161 by default for nsqlookupd"
        )
    if _NO_TLS in text:
        return ConnectError("the server does not answer in TLS: give its address with http://, or its HTTPS port")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        authority = "" if "expired" in text else _OTHER_AUTHORITY + broken_cert_file()
        text += _OTHER_NAME if "mismatch" in text else authority
    said_by_system = _system_text(error)
    if text == _NO_REASON or said_by_system.startswith(UNRESOLVED):
        text = said_by_system or text
    return ConnectError(f"cannot connect: {text}")


def _system_text(error: BaseException | None) -> str:
    """Return the system's text for the cause of an error, such as "Connection refused"; empty if there is none."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return f"{UNRESOLVED} ({error.strerror or error})"
        if isinstance(error, OSError) and error.errno is not None:
            return os.strerror(error.errno)
        error = error.__cause__ or error.__context__
    return ""
