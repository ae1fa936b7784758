"""The CPU of an event loop's turns: what a peer can make one callback cost.

One callback is what other tasks have to wait for. CPU of the thread counts, so a busy machine measures the same.
"""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Final
from unittest import mock

TURN: Final = 0.05
"""Seconds of CPU that an input from outside may cost in one turn."""


class Turns:
    """The turns of one block.

    Attributes:
        longest: Seconds of CPU of the longest one.
        what: The callback that it ran.
        iteration: Seconds of CPU of the loop's longest iteration, which runs all callbacks that are due.
        count: Number of turns.
    """

    def __init__(self) -> None:
        self.longest: float = 0.0
        self.what: str = ""
        self.iteration: float = 0.0
        self.count: int = 0

    def ended(self, handle: asyncio.Handle, seconds: float) -> None:
        """Record a turn."""
        self.count += 1
        if seconds > self.longest:
            self.longest, self.what = seconds, repr(handle)


@contextlib.contextmanager
def turns() -> Iterator[Turns]:
    """Measure the callbacks that this thread's event loops run in the block.

    Garbage collection counts, since it holds the loop, too, but only of what the block makes: it does not look at the
    objects of earlier tests.
    """
    measured, here = Turns(), threading.get_ident()
    run = vars(asyncio.Handle)["_run"]
    running: list[tuple[asyncio.Handle, float]] = []

    def timed(handle: asyncio.Handle) -> None:
        if threading.get_ident() != here:
            run(handle)
            return
        running.append((handle, time.thread_time()))
        try:
            run(handle)
        finally:
            if running:  # the block has not ended in this turn
                ended()

    def ended() -> None:
        handle, began = running.pop()
        measured.ended(handle, time.thread_time() - began)

    once = vars(asyncio.BaseEventLoop)["_run_once"]

    def iterated(loop: asyncio.AbstractEventLoop) -> None:
        began = time.thread_time()
        once(loop)
        if threading.get_ident() == here:
            measured.iteration = max(measured.iteration, time.thread_time() - began)

    gc.freeze()
    with (
        mock.patch.object(asyncio.BaseEventLoop, "_run_once", iterated),
        mock.patch.object(asyncio.Handle, "_run", timed),
    ):
        try:
            yield measured
        finally:
            gc.unfreeze()
            if running:  # the turn in which the block ends counts so far: the repr of its handle is no work of its own
                ended()
