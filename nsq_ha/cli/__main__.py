"""Entry point of ``nsq-ha`` and ``python -m nsq_ha.cli``."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import sys


def main() -> None:
    """Run the command line; without the extra that it needs, print what to install and exit with 1."""
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
    app(prog_name="nsq-ha")


if __name__ == "__main__":
    main()
