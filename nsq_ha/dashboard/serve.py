"""Run the dashboard: listen, poll the cluster, and end both together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from nsq_ha.admin.findings import is_loopback
from nsq_ha.dashboard.app import Dashboard
from nsq_ha.dashboard.guard import Guard
from nsq_ha.dashboard.history import History
from nsq_ha.dashboard.poll import Poller
from nsq_ha.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nsq_ha.admin import AdminClient
    from nsq_ha.dashboard.pages.parts import Extra

DEFAULT_PORT: Final = 4171
"""The port of nsqadmin, which the dashboard replaces."""

_LAST_PAGE: Final = 20
"""Seconds for which tabs may read the last state of a program's page; they hardly ever need one."""

log: Final = logging.getLogger("nsq_ha.dashboard")


@dataclass(frozen=True, slots=True)
class DashboardOptions:
    """How a dashboard runs.

    Attributes:
        host: The address to listen on.
        port: Its port; 0 for a free one.
        interval: Seconds between two polls of the cluster.
        limit: Seconds for one poll; servers that take longer are shown as silent.
        history: Seconds for which figures are kept.
        token: What a person must know to sign in. None if nobody can; ``may_change`` and other hosts need one.
        may_change: Those who have signed in may pause, skip and empty channels, and move leaders.
        hosts: Names by which browsers reach the dashboard, besides ``localhost``, IP addresses and ``host``.
        trace_logs: Files that a search for a message reads.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    interval: float = 2.0
    limit: float = 5.0
    history: float = 900.0
    token: str | None = None
    may_change: bool = False
    hosts: tuple[str, ...] = ()
    trace_logs: tuple[Path, ...] = ()

    @property
    def is_private(self) -> bool:
        """Whether reading needs the token, too."""
        return not is_loopback(self.host)


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
        extra: A page of ``nsq-ha demo``. Leave it out: it may change without notice.

    Raises:
        ConfigError: The address cannot be used, or the token is missing or too short.
    """
    if options.token is None and (options.is_private or options.may_change):
        raise ConfigError("a dashboard that changes the cluster, or listens beyond the loopback, needs a token")
    guard = Guard(options.token, hosts=(*options.hosts, options.host), is_private=options.is_private)
    history = History(max(2, round(options.history / options.interval)))
    poller = Poller(admin, history, interval=options.interval, limit=options.limit)
    dashboard = Dashboard(
        admin,
        history,
        poller,
        guard,
        trace_logs=options.trace_logs,
        may_change=options.may_change,
        refresh=options.interval,
        extra=extra,
    )
    config = uvicorn.Config(
        dashboard.app(),
        access_log=False,
        log_config=None,
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1 if extra is None else _LAST_PAGE,
        limit_concurrency=300,
        ws="none",
    )
    with _listening(options.host, options.port) as listener:
        server = _Server(config)
        polling = asyncio.create_task(poller.run())
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            started(_url(listener))
            await asyncio.shield(serving)
        finally:
            poller.close()
            server.should_exit = True
            polling.cancel()
            await asyncio.gather(polling, serving, return_exceptions=True)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"the dashboard cannot listen on {host} port {port}: {error}; choose another one") from error
    with listener:
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
