from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from blobmsg.errors import ConfigError
from blobmsg_spark.sink_schema import check_columns

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)


def _schema(**columns: object) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])  # type: ignore[arg-type]


def test_all_columns_of_a_record_are_taken() -> None:
    schema = _schema(
        key=StringType(), value=BinaryType(), topic=StringType(), partition=IntegerType(),
        headers=HEADERS, timestamp=TimestampType(),
    )  # fmt: skip

    check_columns(schema, None)
    check_columns(_schema(value=StringType()), "topic")


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"key": BinaryType()}, "no column value"),
        ({"value": LongType()}, "column value is bigint, but must be binary or string"),
        ({"value": BinaryType(), "key": IntegerType()}, "column key is int"),
        ({"value": BinaryType(), "partition": LongType()}, "column partition is bigint"),
        ({"value": BinaryType(), "topic": BinaryType()}, "column topic is binary"),
        ({"value": BinaryType(), "timestamp": TimestampNTZType()}, "column timestamp is"),
        (
            {"value": BinaryType(), "headers": StringType()},
            "array<struct<key:string,value:binary>>",
        ),
        ({"value": BinaryType(), "headers": ArrayType(StringType())}, "column headers is array"),
        ({"Value": BinaryType()}, 'column Value is no part of a record .did you mean "value"'),
        ({"value": BinaryType(), "offset": LongType()}, "column offset is no part of a record"),
    ],
)
def test_a_column_that_can_not_be_written_is_named(columns: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_columns(_schema(**columns), "topic")


def test_two_columns_of_one_name_are_refused() -> None:
    schema = StructType([StructField("value", BinaryType()), StructField("value", BinaryType())])

    with pytest.raises(ConfigError, match="2 columns value"):
        check_columns(schema, "topic")


def test_a_topic_must_come_from_somewhere() -> None:
    with pytest.raises(ConfigError, match="option topic"):
        check_columns(_schema(value=BinaryType()), None)
