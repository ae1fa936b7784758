"""nsqd's HTTP (first part)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.routing import Route

from nsq_ha.devcluster.answers import not_found, plain, wrong_method

if TYPE_CHECKING:
    from starlette.requests import Request

    from nsq_ha.devcluster.nsqd import Nsqd


def nsqd_app(node: Nsqd) -> Starlette:
    """The HTTP of one nsqd."""

    async def ping(_request: Request) -> str:
        return "OK"

    return Starlette(routes=[Route("/ping", plain(ping))], exception_handlers={404: not_found, 405: wrong_method})
