"""Programs in processes of their own, forked from one that has loaded the package: most of a short one's time is that.

``python -m tests.support.programs`` is the host: it has no threads, no client and no loop, and forks for each program,
which then runs to its end as the main module of an ordinary process, with its own streams, arguments and environment.
What a program loads, and how Python starts it, is tested with real starts.
"""

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, Self

ROOT: Final = Path(__file__).parents[2]
LOADED: Final = ("nsq_ha.sync", "nsq_ha.admin", "httpx", "multiprocessing.pool")
COMMANDS: Final = tuple(f"nsq_ha.cli.{name}" for name in ("app", "dev", "copy", "tail", "top", "topic", "browse"))
NSQ_HA: Final = "from nsq_ha.cli.__main__ import main\nmain()"
"""The program of the command line."""
FILE: Final = """
import runpy, sys
del sys.argv[0]
sys.path.insert(0, "")
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the file that its first argument names."""
LIMIT: Final = 200.0
"""Seconds that a program has to end."""


class Host:
    """The process from which programs are forked; it starts with the first of them.

    Args:
        options: Those of Python, such as ``-X dev``.
        loads: Modules that its programs are likely to load.
    """

    def __init__(self, *options: str, loads: tuple[str, ...] = LOADED) -> None:
        self._options = options
        self._loads = loads
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self, request: bytes, *streams: int) -> None:
        """Have a program started with these streams; the last one tells its number and, later, its exit code."""
        with tempfile.TemporaryFile() as asked:
            asked.write(request)
            asked.flush()
            socket.send_fds(self._started(), [b"."], [asked.fileno(), *streams])

    def close(self) -> None:
        """End the process, once all programs have ended."""
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(LIMIT)
            self._process = self._control = None

    def _started(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        *self._options,
                        "-m",
                        "tests.support.programs",
                        str(theirs.fileno()),
                        *self._loads,
                    ],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        return self._control


class Program:
    """A program that runs, as far as needed like :class:`subprocess.Popen`; the end of its block kills it."""

    def __init__(
        self, host: Host, text: str, *arguments: str, env: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        asked = {
            "text": text,
            "arguments": arguments,
            "environment": dict(os.environ if env is None else env),
            "folder": str(folder or Path.cwd()),
        }
        self.returncode: int | None = None
        with ExitStack() as theirs:
            ends = [os.pipe() for _ in range(4)]
            for number, pair in enumerate(ends):
                theirs.callback(os.close, pair[number > 0])
            self.stdin: IO[bytes] = os.fdopen(ends[0][1], "wb", 0)
            self.stdout, self.stderr, self._told = (os.fdopen(near, "rb") for near, _ in ends[1:])
            host.fork(json.dumps(asked).encode(), *(pair[number > 0] for number, pair in enumerate(ends)))
        self.pid = int(self._told.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for each in (self.stdin, self.stdout, self.stderr, self._told):
            each.close()

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if not self._has_ended(0.0):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the program at once."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = LIMIT) -> int:
        """Return the exit code; raise TimeoutError after ``timeout`` seconds."""
        if not self._has_ended(timeout):
            raise TimeoutError(f"the program has not ended after {timeout:g} s")
        assert self.returncode is not None
        return self.returncode

    def communicate(self, timeout: float = LIMIT) -> tuple[bytes, bytes]:
        """Return what the program still prints until its end."""
        self.stdin.close()
        printed = self.stdout.read(), self.stderr.read()
        self.wait(timeout)
        return printed

    def _has_ended(self, timeout: float) -> bool:
        if self.returncode is None and select.select([self._told], [], [], timeout)[0]:
            self.returncode = int(self._told.readline())
        return self.returncode is not None


COMMAND_LINE: Final = Host(loads=(*LOADED, *COMMANDS))
ORDINARY: Final = Host()
STRICT: Final = Host("-W", "error")
DEBUG: Final = Host("-X", "dev", "-W", "error")
"""Python's development mode, where asyncio is in debug mode."""


def close() -> None:
    """End the hosts that have started."""
    for host in (COMMAND_LINE, ORDINARY, STRICT, DEBUG):
        host.close()


def run(
    host: Host, text: str, *arguments: str, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program without input to its end."""
    with Program(host, text, *arguments, env=env, folder=folder) as program:
        printed, complaints = program.communicate()
        return subprocess.CompletedProcess(text, program.wait(), printed.decode(), complaints.decode())


def next_program(control: socket.socket) -> str | None:
    """Fork for each request; return the text of the program in its process, and None in the host at the end."""
    while True:
        one, descriptors, *_ = socket.recv_fds(control, 1, 5)
        while _has_ended_one():
            pass
        if not one:
            return None
        if not os.fork():
            _fork_again(descriptors)
            control.close()
            return _prepare(*descriptors)
        for each in descriptors:
            os.close(each)


def _has_ended_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _fork_again(descriptors: list[int]) -> None:
    """Return in a child; this process tells the child's number and waits for its end, so that the host need not."""
    *streams, told = descriptors
    if program := os.fork():
        for each in streams:
            os.close(each)
        os.write(told, b"%d\n" % program)
        os.write(told, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
        os._exit(0)


def _prepare(asked: int, *streams: int) -> str:
    request = json.loads(os.pread(asked, os.fstat(asked).st_size, 0))
    for number, each in enumerate(streams[:-1]):
        os.dup2(each, number)
    for each in (asked, *streams):
        os.close(each)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the shell of the tests has set
    sys.argv = ["nsq-ha", *request["arguments"]]
    text: str = request["text"]
    return text


if __name__ == "__main__":
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # as the command line does
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if program_text := next_program(socket.socket(fileno=int(sys.argv[1]))):
        exec(compile(program_text, "<program>", "exec", dont_inherit=True))  # noqa: S102 - a test's own
