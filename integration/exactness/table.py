"""The table of all runs for the docs: ``python -m integration.exactness.table FILE``."""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.markdown import table

Run = Mapping[str, Any]

NAMES: Final = ("acknowledged", "stored", "rows", "batches")


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
    return f"{text}\n\n{table(heads, map(_cells, runs))}"


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
