"""``python -m integration.differential [--lookupd URL] [--cases N] [--seconds S] [--seed N] [--report FILE]``.

Give a real cluster and an embedded one, at the real pace, the same random commands, and report differences. The cluster
may be a plain one with two nsqds or more. The exit status is 1 if there are differences that
``docs/reference/devcluster.md`` does not list.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings

from integration.cluster import LOOKUPD_VARIABLE
from integration.differential.commands import KINDS, UPSTREAM, case
from integration.differential.comparing import TOLERANCES
from integration.differential.known import why
from integration.differential.plain import PlainSide
from integration.differential.running import Runner, Tally
from integration.differential.side import Side
from nsq_ha.devcluster import DevCluster

if TYPE_CHECKING:
    from integration.differential.commands import Command, Kind

APART = 7.5
"""Seconds between two new topics of a real cluster; a topic created sooner can lack a leader for minutes."""
REPLICAS = 2


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.differential", description=__doc__)
    parser.add_argument("--lookupd", default=os.environ.get(LOOKUPD_VARIABLE), help="an nsqlookupd of the real cluster")
    parser.add_argument("--other", help="an nsqlookupd of a second cluster instead of an embedded one")
    parser.add_argument("--cases", type=int, default=20, help="cases for each kind of topic (20)")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no case after so long (600)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="*", choices=[kind.name for kind in KINDS], help="kinds of topics; all")
    parser.add_argument("--report", type=pathlib.Path, help="write the differences here, too")
    return parser.parse_args()


def main() -> int:
    """Run it, and return the exit status."""
    arguments = _arguments()
    if not arguments.lookupd:
        raise SystemExit(f"name a real cluster: --lookupd http://host:port, or {LOOKUPD_VARIABLE}")
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        print(line, flush=True)  # noqa: T201 - it is a program

    is_plain = httpx.get(f"{arguments.lookupd}/listlookup").status_code == 404
    wanted = [kind for kind in KINDS if not arguments.kinds or kind.name in arguments.kinds]
    wanted = [UPSTREAM] if is_plain else wanted
    if arguments.other:
        tally = _run(arguments, wanted, arguments.other, tell)
    else:
        with DevCluster(plain=is_plain, time_scale=1.0, nsqds=2 if is_plain else 3) as cluster:
            tally = _run(arguments, wanted, cluster.lookupd[0], tell)
    unknown = _summary(tally, tell)
    if arguments.report:
        arguments.report.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if unknown else 0


def _run(arguments: argparse.Namespace, kinds: list[Kind], other: str, tell: Callable[[str], None]) -> Tally:
    kind_of_side = PlainSide if kinds == [UPSTREAM] else Side
    real, embedded = kind_of_side("real", arguments.lookupd), kind_of_side("embedded", other)
    runner = Runner(real, embedded, tell, time.monotonic() + arguments.seconds)
    made: list[tuple[Side, str]] = []
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
            run_cases(runner, kind, arguments.cases, arguments.seed)
    finally:
        runner.close()
        for side, name in made:
            side.drop(name)
        real.close()
        embedded.close()
    return runner.tally


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


def _summary(tally: Tally, tell: Callable[[str], None]) -> int:
    unknown = [found for found in tally.found if why(found) is None]
    tell(
        f"{tally.commands} commands to each side in {tally.cases} cases; {len(tally.found)} differences, "
        f"{len(unknown)} of them not known; {tally.unsteady} cases differed once and not again"
    )
    tell("tolerances: " + ", ".join(f"{name} {seconds} s" for name, seconds in TOLERANCES.items()))
    for found in tally.found:
        reason = why(found)
        tell(f"known ({reason}):\n{found}" if reason else f"NOT KNOWN:\n{found}")
    return len(unknown)


if __name__ == "__main__":
    sys.exit(main())
