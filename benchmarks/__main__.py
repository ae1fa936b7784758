"""``python -m benchmarks``: what needs no server."""

from __future__ import annotations

from benchmarks.canned import compare, report


def main() -> None:
    """Print the ratios."""
    print(report([compare(100, 200_000, 5), compare(1024, 100_000, 5), compare(16384, 10_000, 5)]))


if __name__ == "__main__":
    main()
