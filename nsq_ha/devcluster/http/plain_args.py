"""The arguments of requests as upstream's nsqd and nsqlookupd check them.

All their answers are bare. An argument that is present but empty is not missing.

Source: nsqio/nsq ``internal/http_api``, ``nsqd/http.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import Route

from nsq_ha.checks import is_valid_name
from nsq_ha.devcluster.http.envelope import Answer, HttpError, bare

if TYPE_CHECKING:
    from starlette.requests import Request


def routes(gets: Mapping[str, Answer], posts: Mapping[str, Answer]) -> list[Route]:
    """Make routes that never wrap."""
    return [
        *(Route(path, bare(answer), methods=["GET"]) for path, answer in gets.items()),
        *(Route(path, bare(answer), methods=["POST"]) for path, answer in posts.items()),
    ]


def argument(request: Request, name: str) -> str:
    """Return an argument that must be present.

    Raises:
        HttpError: It is missing.
    """
    value = request.query_params.getlist(name)
    if not value:
        raise HttpError(400, f"MISSING_ARG_{name.upper()}")
    return value[0]


def name_argument(request: Request, name: str, invalid: str) -> str:
    """Return an argument that must be a legal name.

    Raises:
        HttpError: It is missing, or not legal (400 with ``invalid``).
    """
    value = argument(request, name)
    if not is_valid_name(value):
        raise HttpError(400, invalid)
    return value


def topic_and_channel(request: Request) -> tuple[str, str]:
    """Return the arguments ``topic`` and ``channel``.

    Raises:
        HttpError: One is missing or not legal.
    """
    return name_argument(request, "topic", "INVALID_ARG_TOPIC"), name_argument(
        request, "channel", "INVALID_ARG_CHANNEL"
    )
