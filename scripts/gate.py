"""The gate: every check that a change must pass, in one run.

All steps run even after one has failed, so that one run tells everything; the exit code is 1 if any failed. Called by
``make test`` with the Python of the virtual environment. Settings are in ``pyproject.toml``, none are here.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


class Step(NamedTuple):
    """One check: a name for people and the command, its program taken from the virtual environment."""

    name: str
    command: tuple[str, ...]


def fully_covered(package: str) -> Step:
    """Return the step that wants each line and branch of a pure package to have been run by the tests."""
    return Step(
        f"coverage of {package}",
        ("coverage", "report", f"--include=nsq_ha/{package}/*", "--precision=2", "--fail-under=100"),
    )


SHORT = ("-m", "not slow")
"""What kills Spark's processes and waits for their return is left to ``make test-full``."""

STEPS = (
    Step("format", ("ruff", "format", "--check", "--output-format=concise", ".")),
    Step("lint", ("ruff", "check", "--output-format=concise", ".")),
    Step("types", ("mypy",)),
    Step("layers", ("lint-imports", "--no-logo")),
    Step("tests", ("coverage", "run", "-m", "pytest", "-q", *(() if os.environ.get("NSQ_HA_FULL") else SHORT))),
    Step("coverage in all, for information (%)", ("coverage", "report", "--format=total")),
    fully_covered("protocol"),
    fully_covered("policy"),
    Step("docs", ("sphinx-build", "-n", "-W", "-q", "-E", "-b", "html", "docs", "docs/_build/html")),
)


def run(step: Step) -> bool:
    """Run one step, its output going straight to the terminal, and return whether it passed."""
    print(f"\n=== {step.name}: {' '.join(step.command)}", flush=True)
    started = time.monotonic()
    program, *arguments = step.command
    finished = subprocess.run(
        [BIN / program, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    passed = finished.returncode == 0
    print(f"--- {step.name}: {'ok' if passed else 'FAILED'} ({time.monotonic() - started:.1f} s)", flush=True)
    return passed


def main() -> int:
    """Run every step and return the exit code."""
    print(f"=== gate on Python {sys.version.split()[0]}")
    failed = [step.name for step in STEPS if not run(step)]
    print(f"\n=== gate: {'FAILED: ' + ', '.join(failed) if failed else 'all steps passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
