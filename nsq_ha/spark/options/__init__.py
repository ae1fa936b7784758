"""The options of ``format("nsq")``: ``declared`` has each one, once."""

from nsq_ha.spark.options.declared import DEAD_LETTER, FAIL, KNOWN, ConnectionOptions, ReadOptions, WriteOptions
from nsq_ha.spark.options.names import Known, Mode, wrong
from nsq_ha.spark.options.values import EARLIEST, LATEST, ByPartition, OffsetBound

__all__ = [
    "DEAD_LETTER",
    "EARLIEST",
    "FAIL",
    "KNOWN",
    "LATEST",
    "ByPartition",
    "ConnectionOptions",
    "Known",
    "Mode",
    "OffsetBound",
    "ReadOptions",
    "WriteOptions",
    "wrong",
]
