"""``python -m integration.exactness [--sink] [--runs N] [--seed N] [--only N ...] [--json FILE]``.

Each run draws a topic, a query and a fault, publishes numbered messages while the query runs and the fault happens, and
compares: each message whose publish succeeded must be a row, the rows must be the messages of the log by partition,
offset and body, each once, and in order within their partition. The log is asked for message by message, by number,
so that nothing of the reader has a part in it. With ``--sink`` the rows go on to a topic, from another one or from
Parquet files, and what that topic holds is compared after ``drop_repeats``: see ``writing``.

The cluster is the one of the contract suite (``NSQ_HA_TEST_LOOKUPD``; without it an embedded one). To kill a leader
takes ``NSQ_HA_TEST_NODE_COMMAND``, a command that gets ``kill`` or ``start`` and the TCP address of an nsqd; without it
these runs are skipped by name. A run takes half a minute to a minute. The exit code is 1 if a row was wrong in any.
"""

import argparse
import asyncio
import dataclasses
import json
import pathlib
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx
import pyspark
from pyspark.sql import SparkSession

from benchmarks import record
from integration.cluster import ClusterUnderTest, real_cluster
from integration.exactness.playing import Result, obstacle, play
from integration.exactness.scenario import Scenario, SinkScenario, draw, draw_sinks
from integration.exactness.writing import APART, play_sink
from nsq_ha.spark.session import local_session
from tests.support.spark_queries import PATIENT, STARTS, TOO_SLOW

Keep = Callable[[dict[str, Any]], None]
WHOLE: Final = 120.0
"""Seconds for which a node that was killed may be away."""


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.exactness", description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sink", action="store_true", help="rows that are written, instead of rows that are read")
    parser.add_argument("--only", type=int, nargs="*", help="only these of the runs")
    parser.add_argument("--json", type=pathlib.Path, help="keep the results there")
    chosen = parser.parse_args(arguments)
    if unknown := [number for number in chosen.only or () if not 1 <= number <= chosen.runs]:
        parser.error(f"no run {', '.join(map(str, unknown))}: {chosen.runs} are drawn")
    return chosen


def line(result: Result) -> str:
    """Return what came of a run, in one line."""
    verdict = result.verdict
    wrong = [f"{getattr(verdict, name)} {name}" for name in WRONG if getattr(verdict, name)]
    counted = f"{result.acknowledged} written, {result.stored} stored, {result.rows} rows, {result.batches} batches"
    return f"{counted}, {result.seconds:.0f} s: {'exact' if verdict.is_exact else 'WRONG: ' + ', '.join(wrong)}"


WRONG: Final = ("lost", "missing", "foreign", "repeated", "disordered")


def as_json(result: Result, load: float) -> dict[str, Any]:
    """Return a result as JSON has it, with the commit and the load average of the machine when the run began."""
    found = dataclasses.asdict(result)
    found["seconds"] = round(result.seconds, 1)
    found["exact"] = result.verdict.is_exact
    return {**found, "commit": record.commit(), "load": round(load, 1)}


def _say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


async def _whole(cluster: ClusterUnderTest) -> None:
    """Wait until all nsqds are registered again."""
    until = time.monotonic() + WHOLE
    while True:
        found = await _nodes(cluster)
        if len(found) >= cluster.nodes:
            return
        assert time.monotonic() < until, f"{len(found)} of {cluster.nodes} nsqds are there"
        await asyncio.sleep(0.5)


async def _nodes(cluster: ClusterUnderTest) -> list[dict[str, Any]]:
    """Return the nsqds that are registered."""
    async with httpx.AsyncClient(timeout=5.0) as client:
        answer = (await client.get(f"{cluster.lookupd[0]}/nodes")).json()
    return answer.get("data", answer).get("producers") or []


async def _server(cluster: ClusterUnderTest) -> str:
    """Name the cluster's nsqds and their versions."""
    found = await _nodes(cluster)
    return f"{len(found)} nsqds, version {', '.join(sorted({str(node['version']) for node in found}))}"


def _run(
    scenarios: Sequence[Scenario | SinkScenario], cluster: ClusterUnderTest, keep: Keep, *, is_real: bool
) -> list[str]:
    """Play all, and keep what came of each; return the names of those that broke off."""
    spark = local_session("exactness", threads="2,4", config=PATIENT)
    broken = []
    for scenario in scenarios:
        if why := obstacle(scenario, cluster, is_real=is_real):
            _say(f"{scenario.number:>3} {scenario.text}: skipped, {why}")
            continue
        began, load = time.monotonic(), record.load()
        try:
            result = _played(scenario, cluster, spark)
        except Exception as error:  # noqa: BLE001 - the other runs are worth having
            traceback.print_exc()
            broken.append(f"{scenario.number} {scenario.text}: {type(error).__name__}")
            _say(f"{scenario.number:>3} {scenario.text}: BROKE OFF")
            continue
        keep(as_json(result, load))
        _say(
            f"{scenario.number:>3} {scenario.text}: {line(result)}",
            *(f"      {one}" for one in result.verdict.examples),
        )
        if is_real:
            time.sleep(max(0.0, APART - (time.monotonic() - began)))
    spark.stop()
    return broken


def _played(scenario: Scenario | SinkScenario, cluster: ClusterUnderTest, spark: SparkSession) -> Result:
    """Play one, from the beginning again if Spark did not wait for its Python process."""
    for left in reversed(range(STARTS)):
        with tempfile.TemporaryDirectory(prefix="exact") as folder:
            try:
                asyncio.run(_whole(cluster))
                place = cluster, spark, pathlib.Path(folder)
                if isinstance(scenario, SinkScenario):
                    return asyncio.run(play_sink(scenario, *place))
                return asyncio.run(play(scenario, *place))
            except Exception as error:
                if TOO_SLOW not in str(error) or not left:
                    raise
                _say(f"{scenario.number:>3} {scenario.text}: once more, {TOO_SLOW}")
                time.sleep(APART)
    raise AssertionError("unreachable")


def main(arguments: list[str] | None = None) -> int:
    """Run; return the exit code."""
    chosen = _arguments(arguments)
    drawn: Sequence[Scenario | SinkScenario] = (draw_sinks if chosen.sink else draw)(chosen.runs, chosen.seed)
    scenarios = [one for one in drawn if not chosen.only or one.number in chosen.only]
    cluster, is_real = real_cluster(), True
    if cluster is None:
        from integration.embedded import EmbeddedCluster  # noqa: PLC0415 - not needed for a real one

        cluster, is_real = EmbeddedCluster(), False
    kind = "real" if is_real else "embedded"
    about = {
        "seed": chosen.seed,
        "side": "sink" if chosen.sink else "source",
        "cluster": kind,
        "server": asyncio.run(_server(cluster)),
        "pyspark": pyspark.__version__,
        "machine": record.machine(),
    }
    runs: list[dict[str, Any]] = []

    def keep(run: dict[str, Any]) -> None:
        runs.append(run)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")

    try:
        broken = _run(scenarios, cluster, keep, is_real=is_real)
    finally:
        cluster.close()
    exact = sum(run["exact"] for run in runs)
    _say(f"{exact} of {len(runs)} runs are exact", *(f"broke off: {one}" for one in broken))
    return int(bool(broken) or not runs or exact < len(runs))


if __name__ == "__main__":
    sys.exit(main())
