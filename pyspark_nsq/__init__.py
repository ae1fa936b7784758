"""Makes ``spark.read.format("nsq")`` work without registering anything.

PySpark imports every top-level module named ``pyspark_*`` the first time that any
Python data source is used, and takes its ``DefaultSource``. It does not guard
that import: an error here would break the sources of others too. So nothing is
imported before it is asked for, and a missing library shows only when
``format("nsq")`` is used.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's own hook
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from nsq_ha.spark.source import NsqDataSource  # noqa: PLC0415
    except Exception as error:  # noqa: BLE001 - a library of another version may raise anything
        return _unavailable(str(error))
    return NsqDataSource


def _unavailable(reason: str) -> Any:  # noqa: ANN401 - a class of pyspark's
    from pyspark.sql.datasource import DataSource  # noqa: PLC0415 - without pyspark nobody asks

    class UnavailableSource(DataSource):
        """Stands in for the source and says what is missing once it is used."""

        def __init__(self, options: Any) -> None:  # noqa: ANN401
            super().__init__(options)
            raise ImportError(
                f"format 'nsq' cannot be used in {sys.executable}: {reason}. Spark starts its Python workers with the "
                "interpreter of the variable PYSPARK_PYTHON (PYSPARK_DRIVER_PYTHON comes first where Spark finds the "
                "format by itself), and without them with python3 of PATH. Set PYSPARK_PYTHON to an interpreter that "
                "has nsq_ha[spark], and unset PYSPARK_DRIVER_PYTHON, before Spark starts; or install it there"
            )

        @classmethod
        def name(cls) -> str:
            return "nsq"

    return UnavailableSource
