"""Which columns can pass through the store, asked before a job starts.

Spark gives rows to Python as Arrow, so what has no Arrow form there can't pass; keys whose hash in
a DataFrame differs from the one that Spark partitions by would end in other partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructType,
    UserDefinedType,
    VariantType,
    YearMonthIntervalType,
)

from blobmsg.errors import UnsupportedFormat

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["UnsupportedColumn", "check_key_types", "check_row_types", "has_type"]


class UnsupportedColumn(UnsupportedFormat):
    """A column's type can't pass through the store: cast it, or let Spark shuffle natively."""


def check_row_types(schema: StructType) -> None:
    """Refuse columns that can't pass.

    Raises:
        UnsupportedColumn: The first one, named.
    """
    for field in schema.fields:
        refused = has_type(
            field.dataType,
            lambda found: isinstance(
                found, (YearMonthIntervalType, CalendarIntervalType, UserDefinedType)
            ),
        )
        try:
            to_arrow_schema(
                StructType([field]),
                error_on_duplicated_field_names_in_struct=True,
                timezone="UTC",
            )
        except (PySparkException, ValueError):  # ValueError: pyarrow's own refusal
            refused = True
        if refused:
            raise UnsupportedColumn(
                f"column {field.name!r} of type {field.dataType.simpleString()} can't pass through "
                "the store: Spark does not give it to Python as Arrow. Cast it (an interval to a "
                "number or a string, a user-defined type to what it consists of, a struct to one "
                "whose fields have different names), or use Spark's own repartition",
                column=field.name,
            )


def check_key_types(schema: StructType) -> None:
    """Refuse keys whose hash is not the one that Spark itself partitions by.

    Raises:
        UnsupportedColumn: The first one, named.
    """
    for field in schema.fields:
        if has_type(field.dataType, lambda found: isinstance(found, (MapType, VariantType))):
            raise UnsupportedColumn(
                f"key {field.name!r} of type {field.dataType.simpleString()}: DataFrames have no "
                "hash of maps and variants. Use a part of it as the key, or Spark's own "
                "repartition",
                column=field.name,
            )
        if has_type(field.dataType, _is_collated):
            raise UnsupportedColumn(
                f"key {field.name!r} of type {field.dataType.simpleString()}: Spark partitions a "
                "string by its collation's own hash, which DataFrames can't compute. Use "
                "repartition_by_range, a key without collation (lower(column collate "
                "UTF8_BINARY)), or Spark's own repartition",
                column=field.name,
            )


def _is_collated(found: DataType) -> bool:
    return isinstance(found, StringType) and found.collation != "UTF8_BINARY"


def has_type(data_type: DataType, is_wanted: Callable[[DataType], bool]) -> bool:
    """Whether a type, or one inside of it, is wanted."""
    inner: list[DataType] = []
    if isinstance(data_type, StructType):
        inner = [field.dataType for field in data_type.fields]
    elif isinstance(data_type, ArrayType):
        inner = [data_type.elementType]
    elif isinstance(data_type, MapType):
        inner = [data_type.keyType, data_type.valueType]
    return is_wanted(data_type) or any(has_type(one, is_wanted) for one in inner)
