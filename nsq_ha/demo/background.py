"""Run long calls, such as Spark's, beside the event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


async def in_thread(work: Callable[[], _T]) -> _T:
    """Run a long call in a thread, and return its result or raise its error; a cancelled caller does not wait."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def settle(ran: concurrent.futures.Future[_T]) -> None:
        if done.cancelled():
            return
        error = ran.exception()
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(ran.result())

    def run() -> None:
        ran: concurrent.futures.Future[_T] = concurrent.futures.Future()
        try:
            ran.set_result(work())
        except Exception as caught:  # noqa: BLE001 - raised again where it is awaited
            ran.set_exception(caught)
        with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(settle, ran)

    threading.Thread(target=run, name="nsq_ha demo spark", daemon=True).start()
    return await done
