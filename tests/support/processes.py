"""Programs that a test starts in a process of their own."""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


@contextmanager
def sigint_as_in_a_terminal() -> Iterator[None]:
    """Have SIGINT interrupt this process and those that it starts, as where a person presses Ctrl-C.

    A shell has its background jobs ignore SIGINT, and a process that ignores it hands that on to its children.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def running(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program with its output in pipes; what is still there at the end of the block is killed."""
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()
