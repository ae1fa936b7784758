"""The limits of a whole call: its time, with what the error says, and how many servers it asks at once.

``leading`` and ``spread`` record there what is not done yet, so that the error of a call that ends in the middle names
it.

Source: server failures 2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Final, Self, TypeVar

from nsq_ha.errors import (
    MAY_STILL_HAPPEN,
    ChangeIncompleteError,
    DiscoveryError,
    NoLeaderError,
    NsqError,
    TopicNotFoundError,
)
from nsq_ha.options.checks import check_timeout

T = TypeVar("T")
U = TypeVar("U")


PAUSE: Final = 0.3
"""Seconds between two checks of a pending change."""

_LONGEST_PAUSE: Final = 10.0

AT_ONCE: Final = 16
"""Number of servers that one call asks at the same time."""


async def several(ask: Callable[[T], Awaitable[U]], of: Iterable[T], at_once: int | None = None) -> list[U]:
    """Return what ``ask`` returns for each, in their order; only some are asked at the same time."""
    slots = asyncio.Semaphore(at_once or AT_ONCE)

    async def limited(each: T) -> U:
        async with slots:
            return await ask(each)

    return list(await asyncio.gather(*map(limited, of)))


class Bounded:
    """The time limit of a whole call; its error names the last obstacle.

    Args:
        what: The call in words, such as "creating topic orders".
        timeout: Seconds.
        changes: The call changes the cluster. False for one that only reads.

    Attributes:
        what: The call in words.
        last: The latest obstacle. None if there was none.
        open: Why a place does not show the change yet, by place.
        done: The places that show it.

    Raises:
        ConfigError: ``timeout`` is not a number of seconds.
    """

    def __init__(self, what: str, timeout: float, *, changes: bool = True) -> None:
        check_timeout(timeout)
        self.what = what
        self.last: NsqError | None = None
        self.open: dict[str, str] = {}
        self.done: set[str] = set()
        self._changes = changes
        self._text = f"{what} did not finish within {timeout:g} s"
        self._limit = asyncio.timeout(timeout)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._limit.__aexit__(kind, error, trace)
        except TimeoutError as over:
            raise self._error() from self.last or over

    async def until(self, place: str, ask: Callable[[], Awaitable[str]], *, growth: float = 1.0) -> None:
        """Ask again and again, until a place shows the change.

        Args:
            place: The place.
            ask: Returns why it does not show the change; empty if it does.
            growth: How many times as long as the one before each pause is, up to a limit.
        """
        self.open[place], pause = "it has not answered yet", PAUSE
        while text := await ask():
            self.open[place] = text
            await asyncio.sleep(pause)
            pause = min(pause * growth, _LONGEST_PAUSE)
        del self.open[place]
        self.done.add(place)

    def _error(self) -> DiscoveryError:
        if self.open:
            return ChangeIncompleteError(self._text, tuple(sorted(self.open.items())), tuple(sorted(self.done)))
        text = self._text if self.last is None else f"{self._text}: {self.last}"
        if self._changes:
            text = f"{text}. {MAY_STILL_HAPPEN}"
        if isinstance(self.last, NoLeaderError | TopicNotFoundError):
            return type(self.last)(text)
        return DiscoveryError(text)
