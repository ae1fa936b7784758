"""What every client's process shares: the task it is given, the clock, and how it answers.

Needs nothing but the standard library, since each client runs in an environment
that has only that client. A process is given one task as JSON and prints one
line of JSON. Time and CPU (the operating system's account of this process, user
and system) run from :meth:`Meter.start` to :meth:`Meter.stop`, so that neither
the interpreter's start nor imports count; memory is the process's peak.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPS: Final = ("asyncio", "uvloop")


@dataclass(frozen=True)
class Task:
    """One measurement of one client.

    Attributes:
        work: ``drain``, ``publish``, ``single``, ``batch`` or ``latency``.
        address: ``host:port`` of the nsqd.
        topic: To read or publish.
        channel: To read.
        count: Messages.
        body_bytes: Size of each body.
        in_flight: Unanswered messages or publishes at most.
        rate: Messages a second of ``latency``.
        loop: ``asyncio`` or ``uvloop``, where the client can choose.
    """

    work: str
    address: str
    topic: str
    channel: str = "bench"
    count: int = 0
    body_bytes: int = 100
    in_flight: int = 200
    rate: int = 0
    loop: str = "asyncio"

    @property
    def body(self) -> bytes:
        """A body of the wanted size."""
        return b"x" * self.body_bytes


def task() -> Task:
    """Return the task that this process was given."""
    return Task(**json.loads(sys.argv[1]))


def peak_bytes() -> int:
    """Return the most memory that this process had.

    Linux hands the figure of ``getrusage`` on from the process that started this one, so its own is read.
    """
    try:
        with open("/proc/self/status") as status:  # noqa: PTH123 - pathlib would add to what is measured
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Meter:
    """Measures one piece of work of this process."""

    def __init__(self) -> None:
        """Start; call :meth:`start` again when the preparations are over."""
        self.start()

    def start(self) -> None:
        """Begin to count now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu = usage.ru_utime + usage.ru_stime
        self._wall = time.perf_counter()

    def stop(self, latencies: Sequence[float] = ()) -> None:
        """Print what was used since the start.

        Args:
            latencies: Seconds, one a message, where they are what is measured.
        """
        wall = time.perf_counter() - self._wall
        usage = resource.getrusage(resource.RUSAGE_SELF)
        answer = {
            "seconds": wall,
            "cpu_seconds": usage.ru_utime + usage.ru_stime - self._cpu,
            "peak_bytes": peak_bytes(),
        }
        if latencies:
            ordered = sorted(latencies)
            answer["p50"] = ordered[len(ordered) // 2]
            answer["p99"] = ordered[len(ordered) * 99 // 100]
        print(json.dumps(answer), flush=True)
