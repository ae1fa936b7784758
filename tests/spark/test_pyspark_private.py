"""Private parts of PySpark: a missing one is named, and the range of versions is the tested one."""

import re
import tomllib
from pathlib import Path

import pytest
from pyspark.core.context import SparkContext

from nsq_ha.errors import SparkUnavailableError
from nsq_ha.spark import pyspark_private
from nsq_ha.spark.pyspark_private import SUPPORTED

ROOT = Path(__file__).parents[2]


def test_this_pyspark_has_all_parts() -> None:
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
