"""``pyspark_nsq``: found by PySpark, light to import, and harmless when something is missing."""

import subprocess
import sys
import tomllib
from types import ModuleType

import pytest
from pyspark.sql.datasource import DataSource

import pyspark_nsq
from nsq_ha.spark.source import NsqDataSource
from tests.support.pages import ROOT


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


@pytest.mark.parametrize("pyarrow", [None, ModuleType("pyarrow")], ids=["missing", "of another version"])
def test_a_library_that_cannot_be_used_shows_only_when_the_format_is_used(
    monkeypatch: pytest.MonkeyPatch, pyarrow: ModuleType | None
) -> None:
    monkeypatch.delitem(sys.modules, "nsq_ha.spark.source")
    monkeypatch.setitem(sys.modules, "pyarrow", pyarrow)
    monkeypatch.delitem(sys.modules, "nsq_ha.spark.read.columns")
    source = pyspark_nsq.DefaultSource
    assert issubclass(source, DataSource)
    assert source.name() == "nsq"
    with pytest.raises(ImportError, match="pyarrow") as caught:
        source({})
    # Which Python lacks it, and how to choose another one: it is rarely the one that runs the program.
    for given in (f"in {sys.executable}:", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "nsq_ha[spark]"):
        assert given in str(caught.value)


WORKER = """
import importlib.abc, sys
from pathlib import Path
import pyspark

class NoPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ImportError(f"{name} is not installed")
        return None

# The archive beside Spark's jars comes first, as on an executor.
home = Path(pyspark.__file__).parent
for name in [name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j")]:
    del sys.modules[name]
sys.path[:0] = map(str, (home / "python" / "lib").glob("*.zip"))
sys.meta_path.insert(0, NoPandas())
import pyspark_nsq
import nsq_ha.spark.sink, nsq_ha.spark.source
import nsq_ha.spark.read.bulk.reader
print(pyspark_nsq.DefaultSource.name(), sys.modules["pyspark"].__file__, sys.modules["pyspark.sql"].__file__)
"""


def test_a_worker_needs_only_the_pyspark_that_spark_ships() -> None:
    """With the extra ``spark-worker`` there is no other one, and no pandas."""
    ran = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    name, *files = ran.stdout.split()
    assert name == "nsq"
    assert all("pyspark.zip" in file for file in files)


def test_the_worker_s_extra_is_the_driver_s_without_pyspark() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [need for need in extras["spark"] if not need.startswith("pyspark")] == extras["spark-worker"]
