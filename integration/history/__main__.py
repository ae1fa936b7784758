"""``python -m integration.history FILE ...``: check histories; 1 when a rule is broken."""

import argparse
import sys
from pathlib import Path

from integration.history.checking import Checker

_SHOWN = 20


def main() -> int:
    """Check each file, and print what was counted and what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m integration.history", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    is_right = True
    for path in parser.parse_args().files:
        checker = Checker()
        with path.open() as lines:
            checker.read(lines)
        counted = ", ".join(f"{name} {count:,}" for name, count in sorted(checker.counts.items()))
        sys.stdout.write(f"{path.name}: {len(checker.wrong)} wrong; {counted}\n")
        for text in checker.wrong[:_SHOWN]:
            sys.stdout.write(f"  {text}\n")
        is_right = is_right and not checker.wrong
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
