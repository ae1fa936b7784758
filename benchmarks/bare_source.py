"""The least that a streaming source in Python can be: it makes some rows for each trigger, and asks nobody.

What its micro-batches cost more than those of a built-in source is PySpark's.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

PARTITIONS: Final = 2
ROWS: Final = 20
"""Of one partition in one micro-batch."""


class BareSource(DataSource):
    """``format("bare")``: one column of bytes."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "bare"

    def schema(self) -> str:
        """Return the one column."""
        return "value binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """Return the reader."""
        return _Reader()


class _Reader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._triggers = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first offset."""
        return {"triggers": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - without limits
        """Return a new one each time."""
        self._triggers += 1
        return {"triggers": self._triggers}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return as many as the topic of the benchmark has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Make the rows."""
        yield pa.RecordBatch.from_pydict({"value": pa.array([b"x"] * ROWS, pa.binary())})
