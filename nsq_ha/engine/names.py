"""Host names, resolved in threads of their own.

asyncio resolves in its default executor, which has six threads on a machine with two cores, and which is the
application's, too. While that fills them, no name would be resolved. A resolver may take 20 s for a name, and holds its
thread when all have given up: an answer that names many such nsqds would hold up the clients of other clusters, and the
application's own calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from nsq_ha.base.threads import in_thread
from nsq_ha.engine.loops import PerLoop
from nsq_ha.options.checks import is_ip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

MOST_AT_ONCE: Final = 8
"""Names that are resolved at the same time for the clients of one cluster."""

_places: PerLoop[WeakValueDictionary[tuple[str, ...], asyncio.Semaphore]] = PerLoop(WeakValueDictionary)


def places_of(cluster: tuple[str, ...]) -> asyncio.Semaphore:
    """Return what bounds the names that are resolved for the clients of a cluster, in the running event loop."""
    return _places.here().setdefault(cluster, asyncio.Semaphore(MOST_AT_ONCE))


async def addresses(host: str, port: int, places: asyncio.Semaphore) -> list[str]:
    """Return the IP addresses of a host, those to be tried first in front.

    Args:
        host: A name or an address.
        port: The port.
        places: One of them is taken meanwhile.

    Raises:
        OSError: The name cannot be resolved.
        ValueError: The name is not legal.

    If cancelled, the resolver goes on in its thread.
    """
    if is_ip(host):
        return [host]
    async with places:
        found = await in_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def first_open(
    found: Sequence[str],
    limit: float,
    connect: Callable[[str], Awaitable[T]],
    errors: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """Connect to the first of some addresses that answers.

    Args:
        found: The addresses, at least one.
        limit: Seconds for all of them. Each has an equal share of what is left, so that one that drops packets leaves
            time for the others; the caller limits the last one.
        connect: Connects to an address.
        errors: What ``connect`` raises for an address that does not answer.

    Raises:
        Exception: The error of the last address.
    """
    now = asyncio.get_running_loop().time
    end = now() + limit
    for number, address in enumerate(found[:-1]):
        with contextlib.suppress(TimeoutError, *errors):
            async with asyncio.timeout((end - now()) / (len(found) - number)):
                return await connect(address)
    return await connect(found[-1])
