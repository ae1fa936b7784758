"""The common part of producer and consumer: options, a single ``async with``, and a close that always completes.

The invariants: a client that failed to start leaves nothing behind, and a close completes even if its callers are
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeVar

from nsq_ha.base.forks import OfOneProcess
from nsq_ha.base.redaction import conceal, hide
from nsq_ha.base.tasks import Tasks
from nsq_ha.engine.http import load
from nsq_ha.engine.tls import ssl_context
from nsq_ha.engine.waiting import uninterrupted
from nsq_ha.errors import ClosedError, ConfigError
from nsq_ha.options.config import ClientConfig
from nsq_ha.policy.health import Trouble, health_of
from nsq_ha.policy.timing import FIRST_WARNING
from nsq_ha.stats import Health

_Config = TypeVar("_Config", bound="ClientConfig")

_running: Final = Tasks(logging.getLogger("nsq_ha"), lambda _: None)
"""Running closes: the client may be gone while it closes. Their callers get their errors."""


def options_of(kind: type[_Config], config: _Config | None, options: Mapping[str, object]) -> _Config:
    """Check the options, load what they need, and return them as one object.

    Args:
        kind: The class of the object.
        config: The options as one object. None uses ``options``.
        options: Fields of ``kind`` by name.

    Raises:
        ConfigError: Both forms are given, ``config`` has another class, an option is unknown or out of range, no
            address is given, or a file of the TLS options cannot be used.
    """
    hide(options)
    if config is not None and options:
        raise ConfigError("give either config= or options, not both")
    if config is not None and not isinstance(config, kind):
        raise ConfigError(f"config must be a {kind.__name__}, not {type(config).__name__}")
    config = config or kind.of(options)
    if not config.lookupd and not config.nsqd:
        raise ConfigError("give lookupd=, the address of an nsqlookupd, or nsqd=, those of plain nsqds")
    if config.tls is not None:
        ssl_context(config.tls)
    if config.lookupd_tls is not None:
        ssl_context(config.lookupd_tls, "lookupd_tls")
    if config.lookupd:
        load()
    if isinstance(config.auth_secret, str):
        conceal(config.auth_secret)  # another process may have made the object
    return config


class SingleUseClient(OfOneProcess, ABC):
    """A client for a single ``async with`` block in one event loop."""

    _close: Closing
    _loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Start, as the class describes. If this fails or is cancelled, everything is closed again.

        Raises:
            ClosedError: It was entered before. Create a new client.
        """
        if self._loop is not None:
            raise ClosedError(f"a {type(self).__name__} can be entered only once: create a new one")
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as undo:
            undo.push_async_callback(self.aclose)
            await self._open()
            undo.pop_all()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close, see :meth:`aclose`."""
        await self.aclose()

    def _check_loop(self) -> None:
        """Check the running event loop, since a wait in another one would never end.

        Raises:
            ConfigError: The client was entered in another event loop.
        """
        if self._loop is None:
            return
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not self._loop:
            name = type(self).__name__
            raise ConfigError(f"a {name} belongs to the event loop that entered it; this is another one")

    def health(self, *, patience: float = FIRST_WARNING) -> Health:
        """Return whether the client works, and why not. It makes no request, and any thread may call it.

        The client is unhealthy if it is not open, if nsqd refused something that retries cannot fix, if no nsqlookupd
        answers, and if a partition cannot be published to or read. A pause or back-off is not unhealthy, but named.
        A producer that uses no topic has no connections, and knows only whether an nsqlookupd answers, within 30 s.

        Args:
            patience: Seconds of trouble after which the client is unhealthy. The default is the time after which the
                log warns: a change of a leader takes less.
        """
        stopped = self._stopped()
        if stopped is not None:
            return Health(is_healthy=False, reason=stopped)
        return health_of(self._troubles(), self._notes(), patience)

    @property
    def is_healthy(self) -> bool:
        """Whether :meth:`health` finds nothing wrong."""
        return self.health().is_healthy

    def _stopped(self) -> str | None:
        """Return why the client cannot work at all. None if it can."""
        if self._close.has_begun:
            return "closed" if self._close.is_done else "closing"
        if self._loop is None:
            return "not started yet"
        if self._loop.is_closed():
            return "closed, since its event loop is closed"
        return None

    @abstractmethod
    def _troubles(self) -> list[Trouble]:
        """Return the parts that do not work now."""

    def _notes(self) -> list[str]:
        """Return what an operator may want to know about a healthy client."""
        return []

    @abstractmethod
    async def _open(self) -> None:
        """Start; if it raises, :meth:`aclose` is called."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close everything that was started. May be called again."""


def check_entered(client: SingleUseClient) -> None:
    """Check that a client that was passed to another one can be used in this event loop.

    Raises:
        ConfigError: It was not entered, or another event loop entered it.
        ClosedError: It is closed.
    """
    name = type(client).__name__
    if client._loop is None:  # noqa: SLF001 - the class is this module's
        raise ConfigError(
            f"the {name} was not entered: enter it first, as in `async with {name}(...) as {name.lower()}`"
        )
    client._check_loop()  # noqa: SLF001 - the class is this module's
    if client._close.has_begun:  # noqa: SLF001 - the class is this module's
        raise ClosedError(f"the {name} is closed: create a new one")


class Closing:
    """Closes one client: waits for pending work, then ends everything else.

    The invariants: the second part always completes, even if its callers are
    cancelled, and every call returns soon after that. If the task itself is
    cancelled, as at the end of ``asyncio.run``, the next call starts it again.

    Args:
        drain: Waits for pending work; cancelled when no caller waits for the close any more.
        end: Ends everything else, in a bounded time. It may run again after a cancellation.
        name: The task's name.

    Attributes:
        has_begun: A close was requested.
        is_done: Everything is closed.
    """

    def __init__(
        self,
        drain: Callable[[], Coroutine[Any, Any, object]],
        end: Callable[[], Coroutine[Any, Any, object]],
        name: str,
    ) -> None:
        self.has_begun: bool = False
        self.is_done: bool = False
        self._drain = drain
        self._end = end
        self._name = name
        self._draining: asyncio.Task[object] | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Start the close unless it runs, and return its task."""
        self.has_begun = True
        if self._draining is None:
            self._draining = _running.start(self._drain(), f"{self._name}: waiting for pending work")
        if self._task is None or self._task.cancelled():
            self._task = _running.start(self._run(self._draining), self._name)
        return self._task

    def hurry(self) -> None:
        """Stop waiting for pending work."""
        if self._draining is not None:
            self._draining.cancel()

    async def wait(self) -> None:
        """Start the close unless it runs, and wait for its end.

        If cancelled, it stops waiting for pending work and waits only for the rest, which takes milliseconds. It waits
        for that however often it is cancelled: anyio cancels again in each turn of the loop.
        """
        if self.is_done:
            return
        task = self.begin()
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            self.hurry()
            await uninterrupted(task)
            raise
        if not task.cancelled():
            task.result()

    async def _run(self, draining: asyncio.Task[object]) -> None:
        await asyncio.wait({draining})
        await self._end()
        self.is_done = True
        if not draining.cancelled():
            draining.result()
