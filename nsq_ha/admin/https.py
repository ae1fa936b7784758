"""The HTTPS of nsqds that refuse plain HTTP because they run with ``-tls-required``.

nsqlookupd does not know its port. A plain nsqd names it in the refusal. The partitioned one does not; there it is
taken to be the port after that of HTTP, as in nsqd's defaults (4151 and 4152).

The invariant: no certificate goes unverified that ``tls`` wants verified, and nothing is sent by HTTPS that plain HTTP
accepts.

Source: youzan/nsq ``nsqdserver/http.go`` ``ServeHTTP``; upstream ``nsqd/http.go``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nsq_ha.checks import is_port
from nsq_ha.engine.http import ask, new_client
from nsq_ha.errors import ConnectError, RemoteProtocolError, TlsRequiredError, TransportError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    import httpx

    from nsq_ha.engine.body import Body
    from nsq_ha.option_types import TlsConfig


_ADVICE: Final = (
    "Give tls= with what this nsqd's HTTPS needs, let it listen there (-https-address), or let it accept plain HTTP"
    " (-tls-required=tcp-https)"
)


def refuses_http(body: Body) -> bool:
    """Return whether an answer says that nsqd takes HTTPS only."""
    return body.status == 403 and body.message == "TLS_REQUIRED"


class Https:
    """The HTTPS of all nsqds of a cluster.

    Args:
        tls: The option ``tls``. None trusts the system's authorities.
    """

    def __init__(self, tls: TlsConfig | ssl.SSLContext | None) -> None:
        self._tls = tls
        self._client: httpx.AsyncClient | None = None
        self._urls: dict[str, str] = {}  # those that have answered, by the base URLs of plain HTTP

    async def aclose(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def is_known(self, url: str) -> bool:
        """Return whether the nsqd with this base URL of plain HTTP has answered by HTTPS."""
        return url in self._urls

    async def ask(
        self,
        url: str,
        refusal: Body | None,
        method: str,
        path: str,
        *,
        timeout: float,
        params: Mapping[str, str] | None,
        content: bytes | None,
    ) -> Body:
        """Send one request, as :func:`nsq_ha.engine.http.ask`.

        Args:
            url: Base URL of the nsqd's plain HTTP.
            refusal: Its refusal of the request. None if it :meth:`is_known`.
            method: ``GET`` or ``POST``.
            path: The path.
            timeout: Seconds for connecting, sending, and reading to the end.
            params: The query.
            content: Body of the request. None sends no body.

        Raises:
            TlsRequiredError: Its HTTPS has never answered; the text says what to set.
            TransportError: It did not answer.
            RemoteProtocolError: The answer is not valid.
        """
        base = self._urls.get(url) if refusal is None else _https_url(url, refusal.https_port)
        if base is None:
            raise TlsRequiredError("", f"{_refusal(url)}, and says that it has no HTTPS. {_ADVICE}")
        if self._client is None:
            self._client = new_client([base], self._tls)
        try:
            body = await ask(self._client, method, base + path, timeout=timeout, params=params, content=content)
        except (TransportError, RemoteProtocolError) as error:
            # The client of HTTPS is made like that of an nsqlookupd.
            text = str(error).replace("lookupd_tls", "tls")
            if refusal is not None:
                raise TlsRequiredError(
                    "", f"{_refusal(url)}, and its HTTPS cannot be used: {base}: {text}. {_ADVICE}"
                ) from error
            if isinstance(error, ConnectError):
                self._urls.pop(url, None)  # it may have been started again without -tls-required
            raise type(error)(text) from error
        self._urls[url] = base
        return body


def _refusal(url: str) -> str:
    return f"nsqd {url} refuses plain HTTP because it runs with -tls-required"


def _https_url(url: str, port: int | None) -> str | None:
    parts = urlsplit(url)
    if port is None:
        port = (parts.port or 0) + 1
    host = parts.netloc.rpartition(":")[0]
    return f"https://{host}:{port}" if is_port(port) else None
