"""The two shapes of HTTP answers of nsqd and nsqlookupd.

Without ``Accept: application/vnd.nsq; version=1.0`` some routes wrap their
answer in an envelope and turn every error into a 500; the other routes, and all
with the header, answer bare data and true codes.

Source: protocol reference 12, 13.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

V1: Final = "application/vnd.nsq; version=1.0"
_JSON: Final = "application/json; charset=utf-8"
_TEXT: Final = "text/plain; charset=utf-8"
_V1_HEADERS: Final = {"X-NSQ-Content-Type": "nsq; version=1.0"}


class HttpError(Exception):
    """An error answer.

    Attributes:
        status: True status code.
        text: The server's text.
    """

    def __init__(self, status: int, text: str) -> None:
        """Keep both."""
        super().__init__(text)
        self.status = status
        self.text = text


Answer = Callable[[Request], Awaitable[Any]]
"""What a route does: returns JSON data, a string for plain text, or None for an empty body."""


def enveloped(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Make a route that wraps its answer unless the header asks for the bare one."""

    async def route(request: Request) -> Response:
        if request.headers.get("accept") == V1:
            return await _bare(answer, request)
        try:
            data = await answer(request)
        except HttpError as error:
            return _json(500, {"status_code": 500, "status_txt": error.text, "data": None}, {})
        if isinstance(data, str):
            return Response(data, 200, media_type=_TEXT)
        return _json(200, {"status_code": 200, "status_txt": "OK", "data": data}, {})

    return route


def bare(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Make a route that never wraps."""

    async def route(request: Request) -> Response:
        return await _bare(answer, request)

    return route


def plain(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Make a route that answers text, without the version header."""

    async def route(request: Request) -> Response:
        return Response(str(await answer(request)), 200, media_type=_TEXT)

    return route


async def _bare(answer: Answer, request: Request) -> Response:
    try:
        data = await answer(request)
    except HttpError as error:
        # Not escaped, as in nsqd: a text with quotes makes it invalid JSON.
        body = f'{{"message":"{error.text}"}}'.encode("utf-8", "surrogateescape")
        return Response(body, error.status, headers=_V1_HEADERS, media_type=_JSON)
    if data is None:
        return Response(b"", 200, headers=_V1_HEADERS)
    if isinstance(data, str):
        return Response(data, 200, headers=_V1_HEADERS, media_type=_TEXT)
    return _json(200, data, _V1_HEADERS)


async def not_found(_request: Request, _error: Exception) -> Response:
    """What an unknown path is answered."""
    return _json(404, {"message": "NOT_FOUND"}, _V1_HEADERS)


async def wrong_method(_request: Request, _error: Exception) -> Response:
    """What a known path with another method is answered."""
    return _json(405, {"message": "METHOD_NOT_ALLOWED"}, _V1_HEADERS)


def _json(status: int, data: object, headers: dict[str, str]) -> Response:
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(body, status, headers=headers, media_type=_JSON)


def require(request: Request, name: str, missing: str) -> str:
    """A query argument that must be there.

    Raises:
        HttpError: 400 with ``missing``.
    """
    value = request.query_params.get(name)
    if not value:
        raise HttpError(400, missing)
    return value
