"""The table of fuzz targets: what each is fed with, and the sums of its runs (``fuzz/figures.json``).

.. fuzz-table::
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from sphinx.ext.autodoc import mock

from docs._ext.reference import Made, table

# One target is of Spark's reader. What that needs is not in the environment of the pages.
with mock([name for name in ("numpy", "pyarrow", "pyspark") if find_spec(name) is None]):
    from fuzz.__main__ import FIGURES
    from fuzz.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sphinx.application import Sphinx

_HEAD: Final = ("Target", "Input", "Minutes", "Executions", "New units", "Findings")


def fuzz_table(path: Path = FIGURES) -> str:
    """Return the table; a target that never ran has zeros."""
    figures: dict[str, dict[str, int]] = json.loads(path.read_text("utf-8"))
    rows = [(f"``{name}``", target.about, *_cells(figures.get(name, {}))) for name, target in TARGETS.items()]
    sums: dict[str, int] = {}
    for each in figures.values():
        sums = {key: sums.get(key, 0) + value for key, value in each.items()}
    return table(_HEAD, [*rows, ("all", "", *_cells(sums))], widths="14 42 10 14 10 10")


def _cells(row: Mapping[str, int]) -> tuple[str, ...]:
    minutes = f"{row.get('seconds', 0) / 60:.1f}"
    return (minutes, *(f"{row.get(key, 0):,}" for key in ("executions", "new_units", "findings")))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("fuzz-table", type("FuzzTable", (Made,), {"make": staticmethod(fuzz_table)}))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
