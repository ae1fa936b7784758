"""All private parts of PySpark that nsq_ha uses, and what happens if one is missing.

No other module uses them. They may change in any minor version of PySpark, so
:data:`SUPPORTED` ends before the first untested one, and :func:`require` names missing
parts before a session starts.

**Source:** PySpark 4.2.0 and 4.3.0: ``java_gateway.py``, ``core/context.py``,
``sql/datasource_internal.py``, ``sql/streaming/python_streaming_source_runner.py``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from nsq_ha.errors import ConfigError, NsqError, SparkUnavailableError
from nsq_ha.spark import logger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUPPORTED: Final = ">=4.2,<4.4"
"""The tested versions of PySpark: the oldest, the newest and all between; as in ``pyproject.toml``."""

PARTS: Final = (
    "java_gateway:launch_gateway",
    "core.context:SparkContext._ensure_initialized",
    "core.context:SparkContext._gateway",
    "sql.datasource_internal:_SimpleStreamReaderWrapper.getCache",
)
"""What this module uses of PySpark."""

SPECULATES: Final = "NSQ_HA_SPARK_SPECULATES"
"""Variable of workers: ``true`` if Spark may run a second copy of a task; they know no setting of Spark."""

_ADDED_BY_STREAMS: Final[Mapping[str, str]] = {
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}  # variables that Spark sets when it starts a stream's process, with PySpark's defaults


def _has(module: str, attributes: str) -> bool:
    try:
        functools.reduce(getattr, attributes.split("."), import_module(f"pyspark.{module}"))
    except (ImportError, AttributeError):
        return False
    return True


def require() -> None:
    """Check the parts of PySpark.

    Raises:
        SparkUnavailableError: A part is missing; the text names it and the versions that have it.
    """
    if lacking := [part for part in PARTS if not _has(*part.split(":"))]:
        raise SparkUnavailableError(
            f"PySpark {import_module('pyspark').__version__} has no {', '.join(lacking)}, which nsq_ha uses: "
            f"pip install 'pyspark{SUPPORTED}'"
        )


def has_java() -> bool:
    """Return whether this process has started a JVM already."""
    from pyspark import SparkContext  # noqa: PLC0415 - pyspark is an extra, and slow to import

    return SparkContext._gateway is not None  # noqa: SLF001


def start_java(settings: object, stderr: int) -> None:
    """Start the JVM with its standard error on a file descriptor.

    Raises:
        PySparkRuntimeError: It did not start.
    """
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    gateway = launch_gateway(settings, {"stderr": stderr})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def prepare_workers(context: Any, *, use_this_python: bool) -> None:  # noqa: ANN401 - a SparkContext
    """Set all variables that Spark sets for a stream, so that it only replaces values and adds no name."""
    speculates = context.getConf().get("spark.speculation", "false")
    context.environment.update({**_ADDED_BY_STREAMS, **context.environment, SPECULATES: speculates})
    if use_this_python:
        context.pythonExec = sys.executable


def task_ids() -> tuple[int, str | None, str | None]:
    """Return the number of this task, and the ids of its streaming query and micro-batch if Spark has any."""
    from pyspark import TaskContext  # noqa: PLC0415 - only a task has one

    context = TaskContext.get()
    if context is None:
        return 0, None, None
    known = context.getLocalProperty
    return context.partitionId(), known("sql.streaming.queryId"), known("streaming.sql.batchId")


@contextlib.contextmanager
def reason_first() -> Iterator[None]:
    """Let Spark show only the reason of an :class:`~nsq_ha.errors.NsqError`; log it in one line, and at DEBUG whence.

    Spark puts what a Python process sends behind a prefix of its own, as the message of its
    exception. A traceback in it would hide the reason, dozens of lines further down.

    For each method that Spark calls, as a decorator, or within a generator. Other errors are defects: Spark shows
    them with their tracebacks.
    """
    try:
        yield
    except NsqError as error:
        logger.error("%s: %s", type(error).__name__, error)
        logger.debug("raised here", exc_info=True)
        if "PYTHON_WORKER_FACTORY_SECRET" in os.environ or "PYTHON_WORKER_FACTORY_SOCK_PATH" in os.environ:
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"  # for the exception that ends this worker process
        raise


def write_file(spark: SparkSession, url: str, data: bytes) -> None:
    """Write one file to any file system that Spark knows; replace an existing one.

    Raises:
        ConfigError: The session is one of Spark Connect, which cannot write single files.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None:
        raise ConfigError(f"a session of Spark Connect cannot write the file {url}: use a folder of this machine")
    path = context._jvm.org.apache.hadoop.fs.Path(url)  # noqa: SLF001
    stream = path.getFileSystem(context._jsc.hadoopConfiguration()).create(path, True)  # noqa: SLF001
    try:
        stream.write(bytearray(data))
    finally:
        stream.close()


class ReturnsRows:
    """A mixin for stream readers that can return the rows of a micro-batch with its partitions.

    PySpark sends such rows to Spark, but asks only its own wrapper of simple readers for
    them. A reader that is always a wrapper cannot report its lag, since PySpark does not
    ask a wrapper for it. So a reader becomes a wrapper between these two calls of PySpark.
    """

    _rows: list[Any]

    def return_rows(self, rows: list[Any]) -> None:
        """Return rows with the partitions that the current call of ``partitions`` returns."""
        self._rows = rows
        self.__class__ = _as_wrapper(type(self))  # type: ignore[arg-type] # mypy takes the __hash__ of objects


@functools.cache
def _as_wrapper(reader: type[ReturnsRows]) -> type[ReturnsRows]:
    wrapper: type = import_module("pyspark.sql.datasource_internal")._SimpleStreamReaderWrapper  # noqa: SLF001

    def get_cache(self: ReturnsRows, start: object, end: object) -> Iterator[Any]:
        self.__class__ = reader
        rows, self._rows = self._rows, []
        return iter(rows)

    methods: dict[str, Callable[..., Any]] = {"getCache": get_cache}
    return type(f"{reader.__name__}WithRows", (reader, wrapper), methods)
