"""The only places where a scenario lets time pass: for a condition, or because the time is the fault."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

GLANCE: Final = 0.05
"""Seconds between two looks at what this process knows itself."""
QUESTION: Final = 0.5
"""Seconds between two questions to the cluster, which has other things to do."""


async def until(condition: Callable[[], bool], limit: float) -> bool:
    """Return True as soon as ``condition`` holds, or False after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() >= deadline:
            return False
        # The books are pure and wake nobody: they are looked at.
        await asyncio.sleep(GLANCE)
    return True


async def settles(condition: Callable[[], bool], looks: int) -> bool:
    """Return True as soon as ``condition`` holds, or False after a number of looks.

    Between two looks all that is ready has its turn, however long the machine holds the loop up meanwhile.
    """
    for _ in range(looks):
        if condition():
            return True
        await asyncio.sleep(GLANCE)
    return condition()


async def until_true(question: Callable[[], Awaitable[bool]], limit: float, interval: float = QUESTION) -> bool:
    """Do the same with a question to the cluster, each ``interval`` seconds."""
    deadline = time.monotonic() + limit
    while not await question():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(interval)
    return True


async def lasts(seconds: float) -> None:
    """Let a state last: how long it does is what the scenario is about. The caller says why beside it."""
    await asyncio.sleep(seconds)


async def beat(due: float) -> None:
    """Wait for a moment of a rhythm, in the monotonic clock's time; return at once when it is past."""
    wait = due - time.monotonic()
    if wait > 0:
        await asyncio.sleep(wait)
