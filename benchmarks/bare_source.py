"""The least that a source in Python can be: what it costs is PySpark's.

A stream makes some rows for each trigger, and asks nobody. A read hands over Arrow batches of files.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

PARTITIONS: Final = 2
ROWS: Final = 20
"""Of one partition in one micro-batch."""


class BareSource(DataSource):
    """``format("bare")``: one column of bytes as a stream, and any columns as a read of the option ``folder``."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "bare"

    def schema(self) -> str:
        """Return the one column."""
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a folder."""
        return _Files(self.options["folder"])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's names, here and below
        """Return the reader."""
        return _Reader()


class _Files(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> list[InputPartition]:
        """Return one for each file."""
        return [InputPartition(str(path)) for path in sorted(Path(self._folder).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand over the batches of a file, out of mapped memory."""
        with pa.memory_map(partition.value) as mapped, pa.ipc.open_file(mapped) as batches:
            for number in range(batches.num_record_batches):
                yield batches.get_batch(number)


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
