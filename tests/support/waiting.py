"""Waiting for what nothing announces."""

import asyncio
from collections.abc import Callable
from typing import Final

from tests.support.nsqd import LIMIT

_LOOK: Final = 0.01


async def eventually(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Return when ``condition``, asked over and over, is true."""
    async with asyncio.timeout(limit):
        while True:
            if condition():
                return
            await asyncio.sleep(_LOOK)
