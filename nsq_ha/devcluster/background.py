"""An event loop in a thread of its own.

A cluster must answer while the test that uses it blocks, or runs a loop itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_Result = TypeVar("_Result")


class BackgroundLoop:
    """Runs functions and coroutines on a loop in another thread; usable from any thread but that one.

    Attributes:
        loop: The loop.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def call(self, function: Callable[[], _Result], timeout: float = 30.0) -> _Result:
        """Run a function on the loop and return what it returns.

        Raises:
            RuntimeError: Called from the loop's own thread, where it would wait for itself.
            TimeoutError: The loop did not come to it in ``timeout`` seconds.
        """

        async def run() -> _Result:
            return function()

        return self.run(run(), timeout)

    def run(self, coroutine: Coroutine[Any, Any, _Result], timeout: float = 30.0) -> _Result:
        """Run a coroutine on the loop and return what it returns.

        Raises:
            RuntimeError: As for :meth:`call`.
            TimeoutError: As for :meth:`call`; the coroutine is cancelled.
        """
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("a cluster cannot be controlled from its own thread")
        future: Future[_Result] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """End what still runs, then the loop and its thread."""
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    @staticmethod
    async def _cancel_all() -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets transports that were aborted close their sockets
