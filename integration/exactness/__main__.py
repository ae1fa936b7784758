"""``python -m integration.exactness [--runs N] [--seed N] [--only N ...] [--json FILE]``.

Each run draws a topic, a query and a fault, publishes numbered messages while the query runs and the fault happens, and
compares: each message whose publish succeeded must be a row, the rows must be the messages of the log by partition,
offset and body, each once, and in order within their partition. The log is asked for message by message, by number,
so that nothing of the reader has a part in it.

The cluster is the one of the contract suite (``NSQ_HA_TEST_LOOKUPD``; without it an embedded one). To kill a leader
takes ``NSQ_HA_TEST_NODE_COMMAND``, a command that gets ``kill`` or ``start`` and the TCP address of an nsqd; without it
these runs are skipped by name. A run takes half a minute to a minute. The exit code is 1 if a row was wrong in any.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import httpx
import pyspark

from integration.cluster import real_cluster
from integration.exactness.playing import Result, obstacle, play
from integration.exactness.scenario import Scenario, draw
from integration.exactness.table import summary
from nsq_ha.spark.session import local_session

if TYPE_CHECKING:
    from integration.cluster import ClusterUnderTest

APART: Final = 7.0
"""Seconds between two topics: one that is created soon after another may stay without leaders for long."""
WHOLE: Final = 120.0
"""Seconds for which a node that was killed may be away."""


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.exactness", description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="*", help="only these of the runs")
    parser.add_argument("--json", type=pathlib.Path, help="keep the results there; runs that it has are not repeated")
    parser.add_argument("--list", action="store_true", help="only tell what would be done")
    return parser.parse_args(arguments)


def line(result: Result) -> str:
    """Return what came of a run, in one line."""
    verdict = result.verdict
    wrong = [f"{getattr(verdict, name)} {name}" for name in WRONG if getattr(verdict, name)]
    counted = f"{result.acknowledged} written, {result.stored} stored, {result.rows} rows, {result.batches} batches"
    return f"{counted}, {result.seconds:.0f} s: {'exact' if verdict.is_exact else 'WRONG: ' + ', '.join(wrong)}"


WRONG: Final = ("lost", "missing", "foreign", "repeated", "disordered")


def as_json(result: Result) -> dict[str, Any]:
    """Return a result as JSON has it."""
    found = dataclasses.asdict(result)
    found["seconds"] = round(result.seconds, 1)
    found["exact"] = result.verdict.is_exact
    return found


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


async def _whole(cluster: ClusterUnderTest) -> None:
    """Wait until all nsqds are registered again."""
    until = time.monotonic() + WHOLE
    async with httpx.AsyncClient(timeout=5.0) as client:
        while True:
            answer = (await client.get(f"{cluster.lookupd[0]}/nodes")).json()
            found = answer.get("data", answer).get("producers") or []
            if len(found) >= cluster.nodes:
                return
            assert time.monotonic() < until, f"{len(found)} of {cluster.nodes} nsqds are there"
            await asyncio.sleep(0.5)


class Kept:
    """The results as a file of JSON, written after each run, so that what breaks off can go on.

    Args:
        path: The file; None to keep them only here.
        about: What all runs share; a file about something else is replaced.
    """

    def __init__(self, path: pathlib.Path | None, about: dict[str, Any]) -> None:
        self._path = path
        self._about = about
        self.runs: dict[int, dict[str, Any]] = {}
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if {name: found.get(name) for name in about} == about:
                self.runs = {run["scenario"]["number"]: run for run in found["runs"]}

    def keep(self, run: dict[str, Any]) -> None:
        """Add a run."""
        self.runs[run["scenario"]["number"]] = run
        if self._path is not None:
            runs = [self.runs[number] for number in sorted(self.runs)]
            self._path.write_text(json.dumps({**self._about, "runs": runs}, indent=1) + "\n")


def _run(scenarios: list[Scenario], cluster: ClusterUnderTest, kept: Kept, *, is_real: bool) -> list[str]:
    """Play all; return the names of those that broke off."""
    spark = local_session("exactness", threads="2,4", config={"spark.sql.shuffle.partitions": "2"})
    broken = []
    for scenario in scenarios:
        if why := obstacle(scenario, cluster, is_real=is_real):
            _say(f"{scenario.number:>3} {scenario.text}: skipped, {why}")
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="exact") as folder:
            try:
                asyncio.run(_whole(cluster))
                result = asyncio.run(play(scenario, cluster, spark, pathlib.Path(folder)))
            except Exception as error:  # noqa: BLE001 - the other runs are worth having
                traceback.print_exc()
                broken.append(f"{scenario.number} {scenario.text}: {type(error).__name__}")
                _say(f"{scenario.number:>3} {scenario.text}: BROKE OFF")
                continue
        kept.keep(as_json(result))
        _say(
            f"{scenario.number:>3} {scenario.text}: {line(result)}",
            *(f"      {one}" for one in result.verdict.examples),
        )
        if is_real:
            time.sleep(max(0.0, APART - (time.monotonic() - began)))
    spark.stop()
    return broken


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code."""
    chosen = _arguments(arguments)
    scenarios = [one for one in draw(chosen.runs, chosen.seed) if not chosen.only or one.number in chosen.only]
    if chosen.list:
        _say(*(f"{one.number:>3} {one.text}" for one in scenarios))
        return 0
    cluster, is_real = real_cluster(), True
    if cluster is None:
        from integration.embedded import EmbeddedCluster  # noqa: PLC0415 - not needed for a real one

        cluster, is_real = EmbeddedCluster(), False
    kind = "real" if is_real else "embedded"
    kept = Kept(
        chosen.json, {"seed": chosen.seed, "drawn": chosen.runs, "cluster": kind, "pyspark": pyspark.__version__}
    )
    try:
        broken = _run([one for one in scenarios if one.number not in kept.runs], cluster, kept, is_real=is_real)
    finally:
        cluster.close()
    _say(summary(kept.runs.values()), *(f"broke off: {one}" for one in broken))
    return int(bool(broken) or not all(run["exact"] for run in kept.runs.values()))


if __name__ == "__main__":
    sys.exit(main())
