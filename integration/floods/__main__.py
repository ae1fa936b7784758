"""``python -m integration.floods [NAME ...]``: run the kit of bad inputs, and print what is beyond a limit.

Each case runs against each kind of client that it concerns, in memory and in virtual time; memory is real, so this
needs Linux. ``--tools`` runs the command line, the dashboard and the connections of Spark's readers instead, over real
sockets.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from typing import TYPE_CHECKING, Final

import pytest

from integration.floods import spark
from integration.floods.kit import CASES
from integration.floods.running import CLIENTS, applies, run
from integration.floods.tools import COMMANDS, PAGES, run_commands, show_pages

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


def tools() -> list[str]:
    """Run what works over real sockets; print how often, and return what should not have happened."""
    broken: list[str] = []
    runs = {"commands": 0, "pages": 0, "readers of Spark": 0}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for case in CASES:
            if case.is_lookup:
                for nsqd in (False, True):
                    broken += [f"{case.name}: {text}" for text in run_commands(case, nsqd=nsqd)]
                    broken += [f"{case.name}: {text}" for text in show_pages(case, nsqd=nsqd)]
                    runs["commands"] += len(COMMANDS)
                    runs["pages"] += len(PAGES)
            elif spark.applies(case):
                broken += spark.read_case(case, monkeypatch)
                runs["readers of Spark"] += 1
    sys.stdout.write("".join(f"{text}\n" for text in broken))
    sys.stdout.write(", ".join(f"{count} {name}" for name, count in runs.items()) + f", {len(broken)} broken rules\n")
    return broken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m integration.floods", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of 'CLIENT: GROUP: CASE'; all without any")
    parser.add_argument("--tools", action="store_true", help="the command line, the dashboard, and Spark's readers")
    arguments = parser.parse_args()
    logging.lastResort = None
    if arguments.tools:
        sys.exit(bool(tools()))
    gc.collect()
    gc.freeze()
    found = main(arguments.names)
    broken = sum(bool(result.broken) for result in found)
    sys.stdout.write(f"{len(found)} runs, {broken} beyond a limit\n")
    sys.exit(bool(broken))
