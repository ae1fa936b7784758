"""Check each request before the routes see it, and read what it carries.

Everything in a request is untrusted: its host, its path, its form and its cookie.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response

from nsq_ha.dashboard.guard import COOKIE

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from nsq_ha.dashboard.guard import Guard

MAX_FORM: Final = 16384
"""Bytes of the largest form."""

MAX_ADDRESS: Final = 2000
MAX_FIELDS: Final = 50

_OPEN: Final = ("/static/", "/sign-in")
"""Where a private dashboard lets everybody in."""

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
    """

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await refused(scope, receive, answer)
        else:
            await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        guard = self._guard
        if not guard.is_ours(headers.get("host", "")):
            text = "the Host header names no host of this dashboard: start it with --allow-host NAME\n"
            return PlainTextResponse(text, status_code=421)
        path = scope["path"]
        if guard.is_private and not path.startswith(_OPEN):
            cookie = _cookie(headers.get("cookie", ""))
            if guard.session(cookie) is None:
                if path == "/events":
                    return PlainTextResponse("sign in first\n", status_code=403)
                return RedirectResponse("/sign-in", status_code=303)
        return None


def _cookie(header: str) -> str | None:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), None)


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
