"""``python -m benchmarks.peers [ROW ...] [--rounds N]``: on the nsqd that ``UPSTREAM_NSQD_BIN`` names.

``--before COMMIT`` measures that commit of this library in the same rounds.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.peers.environments import Client
from benchmarks.peers.nsqd import BINARY_VARIABLE, running
from benchmarks.peers.rounds import Bench
from benchmarks.peers.rows import ROWS, Row, changes, report, table
from benchmarks.record import Record, load


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all when none is named")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each row")
    parser.add_argument("--json", type=Path, help="where the figures are kept")
    parser.add_argument("--before", default="", metavar="COMMIT", help="measure this commit, too")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.rows if name not in ROWS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if not os.environ.get(BINARY_VARIABLE):
        print(f"peers: skipped, {BINARY_VARIABLE} names no upstream nsqd")
        return
    rows = {name: ROWS[name] for name in chosen.rows or ROWS}
    measured = {name: _clients(row, chosen.before) for name, row in rows.items()}
    clients = dict.fromkeys(client for some in measured.values() for client in some)
    with tempfile.TemporaryDirectory() as folder, running() as server:
        bench = Bench(server, Path(folder), tuple(clients))
        found = []
        for name, row in rows.items():
            before = load()
            outcomes = bench.run(row.work, measured[name], chosen.rounds)
            found.append((row, outcomes))
            figures = {outcome.client.name: outcome.results for outcome in outcomes if not outcome.trouble}
            Record(chosen.json).keep(f"peers/{name}", figures, before)
            print(report(row, outcomes))
            sys.stdout.flush()
    print(table(found))
    if chosen.before:
        print(changes(found))


def _clients(row: Row, before: str) -> list[Client]:
    earlier = [client.before(before) for client in row.clients if client.is_ours and before]
    return [*row.clients, *earlier]


if __name__ == "__main__":
    main()
