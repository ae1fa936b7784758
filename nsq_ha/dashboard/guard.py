"""Decide who may see the dashboard, and who may change the cluster with it; check each request before the routes do.

Everything in a request is untrusted: its host, its path, its form and its cookie. A page of another site may make a
browser send requests here. So a request must name a host that is ours (a name of another site cannot be made to point
here), and a change needs a session, a key in its form, and our own origin.

The invariants: a token is compared in constant time, and kept out of logs; sessions are bounded and end.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from nsq_ha.base.clock import monotonic
from nsq_ha.base.redaction import conceal
from nsq_ha.errors import ConfigError
from nsq_ha.options.checks import is_ip

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send


_COOKIE: Final = "nsq_ha_dashboard"
LIFETIME: Final = 12 * 3600.0
"""Seconds for which a browser stays signed in."""

MIN_TOKEN: Final = 16
"""Characters of the shortest token, so that it cannot be guessed."""

MAX_SESSIONS: Final = 100


FREE_TRIES: Final = 5
"""Wrong tokens from one address before it has to wait."""

TRY_SECONDS: Final = 10.0
"""Seconds for each further one."""

MAX_TRIERS: Final = 1000
"""Addresses that are remembered."""


class WrongTokens:
    """How often each address gave a wrong token lately: ``FREE_TRIES``, then one in ``TRY_SECONDS``.

    Args:
        clock: Returns seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._paid_until: dict[str, float] = {}  # each wrong token costs TRY_SECONDS; the latest is the last entry

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._paid_until)

    def wait(self, address: str) -> float:
        """Return the seconds until an address may try again; 0 if it may now."""
        debt = self._paid_until.get(address, 0.0) - self._clock()
        return max(debt - (FREE_TRIES - 1) * TRY_SECONDS, 0.0)

    def wrong(self, address: str) -> None:
        """Record a wrong token."""
        paid = max(self._paid_until.pop(address, 0.0), self._clock())
        self._paid_until[address] = paid + TRY_SECONDS
        if len(self._paid_until) > MAX_TRIERS:
            del self._paid_until[next(iter(self._paid_until))]


class BrowserSession(NamedTuple):
    """A browser that has signed in.

    Attributes:
        key: Must be in each form that changes something.
        ends: When it ends, in seconds of the guard's clock.
    """

    key: str
    ends: float


class Guard:
    """The rules for requests.

    Args:
        token: What a person must know to sign in. None if nobody can.
        hosts: Names by which the dashboard is reached, besides ``localhost`` and IP addresses.
        is_private: Reading needs a session, too.
        clock: Returns seconds that only grow.

    Raises:
        ConfigError: The token is too short.
    """

    def __init__(
        self,
        token: str | None,
        *,
        hosts: Iterable[str] = (),
        is_private: bool = False,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if token is not None and len(token) < MIN_TOKEN:
            raise ConfigError(f"the dashboard's token must have at least {MIN_TOKEN} characters")
        conceal(token)
        self._token = token
        self._hosts = {"localhost", *(host.lower().rstrip(".") for host in hosts)}
        self._clock = clock
        self._sessions: dict[str, BrowserSession] = {}
        self.is_private = is_private

    @property
    def has_token(self) -> bool:
        """Whether a person can sign in."""
        return self._token is not None

    def is_ours(self, host: str) -> bool:
        """Return whether a Host header names this dashboard; an IP address always does, no other site owns one."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            return False
        if not name or "@" in host or "/" in host:
            return False
        return name.rstrip(".") in self._hosts or is_ip(name)

    def is_same_origin(self, headers: Mapping[str, str]) -> bool:
        """Return whether a page of this dashboard sent a request."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return False
        origin = headers.get("origin")
        if origin is None:
            return "sec-fetch-site" in headers
        try:
            found = urlsplit(origin)
        except ValueError:
            return False
        return found.scheme in ("http", "https") and found.netloc.lower() == headers.get("host", "").lower()

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token."""
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())

    def sign_in(self, token: str) -> str | None:
        """Return the id of a new session; None if the token is wrong."""
        if not self.is_token(token):
            return None
        self._end_old()
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        name = secrets.token_urlsafe(32)
        self._sessions[name] = BrowserSession(secrets.token_urlsafe(32), self._clock() + LIFETIME)
        return name

    def sign_out(self, name: str | None) -> None:
        """End a session."""
        self._sessions.pop(name or "", None)

    def session(self, name: str | None) -> BrowserSession | None:
        """Return a session; None if there is none, or it has ended."""
        self._end_old()
        return self._sessions.get(name or "")

    @staticmethod
    def has_key(session: BrowserSession, key: str) -> bool:
        """Return whether a form has the session's key."""
        return hmac.compare_digest(key.encode(), session.key.encode())

    def _end_old(self) -> None:
        now = self._clock()
        for name in [name for name, session in self._sessions.items() if session.ends <= now]:
            del self._sessions[name]


MAX_FORM: Final = 16384
"""Bytes of the largest form."""

MAX_ADDRESS: Final = 8000
"""Characters of an address that are read: one of messages has a place in each of 255 partitions."""

MAX_FIELDS: Final = 50

_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    b" base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


class Checked:
    """Lets only allowed requests through, and adds headers to each answer.

    Args:
        app: The routes.
        guard: The rules.
        base: The path below which a proxy shows them; it may remove it or not.
    """

    def __init__(self, app: ASGIApp, guard: Guard, base: str = "") -> None:
        self._app = app
        self._guard = guard
        self._base = base.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                found = (
                    (name, self._base + value if name == b"location" else value)
                    for name, value in message.get("headers", ())
                )
                message["headers"] = [*found, *_HEADERS]
            await send(message)

        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if self._base and (raw + b"/").startswith(self._base + b"/"):
            raw = raw[len(self._base) :] or b"/"
            scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii", "replace"))}
        app = self._refusal(scope) or self._app
        await app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        request, path = HTTPConnection(scope), scope["path"]
        guard = self._guard
        if not guard.is_ours(request.headers.get("host", "")):
            text = "the Host header names no host of this dashboard: start it with --allow-host NAME\n"
            return PlainTextResponse(text, status_code=421)
        is_open = path == "/sign-in" or path.startswith("/static/")
        if not guard.is_private or is_open or guard.session(session_of(request)) is not None:
            return None
        if path == "/metrics" and guard.is_token(request.headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        if path in ("/events", "/metrics"):
            return PlainTextResponse("sign in first; for /metrics, send the token: Authorization: Bearer ...\n", 403)
        return RedirectResponse("/sign-in", status_code=303)


def cookie_of(request: HTTPConnection) -> str:
    """Return the name of the session's cookie: browsers send cookies to every port of a host, so it has the port."""
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{_COOKIE}_{port}" if port.isascii() and port.isdigit() and len(port) < 6 else _COOKIE


def session_of(request: HTTPConnection) -> str | None:
    """Return the id of a session that a request's cookie names. None if it has none.

    ``request.cookies`` would unquote each value, which takes the square of its length before Python 3.12.6.
    """
    parts = (part.partition("=") for part in request.headers.get("cookie", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in parts}.get(cookie_of(request))


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form; an empty one if it is too long, or is none."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_FORM:
            return {}
    try:
        return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        return {}


def address(request: Request) -> str:
    """Return the path and query of a request as they were sent, so that a quoted slash stays part of a name."""
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    query: bytes = request.scope.get("query_string", b"")
    text = raw.partition(b"?")[0] + (b"?" + query if query else b"")
    return text.decode("ascii", "replace")[:MAX_ADDRESS]


def segments(address: str) -> list[str]:
    """Return the parts of a path, unquoted."""
    path = address.partition("?")[0]
    return [unquote(segment) for segment in path.split("/") if segment]


def arguments(address: str) -> dict[str, str]:
    """Return the query of a path, without what is too much."""
    try:
        return dict(parse_qsl(urlsplit(address).query, max_num_fields=MAX_FIELDS))
    except ValueError:
        return {}
