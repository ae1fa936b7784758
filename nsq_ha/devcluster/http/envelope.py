"""The two shapes of HTTP answers of nsqd and nsqlookupd, and the arguments of requests.

Without ``Accept: application/vnd.nsq; version=1.0`` some routes wrap their
answer in an envelope and turn every error into a 500. The other routes, and all
routes with this header, answer bare data and true status codes.

Source: server protocol 11, 12; youzan/nsq ``internal/http_api/topic_channel_args.go``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from nsq_ha.checks import is_valid_name

if TYPE_CHECKING:
    from nsq_ha.devcluster.storage.channel import Channel
    from nsq_ha.devcluster.storage.replica import Replica
    from nsq_ha.devcluster.storage.replicas import StorageNode

V1: Final = "application/vnd.nsq; version=1.0"
_JSON: Final = "application/json; charset=utf-8"
_TEXT: Final = "text/plain; charset=utf-8"
_V1_HEADERS: Final = {"X-NSQ-Content-Type": "nsq; version=1.0"}
NOT_EXIST: Final = "E_TOPIC_NOT_EXIST"
NOT_LEADER: Final = "E_FAILED_ON_NOT_LEADER"


class HttpError(Exception):
    """An error answer.

    Attributes:
        status: The true status code.
        text: The server's text.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


Answer = Callable[[Request], Awaitable[Any]]
"""A route's function. It returns JSON data, a string for plain text, or None for an empty body."""


def enveloped(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that wraps its answer unless the request's header asks for bare data."""

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
    """Return a route that never wraps its answer."""

    async def route(request: Request) -> Response:
        return await _bare(answer, request)

    return route


def plain(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """Return a route that answers text, without the version header."""

    async def route(request: Request) -> Response:
        return Response(str(await answer(request)), 200, media_type=_TEXT)

    return route


async def _bare(answer: Answer, request: Request) -> Response:
    try:
        data = await answer(request)
    except HttpError as error:
        # nsqd does not escape the text, so quotes in it make invalid JSON.
        body = f'{{"message":"{error.text}"}}'.encode("utf-8", "surrogateescape")
        return Response(body, error.status, headers=_V1_HEADERS, media_type=_JSON)
    if data is None:
        return Response(b"", 200, headers=_V1_HEADERS)
    if isinstance(data, str):
        return Response(data, 200, headers=_V1_HEADERS, media_type=_TEXT)
    return _json(200, data, _V1_HEADERS)


async def not_found(_request: Request, _error: Exception) -> Response:
    """Answer an unknown path."""
    return _json(404, {"message": "NOT_FOUND"}, _V1_HEADERS)


async def wrong_method(_request: Request, _error: Exception) -> Response:
    """Answer a known path with a wrong method."""
    return _json(405, {"message": "METHOD_NOT_ALLOWED"}, _V1_HEADERS)


def _json(status: int, data: object, headers: dict[str, str]) -> Response:
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(body, status, headers=headers, media_type=_JSON)


def require(request: Request, name: str, missing: str) -> str:
    """Return a query argument that must be present.

    Raises:
        HttpError: 400 with ``missing``.
    """
    value = request.query_params.get(name)
    if not value:
        raise HttpError(400, missing)
    return value


def replica_of(node: StorageNode, request: Request) -> Replica:
    """Return the replica that ``topic`` and ``partition`` name; without ``partition``, any that the node leads.

    Raises:
        HttpError: There is no such replica.
    """
    topic = request.query_params.get("topic")
    if not topic:
        raise HttpError(400, "MISSING_ARG_TOPIC")
    if not is_valid_name(topic):
        raise HttpError(400, "INVALID_ARG_TOPIC")
    text = request.query_params.get("partition") or "-1"
    try:
        number = int(text)
    except ValueError:
        raise HttpError(400, "INVALID_ARG_TOPIC_PARTITION") from None
    replica = node.find(topic, None if number == -1 else number)
    if replica is None:
        raise HttpError(404, NOT_EXIST)
    return replica


def channel_name_of(request: Request) -> str:
    """Return the ``channel`` argument.

    Raises:
        HttpError: It is missing or not a legal name.
    """
    name = request.query_params.get("channel")
    if not name:
        raise HttpError(400, "MISSING_ARG_CHANNEL")
    if not is_valid_name(name):
        raise HttpError(400, "INVALID_ARG_CHANNEL")
    return name


def led_channel_of(node: StorageNode, request: Request) -> Channel:
    """Return the live channel that a request names.

    Raises:
        HttpError: There is no such channel, or this node does not lead its partition.
    """
    replica, name = replica_of(node, request), channel_name_of(request)
    if name not in replica.cursors:
        raise HttpError(404, "CHANNEL_NOT_FOUND")
    if not replica.leads:
        raise HttpError(400, NOT_LEADER)
    return replica.channel(name)
