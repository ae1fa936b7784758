"""The gate: every check that a change must pass, in one run.

All steps run even after one has failed, so that one run shows everything; the exit code is 1 if any failed. Tests of
faults and time limits mostly wait, and Spark's tests wait for Java, so the steps run in four lanes side by side; those
of :data:`PARALLEL` are reported at the end. The lanes take about the same time: a new step goes into the shortest.
``make test`` calls this with the Python of the virtual environment. All settings are in ``pyproject.toml``.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# Some programs run others, and pyright looks for the packages of the first python there.
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
}
# Tests start hundreds of programs. Without kept bytecode each would compile the whole package again.
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)


class Step(NamedTuple):
    """One check: its name and its command, whose program is the virtual environment's."""

    name: str
    command: tuple[str, ...]


def fully_covered(package: str) -> Step:
    """Return the step that fails unless the pure tests run each line and branch of a pure package."""
    return Step(
        f"coverage of {package}",
        ("coverage", "report", f"--include=nsq_ha/{package}/*", "--precision=2", "--fail-under=100"),
    )


SHORT = () if os.environ.get("NSQ_HA_FULL") else ("-m", "not slow")
"""Spark's own servers, and the whole demo with Spark, are left to ``make test-full``."""

FAULTS = ("tests/faults",)
"""The rows of the fault table, and the tests of their tools."""
CHAOS = ("tests/faults/test_chaos.py",)
"""Runs for three minutes, and mostly waits."""
SPARK = ("tests/spark", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("integration/test_spark*.py")))
"""What ``make spark-floor`` runs as well."""
PURE = ("tests/protocol", "tests/policy")
"""Tests without input, output or clock. Only they are measured: measuring doubles the time of a test."""
CLIENTS = ("tests/producer", "tests/consumer", "tests/engine")
"""Tests that mostly wait for the clients' time limits."""
CONTRACT = ("integration",)
"""The contract suite, on the embedded clusters."""
PAGES = ("tests/test_docs.py", "tests/test_docs_types.py", "tests/test_journey.py")
"""Run the examples of the pages, those with Spark too, and check their types."""


def without(*paths: str) -> tuple[str, ...]:
    """Return the options by which pytest leaves out paths."""
    return tuple(f"--ignore={path}" for path in paths)


PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")

STEPS = (
    Step("format", ("ruff", "format", "--check", "--output-format=concise", ".")),
    Step("lint", ("ruff", "check", "--output-format=concise", ".")),
    Step("types", ("mypy",)),
    # Every public name has a type that all type checkers read in the same way.
    Step("public types", ("pyright", "--verifytypes", "nsq_ha", "--ignoreexternal")),
    Step("layers", ("lint-imports", "--no-logo")),
    Step("pure tests", ("coverage", "run", "-m", *PYTEST, *PURE)),
    fully_covered("protocol"),
    fully_covered("policy"),
    Step("tests", (*PYTEST, "tests", *without(*FAULTS, *SPARK, *PURE, *CLIENTS, *PAGES), *SHORT)),
)
PARALLEL = (
    (
        Step("faults", (*PYTEST, *FAULTS, *without(*CHAOS))),
        Step("tests of the clients", (*PYTEST, *CLIENTS)),
        Step("contract", (*PYTEST, *CONTRACT, *without(*SPARK), *SHORT)),
    ),
    (Step("spark", (*PYTEST, *SPARK, *SHORT)),),
    (
        Step("chaos", (*PYTEST, *CHAOS)),
        Step("examples", (*PYTEST, *PAGES, *SHORT)),
        Step("docs", ("sphinx-build", "-n", "-W", "-q", "-E", "-b", "html", "docs", "docs/_build/html")),
    ),
)
"""Lanes of steps that run one after another, in parallel with the others."""


class Parallel(threading.Thread):
    """Runs steps one after another, in parallel with the others, and keeps their output until the end."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(daemon=True)
        self._steps = steps
        self._output: list[bytes] = []
        self._running: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.failed: list[str] = []
        self.start()

    def run(self) -> None:
        """Run all steps."""
        for step in self._steps:
            started = time.monotonic()
            with subprocess.Popen(
                arguments(step),
                cwd=ROOT,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as self._running:
                if self._ended:
                    self._running.kill()
                output, _ = self._running.communicate()
            passed = self._running.returncode == 0
            self.failed += [] if passed else [step.name]
            self._output += [announcement(step).encode(), output, verdict(step, started, passed=passed).encode()]
            if self._ended:
                return

    def report(self) -> None:
        """Wait until all steps have ended, then print their output."""
        self.join()
        print(b"".join(self._output).decode(errors="replace"), end="", flush=True)

    def end(self) -> None:
        """Kill the step that runs, and start no other."""
        self._ended = True
        if self._running is not None:
            self._running.kill()
        self.join()


def arguments(step: Step) -> list[str | Path]:
    """Return the command, with the virtual environment's program."""
    program, *rest = step.command
    return [BIN / program, *rest]


def announcement(step: Step) -> str:
    """Return the line to print before the step."""
    return f"\n=== {step.name}: {' '.join(step.command)}\n"


def verdict(step: Step, started: float, *, passed: bool) -> str:
    """Return the line to print after the step."""
    return f"--- {step.name}: {'ok' if passed else 'FAILED'} ({time.monotonic() - started:.1f} s)\n"


def run(step: Step) -> bool:
    """Run one step in the foreground and return whether it passed."""
    print(announcement(step), end="", flush=True)
    started = time.monotonic()
    done = subprocess.run(arguments(step), cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, check=False)
    passed = done.returncode == 0
    print(verdict(step, started, passed=passed), end="", flush=True)
    return passed


def main() -> int:
    """Run every step and return the exit code."""
    print(f"=== gate on Python {sys.version.split()[0]}")
    started = time.monotonic()
    parallel = [Parallel(steps) for steps in PARALLEL]
    try:
        failed = [step.name for step in STEPS if not run(step)]
        for group in parallel:
            group.report()
            failed += group.failed
    finally:
        for group in parallel:
            group.end()
    result = f"FAILED: {', '.join(failed)}" if failed else "all steps passed"
    print(f"\n=== gate: {result} ({time.monotonic() - started:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
