"""``python -m benchmarks [PART ...]``: all parts that the servers at hand allow, or those that are named.

``guard`` needs no server. ``peers`` and most of ``growth`` need an
upstream nsqd, whose program ``UPSTREAM_NSQD_BIN`` names; ``ha``, ``spark`` and a part of ``growth`` need a cluster of
the HA server, whose nsqlookupd ``NSQ_HA_TEST_LOOKUPD`` names.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks import canned_publish, figures, growth, ha, spark
from benchmarks.canned import MARK, compare, report
from benchmarks.peers import __main__ as peers
from benchmarks.record import Record, load


def guard(record: Record) -> None:
    """Print the ratios of our consumer's path, and of our producer's, to bare loops."""
    before = load()
    found = [compare(100, 200_000, 5), compare(1024, 100_000, 5), compare(16384, 15_000, 5)]
    print(report(found))
    kept = [(one.body_bytes, min(one.bare), min(one.ours), one.ratio, MARK) for one in found]
    record.keep("guard", kept, before)
    before = load()
    one = canned_publish.compare(100, 30_000, 9)
    print(f"\npublishing, {canned_publish.IN_FLIGHT} in flight:\n{report([one], canned_publish.MARK)}")
    record.keep(
        "guard/publish", [(one.body_bytes, min(one.bare), min(one.ours), one.ratio, canned_publish.MARK)], before
    )


PARTS: Final[dict[str, Callable[[list[str]], None]]] = {
    "peers": peers.main,
    "ha": ha.main,
    "growth": growth.main,
    "spark": lambda _: spark.main([]),  # its figures are kept for Spark's own page
}


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ["guard", *PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(names)}; all when none is named")
    parser.add_argument("--json", type=Path, help="where the figures are kept, besides those that are there")
    parser.add_argument("--page", type=Path, help="folder for the tables of all that --json keeps")
    parser.add_argument("--before", default="", metavar="COMMIT", help="peers measures it in the same rounds")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.parts if name not in names]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if chosen.page and not chosen.json:
        parser.error("--page needs --json")
    for name in chosen.parts or names:
        print(f"# {name}", flush=True)
        if name == "guard":
            guard(Record(chosen.json))
        else:
            arguments = ["--json", str(chosen.json)] if chosen.json else []
            PARTS[name]([*arguments, "--before", chosen.before] if name == "peers" and chosen.before else arguments)
    if chosen.page:
        figures.main([str(chosen.json), str(chosen.page)])


if __name__ == "__main__":
    main()
