"""``python -m integration.faults.table ROWS.jsonl ... [--last N] [--long]``: the tables of the docs.

Each figure is the worst of a scenario's last N measured runs; ``--long`` tells those of chaos and soaks, one row each.
"""

import argparse
import collections
import json
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

from benchmarks.markdown import table
from integration.faults.scenarios import ALL, NAMED

Run = dict[str, Any]

COLUMNS = (
    "fault",
    "target",
    "added, ordered",
    "added, ordinary",
    "further figures (s, questions a second)",
    "errors / lost / disorder / untrue",
    "runs",
    "within the target",
)
SPOILT = ("did not run",)


def load(paths: Iterable[pathlib.Path]) -> dict[str, list[Run]]:
    """Return the runs of each scenario in the order of the files; those that could not be done are left out."""
    runs: dict[str, list[Run]] = collections.defaultdict(list)
    for path in paths:
        for line in path.read_text().splitlines():
            run = json.loads(line)
            if not any(one.startswith(SPOILT) for one in run["broken"]):
                runs[run["scenario"]].append(run)
    return runs


def scenarios(runs: dict[str, list[Run]], last: int) -> str:
    """Return the table of all scenarios, and the commits that ran."""
    rows: list[tuple[str, ...]] = []
    commits: collections.Counter[str] = collections.Counter()
    for scenario in (*ALL, *NAMED):
        chosen = runs.get(scenario.name, [])[-last:]
        if not chosen:
            rows.append((scenario.fault, str(scenario.target), "not run"))
            continue
        commits.update(run.get("code", "?") for run in chosen)
        added = (_added(chosen, "ordered"), _added(chosen, "ordinary"), _further(chosen))
        ended = (_counts(chosen), str(len(chosen)), _reached(chosen))
        rows.append((scenario.fault, str(scenario.target), *added, *ended))
    named = ", ".join(f"`{commit}` ({count})" for commit, count in commits.most_common())
    return f"{table(COLUMNS, rows)}\n\nCommits, with the number of runs: {named}."


def _figures(runs: list[Run], topic: str) -> list[dict[str, Any]]:
    return [one for run in runs for one in run["figures"] if one["topic"] == topic]


def _added(runs: list[Run], topic: str) -> str:
    figures = _figures(runs, topic)
    if not figures:
        return ""
    publish, consume = (max(one[name] for one in figures) for name in ("publish_added", "consume_added"))
    return f"{publish:.2f} / {consume:.2f}"


def _further(runs: list[Run]) -> str:
    names = dict.fromkeys(name for run in runs for name in run["extra"])
    worst = {name: max(run["extra"].get(name, 0.0) for run in runs) for name in names}
    # That nothing is left behind is said once.
    left = [name for name in worst if name.endswith(" left")]
    said = [f"{name} {value:.2f}" for name, value in worst.items() if name not in left]
    if left:
        said.append("nothing left" if not any(worst[name] for name in left) else f"left: {left}")
    return ", ".join(said)


def _counts(runs: list[Run]) -> str:
    names = ("errors", "lost", "out_of_order", "not_stored_but_delivered")
    figures = [*_figures(runs, "ordered"), *_figures(runs, "ordinary")]
    counts = " / ".join(str(sum(one[name] for one in figures)) for name in names) if figures else ""
    broken = sorted({one for run in runs for one in run["broken"]})
    return counts if not broken else f"{counts} **{'; '.join(broken)}**"


def _reached(runs: list[Run]) -> str:
    missed = sorted({name for run in runs for name in run["missed"]})
    if missed:
        bad = sum(bool(run["missed"]) for run in runs)
        return f"missed in {bad} of {len(runs)}: {', '.join(missed)}"
    return "yes"


def long_runs(runs: dict[str, list[Run]], last: int) -> str:
    """Return the table of runs that last for minutes or hours, each with one fault after the other."""
    rows = []
    for scenario in NAMED:
        for run in runs.get(scenario.name, [])[-last:]:
            # Examples of failed publishes name the machine's ports.
            happened = "; ".join(note for note in run["notes"] if " failed (" not in note and " not sent" not in note)
            ended = (", ".join(run["missed"]) or "none", "; ".join(run["broken"]) or "none")
            rows.append((scenario.name, f"`{run.get('code', '?')}`", happened, _further([run]), *ended))
    return table(("run", "commit", "what happened", "at the end", "target missed", "broken rules"), rows)


def main() -> int:
    """Print it."""
    parser = argparse.ArgumentParser(prog="python -m integration.faults.table", description=__doc__)
    parser.add_argument("rows", nargs="+", type=pathlib.Path)
    parser.add_argument("--last", type=int, default=3)
    parser.add_argument("--long", action="store_true")
    arguments = parser.parse_args()
    make = long_runs if arguments.long else scenarios
    sys.stdout.write(make(load(arguments.rows), arguments.last) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
