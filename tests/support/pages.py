"""Pages that name tests."""

from __future__ import annotations

import ast
import re
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
def names_in(path: str) -> frozenset[str]:
    """Return what a file of tests defines, methods too."""
    tree = ast.parse((ROOT / path).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigns = [node for node in tree.body if isinstance(node, ast.Assign)]
    return frozenset(defined | {each.id for node in assigns for each in node.targets if isinstance(each, ast.Name)})
