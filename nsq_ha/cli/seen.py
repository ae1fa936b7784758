"""The file in which commands remember the servers of each cluster, so that the next one misses those that are gone.

It is only a convenience: a file that cannot be read, or written, is as good as none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from nsq_ha.admin.memory import KEPT, Memory
from nsq_ha.admin.reading import Reading
from nsq_ha.errors import LookupUnavailableError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from nsq_ha.admin import AdminClient
    from nsq_ha.cli.cluster import ClusterAccess

_FILE: Final = "seen.json"


class _Known(msgspec.Struct):
    """A cluster: the addresses of its nsqlookupds, and what is known of it."""

    lookupds: list[str]
    memory: Memory
    at: float = 0.0


def path() -> Path:
    """Return the file: in the folder of ``XDG_STATE_HOME``, by default ``~/.local/state``."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "nsq-ha" / _FILE


def recall(lookupd: Iterable[str]) -> Reading:
    """Return a reading that only has the memory of the cluster at these nsqlookupds; an empty one for a new one."""
    known = next((each for each in _load() if {*lookupd} & {*each.lookupds}), None)
    return Reading(0.0) if known is None else Reading(0.0, memory=known.memory)


async def look(cluster: ClusterAccess, admin: AdminClient, *, strict: bool = True) -> Reading:
    """Look at a cluster once, by what is known of it, and write down what is known then.

    Raises:
        LookupUnavailableError: With ``strict``, nobody answers.
    """
    reading = await admin.look(recall(cluster.lookupd))
    remember(cluster.lookupd, reading)
    if strict:
        reading.require()
    return reading


async def looks(
    lookupd: Iterable[str], admin: AdminClient, *, clients: bool, interval: float, count: int | None
) -> AsyncIterator[Reading | str]:
    """Yield looks at a cluster, each with the one before, or why there is none; ``interval`` is in seconds.

    Raises:
        LookupUnavailableError: There is not even a first one.
    """
    before, done = recall(lookupd), 0
    while done != count:
        began = time.monotonic()
        reading = await admin.look(before, clients=clients)
        try:
            reading.require()
        except LookupUnavailableError as error:
            if not done:
                raise
            yield str(error)
        else:
            remember(lookupd, reading)
            before = reading
            yield reading
        done += 1
        if done != count:
            await asyncio.sleep(max(0.0, began + interval - time.monotonic()))


def remember(lookupd: Iterable[str], reading: Reading) -> None:
    """Write down what is known of a cluster after a look."""
    if reading.is_fresh:
        keep(lookupd, reading.remembered, reading.at)


def keep(lookupd: Iterable[str], memory: Memory, at: float) -> None:
    """Write down what is known of a cluster, at a time in Unix seconds."""
    urls = sorted({*lookupd, *memory.lookupds})
    others = [each for each in _load() if not {*urls} & {*each.lookupds} and at - each.at < KEPT]
    data = msgspec.json.encode([_Known(urls, memory, at), *others])
    with contextlib.suppress(OSError, RuntimeError):
        file = path()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as output:
                output.write(data)
            Path(name).replace(file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _load() -> list[_Known]:
    with contextlib.suppress(OSError, RuntimeError, msgspec.MsgspecError, UnicodeError):
        return msgspec.json.decode(path().read_bytes(), type=list[_Known])
    return []
