"""The page that compares clients: each yes of ours links to a test that exists, and each no has a reason."""

import re

from tests.examples import ROOT
from tests.support.pages import named_in

PAGE = ROOT / "docs" / "reference" / "comparison.md"
_, ONLY_OURS, ONLY_OTHERS, *TABLES = PAGE.read_text("utf-8").split("\n## ")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in "\n".join(TABLES).splitlines()
    if line.startswith("| ") and not line.startswith("| |")
]


def items(section: str) -> list[str]:
    return re.findall(r"^- .*(?:\n  .*)*", section, re.MULTILINE)


def test_the_page_is_about_something() -> None:
    assert len(ROWS) + len(items(ONLY_OURS)) >= 70
    assert len({row[0] for row in ROWS}) == len(ROWS)
    assert all(len(row) == 6 and all(row) for row in ROWS)


def test_each_yes_of_ours_has_a_test() -> None:
    for ours in [*(row[1] for row in ROWS), *items(ONLY_OURS)]:
        assert named_in(ours), ours
        assert ours.count("[yes]") + ours.count("[✓]") == len(named_in(ours)), ours


def test_what_others_have_and_we_lack_is_little_and_has_reasons() -> None:
    lacking = items(ONLY_OTHERS)
    assert 0 < len(lacking) <= 8, lacking
    assert all(re.search(r": .{12}", each, re.DOTALL) for each in lacking), lacking
