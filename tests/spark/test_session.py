"""What is said where Spark cannot run: one line with the remedy."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from nsq_ha.errors import SparkUnavailableError
from nsq_ha.spark import session


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME whose ``java`` is a script of the test's."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


def pretend(java_home: Path, script: str) -> None:
    program = java_home / "bin" / "java"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("something else", None),
    ],
)
def test_versions_as_they_are_printed(java_home: Path, printed: str, version: int | None) -> None:
    pretend(java_home, f"echo '{printed}' >&2")
    assert session.java_version() == version


def test_no_java_at_java_home(java_home: Path) -> None:
    with pytest.raises(SparkUnavailableError, match="needs Java 17 or newer, but JAVA_HOME has none") as caught:
        session.local_session(java_home.name)
    assert_helpful(caught.value)


def test_no_java_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match="none was found") as caught:
        session.require_spark()
    assert_helpful(caught.value)


def test_an_old_java(java_home: Path) -> None:
    pretend(java_home, "echo 'java version \"1.8.0_402\"' >&2")
    with pytest.raises(SparkUnavailableError, match="needs Java 17 or newer, but found 8") as caught:
        session.require_spark()
    assert_helpful(caught.value)


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow", "numpy"])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    with pytest.raises(SparkUnavailableError, match=rf"{missing}.*install nsq_ha\[spark\]") as caught:
        session.require_spark()
    assert "\n" not in str(caught.value)


def test_a_java_that_does_not_start_spark_is_reported_with_its_reason(java_home: Path) -> None:
    pretend(
        java_home,
        'case "$1" in -version) echo \'openjdk version "17.0.1"\' >&2;; '
        "*) echo 'Error: Could not reserve enough space' >&2; exit 1;; esac",
    )
    # In a process of its own: PySpark leaves the pipe to a JVM that ended at once open.
    script = "from nsq_ha.spark.session import local_session; local_session('never')"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last == "nsq_ha.errors.SparkUnavailableError: Spark did not start: Error: Could not reserve enough space"


def assert_helpful(error: SparkUnavailableError) -> None:
    assert "\n" not in str(error)
    assert "apt install openjdk-17-jre-headless" in str(error)
    assert "JAVA_HOME" in str(error)
