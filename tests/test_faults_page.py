"""The page that says which test covers which fault names tests that exist, and leaves no scenario out."""

import re

from integration.faults.scenarios import ALL
from tests.support.pages import named_in, rows_of
from tests.support.promises import why_no_evidence

ROWS = rows_of("docs/explanation/fail-over.md")
TESTS = sorted({test for row in ROWS for test in named_in(row)})


def scenarios_of(row: str) -> list[str]:
    return [name for name in re.findall(r"`([^`]+)`", row) if "/" not in name]


def test_the_page_names_tests_that_run() -> None:
    assert [why for test in TESTS if (why := why_no_evidence(test)) is not None] == []


def test_each_scenario_is_in_one_row_and_each_row_has_a_test() -> None:
    named = [name for row in ROWS for name in scenarios_of(row)]
    assert sorted(named) == sorted(scenario.name for scenario in ALL)
    assert len(ROWS) > 15
