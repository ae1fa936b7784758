"""What must not be left when producers and consumers are closed."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

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
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """Want that the block leaves no task, thread or socket that was not there before."""
    tasks, threads, sockets = _tasks(), _threads(), _sockets()
    yield
    # A socket is closed in the turn after its transport.
    with suppress(TimeoutError):
        await eventually(lambda: _sockets() <= sockets)
    assert _sockets() <= sockets
    # The scripted peer's task sees the end of its connection some turns later than the client.
    with suppress(TimeoutError):
        await eventually(lambda: _tasks() <= tasks)
    assert _tasks() <= tasks, _tasks() - tasks
    # A thread ends a moment after the request, in real time whatever the loop's clock.
    for thread in _threads() - threads:
        thread.join(LIMIT)
    assert _threads() <= threads, _threads() - threads
