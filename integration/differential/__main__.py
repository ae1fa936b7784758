"""``python -m integration.differential [--lookupd URL ...] [--cases N] [--seconds S] [--seed N] [--write FILE]``.

Give real clusters and embedded ones, at the real pace, the same random commands, and report differences. A cluster may
be a plain one with two nsqds or more. What differed once and was closed is tried first. The exit status is 1 if there
are differences that ``docs/reference/devcluster.md`` does not list.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from typing import TYPE_CHECKING

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings

from integration.cluster import LOOKUPD_VARIABLE
from integration.differential.closed import CLOSED
from integration.differential.commands import KINDS, UPSTREAM, case
from integration.differential.comparing import TOLERANCES
from integration.differential.known import why
from integration.differential.plain import PlainSide
from integration.differential.running import Runner
from integration.differential.side import Side
from integration.differential.table import Compared, rows
from nsq_ha.devcluster import DevCluster

if TYPE_CHECKING:
    from integration.differential.commands import Command, Kind

APART = 7.5
"""Seconds between two new topics of a real cluster; a topic created sooner can lack a leader for minutes."""
REPLICAS = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.differential", description=__doc__)
    parser.add_argument("--lookupd", nargs="+", help=f"an nsqlookupd of each real cluster ({LOOKUPD_VARIABLE})")
    parser.add_argument("--other", help="an nsqlookupd of a second cluster instead of an embedded one")
    parser.add_argument("--cases", type=int, default=20, help="cases for each kind of topic (20)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no case of a kind after so long (600)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in KINDS], help="kinds of topics; all")
    parser.add_argument("--write", type=pathlib.Path, help="write the tables of the docs here")
    return parser.parse_args()


def main() -> int:
    """Run it, and return the exit status."""
    arguments = _arguments()
    lookupds = arguments.lookupd or [os.environ.get(LOOKUPD_VARIABLE)]
    if not lookupds[0]:
        raise SystemExit(f"name a real cluster: --lookupd http://host:port, or {LOOKUPD_VARIABLE}")
    compared: list[Compared] = []
    for lookupd in lookupds:
        is_plain = httpx.get(f"{lookupd}/listlookup").status_code == 404
        wanted = [kind for kind in KINDS if not arguments.kinds or kind.name in arguments.kinds]
        wanted = [UPSTREAM] if is_plain else wanted
        if arguments.other:
            compared += _run(arguments, wanted, lookupd, arguments.other)
        else:
            with DevCluster(plain=is_plain, time_scale=1.0, nsqds=2 if is_plain else 3) as cluster:
                compared += _run(arguments, wanted, lookupd, cluster.lookupd[0])
    for each in compared:
        _tell_found(each)
    _tell("tolerances: " + ", ".join(f"{name} {seconds} s" for name, seconds in TOLERANCES.items()))
    table = "\n".join(rows(compared)) + "\n"
    _tell(table)
    if arguments.write:
        arguments.write.write_text(table, encoding="utf-8")
    return int(any(why(found) is None for each in compared for found in each.tally.found))


def _tell(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a program


def _tell_found(compared: Compared) -> None:
    for found in compared.tally.found:
        reason = why(found)
        _tell(f"known ({reason}):\n{found}" if reason else f"NOT KNOWN:\n{found}")


def _run(arguments: argparse.Namespace, kinds: list[Kind], lookupd: str, other: str) -> list[Compared]:
    kind_of_side = PlainSide if kinds == [UPSTREAM] else Side
    real, embedded = kind_of_side("real", lookupd), kind_of_side("embedded", other)
    made: list[tuple[Side, str]] = []
    compared = []
    try:
        topics = []
        for number, kind in enumerate(kinds):
            if number:
                time.sleep(APART)  # the server needs this pace; nothing shows when it is ready for the next topic
            names = [side.make(kind, REPLICAS) for side in (real, embedded)]
            made += zip((real, embedded), names, strict=True)
            topics.append((kind, names))
        for kind, names in topics:
            for side, name in zip((real, embedded), names, strict=True):
                side.use(name, kind)
            runner = Runner(real, embedded, _tell, time.monotonic() + arguments.seconds)
            try:
                tried = [(one, runner.check(kind, one.commands)) for one in CLOSED if one.kind == kind.name]
                run_cases(runner, kind, arguments.cases, arguments.seed)
            finally:
                runner.close()
            compared.append(Compared(real.version(), kind.name, runner.tally, tried))
    finally:
        for side, name in made:
            side.drop(name)
        real.close()
        embedded.close()
    return compared


def run_cases(runner: Runner, kind: Kind, count: int, seeded: int) -> None:
    """Run ``count`` cases drawn by hypothesis."""

    @seed(seeded)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(commands=case(kind))
    def draw(commands: list[Command]) -> None:
        if not runner.is_over:
            runner.check(kind, commands)

    draw()


if __name__ == "__main__":
    sys.exit(main())
