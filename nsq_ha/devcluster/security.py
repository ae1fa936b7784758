"""TLS settings of the nsqds, and the guard that protects the HTTP of every node.

The servers listen on the loopback only. The guard rejects requests that another
site can make a browser on the same machine send there: a form that it posts, and
a foreign host name that resolves to the loopback.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from starlette.responses import Response

if TYPE_CHECKING:
    import ssl

    from starlette.types import Receive, Scope, Send

_LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))
_READING: Final = frozenset(("GET", "HEAD"))
ANY: Final = "*"
"""Allows all hosts."""

App = Callable[["Scope", "Receive", "Send"], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Access to the nodes of a cluster.

    Attributes:
        tls: The server's context. None for a server without TLS.
        required: Refuse everything outside TLS (``-tls-required``): all commands but IDENTIFY, and plain HTTP.
        write_deadline: Seconds after a handshake at which every write begins to fail. None for no failures.
        hosts: Names besides the loopback's that are allowed in ``Host`` and ``Origin`` of HTTP requests.

    Raises:
        ValueError: TLS is required but not configured, or the deadline is not above 0.
    """

    tls: ssl.SSLContext | None = None
    required: bool = False
    write_deadline: float | None = None
    hosts: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.required and self.tls is None:
            raise ValueError("tls_required=True needs tls=, the server's ssl.SSLContext")
        if self.write_deadline is not None and not self.write_deadline > 0:
            raise ValueError(f"tls_write_deadline must be above 0, not {self.write_deadline}")

    def guarded(self, app: App, *, needs_tls: bool) -> App:
        """Let ``app`` answer only allowed requests.

        Args:
            app: Answers the requests.
            needs_tls: Refuse everything if TLS is required.
        """

        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            why = self._refusal(scope["method"], headers)
            if why is None and self.required and needs_tls:
                why = "TLS_REQUIRED"
            if why is None:
                await app(scope, receive, send)
                return
            # With a blank after the colon, as nsqd writes it.
            refused = Response(json.dumps({"message": why}), 403, media_type="text/plain; charset=utf-8")
            await refused(scope, receive, send)

        return guard

    def _refusal(self, method: str, headers: dict[str, str]) -> str | None:
        host = headers.get("host", "")
        if host and not self._is_allowed(f"//{host}"):
            return "FOREIGN_HOST"
        if method in _READING:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin):
            return "FOREIGN_ORIGIN"
        return None

    def _is_allowed(self, url: str) -> bool:
        if ANY in self.hosts:
            return True
        try:
            name = urlsplit(url).hostname
        except ValueError:
            return False
        return name in _LOOPBACK or name in self.hosts
