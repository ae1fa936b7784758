"""All columns, for reads without Spark."""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from nsq_ha.spark.read.columns import COLUMNS, HEADER_ARRAY, Projection

TYPES: Final[dict[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "smallint": ShortType(),
    "map<string,string>": MapType(StringType(), StringType()),
    HEADER_ARRAY.spark_type: ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),
}
ARRAY: Final = Projection(StructType([StructField("headers", TYPES[HEADER_ARRAY.spark_type])]))
ALL: Final = Projection(StructType([StructField(name, TYPES[column.spark_type]) for name, column in COLUMNS.items()]))
