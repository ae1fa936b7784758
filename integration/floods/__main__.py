"""``python -m integration.floods [NAME ...]``: run the kit of hostile peers, and print the table of what they cost.

Each case runs against each kind of client that it concerns, in memory and in virtual time; CPU and memory are real, so
this needs Linux. ``--write FILE`` writes the table. ``python -m integration.floods.heavy`` pours hundreds of megabytes
over real sockets into clients in processes of their own.
"""

from __future__ import annotations

import argparse
import gc
import logging
import pathlib
import sys
from typing import TYPE_CHECKING, Final

from integration.floods.kit import CASES
from integration.floods.running import CLIENTS, applies, run
from integration.floods.table import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from integration.floods.running import Result

MANY: Final = {"frames", "answers", "IDENTIFY's JSON"}
"""Groups that run with eight partitions at the hostile nsqd; the others with two."""


def main(names: Sequence[str]) -> list[Result]:
    """Run the cases whose names contain one of ``names``, all without any; print those beyond a limit."""
    results: list[Result] = []
    for case in CASES:
        for client in CLIENTS:
            label = f"{client}: {case.group}: {case.name}"
            if not applies(case, client) or (names and not any(name in label for name in names)):
                continue
            result = run(case, client, partitions=9 if case.group in MANY else 3)
            results.append(result)
            for text in result.broken:
                sys.stdout.write(f"{label}: {text}\n")
            sys.stdout.flush()
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m integration.floods", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of 'CLIENT: GROUP: CASE'; all without any")
    parser.add_argument("--write", type=pathlib.Path, help="write the table to this file")
    arguments = parser.parse_args()
    logging.lastResort = None
    gc.collect()
    gc.freeze()
    found = main(arguments.names)
    table = "\n".join(rows(found)) + "\n"
    sys.stdout.write(table)
    if arguments.write is not None:
        arguments.write.write_text(table)
    sys.exit(any(result.broken for result in found))
