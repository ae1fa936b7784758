"""The tables and the chart of Spark's speed say what was measured."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from benchmarks import spark
from benchmarks.spark_page import BARE, BASE, FILES, IDLE, READS, page, write_page
from docs._ext.charts import PAGES, spark_chart

if TYPE_CHECKING:
    from pathlib import Path


def kept(bulk: float = 100.0, workers: float = 0.5) -> dict[str, Any]:
    """Return figures of all rows, two rounds each."""
    rates = {label: [50.0, 60.0] for label in READS} | {BASE: [100.0, 100.0], "bulk": [bulk, bulk]}
    rates |= {label: [70.0, 72.0] for label in FILES}
    reads = {"rows": 1000, "rates": rates, "cpu": {label: [[0.002, workers / 1000, 0.007]] * 2 for label in rates}}
    figures = {
        "sizes": {"200": reads, "65536": reads, "1000000": reads},
        "writers": {"1": reads, "1000": reads},
        "headers": {"rows": 10, "rates": {"subscribe": [5.0, 7.0]}, "cpu": {"subscribe": [[1e-3, 4e-4, 0.0]] * 2}},
        "traces": {"rows": 3000, "cpu": {"reading": [[0.015, 0.0, 0.0], [0.018, 0.0, 0.0]]}},
        "ordered": {"rates": {"subscribe": [1.0, 1.0], "bulk": [30.0, 40.0]}},
        "sink": {
            "rows": 10,
            "rates": {"nsq": [1.0, 1.0], "dropped": [2.0, 2.0]},
            "cpu": {"nsq": [[4e-5, 3e-6, 0.0]] * 2},
        },
        "trigger": {
            "ms": {"nsq": [115.0, 125.0], "rate": [100.0, 100.0], BARE: [150.0, 150.0]},
            "parts": {label: [{"addBatch": 40.0}, {"addBatch": 60.0}] for label in ("nsq", "rate", BARE)},
        },
        "memory": {IDLE: 100e6, "read 50": 250e6, "read 200": 320e6, "write 50": 400e6},
    }
    about = {"load": 0.1, "commit": "abc", "machine": "2 cores"}
    return {f"spark/{name}": {"figures": each, **about} for name, each in figures.items()}


def test_each_figure_is_in_a_table_and_a_missed_mark_is_bold(tmp_path: Path) -> None:
    write_page(kept(bulk=50.0), tmp_path)
    rows = [line for line in (tmp_path / "tables.md.inc").read_text().splitlines() if line.startswith("| ")]
    cells = {row.split("|")[1].strip(): row for row in rows if not row.startswith("| ---")}
    (small,) = [row for row in rows if row.startswith("| 200 B") and "to" in row]
    assert "**0.50 (0.50 to 0.50)**" in small, "bulk is below its mark"
    assert "55: 0.55 (0.50 to 0.60)" in small
    assert "| 200 B | 2.0 / 0.50 / 7.0 |" in "\n".join(rows)
    assert "| 4.0 / 0.30 / 0.00 |  |" in "".join(rows), "the sink's, and none of the other"
    assert "**" not in next(row for row in rows if row.startswith("| 64 KiB")), "the marks are of 200 B"
    assert "35.0 (30.0 to 40.0)" in "".join(rows)
    assert "**0.50 (0.50 to 0.50)**" in next(row for row in rows if "0.65 or more" in row)
    assert "1.20 (1.15 to 1.25)" in cells["nsq"]
    assert "**" not in cells["nsq"]
    assert cells["read 50 bodies of 1 MB"].endswith("| 150 |")
    assert cells["read 200 bodies of 1 MB"].endswith("| **220** |")
    assert cells["write 50 bodies of 1 MB"].endswith("|  | 300 |")
    assert cells["1 MB"].endswith("| 2.0 / 0.50 / 7.0 | 2.0 / 0.50 / 7.0 |"), "the CPU of both kinds of files"
    assert cells["subscribe"] == "| subscribe | 6 | 100 / 40.0 / 0.00 | workers 60 or less |"
    assert cells["reading"] == "| reading | 5.5 | 181,818 |"
    assert {"PUB", "MPUB of 1000"} <= set(cells)


def test_cpu_of_workers_above_its_mark_is_bold_for_the_marked_bodies() -> None:
    shown = page(kept(workers=0.7))
    assert "| 200 B | 2.0 / **0.70** / 7.0 | 2.0 / 0.70 / 7.0 |" in shown
    assert shown.count("**0.70**") == 1


def test_what_was_not_measured_has_no_table() -> None:
    assert page({}) == ""
    assert page({"spark/ordered": kept()["spark/ordered"]}).count("\n\n") == 2


def test_the_page_has_the_tables_of_its_figures() -> None:
    figures = PAGES / "spark-speed" / "figures.json"
    if not figures.exists():
        pytest.skip("its tables are older than the kept figures")
    shown = (PAGES / "spark-speed" / "tables.md.inc").read_text("utf-8")
    assert shown == page(json.loads(figures.read_text("utf-8"))) + "\n"


def test_tables_without_kept_figures_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        spark.main(["--page", "nowhere"])
    assert "--page needs --json" in capsys.readouterr().err


def test_each_way_to_read_has_a_bar_for_each_size(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    assert spark_chart(path) == ""
    path.write_text(json.dumps(kept()))
    drawn = [element.text for element in ET.fromstring(spark_chart(path)).iter("text")]  # noqa: S314 - drawn here
    assert [drawn.count(label) for label in READS] == [3] * len(READS)
    assert drawn.count("100/s") == 6
