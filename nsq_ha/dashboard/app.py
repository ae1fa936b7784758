"""The web application: its pages, the stream that refreshes them, and the server that runs it beside the polls.

Every page is whole without a script. The script opens one stream per tab; each reading sends the page's contents again,
rendered once for all tabs that show it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from nsq_ha import prometheus
from nsq_ha.admin import AdminClient
from nsq_ha.admin.browsing import LogLook, browse, with_plugin
from nsq_ha.base.threads import in_thread
from nsq_ha.dashboard.changing import Changing
from nsq_ha.dashboard.guard import MAX_ADDRESS, Checked, address, arguments, segments
from nsq_ha.dashboard.metrics import metrics
from nsq_ha.dashboard.options import DashboardOptions
from nsq_ha.dashboard.pages import change, frame, messages
from nsq_ha.dashboard.pages.channel import channel_page
from nsq_ha.dashboard.pages.nodes import node_page, nodes
from nsq_ha.dashboard.pages.overview import overview
from nsq_ha.dashboard.pages.search import search_page
from nsq_ha.dashboard.pages.timeline import timeline
from nsq_ha.dashboard.pages.topics import topic_page, topics
from nsq_ha.dashboard.pages.ui import Board, Extra, Page
from nsq_ha.dashboard.poll import Poller
from nsq_ha.dashboard.search import Answer, query_of, search
from nsq_ha.errors import ConfigError, NsqError

T = TypeVar("T")

_STATIC: Final = Path(__file__).parent / "static"


class Dashboard(Changing):
    """The routes that only read, beside those that change the cluster.

    Args:
        admin: Asks and changes the cluster.
        options: How the dashboard runs.
        extra: A page of the program that runs the dashboard. Then tabs show their last state when it ends, and do not
            wait for it to come back.

    Attributes:
        poller: Reads the cluster.
    """

    def __init__(self, admin: AdminClient, options: DashboardOptions, extra: Extra | None = None) -> None:
        super().__init__(admin, options, extra)
        self.poller: Poller = Poller(admin, self._history, interval=options.interval, limit=options.limit)
        self._rendered: dict[tuple[str, bool], Page] = {}  # those of the newest reading
        self._count = 0
        self._plugins = {name: with_plugin(name) for name in options.decoders}

    def app(self) -> ASGIApp:
        """Return the application."""
        routes = [
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/events", self._events, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/search", self._search, methods=["GET"]),
            Route("/messages", self._messages, methods=["GET"]),
            Route("/sign-in", self.sign_in, methods=["GET", "POST"]),
            Route("/sign-out", self.sign_out, methods=["POST"]),
            Route("/confirm/{name}", self.confirm, methods=["GET"]),
            Route("/act/{name}", self.act, methods=["POST"]),
            Route("/{rest:path}", self._live, methods=["GET"]),
        ]
        return Checked(Starlette(routes=routes, exception_handlers={ClientDisconnect: _gone}), self._guard, self._base)

    def render(self, place: str, *, may_change: bool) -> Page:
        """Return a live page with its banner; it is rendered once for each reading.

        Args:
            place: Its path and query.
            may_change: It has the buttons that change the cluster.
        """
        parts = segments(place)
        self._watch(parts)
        if self._count != self.poller.count:
            self._count = self.poller.count
            self._rendered.clear()
        if (known := self._rendered.get((place, may_change))) is not None:
            return known
        board = Board(self._history, time.time(), may_change=may_change, arguments=arguments(place))
        page = self._extra.make(board) if self._extra and parts == [self._extra.place] else _page(board, parts)
        page = self._rendered[place, may_change] = _framed(board, page)
        return page

    def _watch(self, parts: list[str]) -> None:
        """Have the next polls read what a page needs."""
        match parts:
            case ["topics", topic] if self._history.latest is not None and topic in self._history.latest.names:
                self.poller.watch(topic)
            case ["topics", _, _] | ["nodes", _]:
                self.poller.watch(clients=True)
            case _:
                pass

    def _may(self, request: Request) -> bool:
        return self._options.may_change and self._session(request) is not None

    async def _live(self, request: Request) -> Response:
        return self._respond(request, self.render(address(request), may_change=self._may(request)), is_live=True)

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self._stream(request), media_type="text/event-stream")

    def _sent(self, page: Page) -> bytes:
        lines = self._below(page.content).encode("utf-8", "replace").splitlines()
        return b"event: page\n" + b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"

    async def _metrics(self, _request: Request) -> Response:
        reading = self._history.latest
        return Response(prometheus.page(metrics(reading) if reading else ()), media_type=prometheus.CONTENT_TYPE)

    async def _stream(self, request: Request) -> AsyncIterator[bytes]:
        place = request.query_params.get("page", "/")[:MAX_ADDRESS]
        yield b"retry: 2000\n\n"  # until the next reading, the tab shows the page as it was loaded
        while await self.poller.changed():
            if self._guard.is_private and self._session(request) is None:
                return
            if segments(place) == ["messages"]:
                yield self._sent(await self._look(place))
            else:
                yield self._sent(self.render(place, may_change=self._may(request)))
        if self._extra is not None:
            self._rendered.clear()  # what the program found since the last reading
            yield self._sent(self.render(place, may_change=False)) + b"event: end\ndata:\n\n"

    async def _search(self, request: Request) -> Response:
        async def ask(board: Board) -> Answer | None:
            wanted = query_of(board.arguments)
            if wanted is None:
                return None
            return await search(self._admin, board.reading, wanted, self._options.trace_logs)

        return self._respond(request, await self._asked(address(request), ask, search_page))

    async def _messages(self, request: Request) -> Response:
        place = address(request)
        return self._respond(request, await self._look(place), is_live="follow" in arguments(place))

    async def _look(self, place: str) -> Page:
        """Return the page of messages, with its banner."""

        async def ask(board: Board) -> LogLook | None:
            given = board.arguments
            if not (topic := given.get("topic", "").strip()):
                return None
            return await browse(
                self._admin,
                topic,
                messages.place_of(given, board.now),
                count=messages.COUNT,
                partitions=messages.partitions_of(given),
                key=given.get("key") or None,
                wanted=messages.wanted_of(given),
                most_body=messages.MAX_BODY + 1,  # more tells that it was cut
            )

        return await self._asked(place, ask, partial(messages.messages_page, plugins=self._plugins))

    async def _asked(
        self, place: str, ask: Callable[[Board], Awaitable[T]], page_of: Callable[[Board, T | None, str], Page]
    ) -> Page:
        """Return a page with what was asked for, or why there is no answer, and with its banner."""
        board = Board(self._history, time.time(), arguments=arguments(place))
        found, problem = None, ""
        try:
            found = await ask(board)
        except NsqError as error:
            problem = str(error)
        # Bodies of publishers take long to show.
        return _framed(board, await in_thread(partial(page_of, board, found, problem)))


def _framed(board: Board, page: Page) -> Page:
    """Return a page with its banner and heading."""
    return Page(page.title, frame.live(board, page), page.status)


async def _gone(_request: Request, _error: Exception) -> Response:
    """Answer a form whose sender has left in the middle; nobody reads it."""
    return Response(status_code=400)


_PAGES: Final[Mapping[tuple[str, int], Callable[..., Page]]] = {
    ("", 0): overview,
    ("topics", 0): topics,
    ("topics", 1): topic_page,
    ("topics", 2): channel_page,
    ("nodes", 0): nodes,
    ("nodes", 1): node_page,
    ("timeline", 0): timeline,
}
"""The live pages, by the first part of the path and the number of the others, which are names."""


def _page(board: Board, parts: list[str]) -> Page:
    first, *names = parts or [""]
    make = _PAGES.get((first, len(names)))
    return change.failure("Not found", "The dashboard has no such page.", 404) if make is None else make(board, *names)


_LAST_PAGE: Final = 20
"""Seconds for which tabs may read the last state of a program's page; they hardly ever need one."""

log: Final = logging.getLogger("nsq_ha.dashboard")


class _Server(uvicorn.Server):
    """A server that leaves signals to the program."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


async def serve(
    admin: AdminClient,
    options: DashboardOptions,
    *,
    started: Callable[[str], object] = lambda _: None,
    extra: Extra | None = None,
) -> None:
    """Run a dashboard until cancelled.

    Args:
        admin: An open client of the cluster; keep it open until this returns.
        options: How it runs.
        started: Called with its URL as soon as browsers can connect.
        extra: The page of the example ``flights``. Leave it out: it may change without notice.

    Raises:
        ConfigError: The address or the change log cannot be used, a function of ``decoders`` cannot be loaded, or the
            token is missing or too short.
    """
    if options.token is None and options.needs_token:
        raise ConfigError("a dashboard that changes the cluster, or listens beyond the loopback, needs a token")
    dashboard = Dashboard(admin, options, extra)
    config = uvicorn.Config(
        dashboard.app(),
        access_log=False,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1 if extra is None else _LAST_PAGE,
        http="h11",
        ws="none",
    )
    with _listening(options.host, options.port) as listener:
        server = _Server(config)
        polling = asyncio.create_task(dashboard.poller.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            started(_url(listener))
            await asyncio.shield(serving)
        finally:
            dashboard.poller.close()
            server.should_exit = True
            polling.cancel()
            await asyncio.gather(polling, serving, return_exceptions=True)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the dashboard cannot listen on {host} port {port}: {error}; choose another one") from error


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
