"""``python -m fuzz [--seconds N] [TARGET ...]``: fuzz each target for so long; ``make fuzz ARGS=...`` sets it up.

The table at the end shows, for each target, how many inputs were executed, how many of them ran code that none before
did (new units), and the findings, which are listed below it. The exit code is 1 if there were any.

``--folder`` keeps the inputs that were found; give the same folder again to go on from there. ``--figures`` adds the
figures to ``figures.json``, of which the page "Fuzzing" is made.
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from fuzz.targets import TARGETS

FIGURES: Final = Path(__file__).parent / "figures.json"
_DONE: Final = re.compile(r"^Done \d+ runs in (\d+) second", re.MULTILINE)
_STATISTIC: Final = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)


@dataclasses.dataclass
class Run:
    """One target's run.

    Attributes:
        name: The target.
        seconds: How long it ran.
        executions: Number of inputs.
        new_units: Inputs that ran code which none before did.
        findings: What was found, by place in the code.
    """

    name: str
    seconds: int
    executions: int = 0
    new_units: int = 0
    findings: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    def line(self) -> str:
        """Return its row of the table."""
        rate = self.executions // max(1, self.seconds)
        return f"{self.name:12} {self.executions:12,} {rate:10,} {self.new_units:10,} {len(self.findings):9}"


def fuzz(name: str, seconds: int, folder: Path) -> Run:
    """Fuzz one target in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "findings.json"
    found.unlink(missing_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.one", name, str(seconds), str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    (folder / "log").write_text(done.stderr, encoding="utf-8")
    statistics = {key: int(value) for key, value in _STATISTIC.findall(done.stderr)}
    ran = _DONE.findall(done.stderr)
    run = Run(name, int(ran[-1]) if ran else round(time.monotonic() - began))
    run.executions = statistics.get("number_of_executed_units", 0)
    run.new_units = statistics.get("new_units_added", 0)
    run.findings = json.loads(found.read_text("utf-8")) if found.exists() else {}
    if done.returncode or not run.executions:
        inputs = [path for path in folder.iterdir() if path.name.startswith(("crash-", "timeout-", "oom-"))]
        latest = max(inputs, key=lambda path: path.stat().st_mtime, default=None)
        hexed = latest.read_bytes().hex() if latest is not None else ""
        run.findings["the process ended"] = {"error": done.stderr[-2000:], "hex": hexed}
    return run


def record(runs: list[Run]) -> None:
    """Add runs to the figures."""
    figures: dict[str, Any] = json.loads(FIGURES.read_text("utf-8")) if FIGURES.exists() else {}
    for run in runs:
        row = figures.setdefault(run.name, {"seconds": 0, "executions": 0, "new_units": 0, "findings": 0})
        row["seconds"] += run.seconds
        row["executions"] += run.executions
        row["new_units"] += run.new_units
        row["findings"] += len(run.findings)
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Fuzz the named targets, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz what reads bytes from outside.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; all if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: %(default)s)")
    parser.add_argument("--folder", type=Path, help="where inputs and logs are written (default: a temporary folder)")
    parser.add_argument("--figures", action="store_true", help="add the figures to fuzz/figures.json")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    folder: Path = options.folder or Path(tempfile.mkdtemp(prefix="fuzz-"))
    print(f"{'target':12} {'executions':>12} {'a second':>10} {'new units':>10} {'findings':>9}", flush=True)
    runs: list[Run] = []
    for name in options.targets or TARGETS:
        runs.append(fuzz(name, options.seconds, folder / name))
        print(runs[-1].line(), flush=True)
    if options.figures:
        record(runs)
    for run in runs:
        for place, finding in run.findings.items():
            print(f"\n{run.name}: {place}\n{finding['error']}\ninput (hex): {finding['hex']}")
    print(f"\ninputs and logs: {folder}")
    return 1 if any(run.findings for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
