"""Pages that name tests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def rows_of(page: str) -> list[str]:
    """Return the lines of a page that name tests."""
    lines = (ROOT / page).read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and named_in(line)]


def named_in(text: str) -> list[str]:
    """Return the tests that a text links to by ``[✓](path "name")``, as ``file::name``."""
    return [
        "::".join(found) for found in re.findall(r'\]\((?:\.\./)*((?:tests|integration)/[\w/]+\.py) "(\w+)"\)', text)
    ]


@cache
def _names_in(path: str) -> frozenset[str]:
    """Return what a file of tests defines, methods too."""
    text = (ROOT / path).read_text("utf-8")
    return frozenset(re.findall(r"^(?: *(?:(?:async )?def|class) |(?=\w+ = ))(\w+)", text, re.MULTILINE))


def lost(tests: Iterable[str]) -> list[str]:
    """Return those tests, each named ``file::name``, that do not exist."""
    return [test for test in tests if test.partition("::")[2] not in _names_in(test.partition("::")[0])]
