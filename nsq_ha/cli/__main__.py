"""Entry point of ``nsq-ha`` and ``python -m nsq_ha.cli``."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys


def main() -> None:
    """Run the command line; without the extra that it needs, print what to install and exit with 1."""
    _open_what_is_closed()
    missing = [module for module in ("click", "rich") if importlib.util.find_spec(module) is None]
    if missing:
        print(f"nsq-ha needs {' and '.join(missing)}: pip install 'nsq_ha[cli]'", file=sys.stderr)
        sys.exit(1)
    from nsq_ha.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                # A reader at the other end of a pipe sees each line at once; no text can fail to be printed.
                stream.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        app(prog_name="nsq-ha")
    except OSError as error:
        # What a command does itself is one line already: this is output that cannot be written, a full disk mostly.
        with contextlib.suppress(OSError):
            print(f"Error: {error}", file=sys.stderr)
        _drop_output()
        sys.exit(1)


def _open_what_is_closed() -> None:
    """Have descriptors 0 to 2 be something, else the first sockets would get their numbers.

    ``sys.stdin`` stays None where it was closed; output goes nowhere.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def _drop_output() -> None:
    """Let the interpreter flush what is left to nowhere, instead of failing once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


if __name__ == "__main__":
    main()
