"""What the cluster itself accepted, as reported by the probes' process."""

import asyncio
import json
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

PARTITION = tuple[str, int]


class Probes:
    """Runs the probes; :meth:`start` and :meth:`stop` it.

    Args:
        say: Tells what a node answers when that changes.
        name_of: Name of the node at a TCP port.

    Attributes:
        taken: Times at which each partition took a publish, ascending.
        is_idle: Nothing is probed; the cluster counts as never out.
    """

    def __init__(self, say: Callable[[str], None], name_of: Callable[[int], str]) -> None:
        self.taken: dict[PARTITION, list[float]] = {}
        self.is_idle = False
        self._say = say
        self._name_of = name_of
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self, topics: dict[str, int], ports: Iterable[int]) -> None:
        """Probe every partition of ``topics`` at every node of ``ports``: any of them may come to lead it."""
        ports = tuple(ports)
        targets = [
            (topic, partition, "127.0.0.1", port)
            for topic, number in topics.items()
            for partition in range(number)
            for port in ports
        ]
        self.taken = {(topic, partition): [] for topic, partition, *_ in targets}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "integration.faults.probing",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(targets).encode() + b"\n")
        self._reading = asyncio.create_task(self._read(self._process))

    async def stop(self) -> None:
        """End the process."""
        if self._process is None or self._reading is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(5):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
        await self._reading

    @property
    def have_ended(self) -> bool:
        """Whether nothing is probed any more."""
        return self._process is None or self._process.returncode is not None

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        async for line in process.stdout:
            report = json.loads(line)
            if "said" in report:
                self._say(f"probe {report['topic']} at {self._name_of(report['port'])}: {report['said']}")
            else:
                times = self.taken[report["topic"], report["partition"]]
                times.append(report["t"])

    def is_taking(self, now: float, within: float = 0.5) -> bool:
        """Tell whether every partition took a publish during the last ``within`` seconds."""
        return all(times and now - times[-1] < within for times in self.taken.values())

    def outage(self, topic: str, partition: int, since: float, until: float) -> float:
        """Return the longest time between ``since`` and ``until`` in which the partition took nothing."""
        return 0.0 if self.is_idle else longest_gap(self.taken.get((topic, partition), []), since, until)

    def outage_within(self, topic: str, partition: int, began: float, ended: float) -> float:
        """Return the longest part of a time in which the partition took nothing."""
        if self.is_idle:
            return 0.0
        times = self.taken.get((topic, partition), [])
        return longest_gap(times[bisect_right(times, began) : bisect_right(times, ended)], began, ended)

    def of(self, topic: str) -> list[PARTITION]:
        """Return the topic's partitions."""
        return [partition for partition in self.taken if partition[0] == topic]


def longest_gap(times: Iterable[float], since: float, until: float) -> float:
    """Return the longest gap between ascending ``times`` that reaches into ``since..until``.

    The gap under way at ``since`` counts from its own beginning.
    """
    began, ended = longest_gap_span(times, since, until)
    return ended - began


def longest_gap_span(times: Iterable[float], since: float, until: float) -> tuple[float, float]:
    """Return when that gap began and ended."""
    return max(gaps(times, since, until), key=lambda gap: gap[1] - gap[0])


def gaps(times: Iterable[float], since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yield when each gap began and ended."""
    before = since
    for time in times:
        if time <= since:
            before = time
            continue
        if time > until:
            break
        yield before, time
        before = time
    yield before, until
