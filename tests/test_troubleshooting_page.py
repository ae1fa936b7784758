"""The page for troubles quotes texts of the library: each of them must still exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
GAP = "\0"
"""Stands for a value in an f-string."""


@cache
def texts_of_the_library() -> str:
    """Return all texts of the package, one a line; f-strings have a gap for each value."""
    found: list[str] = []
    for path in sorted((ROOT / "nsq_ha").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(as_text(part) for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                found.append(as_text(node))
    return "\n".join(text.replace("\n", " ") for text in found)


def as_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
    return GAP


def quotes() -> list[str]:
    table = PAGE.read_text().split("## By error text")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def test_the_page_has_its_table() -> None:
    assert len(quotes()) > 10


@pytest.mark.parametrize("quote", quotes())
def test_a_quoted_text_exists(quote: str) -> None:
    pattern = r"[^\n]*?".join(re.escape(part) for part in quote.split("..."))
    # A value such as a number of seconds or a setting may stand in the middle of a quote.
    assert re.search(pattern, texts_of_the_library()), f"no text of the library has {quote!r}"


def test_an_invented_text_is_noticed() -> None:
    assert "the moon is full" not in texts_of_the_library()
