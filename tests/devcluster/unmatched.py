"""The list in the docs of recorded exchanges that the embedded cluster does not match."""

import re
from functools import cache
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "devcluster.md"
_ROW = re.compile(r"^\| `([a-z_]+)/([a-z0-9_]+)` \| (.+) \|$", re.MULTILINE)


@cache
def unmatched() -> dict[str, str]:
    """Name of each listed exchange and the reason."""
    return {f"{file}/{name}": reason for file, name, reason in _ROW.findall(PAGE.read_text(encoding="utf-8"))}
