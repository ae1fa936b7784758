"""The page that compares clients: each yes of ours links to a test that exists, and each no has a reason."""

import re

from tests.examples import ROOT

PAGE = ROOT / "docs" / "reference" / "comparison.md"
TEXT = PAGE.read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.partition("\n## ")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| |")
]
LINK = re.compile(r"\[yes\]\(\.\./\.\./((?:tests|integration)/[\w/]+\.py)#(test_\w+)\)")


def test_the_page_is_about_something() -> None:
    assert len(ROWS) >= 90
    assert len({row[0] for row in ROWS}) == len(ROWS)
    assert all(len(row) == 6 and all(row) for row in ROWS)


def test_each_yes_of_ours_has_a_test_and_each_no_a_reason() -> None:
    for _, ours, *_ in ROWS:
        assert LINK.match(ours) or re.match(r"no: .{12}", ours), ours
        assert ours.count("yes") == len(LINK.findall(ours)), ours


def test_what_others_have_and_we_lack_is_little() -> None:
    lacking = [row[0] for row in ROWS if row[1].startswith("no")]
    assert len(lacking) <= 8, lacking
