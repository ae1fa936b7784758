"""What must not be left when producers and consumers are closed."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import pytest_asyncio

from tests.support.inside import watched_sockets
from tests.support.nsqd import LIMIT
from tests.support.virtual import VirtualLoop
from tests.support.waiting import eventually


def _sockets() -> int:
    loop = asyncio.get_running_loop()
    in_memory = len(loop.transports) if isinstance(loop, VirtualLoop) else 0
    return watched_sockets() - 1 + in_memory


def _tasks() -> set[asyncio.Task[object]]:
    # A fixture is set up in one task and torn down in another.
    return asyncio.all_tasks() - {asyncio.current_task()}


def _threads() -> set[threading.Thread]:
    # asyncio's executor, and the thread of the process that logs for all background loops, last.
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith("asyncio_") and thread.name != "nsq_ha logs and reports"
    }


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Want that the block leaves no task, thread or socket that was not there before."""
    tasks, sockets = _tasks(), _sockets()
    with no_thread_left():
        yield
        # A socket is closed in the turn after its transport.
        with suppress(TimeoutError):
            await eventually(lambda: _sockets() <= sockets)
        assert _sockets() <= sockets
        # The scripted peer's task sees the end of its connection some turns later than the client.
        with suppress(TimeoutError):
            await eventually(lambda: _tasks() <= tasks)
        assert _tasks() <= tasks, _tasks() - tasks


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Want that the block leaves no thread that was not there before."""
    threads = _threads()
    yield
    # A thread ends a moment after the request, in real time whatever the loop's clock.
    for thread in _threads() - threads:
        thread.join(LIMIT)
    assert _threads() <= threads, _threads() - threads


def watch(request: pytest.FixtureRequest, coroutines: str) -> Iterator[None]:
    """Watch a test: a coroutine by this fixture; a function has no loop, so that it can leave only threads."""
    if pytest_asyncio.is_async_test(request.node):
        request.getfixturevalue(coroutines)
        yield
    else:
        with no_thread_left():
            yield
