"""``python -m integration.faults [scenario ...] [--runs N] [--json FILE] [--sync] [--embedded] ...``."""

import argparse
import asyncio
import json
import logging
import pathlib
import subprocess
import sys
import time

from integration.faults.bench import Bench, Scenario
from integration.faults.cluster import Cluster
from integration.faults.embedded import NODES, TIME_SCALE, Embedded
from integration.faults.plain import Plain
from integration.faults.rows import Row
from integration.faults.scenarios import ALL, NAMED
from integration.faults.threads import ThreadedLoad
from nsq_ha.devcluster import DevCluster
from nsq_ha.process import loop_thread


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m integration.faults", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="names; none for all")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="append each row as a line of JSON")
    parser.add_argument("--histories", type=pathlib.Path, help="folder for what integration.history checks")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--debug", action="store_true", help="with the library's own log")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--sync", action="store_true", help="through nsq_ha.sync")
    parser.add_argument("--plain", action="store_true", help="the cluster is of upstream's servers")
    parser.add_argument("--embedded", action="store_true", help="on an embedded cluster, at a tenth of the time")
    return parser.parse_args()


def _chosen(names: list[str]) -> list[Scenario]:
    known = {scenario.name: scenario for scenario in (*ALL, *NAMED)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(ALL)


async def _run(arguments: argparse.Namespace) -> list[Row]:
    if not arguments.embedded:
        kind = Plain if arguments.plain else Cluster
        return await _run_on(kind.of_environment(), arguments)
    with DevCluster(nsqds=NODES, time_scale=TIME_SCALE) as cluster:
        return await _run_on(Embedded(cluster), arguments)


async def _run_on(cluster: Cluster, arguments: argparse.Namespace) -> list[Row]:
    if arguments.histories is not None:
        arguments.histories.mkdir(parents=True, exist_ok=True)
    bench = Bench(cluster, verbose=arguments.verbose, histories=arguments.histories)
    if arguments.sync:
        loop_thread.shared()  # its thread stays
        bench.make_load = ThreadedLoad
    rows: list[Row] = []
    await bench.restore()
    await bench.clean()
    try:
        for scenario in _chosen(arguments.scenarios):
            for run in range(1, arguments.runs + 1):
                row = await _once(bench, scenario, run)
                row.notes += ["through nsq_ha.sync"] * arguments.sync
                rows.append(row)
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()
                if arguments.json is not None:
                    with arguments.json.open("a") as file:
                        file.write(json.dumps(row.as_json()) + "\n")
    finally:
        await bench.restore()
        await bench.delete(*bench.topics.values())
    return rows


async def _once(bench: Bench, scenario: Scenario, run: int) -> Row:
    try:
        row = await scenario.play(bench, scenario)
    except Exception as error:
        logging.getLogger("integration.faults").exception("%s did not run", scenario.name)
        row = scenario.row()
        row.broken.append(f"did not run: {error!r}")
    row.run = run
    row.code = _commit()
    return row


def _commit() -> str:
    """Return the commit of this tree; a mark when something in it is not committed."""
    words = ("git", "-C", str(pathlib.Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class _Clock(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's
        return f"{time.monotonic():.3f}"


def main() -> int:
    """Run; 1 when an invariant broke."""
    arguments = _arguments()
    if arguments.list:
        for scenario in (*ALL, *NAMED):
            sys.stdout.write(f"{scenario.name:24} {scenario.fault}: {scenario.target}\n")
        return 0
    handler = logging.StreamHandler()
    handler.setFormatter(_Clock("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if arguments.debug:
        logging.getLogger("nsq_ha").setLevel(logging.DEBUG)
    else:
        logging.getLogger("nsq_ha").setLevel(logging.ERROR)
    rows = asyncio.run(_run(arguments))
    return 1 if any(row.broken for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
