"""The event loop of tests that need real sockets or a real clock."""

import asyncio
from asyncio import constants
from collections.abc import Callable
from typing import Final

# In debug mode each coroutine remembers where it was made; the nearest line of the stack is enough to find it.
constants.DEBUG_STACK_DEPTH = 1  # type: ignore[misc]


class QuickLoop(asyncio.SelectorEventLoop):
    """A loop in debug mode, without the part of it that takes half of a test's time."""

    def get_debug(self) -> bool:
        """Return False: asyncio remembers no stack for each callback and future.

        Its checks (calls from other threads, coroutines that nobody awaited) are on as pytest-asyncio set them.
        """
        return False

    def _check_callback(self, callback: object, method: str) -> None:
        """Leave it out: it takes as long as the rest of a call, and a coroutine nobody awaits is noticed anyway."""


LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {"real": QuickLoop}
"""What pytest-asyncio's hook returns."""
