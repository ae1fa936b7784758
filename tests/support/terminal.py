"""A terminal that keeps what it shows."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

WIDTH = 60


class Terminal(io.StringIO):
    """A terminal that keeps all that it gets."""

    encoding: str = "utf-8"
    errors: str | None = "strict"

    def isatty(self) -> bool:
        return True


@contextmanager
def at(terminal: Terminal) -> Iterator[None]:
    """Let the program write to a terminal."""
    with redirect_stdout(terminal), redirect_stderr(terminal):
        yield
        assert (sys.stdout, sys.stderr) == (terminal, terminal)
