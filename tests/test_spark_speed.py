"""The tables and the chart of Spark's speed say what was measured."""

import json

import pytest

from benchmarks.spark_page import page
from docs._ext.charts import PAGES


def test_the_page_has_the_tables_of_its_figures() -> None:
    figures = PAGES / "spark-speed" / "figures.json"
    if not figures.exists():
        pytest.skip("its tables are older than the kept figures")
    shown = (PAGES / "spark-speed" / "tables.md.inc").read_text("utf-8")
    assert shown == page(json.loads(figures.read_text("utf-8"))) + "\n"
