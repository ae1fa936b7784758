"""Pages that name tests."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def items_of(text: str) -> list[str]:
    """Return the items of the lists of a text that are not inside others."""
    return re.findall(r"^- .*(?:\n  .*)*", text, re.MULTILINE)


def rows_of(page: str) -> list[str]:
    """Return the items of a page's lists that name tests."""
    return [item for item in items_of((ROOT / page).read_text("utf-8")) if named_in(item)]


def named_in(text: str) -> list[str]:
    """Return the tests that a text links to by ``[✓](path#name)``, or by its definition, as ``file::name``."""
    found = re.findall(r"\](?:\(|: )(?:\.\./)*((?:tests|integration)/[\w/]+\.py)#(\w+)", text)
    return ["::".join(each) for each in found]
