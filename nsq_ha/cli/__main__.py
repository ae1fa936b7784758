"""Entry point of ``nsq-ha`` and ``python -m nsq_ha.cli``.

It imports nothing that Python has not loaded before: Ctrl-C ends in a traceback until :func:`main` runs.
"""

from __future__ import annotations

import io
import os
import sys

from nsq_ha.cli import INTERRUPTED


def main() -> None:
    """Run the command line. If a required package is missing, print what to install and exit with 1."""
    try:
        _run()
    except KeyboardInterrupt:  # click reports one that comes later
        sys.exit(INTERRUPTED)


def _run() -> None:
    import contextlib
    import importlib.util

    _open_what_is_closed()
    missing = [module for module in ("click", "rich") if importlib.util.find_spec(module) is None]
    if missing:
        print(f"nsq-ha needs {' and '.join(missing)}: install nsq_ha[cli]", file=sys.stderr)
        sys.exit(1)
    # The command line of httpx itself, which loads rich and pygments; without it httpx does without.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # the import system takes None for "there is none"
    from nsq_ha.cli.app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError):
                # The reader of a pipe sees each line at once, and every text can be printed.
                stream.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        app(prog_name="nsq-ha")
    except OSError as error:
        # Commands report their own errors in one line; this is output that cannot be written, as on a full disk.
        with contextlib.suppress(OSError):
            print(f"Error: {error}", file=sys.stderr)
        from nsq_ha.cli.output import drop_output

        drop_output()
        sys.exit(1)


def _open_what_is_closed() -> None:
    """Open descriptors 0 to 2 if they are closed; otherwise the first sockets would get their numbers.

    ``sys.stdin`` stays None if it was closed; output is discarded.
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


if __name__ == "__main__":
    main()
