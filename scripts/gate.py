"""The gate: every check that a change must pass, in one run.

All steps run even after one has failed, so that one run tells everything; the exit code is 1 if any failed. The faults
mostly wait, so they run beside the other steps, and are told at the end. Called by ``make test`` with the Python of the
virtual environment. Settings are in ``pyproject.toml``, none are here.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NamedTuple

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
"""Spark's own servers, and the whole demo with Spark, are left to ``make test-full``."""

FAULTS = "tests/faults"
"""The rows of the table of faults, and the three minutes of chaos."""
BESIDE = Step("faults", ("pytest", "-q", "-p", "no:cacheprovider", FAULTS))
TESTS = ("coverage", "run", "-m", "pytest", "-q", f"--ignore={FAULTS}")

STEPS = (
    Step("format", ("ruff", "format", "--check", "--output-format=concise", ".")),
    Step("lint", ("ruff", "check", "--output-format=concise", ".")),
    Step("types", ("mypy",)),
    Step("layers", ("lint-imports", "--no-logo")),
    Step("tests", TESTS if os.environ.get("NSQ_HA_FULL") else (*TESTS, *SHORT)),
    Step("coverage in all, for information (%)", ("coverage", "report", "--format=total")),
    fully_covered("protocol"),
    fully_covered("policy"),
    Step("docs", ("sphinx-build", "-n", "-W", "-q", "-E", "-b", "html", "docs", "docs/_build/html")),
)


class Running:
    """A step under way."""

    def __init__(self, step: Step, output: IO[bytes] | None = None) -> None:
        """Start it; what it prints goes to ``output``, None for the terminal."""
        self._step = step
        self._started = time.monotonic()
        self._output = output
        program, *arguments = step.command
        self._process = subprocess.Popen(
            [BIN / program, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
        )

    def passed(self) -> bool:
        """Wait for its end and return whether it passed."""
        passed = self._process.wait() == 0
        took = f" ({time.monotonic() - self._started:.1f} s)"
        if self._output is not None:
            took = ""  # it may have ended long ago
            self._output.seek(0)
            announce(self._step)
            print(self._output.read().decode(errors="replace"), end="")
        print(f"--- {self._step.name}: {'ok' if passed else 'FAILED'}{took}", flush=True)
        return passed

    def end(self) -> None:
        """End it, if it has not ended."""
        self._process.kill()
        self._process.wait()


def announce(step: Step) -> None:
    """Print what comes."""
    print(f"\n=== {step.name}: {' '.join(step.command)}", flush=True)


def run(step: Step) -> bool:
    """Run one step, its output going straight to the terminal, and return whether it passed."""
    announce(step)
    return Running(step).passed()


def main() -> int:
    """Run every step and return the exit code."""
    print(f"=== gate on Python {sys.version.split()[0]}")
    with tempfile.TemporaryFile() as output:
        beside = Running(BESIDE, output)
        try:
            failed = [step.name for step in STEPS if not run(step)]
            failed += [] if beside.passed() else [BESIDE.name]
        finally:
            beside.end()
    print(f"\n=== gate: {'FAILED: ' + ', '.join(failed) if failed else 'all steps passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
