"""The gate: every check that a change must pass, in one run.

All steps run even after one has failed, so that one run shows everything; the exit code is 1 if any failed. Tests of
faults and time limits mostly wait, and Spark's tests wait for Java, so :data:`WORKERS` steps run side by side, the long
ones first: whoever is done takes the next one. A step is printed when it ends, with the time of the processor that it
took. ``make test`` calls this with the Python of the virtual environment. All settings are in ``pyproject.toml``.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
# Some programs run others, and pyright looks for the packages of the first python there.
ENVIRONMENT = os.environ | {
    "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
    "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    # Queries as short as those of the tests end before code that is compiled with care pays for its making.
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
JAVA_ARCHIVE = BIN.parent / f"spark-{version('pyspark')}.jsa"
"""The classes that Spark loads: made once, and then taken from there by each JVM."""
# Tests start hundreds of programs. Without kept bytecode each would compile the whole package again.
ENVIRONMENT.pop("PYTHONDONTWRITEBYTECODE", None)


class Step(NamedTuple):
    """One check: its name and its commands, whose programs are the virtual environment's."""

    name: str
    commands: tuple[tuple[str, ...], ...]


def step(name: str, *command: str) -> Step:
    """Return a step of one command."""
    return Step(name, (command,))


def covered(*paths: str) -> tuple[str, ...]:
    """Return the command that fails unless the pure tests ran each line and branch of pure modules."""
    included = ",".join(f"nsq_ha/{path}" for path in paths)
    return ("coverage", "report", f"--include={included}", "--precision=2", "--fail-under=100")


SHORT = () if os.environ.get("NSQ_HA_FULL") else ("-m", "not slow")
"""Long forms and further cases of a rule are left to ``make test-full``."""

FAULTS = ("tests/faults",)
"""The rows of the fault table, and the tests of their tools."""
CHAOS = ("tests/faults/test_chaos.py",)
"""Runs for half a minute, and for three in ``make test-full``; it mostly waits."""
SPARK = ("tests/spark", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("integration/test_spark*.py")))
"""What ``make spark-floor`` runs as well."""
MACHINES = tuple(f"producer/{name}.py" for name in ("actions", "connections", "lanes", "machine", "reasons", "state"))
MACHINES += tuple(
    f"consumer/{name}.py" for name in ("answers", "choice", "flow", "inflight", "machine", "pause", "subscriptions")
)
"""The machines of a producer and a consumer."""
OF_MACHINES = tuple(
    sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/*er/test_machine_*.py"))
    + [f"tests/consumer/test_{name}.py" for name in ("connections", "machine", "pause")]
)
PURE = ("tests/protocol", "tests/policy", *OF_MACHINES)
"""Tests without input, output or clock."""
CLIENTS = ("tests/producer", "tests/consumer", "tests/engine")
"""Tests that mostly wait for the clients' time limits."""
CONTRACT = ("integration",)
"""The contract suite, on the embedded clusters."""
PROGRAMS = tuple(f"tests/{name}" for name in ("admin", "cli", "dashboard", "devcluster", "flights", "sync"))
"""Tests of commands, pages and processes."""
PAGES = ("tests/test_docs.py", "tests/test_docs_types.py", "tests/test_journey.py")
"""Run the examples of the pages, those with Spark too, and check their types."""


def without(*paths: str) -> tuple[str, ...]:
    """Return the options by which pytest leaves out paths."""
    return tuple(f"--ignore={path}" for path in paths)


PYTEST = ("pytest", "-q", "-p", "no:cacheprovider")

WORKERS = 4
"""How many steps run side by side: two cores, and what waits."""
STEPS = (
    step("spark", *PYTEST, *SPARK, *SHORT),
    step("tests", *PYTEST, "tests", *without(*FAULTS, *SPARK, *PURE, *CLIENTS, *PAGES, *PROGRAMS), *SHORT),
    step("tests of the programs", *PYTEST, *PROGRAMS, *SHORT),
    step("contract", *PYTEST, *CONTRACT, *without(*SPARK), *SHORT),
    step("faults", *PYTEST, *FAULTS, *without(*CHAOS), *SHORT),
    step("tests of the clients", *PYTEST, *CLIENTS, *without(*OF_MACHINES), *SHORT),
    step("examples", *PYTEST, *PAGES, *SHORT),
    step("chaos", *PYTEST, *CHAOS),
    # Only the pure tests are measured: measuring doubles the time of a test.
    Step(
        "pure tests",
        (
            ("coverage", "run", "-m", *PYTEST, *PURE),
            covered("protocol/*"),
            covered("policy/*"),
            covered(*MACHINES),
        ),
    ),
    step("docs", "sphinx-build", "-n", "-W", "-q", "-E", "-b", "html", "docs", "docs/_build/html"),
    step("types", "mypy"),
    # Every public name has a type that all type checkers read in the same way.
    step("public types", "pyright", "--verifytypes", "nsq_ha", "--ignoreexternal"),
    step("layers", "lint-imports", "--no-logo"),
    step("lint", "ruff", "check", "--output-format=concise", "."),
    step("format", "ruff", "format", "--check", "--output-format=concise", "."),
)


class Gate:
    """Runs the steps; ``failed`` names those that have not passed."""

    def __init__(self) -> None:
        self._waiting = deque(STEPS)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._printing = threading.Lock()
        self.failed = [each.name for each in STEPS]

    def run(self) -> None:
        """Run all steps; an interrupt ends those that run, and starts no other."""
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                worker.join()
        finally:
            self._waiting.clear()
            for process in list(self._running):
                process.kill()

    def _work(self) -> None:
        while True:
            try:
                self._run(self._waiting.popleft())
            except IndexError:
                return

    def _run(self, each: Step) -> None:
        started, cpu, passed = time.monotonic(), 0.0, True
        with tempfile.TemporaryFile() as output:
            for program, *rest in each.commands:
                output.write(f"\n=== {each.name}: {program} {' '.join(rest)}\n".encode())
                output.flush()
                try:
                    process = subprocess.Popen(
                        (BIN / program, *rest),
                        cwd=ROOT,
                        env=ENVIRONMENT,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                except OSError as error:
                    output.write(f"{error}\n".encode())
                    passed = False
                    continue
                self._running.add(process)
                _, status, used = os.wait4(process.pid, 0)
                self._running.discard(process)
                process.returncode = os.waitstatus_to_exitcode(status)
                cpu += used.ru_utime + used.ru_stime
                passed = passed and process.returncode == 0
            took = f"{time.monotonic() - started:.1f} s, {cpu:.0f} s of CPU"
            with self._printing:
                if passed:
                    self.failed.remove(each.name)
                output.seek(0)
                print(output.read().decode(errors="replace"), end="")
                print(f"--- {each.name}: {'ok' if passed else 'FAILED'} ({took})", flush=True)


def main() -> int:
    """Run every step and return the exit code."""
    print(f"=== gate on Python {sys.version.split()[0]}", flush=True)
    started = time.monotonic()
    if not JAVA_ARCHIVE.exists():
        print("=== once for this environment: an archive of the classes that Spark loads", flush=True)
        making = (sys.executable, "-m", "scripts.java_archive", JAVA_ARCHIVE)
        subprocess.run(making, cwd=ROOT, env=ENVIRONMENT, check=False)
    # Without messages: a JVM that loads other classes, such as Spark's launcher, does without the archive, as do all
    # if there is none.
    ENVIRONMENT["JAVA_TOOL_OPTIONS"] += f" -XX:SharedArchiveFile={JAVA_ARCHIVE} -Xlog:disable"
    gate = Gate()
    gate.run()
    result = f"FAILED: {', '.join(gate.failed)}" if gate.failed else "all steps passed"
    print(f"\n=== gate: {result} ({time.monotonic() - started:.0f} s)")
    return 1 if gate.failed else 0


if __name__ == "__main__":
    sys.exit(main())
