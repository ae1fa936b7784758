"""Processes of their own for measurements, and what the processes below this one have used, from ``/proc``."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Process:
    """What ``/proc`` tells of a process: its parent, its command, seconds of CPU, peak of memory in bytes."""

    parent: int
    command: str
    cpu: float
    peak: int


def below() -> list[tuple[Process, Process | None]]:
    """Return each process below this one with its parent; the server is none of them."""
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

    def is_ours(number: int) -> bool:
        while number in found and number != os.getpid():
            number = found[number].parent
        return number == os.getpid()

    return [(each, found.get(each.parent)) for number, each in found.items() if is_ours(number)]


def spent() -> float:
    """Return the seconds of CPU of this process and all below; 0 where there is no ``/proc``."""
    return sum(each.cpu for each, _ in below()) if Path("/proc/self/stat").exists() else 0.0


def peaks() -> list[int]:
    """Return the peak memory of each Python worker, in bytes; they are forks of the daemon."""
    daemon = "pyspark.daemon"
    return [each.peak for each, above in below() if daemon in each.command and above and daemon in above.command]


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
