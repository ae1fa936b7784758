"""What modules and pages cite exists: each numbered section is on its page."""

import re
from functools import cache

import pytest

from docs._ext import citations
from tests.examples import ROOT

MODULES = sorted(path for package in ("nsq_ha", "pyspark_nsq") for path in (ROOT / package).rglob("*.py"))
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts]


def headings(page: str) -> list[str]:
    """Return the numbers of the sections of a page."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    return [match[1] for match in re.finditer(rf"^#+ {citations.HEADING.pattern}", text, re.MULTILINE)]


@cache
def texts() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in (*PAGES, *MODULES)}


def test_each_section_that_is_cited_exists() -> None:
    known = {(page, number) for page in citations.PAGES.values() for number in headings(page)}
    found = {(where, page, number) for where, text in texts().items() for page, number, _, _ in citations.cited(text)}
    assert len(found) > 150
    assert not sorted(each for each in found if each[1:] not in known)


@pytest.mark.parametrize("page", citations.PAGES.values())
def test_sections_are_numbered_without_a_gap(page: str) -> None:
    counts: list[int] = []
    for number in headings(page):
        *parents, last = map(int, number.split("."))
        assert parents == counts[: len(parents)], number
        counts = [*parents, *([0] if len(counts) <= len(parents) else [counts[len(parents)]])]
        counts[-1] += 1
        assert counts[-1] == last, number
    assert counts


def test_nothing_that_is_not_in_the_repository_is_cited() -> None:
    lost = re.compile(r"\b(?:protocol|failures|spark|clients|style) reference,? \d", re.IGNORECASE)
    assert not {where: match[0] for where, text in texts().items() if (match := lost.search(text))}
