"""Host names, resolved in threads of their own, one for each name.

asyncio resolves in its default executor, which has six threads on a machine with two cores, and which is the
application's, too. While that fills them, no name would be resolved. A resolver may take 20 s for a name, and holds its
thread when all have given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from nsq_ha.base.threads import in_thread
from nsq_ha.engine.loops import PerLoop
from nsq_ha.options.checks import is_ip

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

_resolving: Final[PerLoop[dict[tuple[str, int], asyncio.Task[list[str] | Exception]]]] = PerLoop(dict)


async def addresses(host: str, port: int) -> list[str]:
    """Return the IP addresses of a host, those to be tried first in front.

    Args:
        host: A name or an address.
        port: The port.

    Raises:
        OSError: The name cannot be resolved.
        ValueError: The name is not valid.

    If cancelled, the resolver goes on, and the next call waits for it.
    """
    if is_ip(host):
        return [host]
    running = _resolving.here()
    task = running.get((host, port))
    if task is None:
        task = running[host, port] = asyncio.create_task(_resolved(host, port), name=f"nsq_ha resolves {host}")
    await asyncio.wait({task})
    found = task.result()
    if isinstance(found, Exception):
        raise found.with_traceback(None)
    return found


async def _resolved(host: str, port: int) -> list[str] | Exception:
    try:
        found = await in_thread(partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    except (OSError, ValueError) as error:
        return error
    finally:
        del _resolving.here()[host, port]


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
