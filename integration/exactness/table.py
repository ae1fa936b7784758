"""The tables of kept results: sums, and all runs for the docs by ``python -m integration.exactness.table FILE``."""

from __future__ import annotations

import collections
import json
import pathlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

Run = Mapping[str, Any]

NAMES: Final = ("acknowledged", "stored", "rows", "batches")


def sums(runs: Iterable[Run]) -> Iterator[tuple[str, str, int, list[int], int]]:
    """Yield what was killed, how was read, the number of runs, sums of what they did, and how many were exact."""
    grouped: dict[tuple[str, str], list[Run]] = collections.defaultdict(list)
    for run in runs:
        of = run["scenario"]
        grouped[of["fault"], of.get("fetch") or f"{of['source']}/{of['way']}"].append(run)
    for (fault, fetch), each in sorted(grouped.items()):
        counted = [sum(run[name] for run in each) for name in NAMES]
        yield fault, fetch, len(each), counted, sum(run["exact"] for run in each)


def summary(runs: Collection[Run]) -> str:
    """Return the sums as text."""
    heads = f"{'written':>10}{'stored':>10}{'rows':>10}{'batches':>9}"
    lines = [f"{'killed':<10}{'how':<17}{'runs':>6}{heads}{'exact':>7}"]
    for fault, fetch, count, (written, stored, rows, batches), exact in sums(runs):
        sums_of = f"{written:>10}{stored:>10}{rows:>10}{batches:>9}"
        lines.append(f"{fault:<10}{fetch:<17}{count:>6}{sums_of}{exact:>7}")
    return "\n".join(lines)


HEADS: Final = (
    "run",
    "topic",
    "fetch",
    "killed",
    "published",
    "limits",
    "written",
    "stored",
    "rows",
    "batches",
    "wrong rows",
)
SINK_HEADS: Final = (
    "run",
    "from",
    "to",
    "by",
    "killed",
    "rows of the source",
    "stored",
    "after `drop_repeats`",
    "batches",
    "wrong rows",
)
SAID: Final = {
    "source": "*Written* counts the messages whose publish succeeded, and *stored* those of the log. A publish that "
    "was in doubt while a leader died may be stored twice; then it is two messages of the log, and must be two rows.",
    "sink": "*Stored* counts the messages of the topic that was written to: what is more than the source has was "
    "published again. A row is wrong if its body is there more or less often than in the source after `drop_repeats`, "
    "or not in the order of its key.",
}
"""What the numbers mean."""


def page(about: Mapping[str, Any]) -> str:
    """Return all runs as the part that the docs include."""
    runs: Sequence[Run] = about["runs"]
    exact = sum(run["exact"] for run in runs)
    side = about.get("side", "source")
    heads = HEADS if side == "source" else SINK_HEADS
    loads = [run["load"] for run in runs]
    commits = ", ".join(f"`{each}`" for each in dict.fromkeys(run["commit"] for run in runs))
    text = (
        f"{exact} of {len(runs)} runs were exact: seed {about['seed']}, {about['cluster']} cluster of "
        f"{about['server']}, PySpark {about['pyspark']}, commit {commits}; {about['machine']}, with a load average of "
        f"{min(loads)} to {max(loads)} when a run began. {SAID[side]}"
    )
    lines = [
        text,
        "",
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
    ]
    lines += [f"| {' | '.join(_cells(run))} |" for run in runs]
    return "\n".join(lines)


def _cells(run: Run) -> list[str]:
    of, verdict = run["scenario"], run["verdict"]
    wrong = sum(value for value in verdict.values() if isinstance(value, int))
    counted = [f"{run[name]:,}" for name in NAMES]
    if "fetch" not in of:
        way = "stream" if of["way"] == "stream" else f"`foreachBatch`, {of['tasks'][0]}, then {of['tasks'][1]} tasks"
        return [str(of["number"]), of["source"], of["kind"], way, _killed(of), *counted, str(wrong)]
    published = "one by one" if of["lot"] == 1 else f"by {of['lot']}"
    fresh = f", {of['fresh']} fresh at the end" if of["fresh"] else ""
    limits = "; ".join(f"`{name}={value}`" for name, value in {**of["limit"], **of["cut"]}.items())
    return [str(of["number"]), of["kind"], of["fetch"], _killed(of), published + fresh, limits, *counted, str(wrong)]


def _killed(of: Mapping[str, Any]) -> str:
    if of["fault"] in ("driver", "leader"):
        return f"{of['fault']}, {'first' if of['early'] else 'later'} batch"
    names = {"none": "nothing", "repeat": "nothing, one batch repeated"}
    return names.get(of["fault"], str(of["fault"]))


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(pathlib.Path(sys.argv[1]).read_text())) + "\n")
