"""Runs the Spark programs of pages one after another in one process, so that Spark starts once for all of them.

``python -m tests.spark_host`` reads requests and answers them, a JSON object a line each; :class:`SparkHost` is
the side that asks. A program finds what it would find alone: its folder, its arguments and its environment.
"""

import contextlib
import io
import json
import os
import queue
import runpy
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

LIMIT: Final = 500.0
"""Seconds for one program; the first one starts Spark."""
LATE_WORKER: Final = "Python worker failed to connect back"
"""What Spark says of a worker that did not start within 10 s, a limit of its own that no setting changes."""
RETRIES: Final = 2
"""How often a program is run again because the machine was too busy to start Spark's workers in time."""


class SparkHost:
    """A process in which Spark programs run; it starts with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str] = queue.Queue()

    def run(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        """Run a script, or a module after ``-m``, and return its exit code and what it printed."""
        code, printed = self._run_once(arguments, folder, environment)
        for _ in range(RETRIES):
            if code == 0 or LATE_WORKER not in printed:
                break
            code, printed = self._run_once(arguments, folder, environment)
        return code, printed

    def _run_once(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
        process = self._started()
        assert process.stdin is not None
        asked = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        try:
            answer = json.loads(self._answers.get(timeout=LIMIT))
        except queue.Empty:
            self.close()
            raise AssertionError(f"{arguments} takes longer than {LIMIT} s") from None
        return answer["code"], answer["printed"]

    def close(self) -> None:
        """End the process, and Spark with it."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.kill()
            self._process.wait(30)
            self._process.stdin.close()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            root = Path(__file__).parents[1]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark_host"],
                cwd=root,
                env=os.environ | {"PYTHONPATH": str(root)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        return self._process

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._answers.put(line)


def run(asked: dict[str, Any]) -> tuple[int, str]:
    """Run one program here."""
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    printed = io.StringIO()
    module = asked["arguments"][0] == "-m"
    sys.argv = asked["arguments"][1:] if module else asked["arguments"]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            (runpy.run_module if module else runpy.run_path)(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 - reported to the caller
            traceback.print_exc()
            code = 1
        else:
            code = 0
    return code, printed.getvalue()


def main() -> None:
    """Answer until there is nobody who asks."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow, and not for the side that asks

    # A program that is done stops Spark; the next one would have to start it.
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]
    # What is printed below Python goes elsewhere: only answers are on our output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        code, printed = run(json.loads(line))
        answers.write(json.dumps({"code": code, "printed": printed}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
