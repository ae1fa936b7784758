"""``python -m benchmarks [PART ...]``: all parts that the servers at hand allow, or those that are named.

``guard`` needs no server. ``peers`` and most of ``growth`` need an upstream nsqd,
whose program ``UPSTREAM_NSQD_BIN`` names; ``ha`` and ``spark`` need a cluster of
the HA server, whose nsqlookupd ``NSQ_HA_TEST_LOOKUPD`` names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from benchmarks import growth, ha, spark
from benchmarks.canned import compare, report
from benchmarks.peers import __main__ as peers


def guard() -> None:
    """Print the ratios of our consumer's path to a bare loop."""
    print(report([compare(100, 200_000, 5), compare(1024, 100_000, 5), compare(16384, 15_000, 5)]))


PARTS: dict[str, Callable[[], None]] = {
    "guard": guard,
    "peers": lambda: peers.main([]),
    "ha": lambda: ha.main([]),
    "growth": lambda: growth.main([]),
    "spark": lambda: spark.main([]),
}


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all when none is named")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    for name in chosen:
        print(f"# {name}", flush=True)
        PARTS[name]()


if __name__ == "__main__":
    main()
