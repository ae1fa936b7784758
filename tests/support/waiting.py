"""Waiting for what nothing announces, and the few places where time itself is part of a test."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tests.support.nsqd import LIMIT
from tests.support.virtual import VirtualLoop

_LOOK: Final = 0.01
_LONGEST_LOOK: Final = 0.05
"""What is asked costs time of the processor: an answer that takes long is asked for less often."""


async def eventually(condition: Callable[[], object | Awaitable[object]], limit: float = LIMIT) -> None:
    """Return when ``condition``, asked over and over, is true."""
    is_virtual, look = isinstance(asyncio.get_running_loop(), VirtualLoop), _LOOK
    async with asyncio.timeout(limit):
        while True:
            outcome = condition()
            if inspect.isawaitable(outcome):
                outcome = await outcome
            if outcome:
                return
            await asyncio.sleep(look)
            if not is_virtual:
                look = min(1.2 * look, _LONGEST_LOOK)


async def turn(count: int = 1) -> None:
    """Let everything else that can run do so, ``count`` times: a task that was just made has begun after one."""
    for _ in range(count):
        await asyncio.sleep(0)


async def dawdle(seconds: float) -> None:
    """Be slow on purpose, as a peer or a load that the test plays; never a way to wait for something."""
    await asyncio.sleep(seconds)


def block(seconds: float) -> None:
    """Block the event loop on purpose, as application code that the test plays; never a way to wait for something."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if isinstance(loop, VirtualLoop) and loop.is_virtual:
        loop.advance(seconds)
    else:
        time.sleep(seconds)  # what the test is about: nothing else runs meanwhile


def stop_process(seconds: float, meanwhile: Callable[[], object]) -> None:
    """Let the process stand still in its next wait for events, as SIGSTOP and SIGCONT do; a real loop's only.

    The system ends such a wait early. Python takes it for one that ran out, and reports nothing of what came meanwhile.

    Args:
        seconds: How long it stands still.
        meanwhile: What peers do.
    """
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]  # noqa: SLF001
    wait = selector.select

    def select(timeout: float | None = None) -> object:
        if timeout is not None and timeout <= 0:
            return wait(timeout)
        del selector.select
        meanwhile()
        block(seconds)
        return []

    selector.select = select
