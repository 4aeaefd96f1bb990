"""The columns of the source, for Spark and for Arrow: those of spark-sql-kafka.

`offset` holds virtual offsets. Both forms must agree to the letter, else Spark refuses every batch;
a test compares them.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["HEADERS", "arrow_schema", "spark_schema"]

_COLUMNS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

#: Arrow's type of one record's headers; null where it has none.
HEADERS: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
_ARROW: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
)


def spark_schema(*, include_headers: bool) -> StructType:
    """The columns as Spark sees them.

    Args:
        include_headers: With the column `headers`.
    """
    headers = (StructField("headers", ArrayType(_HEADER)),) if include_headers else ()
    return StructType([*_COLUMNS, *headers])


def arrow_schema(*, include_headers: bool) -> pa.Schema:
    """The same columns as Arrow sees them."""
    return pa.schema([*_ARROW, *([pa.field("headers", HEADERS)] if include_headers else [])])
