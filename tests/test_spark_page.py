"""The page that says what proves Spark's rows names tests that exist, most of which run at every change."""

from tests.support.pages import named_in, rows_of
from tests.support.promises import why_no_evidence

ROWS = rows_of("docs/explanation/spark-proof.md")


def test_most_rows_have_a_test_that_runs_at_every_change() -> None:
    nightly = [row for row in ROWS if all(why_no_evidence(test) for test in named_in(row))]
    assert len(nightly) < len(ROWS) / 5, nightly


def test_each_row_has_a_test() -> None:
    assert len(ROWS) >= 26
    assert all(named_in(row) for row in ROWS)
