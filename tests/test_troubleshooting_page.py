"""The pages for troubles quote texts of the library: each must still exist, and each error of Spark is there."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("troubleshooting", "spark-errors")]
SHOWN = {"ConfigError", "DataLossError", "NoLeaderError", "SparkUnavailableError", "LookupUnavailableError"}
"""Errors that end a query of Spark; the others are tried again, and stand behind the text of one of these."""
GAP = "\0"
"""Stands for a value in an f-string."""
INTERNAL = f"a range of offsets needs 0 <= start <= end, not [{GAP}, {GAP})"
"""No query can cause it: the planner refuses such a range before."""


@cache
def sources() -> tuple[str, ...]:
    """Return the modules of the package without their comments."""
    paths = (path for package in ("nsq_ha", "pyspark_nsq") for path in (ROOT / package).rglob("*.py"))
    return tuple(re.sub(r"(^ *|  )# .*", "", path.read_text(), flags=re.MULTILINE) for path in paths)


def texts_of(source: str) -> str:
    """Return all texts of a module, one a line; f-strings have a gap for each value."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(as_text(part) for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            found.append(as_text(node))
    return "\n".join(text.replace("\n", " ") for text in found)


def exists(quote: str) -> bool:
    """Tell whether a text of the library has a quoted one.

    Most stand on one line of a module. Only for the others are modules parsed, since all of them would take seconds.
    """
    wanted, words = pattern(quote), re.findall(r"\w{4,}", quote)
    return any(re.search(wanted, source) for source in sources()) or any(
        re.search(wanted, texts_of(source)) for source in sources() if all(word in source for word in words)
    )


def as_text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
    return GAP


def quotes(page: Path) -> list[str]:
    table = page.read_text().split("## By error text")[1].split("\n## ")[0]
    return re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]+) \|", table, re.MULTILINE)))


def pattern(quote: str) -> str:
    """Return what matches the quoted text; a value such as a number or a setting may stand at its ``...``."""
    return r"[^\n]*?".join(re.escape(part) for part in quote.removeprefix("...").split("..."))


def texts_of_spark() -> list[tuple[str, str]]:
    """Return the texts that the Spark source raises as one of :data:`SHOWN`, with the places."""
    found: list[tuple[str, str]] = []
    for path in sorted((ROOT / "nsq_ha" / "spark").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in SHOWN or not node.args:
                continue
            text = as_texts(node.args[0])
            # Those of options get the option's name in front; a text of values and signs alone is made elsewhere.
            if len(text.replace(GAP, "")) > len(": it has : ; ") and path.parent.name != "options":
                found.append((f"{path.name}:{node.lineno}", text))
    assert INTERNAL in [text for _, text in found]
    return [each for each in found if each[1] != INTERNAL]


def as_texts(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(as_text(part) for part in node.values)
    return as_texts(node.left) + as_texts(node.right) if isinstance(node, ast.BinOp) else as_text(node)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_has_its_table(page: Path) -> None:
    assert len(quotes(page)) > 10


def test_each_error_that_ends_a_query_of_spark_is_in_its_table() -> None:
    known = [pattern(quote) for quote in quotes(PAGES[1])]
    texts = texts_of_spark()
    assert len(texts) > 40
    assert [text for text in texts if not any(re.search(each, text[1].replace("\n", " ")) for each in known)] == []


def test_a_quoted_text_exists() -> None:
    assert [quote for page in PAGES for quote in quotes(page) if not exists(quote)] == []


def test_an_invented_text_is_noticed() -> None:
    assert not exists("the moon is full")
