"""Private parts of PySpark: a missing one is named, and the range of versions is the tested one."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.core.context import SparkContext
from pyspark.sql import datasource_internal

from nsq_ha.errors import SparkUnavailableError
from nsq_ha.spark import pyspark_private
from nsq_ha.spark.pyspark_private import SUPPORTED, ReturnsRows, missing

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Let each test check the parts again."""
    ReturnsRows.can_return_rows.cache_clear()
    yield
    ReturnsRows.can_return_rows.cache_clear()


def test_this_pyspark_has_all_parts() -> None:
    assert not missing(*pyspark_private.SESSION_PARTS, *pyspark_private.ROW_PARTS)
    pyspark_private.require()


def test_a_missing_part_of_a_session_is_named_with_the_versions_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(SparkContext, "_ensure_initialized")
    with pytest.raises(SparkUnavailableError) as caught:
        pyspark_private.require()
    assert re.fullmatch(
        r"PySpark \d\S+ has no core\.context:SparkContext\._ensure_initialized, which nsq_ha uses: "
        rf"pip install 'pyspark{re.escape(SUPPORTED)}'",
        str(caught.value),
    )


def test_parts_of_a_module_that_is_gone_are_missing() -> None:
    assert missing("no.such.module:thing", "sql:SparkSession") == ["no.such.module:thing"]


def test_without_the_wrapper_tasks_read_all_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(datasource_internal, "_SimpleStreamReaderWrapper")
    with caplog.at_level(logging.WARNING, "nsq_ha.spark"):
        assert not ReturnsRows.can_return_rows()
        assert not ReturnsRows.can_return_rows()
    (record,) = caplog.records
    assert "has no sql.datasource_internal:_SimpleStreamReaderWrapper.getCache: tasks read" in record.getMessage()


def test_the_supported_versions_are_those_of_the_project_and_the_floor_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (extra,) = (each for each in project["project"]["optional-dependencies"]["spark"] if each.startswith("pyspark"))
    assert extra == f"pyspark{SUPPORTED}"
    floor, cap = re.findall(r"\d+\.(\d+)", SUPPORTED)
    tested = {
        name: re.search(r"^pyspark==4\.(\d+)\.", (ROOT / "requirements" / name).read_text(), re.MULTILINE)
        for name in ("spark-floor.txt", "dev.txt")
    }
    assert [found and found[1] for found in tested.values()] == [floor, str(int(cap) - 1)]
