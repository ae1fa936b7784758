"""The shapes of HTTP answers of nsqd and nsqlookupd, and the arguments and bodies of requests.

Without ``Accept: application/vnd.nsq; version=1.0`` some routes of the partitioned servers wrap their
answer in an envelope and turn every error into a 500. Their other routes, all
routes with this header, and all of the upstream servers answer bare data and true status codes.

Source: server protocol 11, 12; youzan/nsq ``internal/http_api/topic_channel_args.go``; nsqio/nsq ``internal/http_api``.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nsq_ha.devcluster.nodes import HOST, ClusterNode
from nsq_ha.options.checks import is_valid_name

V1: Final = "application/vnd.nsq; version=1.0"
_JSON: Final = "application/json; charset=utf-8"
_TEXT: Final = "text/plain; charset=utf-8"
_V1_HEADERS: Final = {"X-NSQ-Content-Type": "nsq; version=1.0"}


class HttpError(Exception):
    """An error answer.

    Attributes:
        status: The true status code.
        text: The server's text.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text


Answer = Callable[[Request], Awaitable[Any]]
"""A route's function. It returns JSON data, a string for plain text, or None for an empty body."""
Wrap = Callable[[Answer, Request], Awaitable[Response]]


def app_of(*routes: list[Route]) -> Starlette:
    """Return an application with these routes and ``/ping``."""
    return Starlette(
        routes=[Route("/ping", _ping), *(route for each in routes for route in each)],
        exception_handlers={404: _not_found, 405: _wrong_method},
    )


def named(*answers: Answer) -> Mapping[str, Answer]:
    """Return answers by their paths: ``topic_create`` answers ``/topic/create``."""
    return {f"/{answer.__name__.replace('_', '/')}": answer for answer in answers}


def gets(wrap: Wrap, answers: Mapping[str, Answer], method: str = "GET") -> list[Route]:
    """Return the routes for GET, or another method."""
    return [Route(path, partial(wrap, answer), methods=[method]) for path, answer in answers.items()]


posts: Final = partial(gets, method="POST")


async def enveloped(answer: Answer, request: Request) -> Response:
    """Answer in an envelope unless the request's header asks for bare data."""
    if request.headers.get("accept") == V1:
        return await bare(answer, request)
    try:
        data = await answer(request)
    except HttpError as error:
        return _json(500, {"status_code": 500, "status_txt": error.text, "data": None}, {})
    if isinstance(data, str):
        return Response(data, 200, media_type=_TEXT)
    return _json(200, {"status_code": 200, "status_txt": "OK", "data": data}, {})


async def bare(answer: Answer, request: Request) -> Response:
    """Answer without an envelope."""
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


def ports_of(node: ClusterNode, version: str) -> dict[str, Any]:
    """Return what a node says of itself, and an nsqlookupd of it."""
    return {
        "version": version,
        "broadcast_address": HOST,
        "hostname": socket.gethostname(),
        "http_port": node.http_port,
        "tcp_port": node.tcp_port,
    }


async def _ping(_request: Request) -> Response:
    return Response("OK", 200, media_type=_TEXT)


async def _not_found(_request: Request, _error: Exception) -> Response:
    return _json(404, {"message": "NOT_FOUND"}, _V1_HEADERS)


async def _wrong_method(_request: Request, _error: Exception) -> Response:
    return _json(405, {"message": "METHOD_NOT_ALLOWED"}, _V1_HEADERS)


def _json(status: int, data: object, headers: dict[str, str]) -> Response:
    body = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(body, status, headers=headers, media_type=_JSON)


# ------------------------------------------------------------ arguments and bodies


def require(request: Request, name: str, missing: str) -> str:
    """Return a query argument that must be present and not empty.

    Raises:
        HttpError: 400 with ``missing``.
    """
    value = request.query_params.get(name)
    if not value:
        raise HttpError(400, missing)
    return value


def present(request: Request, name: str) -> str:
    """Return a query argument that must be present, and may be empty: the rule of the upstream servers.

    Raises:
        HttpError: It is missing.
    """
    values = request.query_params.getlist(name)
    if not values:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return values[0]


def valid_name(value: str, invalid: str) -> str:
    """Return an argument that must be a legal name.

    Raises:
        HttpError: 400 with ``invalid``.
    """
    if not is_valid_name(value):
        raise HttpError(400, invalid)
    return value


def topic_and_channel(request: Request) -> tuple[str, str]:
    """Return the arguments ``topic`` and ``channel`` by the rules of the upstream servers.

    Raises:
        HttpError: One is missing or not legal.
    """
    topic = valid_name(present(request, "topic"), "INVALID_ARG_TOPIC")
    return topic, valid_name(present(request, "channel"), "INVALID_ARG_CHANNEL")


async def read_body(request: Request, largest: int, too_big: str) -> bytes:
    """Read the body.

    Raises:
        HttpError: It is larger than ``largest``.
    """
    body = await request.body()
    if len(body) > largest:
        raise HttpError(413, too_big)
    return body


def lines_of(body: bytes, largest: int) -> list[bytes]:
    """Split a batch of lines.

    Raises:
        HttpError: One is larger than ``largest``.
    """
    messages = [message for message in body.split(b"\n") if message]
    if any(len(message) > largest for message in messages):
        raise HttpError(413, "MSG_TOO_BIG")
    return messages


def counted_messages(body: bytes, largest: int) -> list[bytes]:
    """Split a counted batch.

    Raises:
        HttpError: Its counts do not match its length, or a message is larger than ``largest``.
    """
    count = int.from_bytes(body[:4], "big", signed=True)
    if count <= 0 or count > len(body):
        raise HttpError(413, "BAD_BODY")
    messages, position = [], 4
    for _ in range(count):
        size = int.from_bytes(body[position : position + 4], "big", signed=True)
        position += 4
        if not 0 < size <= largest or position + size > len(body):
            raise HttpError(413, "BAD_MESSAGE")
        messages.append(body[position : position + size])
        position += size
    return messages
