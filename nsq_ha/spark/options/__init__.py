"""The options of ``format("nsq")``."""

from nsq_ha.spark.options.option_parsing import EARLIEST, LATEST, ByPartition, OffsetBound, wrong
from nsq_ha.spark.options.option_rows import Mode, Option
from nsq_ha.spark.options.option_table import (
    DEAD_LETTER,
    FAIL,
    KNOWN,
    ConnectionOptions,
    ReadOptions,
    WriteOptions,
)

__all__ = [
    "DEAD_LETTER",
    "EARLIEST",
    "FAIL",
    "KNOWN",
    "LATEST",
    "ByPartition",
    "ConnectionOptions",
    "Mode",
    "OffsetBound",
    "Option",
    "ReadOptions",
    "WriteOptions",
    "wrong",
]
