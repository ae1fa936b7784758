"""Pages that name tests."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def rows_of(page: str) -> list[str]:
    """Return the items of a page's lists that name tests."""
    lines = (ROOT / page).read_text().splitlines()
    return [line for line in lines if line.startswith("- ") and named_in(line)]


def named_in(text: str) -> list[str]:
    """Return the tests that a text links to by ``[✓](path#name)``, or by its definition, as ``file::name``."""
    found = re.findall(r"\](?:\(|: )(?:\.\./)*((?:tests|integration)/[\w/]+\.py)#(\w+)", text)
    return ["::".join(each) for each in found]
