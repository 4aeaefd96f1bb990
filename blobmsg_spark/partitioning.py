"""Which partition a row belongs to, as a column that Catalyst computes.

By hash as Spark itself does; in turn, after the rows of a task were sorted by their content, so
that a task that runs again deals them the same way. By range: see `ranges`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructType,
    VariantType,
)

from blobmsg_spark.row_types import has_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

__all__ = ["content_hash", "hash_partition"]


def hash_partition(keys: Sequence[Column], partitions: int) -> Column:
    """The partition that Spark's own hash partitioning gives a row."""
    return F.pmod(F.hash(*keys), F.lit(partitions)).cast("int")


def content_hash(schema: StructType) -> Column:
    """A hash over whole rows; equal rows have equal ones, whatever their types.

    Args:
        schema: Of the rows, at least one column; names must differ.
    """
    return F.xxhash64(
        *(_hashable(F.col(f"`{field.name}`"), field.dataType) for field in schema.fields)
    )


def _hashable(cell: Column, data_type: DataType) -> Column:
    """A cell as something whose hash follows from its content, and tells -0.0 from 0.0."""
    if not has_type(data_type, _needs_another_form):
        return cell
    if isinstance(data_type, StructType):
        fields = [_hashable(cell.getField(f.name), f.dataType) for f in data_type.fields]
        return F.when(cell.isNotNull(), F.struct(*fields))
    if isinstance(data_type, ArrayType):
        of_elements = data_type.elementType
        return F.transform(cell, lambda element: _hashable(element, of_elements))
    if isinstance(data_type, MapType):
        keys, values = data_type.keyType, data_type.valueType
        return F.transform(
            F.map_entries(cell),
            lambda entry: F.struct(
                _hashable(entry["key"], keys), _hashable(entry["value"], values)
            ),
        )
    # Variants have no hash in Spark; -0.0 and 0.0 have the same one.
    return F.to_json(cell) if isinstance(data_type, VariantType) else cell.cast("string")


def _needs_another_form(found: DataType) -> bool:
    return isinstance(found, (MapType, VariantType, FloatType, DoubleType))
