"""Marks before and after a change: ``python -m benchmarks.changes --before COMMIT [--rounds N]``.

Measures what no peer has: how long a large batch holds the event loop, and plain handlers in threads; see
``benchmarks.peers.clients.loop_work``. Both versions take turns in each round, on a canned cluster. ``peers`` with
``--before`` measures the other rows of the table in the same way. A row that was measured without ``--before`` has the
figure of an earlier run instead, which the table marks.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.canned_cluster import Shape, playing
from benchmarks.peers.environments import OURS_311, OURS_312, OURS_UVLOOP, ROOT, command_of, variables
from benchmarks.peers.rows import ROWS, judged
from benchmarks.record import Record, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.peers.rounds import Outcome

_MODULE: Final = "benchmarks.peers.clients.loop_work"
_LIMIT: Final = 120
_CLUSTER: Final = Shape(partitions=4, messages=5_000)
_ORDERED: Final = "ordered consume against a raw loop on asyncio"


@dataclass(frozen=True, slots=True)
class Own:
    """A row without a peer.

    Attributes:
        work: What is measured.
        figure: Which part of the answer counts.
        shown: Its name in the table.
        factor: Makes it the unit of the table.
        mark: The goal, in that unit.
        of: The unit, or what it is compared with.
        is_rate: More is better.
        earlier: The figure of an earlier run.
    """

    work: str
    figure: str
    shown: str
    factor: float
    mark: float
    of: str
    is_rate: bool
    earlier: float


OWN: Final = {
    "hold": Own("200,000 keyed messages in one `publish_many`", "hold", "longest hold", 1e3, 5.0, "ms", False, 90.0),
    "threads": Own(
        "`concurrency=8`, plain handlers, 1 ms each", "ratio", "rate", 1.0, 0.9, "a bare thread pool", True, 0.78
    ),
}

PEER_ROWS: Final = ("single", "publish16k", "batch16k", "batch", "rdy1", "latency2000", "memory")
_FIGURES: Final = ("p50", "rate", "cpu", "peak_bytes")

# (row, figure, client, best peer) of the issue that named the goals, from a run before the change.
_EARLIER: Final[dict[tuple[str, str, str], float]] = {
    ("single", "p50", OURS_312.name): 1.08,
    ("single", "p50", OURS_UVLOOP.name): 0.93,
    ("rdy1", "p50", OURS_312.name): 1.42,
    ("rdy1", "p50", OURS_UVLOOP.name): 1.43,
    ("latency2000", "p50", OURS_312.name): 0.42,
    ("memory", "peak_bytes", OURS_311.name): 1.08,
}

WHERE: Final = {
    "single": "Of the 5 us that a publish takes beyond the bare exchange, no call takes more than an eighth: the lane,"
    " the limits, the outcome and the encoding share them.",
    "publish16k": "Most of the time is the kernel's copy of each body to the socket, which all clients pay.",
    "batch16k": "Most of the time is the kernel's copy of 1.6 MB for each batch; Go writes and reads on two cores.",
    "batch": "A fifth is the check that all messages are bytes of a legal size, the rest is the path of one publish.",
    "rdy1": "One turn of the event loop each way, and three system calls, take most of it.",
    "latency2000": "nsqd's buffer of 16 KiB fills before the peers' timers end, so nsqd writes to all at once.",
    "memory": "The interpreter with asyncio and ssl takes 19.2 MiB, msgspec 1.7; the rest is our own modules.",
    "ordered": "Two fifths are the three system calls of each round trip, a fifth is asyncio, and a dozen calls of this"
    " library share the rest.",
    "hold": "A collection of garbage that traverses the list of the messages takes 4 to 5 ms, nothing else as long.",
    "threads": "Between two messages a thread waits for a turn of the event loop, 0.15 to 0.25 ms: the wake-up of the"
    " loop, the answer, and the wake-up of the thread.",
}
"""Where the time goes, from profiles; shown for rows that miss their goal."""


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after.

    Attributes:
        row: Its key.
        work: What was measured.
        figure: Which of its figures, and of which client.
        before: The figure of each round; one figure of an earlier run if ``is_earlier``. None if there is none.
        after: The figure of each round.
        mark: The goal.
        is_rate: More is better.
        of: What the figure is relative to, or its unit.
        is_earlier: ``before`` is from another run.
    """

    row: str
    work: str
    figure: str
    before: tuple[float, ...] | None
    after: tuple[float, ...]
    mark: float
    is_rate: bool
    of: str
    is_earlier: bool

    @property
    def is_reached(self) -> bool:
        """Whether the median reaches the goal."""
        found = statistics.median(self.after)
        return found >= self.mark if self.is_rate else found <= self.mark


def found(kept: Mapping[str, Any], rows: Mapping[str, Sequence[Outcome]]) -> list[Change]:
    """Return all changes of which there are figures.

    Args:
        kept: All figures.
        rows: Those of the peers, by row.
    """
    changes = [change for name in PEER_ROWS if name in rows for change in _of_peers(name, rows[name])]
    if _ORDERED in kept.get("ha", {"figures": {}})["figures"]:
        ours, other, _ = kept["ha"]["figures"][_ORDERED]
        after = tuple(a / b for a, b in zip(ours, other, strict=True))
        work, of = "ordered, one partition", "a raw asyncio loop"
        changes.append(Change("ordered", work, "rate", (0.75,), after, 0.9, is_rate=True, of=of, is_earlier=True))
    for name, own in OWN.items():
        figures = kept.get(f"changes/{name}", {"figures": {}})["figures"]
        if not figures.get("after"):
            continue
        after = tuple(one[own.figure] * own.factor for one in figures["after"])
        before = tuple(one[own.figure] * own.factor for one in figures.get("before", ()))
        was = before or (own.earlier,)
        changes.append(Change(name, own.work, own.shown, was, after, own.mark, own.is_rate, own.of, not before))
    return changes


def _of_peers(name: str, outcomes: Sequence[Outcome]) -> Iterator[Change]:
    row, by_client = ROWS[name], {outcome.client: outcome for outcome in outcomes}
    earlier = {outcome.client.name: outcome for outcome in outcomes}
    for mark in row.marks:
        verdict = judged(mark, by_client)
        if mark.figure not in _FIGURES or verdict is None:
            continue
        best, after, _ = verdict
        old = earlier.get(mark.ours.before("").name)
        before: tuple[float, ...] | None = None
        if old is not None and old.results:
            pairs = zip(old.per_message(mark.figure), best.per_message(mark.figure), strict=False)
            before = tuple(a / b for a, b in pairs)
        elif (name, mark.figure, mark.ours.name) in _EARLIER:
            before = (_EARLIER[name, mark.figure, mark.ours.name],)
        figure = f"{mark.figure.removesuffix('_bytes')}, {mark.ours.name.removeprefix('nsq_ha ')}"
        is_earlier = before is not None and (old is None or not old.results)
        of = best.client.name
        yield Change(name, row.work.name, figure, before, tuple(after), mark.at, mark.is_rate, of, is_earlier)


def table(changes: Sequence[Change]) -> str:
    """Return the changes as Markdown, with a sentence for each row that misses its goal."""
    lines = ["| work | figure | before | after | goal | of |", "|---" * 6 + "|"]
    for change in changes:
        after = _cell(change.after)
        cells = [change.work, change.figure, _before(change), after if change.is_reached else f"**{after}**"]
        lines.append(f"| {' | '.join(cells)} | {'>=' if change.is_rate else '<='} {change.mark:g} | {change.of} |")
    if any(change.is_earlier for change in changes):
        lines.append("\n\\* of an earlier run, since the version before was not measured in this one.")
    missed = dict.fromkeys(change.row for change in changes if not change.is_reached)
    if missed:
        works = {change.row: change.work for change in changes}
        lines.append("\nWhere the time goes in rows that miss their goal:\n")
        lines += [f"- **{works[row]}**: {WHERE[row]}" for row in missed]
    return "\n".join(lines)


def _before(change: Change) -> str:
    if change.before is None:
        return ""
    return f"{change.before[0]:.3g} \\*" if change.is_earlier else _cell(change.before)


def _cell(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.2f} ({min(figures):.2f}..{max(figures):.2f})"


def as_json(changes: Sequence[Change]) -> str:
    """Return what the chart needs."""
    return json.dumps([dataclasses.asdict(change) for change in changes], indent=1) + "\n"


def measure(name: str, commands: Mapping[str, list[str]], folder: Path, rounds: int) -> dict[str, list[Any]]:
    """Let the versions take turns.

    Args:
        name: The row.
        commands: The interpreter of each version and its options.
        folder: For the environment of the processes.
        rounds: How often each is measured.
    """
    figures: dict[str, list[Any]] = {version: [] for version in commands}
    for number in range(rounds):
        for version in list(commands)[:: 1 if number % 2 else -1]:
            with playing(_CLUSTER) as cluster:
                done = subprocess.run(
                    [commands[version][0], "-m", _MODULE, name, cluster.lookupd],
                    cwd=ROOT.parent,
                    env=variables(folder),
                    capture_output=True,
                    text=True,
                    timeout=_LIMIT,
                    check=True,
                )
            figures[version].append(json.loads(done.stdout.splitlines()[-1]))
    return figures


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.changes", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(OWN)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="of each version")
    parser.add_argument("--before", default="", metavar="COMMIT", help="measure this commit, too")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in OWN]:
        parser.error(f"unknown: {', '.join(unknown)}")
    clients = {"after": OURS_311} | ({"before": OURS_311.before(chosen.before)} if chosen.before else {})
    kept: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        commands = {version: command_of(client, Path(folder)) for version, client in clients.items()}
        for command in commands.values():
            if isinstance(command, str):
                print(command)
        usable = {version: command for version, command in commands.items() if isinstance(command, list)}
        for name in chosen.rows or OWN:
            before = load()
            figures = measure(name, usable, Path(folder), chosen.rounds)
            kept[f"changes/{name}"] = {"figures": figures}
            Record(chosen.json).keep(f"changes/{name}", figures, before)
    print(table(found(kept, {})))


if __name__ == "__main__":
    main()
