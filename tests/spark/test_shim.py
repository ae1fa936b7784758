"""``pyspark_nsq``: found by PySpark, light to import, and harmless when something is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_nsq
from nsq_ha.spark.source import NsqDataSource


def test_pyspark_finds_the_source() -> None:
    assert pyspark_nsq.DefaultSource is NsqDataSource
    assert NsqDataSource.name() == "nsq"
    with pytest.raises(AttributeError, match="Nothing"):
        pyspark_nsq.Nothing  # noqa: B018 - the lookup is the test


def test_importing_it_imports_nothing_of_size() -> None:
    check = "import sys, pyspark_nsq; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.split()
    assert "pyspark_nsq" in loaded
    assert not {"nsq_ha", "pyspark", "pyarrow", "httpx", "pandas"} & set(loaded)


def test_a_missing_library_shows_only_when_the_format_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "nsq_ha.spark.source")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "nsq_ha.spark.read.columns")
    source = pyspark_nsq.DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == "nsq"
    with pytest.raises(ImportError, match="pyarrow") as caught:
        source({})
    # Which Python lacks it, and how to choose another one: it is rarely the one that runs the program.
    for given in (f"in {sys.executable}:", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "pip install 'nsq_ha[spark]'"):
        assert given in str(caught.value)
