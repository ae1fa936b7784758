"""The page that says what proves Spark's rows names tests that exist and run at every change."""

from __future__ import annotations

import pytest

from tests.support.pages import ROOT, named_in, names_in, rows_of

ROWS = rows_of("docs/explanation/spark-proof.md")


@pytest.mark.parametrize("test", sorted({test for row in ROWS for test in named_in(row)}))
def test_the_page_names_tests_that_exist_and_are_not_left_out(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in names_in(path)
    assert "mark.slow" not in (ROOT / path).read_text()


def test_each_row_has_a_test() -> None:
    assert len(ROWS) >= 26
    assert all(named_in(row) for row in ROWS)
