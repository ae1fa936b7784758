"""Start a Spark session on this machine in which Python sources work and Spark prints no noise.

This module checks Java and PySpark, sets the environment of the workers and filters Spark's
own output. For ``spark-submit`` or Spark Connect create the session as usual;
``format("nsq")`` works there too.
"""

from __future__ import annotations

import collections
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nsq_ha.errors import SparkUnavailableError
from nsq_ha.spark import pyspark_private

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINIMUM_JAVA: Final = 17
"""Oldest Java that Spark 4 runs on."""

_JAVA_REMEDY: Final = "install one (Debian: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17)"
_JAVA_TIMEOUT: Final = 20.0
_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_NOISE: Final = re.compile(
    r"WARNING: Using incubator modules|Picked up JAVA_TOOL_OPTIONS|Setting \w+ log level|Setting Spark|To adjust log"
)
_LOOPBACK: Final = "127.0.0.1"

_CONFIG: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.host": _LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}",
}


def local_session(app: str, *, threads: str = "*", config: Mapping[str, str] | None = None) -> SparkSession:
    """Start Spark inside this process, or return the running session.

    Listens on the loopback interface only, without web UI, and logs errors only. Sets
    ``PYSPARK_PYTHON`` and ``PYSPARK_DRIVER_PYTHON`` of this process to the
    running interpreter: Spark's workers would otherwise run the ``python3`` of
    ``PATH``, without the virtual environment.

    Args:
        app: Name of the application.
        threads: The text in the brackets of ``local[...]``: ``*``, a number,
            or ``number,failures`` (without it, a failed task is never retried).
        config: More settings for Spark; they override those made here.

    Returns:
        The session; ``stop()`` it when done.

    Raises:
        SparkUnavailableError: Java 17 or PySpark is missing, the version of PySpark is not
            supported, or Spark did not start; the text says what to do, in one line.
    """
    require_spark()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Otherwise Spark resolves the host's name first, and warns if that is a loopback address.
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    from pyspark import SparkConf  # noqa: PLC0415 - pyspark is an extra, and slow to import
    from pyspark.sql import SparkSession  # noqa: PLC0415

    settings = SparkConf().setMaster(f"local[{threads}]").setAppName(app)
    settings.setAll([*_CONFIG.items(), *(config or {}).items()])
    if not pyspark_private.has_java():
        _start_java(settings)
    with warnings.catch_warnings():
        # PySpark checks the version of pandas when it starts; nsq_ha does not use pandas.
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        session = SparkSession.builder.config(conf=settings).getOrCreate()
    register(session)
    return session


def register(spark: SparkSession) -> None:
    """Register ``format("nsq")`` in a session that runs several queries at the same time.

    A single query does not need it: Spark finds the format by itself. But then all
    queries of the process share one map of environment variables, and Spark adds
    four names to it, without a lock, each time a stream starts. Two streams that
    start at the same time can break that map, and from then on every job of
    the format fails: ``Task serialization failed: java.lang.IllegalStateException:
    Illegal size 5 of collection, expected 9``. A registered format has its own
    map, which contains these names from the start, so nothing is ever added.

    Tasks of a registered format run under ``PYSPARK_PYTHON``; those of a format
    that Spark found run under ``PYSPARK_DRIVER_PYTHON``, on other machines too. On
    a ``local`` master without ``PYSPARK_PYTHON`` this sets the interpreter of all
    the session's workers to the running one.

    Call it once for each session, before its first query. Through Spark
    Connect, where the names cannot be set, call it before each ``load()`` of a
    stream: then each stream has its own map.

    Call it also in another thread that starts a stream with this format as its sink: Spark looks for
    that in the session of the thread, which may have none, and reports ``DATA_SOURCE_NOT_FOUND``.

    Args:
        spark: The session.

    **Source:** Spark 4.2 and 4.3, ``PythonStreamingSourceRunner.init``, which puts into
    ``func.envVars``; ``PythonPlannerRunner`` takes a copy.
    """
    from nsq_ha.spark.source import NsqDataSource  # noqa: PLC0415 - imports pyspark

    context = getattr(spark, "sparkContext", None)
    if context is not None:
        is_ours = context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ
        pyspark_private.prepare_workers(context, use_this_python=is_ours)
        # Makes it the session of this thread.
        spark.createDataFrame([], "nothing int")
    spark.dataSource.register(NsqDataSource)


def require_spark() -> None:
    """Check that Spark can run here.

    Raises:
        SparkUnavailableError: Something is missing; the text says what, and what to install, in one line.
    """
    for module in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise SparkUnavailableError(f"Spark needs {module}, which is not installed: install nsq_ha[spark]")
    version = java_version()
    if version is None or version < MINIMUM_JAVA:
        nothing = "JAVA_HOME has none" if os.environ.get("JAVA_HOME") else "none was found"
        raise SparkUnavailableError(
            f"Spark needs Java {MINIMUM_JAVA} or newer, but {nothing if version is None else f'found {version}'}: "
            f"{_JAVA_REMEDY} and set JAVA_HOME to it"
        )
    pyspark_private.require()


def java_version() -> int | None:
    """Return the major version of the Java that Spark would start; None if there is none that runs.

    Searches where Spark does: ``JAVA_HOME``, otherwise ``PATH``.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if program is None:
        return None
    try:
        # Old versions print to standard error, and macOS has a `java` that only says where to get one.
        ran = subprocess.run(  # noqa: S603 - the program that Spark itself is about to start
            [program, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(found[1]) if found else None


def _start_java(settings: object) -> None:
    """Start the JVM with its standard error on a pipe, to filter known noise and to report a failure."""
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

    reading, writing = os.pipe()
    last: collections.deque[str] = collections.deque(maxlen=20)
    relay = threading.Thread(target=_relay, args=(reading, last), name="nsq_ha-spark-stderr", daemon=True)
    relay.start()
    try:
        pyspark_private.start_java(settings, writing)
    except PySparkRuntimeError as error:
        os.close(writing)
        relay.join(1.0)
        reason = next((line for line in last if "Exception" in line or "Error" in line), last[-1] if last else error)
        raise SparkUnavailableError(f"Spark did not start: {reason}") from error
    os.close(writing)


def _relay(reading: int, last: collections.deque[str]) -> None:
    """Relay the standard error of the JVM and its Python workers, without known noise."""
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if _NOISE.search(line):
                continue
            last.append(line.rstrip())
            sys.stderr.write(line)
            sys.stderr.flush()
