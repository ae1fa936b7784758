"""A client as a context manager: entered once, and nothing stays of an entering that failed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from nsq_ha.errors import ClosedError

if TYPE_CHECKING:
    from types import TracebackType


class EnteredOnce(ABC):
    """A client that is used with ``async with``, one time."""

    _was_entered = False

    async def __aenter__(self) -> Self:
        """Start, as the class says. Cancelled, nothing of it stays.

        Raises:
            ClosedError: It was entered before: make a new one.
        """
        if self._was_entered:
            raise ClosedError(f"a {type(self).__name__} is used once: make a new one")
        self._was_entered = True
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

    @abstractmethod
    async def _open(self) -> None:
        """Start; :meth:`aclose` follows when it raises."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close what was started, however far that came. May be called again."""
