"""Processes of their own for measurements, and what the processes below this one have used, from ``/proc``."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

SCANS: Final = 20
"""Most scans of ``/proc``, if processes come and go during each."""
LISTENS: Final = "0A"
"""State of a listening socket in ``/proc/net/tcp``."""
DAEMON: Final = "pyspark.daemon"


@dataclass(frozen=True, slots=True)
class Process:
    """What ``/proc`` tells of a process: its parent, its command, seconds of CPU, peak of memory in bytes."""

    parent: int
    command: str
    cpu: float
    peak: int


class Usage(NamedTuple):
    """Seconds of CPU: of this process and all below, of the tasks' Python workers among them, and of given servers."""

    ours: float
    workers: float
    servers: float

    def since(self, before: Usage) -> Usage:
        """Return what was used since another reading."""
        return Usage(*(now - then for now, then in zip(self, before, strict=True)))


def _every() -> dict[int, Process]:
    """Return all processes by their ids."""
    found: dict[int, Process] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            status = (folder / "status").read_text()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue
        peak = re.search(r"VmHWM:\s*(\d+)", status)
        # Those of children that have ended count too: workers come and go.
        cpu = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
        found[int(folder.name)] = Process(int(words[1]), command, cpu, int(peak[1]) * 1024 if peak else 0)
    return found


def workers() -> dict[int, Process]:
    """Return Spark's Python workers below this process, by their ids: forks of the daemon."""
    found = _every()
    return _workers(found, _ours(found))


def _workers(found: dict[int, Process], ours: set[int]) -> dict[int, Process]:
    return {
        number: found[number]
        for number in ours
        if DAEMON in found[number].command
        and (above := found.get(found[number].parent)) is not None
        and DAEMON in above.command
    }


_seen: dict[int, Process] = {}
"""Spark's Python workers: the daemon does not wait for those that end, so nobody inherits their time."""


def _ours(found: dict[int, Process]) -> set[int]:
    """Return which processes are this one and those below it."""

    def is_ours(number: int) -> bool:
        while number in found and number != os.getpid():
            number = found[number].parent
        return number == os.getpid()

    return {number for number in found if is_ours(number)}


def used(servers: frozenset[int] = frozenset()) -> Usage:
    """Return the seconds of CPU used so far; zeros where there is no ``/proc``.

    Args:
        servers: Process ids of servers that are not below this process.
    """
    if not Path("/proc/self/stat").exists():
        return Usage(0.0, 0.0, 0.0)
    found = _every()
    for _ in range(SCANS):
        # The time of a process that ends is its parent's from then on: if that happens during a scan, it is missing.
        before, found = found, _every()
        if _ours(before) == _ours(found):
            break
    ours = _ours(found)
    _seen.update(_workers(found, ours))
    every = (_seen | {number: found[number] for number in ours}).values()
    return Usage(
        sum(each.cpu for each in every),
        sum(each.cpu for each in every if "pyspark.worker" in each.command),
        sum(found[number].cpu for number in servers & found.keys()),
    )


def listeners(ports: frozenset[int]) -> frozenset[int]:
    """Return the ids of the processes of this machine that listen on one of these TCP ports, as far as one may see."""
    sockets = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            words = line.split()
            if words[3] == LISTENS and int(words[1].rpartition(":")[2], 16) in ports:
                sockets.add(f"socket:[{words[9]}]")
    return frozenset(number for number in _every() if sockets & _files(number))


def _files(number: int) -> set[str]:
    """Return what the open files of a process are; nothing of another user's."""
    found = set()
    try:
        for each in Path(f"/proc/{number}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                found.add(str(each.readlink()))
    except OSError:
        return set()
    return found


def in_a_process(measure: Callable[..., None], *arguments: object, join_timeout: float) -> Any:  # noqa: ANN401 - it chooses
    """Measure in a new process, and return what it sends.

    Args:
        measure: Gets a connection to send its one result through, then the arguments.
        arguments: They travel by pickle.
        join_timeout: Seconds that the process has to end, after its result.

    Raises:
        EOFError: It ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=measure, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join(join_timeout)


@contextmanager
def serving_process(serve: Callable[..., None], *arguments: object) -> Iterator[Any]:
    """Run a server in a process of its own until the block ends; gives what it sends first, such as its port.

    Args:
        serve: Gets a connection to send that through, then the arguments.
        arguments: They travel by pickle.

    Raises:
        EOFError: It ended without sending anything.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()  # otherwise a process that dies at its start would be waited for forever
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()
