"""Threads of tests: what they raise reaches the test."""

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tests.support.nsqd import LIMIT
from tests.support.waiting import eventually

T = TypeVar("T")


def in_thread(function: Callable[[], T]) -> Future[T]:
    """Call ``function`` in a daemon thread of its own; return the future of its outcome."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the test
            outcome.set_exception(error)

    threading.Thread(target=run, name="of a test", daemon=True).start()
    return outcome


def at_once(number: int, function: Callable[[int], T]) -> list[T]:
    """Call ``function`` with 0 .. ``number - 1``, each in a thread of its own; they begin together."""
    ready = threading.Barrier(number)

    def call(index: int) -> T:
        ready.wait(LIMIT)
        return function(index)

    futures = [in_thread(lambda index=index: call(index)) for index in range(number)]  # type: ignore[misc]
    return [future.result(3 * LIMIT) for future in futures]


def until(condition: Callable[[], object], limit: float = LIMIT) -> None:
    """Wait until ``condition``, asked over and over, is true."""
    asyncio.run(eventually(condition, limit))


def signal_when(condition: Callable[[], object], thread: int) -> None:
    """Send SIGUSR1 to a thread of this process once ``condition`` is true."""
    until(condition)
    signal.pthread_kill(thread, signal.SIGUSR1)
