"""The gate: every check that a change must pass, in one run.

All steps run even after one has failed, so that one run tells everything; the exit code is 1 if any failed. The faults
mostly wait, and Spark's tests wait for Java, so these run beside the other steps and are told at the end. Called by
``make test`` with the Python of the virtual environment. Settings are in ``pyproject.toml``, none are here.
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


class Step(NamedTuple):
    """One check: a name for people and the command, its program taken from the virtual environment."""

    name: str
    command: tuple[str, ...]


def fully_covered(package: str) -> Step:
    """Return the step that wants each line and branch of a pure package to have been run by the pure tests."""
    return Step(
        f"coverage of {package}",
        ("coverage", "report", f"--include=nsq_ha/{package}/*", "--precision=2", "--fail-under=100"),
    )


SHORT = () if os.environ.get("NSQ_HA_FULL") else ("-m", "not slow")
"""Spark's own servers, and the whole demo with Spark, are left to ``make test-full``."""

FAULTS = ("tests/faults",)
"""The rows of the table of faults, and what has to do with them."""
CHAOS = ("tests/faults/test_chaos.py",)
"""Three minutes, of which most is waiting."""
SPARK = ("tests/spark", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("integration/test_spark*.py")))
"""What ``make spark-floor`` runs as well."""
PURE = ("tests/protocol", "tests/policy")
"""Tests without input, output or clock. Only they are measured: measuring doubles the time of a test."""
CLIENTS = ("tests/producer", "tests/consumer", "tests/transport", "tests/discovery")
"""Tests that mostly wait for limits of the clients."""
ELSEWHERE = tuple(f"--ignore={path}" for path in FAULTS + SPARK + PURE + CLIENTS)

PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")

STEPS = (
    Step("format", ("ruff", "format", "--check", "--output-format=concise", ".")),
    Step("lint", ("ruff", "check", "--output-format=concise", ".")),
    Step("types", ("mypy",)),
    Step("layers", ("lint-imports", "--no-logo")),
    Step("pure tests", ("coverage", "run", "-m", *PYTEST, *PURE)),
    fully_covered("protocol"),
    fully_covered("policy"),
    Step("tests", (*PYTEST, *ELSEWHERE, *SHORT)),
    Step("docs", ("sphinx-build", "-n", "-W", "-q", "-E", "-b", "html", "docs", "docs/_build/html")),
)
BESIDE = (
    (
        Step("chaos", (*PYTEST, *CHAOS)),
        Step("tests of the clients", (*PYTEST, *CLIENTS)),
    ),
    (
        Step("faults", (*PYTEST, *FAULTS, *(f"--ignore={path}" for path in CHAOS))),
        Step("spark", (*PYTEST, *SPARK, *SHORT)),
    ),
)
"""What runs one after another, beside the others."""


class Aside(threading.Thread):
    """Steps that run one after another beside the others; what they print is kept until it is asked for."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__(daemon=True)
        self._steps = steps
        self._told: list[bytes] = []
        self._under_way: subprocess.Popen[bytes] | None = None
        self._ended = False
        self.failed: list[str] = []
        self.start()

    def run(self) -> None:
        """Run them all."""
        for step in self._steps:
            started = time.monotonic()
            with subprocess.Popen(
                arguments(step), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            ) as self._under_way:
                if self._ended:
                    self._under_way.kill()
                output, _ = self._under_way.communicate()
            passed = self._under_way.returncode == 0
            self.failed += [] if passed else [step.name]
            self._told += [announcement(step).encode(), output, verdict(step, started, passed=passed).encode()]
            if self._ended:
                return

    def tell(self) -> None:
        """Wait for their end and print what they printed."""
        self.join()
        print(b"".join(self._told).decode(errors="replace"), end="", flush=True)

    def end(self) -> None:
        """End them, if they have not ended."""
        self._ended = True
        if self._under_way is not None:
            self._under_way.kill()
        self.join()


def arguments(step: Step) -> list[str | Path]:
    """Return its command with the program of the virtual environment."""
    program, *rest = step.command
    return [BIN / program, *rest]


def announcement(step: Step) -> str:
    """Return what is printed before it."""
    return f"\n=== {step.name}: {' '.join(step.command)}\n"


def verdict(step: Step, started: float, *, passed: bool) -> str:
    """Return what is printed after it."""
    return f"--- {step.name}: {'ok' if passed else 'FAILED'} ({time.monotonic() - started:.1f} s)\n"


def run(step: Step) -> bool:
    """Run one step, its output going straight to the terminal, and return whether it passed."""
    print(announcement(step), end="", flush=True)
    started = time.monotonic()
    passed = subprocess.run(arguments(step), cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode == 0
    print(verdict(step, started, passed=passed), end="", flush=True)
    return passed


def main() -> int:
    """Run every step and return the exit code."""
    print(f"=== gate on Python {sys.version.split()[0]}")
    started = time.monotonic()
    asides = [Aside(steps) for steps in BESIDE]
    try:
        failed = [step.name for step in STEPS if not run(step)]
        for aside in asides:
            aside.tell()
            failed += aside.failed
    finally:
        for aside in asides:
            aside.end()
    result = f"FAILED: {', '.join(failed)}" if failed else "all steps passed"
    print(f"\n=== gate: {result} ({time.monotonic() - started:.0f} s)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
