"""A client as a context manager: entered once, and nothing stays of an entering that failed."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from nsq_ha.errors import ClosedError, ConfigError

if TYPE_CHECKING:
    from types import TracebackType


class EnteredOnce(ABC):
    """A client that is used with ``async with``, one time, in one event loop."""

    _closing: asyncio.Event
    _was_entered = False
    _loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Start, as the class says. Cancelled, nothing of it stays.

        Raises:
            ClosedError: It was entered before: make a new one.
        """
        if self._was_entered:
            raise ClosedError(f"a {type(self).__name__} is used once: make a new one")
        self._was_entered = True
        self._loop = asyncio.get_running_loop()
        try:
            await self._open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close, see :meth:`aclose`."""
        await self.aclose()

    def _check_loop(self) -> None:
        """Refuse to be used from elsewhere: what is waited for there is never woken.

        Raises:
            ConfigError: Another event loop entered it.
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

    @abstractmethod
    async def _open(self) -> None:
        """Start; :meth:`aclose` follows when it raises."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what was started, however far that came. May be called again."""


def check_entered(client: EnteredOnce) -> None:
    """Check that a client which was given to another one can be used in this event loop.

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
    if client._closing.is_set():  # noqa: SLF001 - the class is this module's
        raise ClosedError(f"the {name} is closed: make a new one")
