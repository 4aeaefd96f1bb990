"""The columns of the sink: those of spark-sql-kafka's, and the time of a record.

Decides which DataFrames can be written, before any task begins.
"""

from __future__ import annotations

import difflib
from collections import Counter
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from blobmsg.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_columns"]

_HEADERS: Final = "array<struct<key:string,value:binary>>"


def check_columns(schema: StructType, topic: str | None) -> None:
    """Refuse what can't be written as records.

    Args:
        schema: Of the DataFrame.
        topic: What the option says.

    Raises:
        ConfigError: A column is missing, unknown, there twice, or of another type.
    """
    for name, count in Counter(schema.names).items():
        if count > 1:
            raise ConfigError(f"there are {count} columns {name}: drop or rename all but one")
    for field in schema.fields:
        if field.name not in _COLUMNS:
            raise _unknown(field.name)
        expected, is_right = _COLUMNS[field.name]
        if not is_right(field.dataType):
            raise ConfigError(
                f"column {field.name} is {field.dataType.simpleString()}, but must be {expected}: "
                "cast it"
            )
    if "value" not in schema.names:
        raise ConfigError(
            f"there is no column value, which is what is written: make one (there are: "
            f"{', '.join(schema.names) or 'none'})"
        )
    if topic is None and "topic" not in schema.names:
        raise ConfigError(
            "nothing says where records go: set the option topic, or make a column topic",
            setting="topic",
        )


def _unknown(name: str) -> ConfigError:
    nearest = difflib.get_close_matches(name.lower(), _COLUMNS, n=1, cutoff=0.6)
    hint = f' (did you mean "{nearest[0]}"?)' if nearest else ""
    return ConfigError(
        f"column {name} is no part of a record{hint}: drop it, or put it into the value. Known are "
        f"{', '.join(_COLUMNS)}"
    )


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind, (BinaryType, StringType))


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = kind.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


_COLUMNS: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "value": ("binary or string", _is_binary),
    "key": ("binary or string", _is_binary),
    "topic": ("string", lambda kind: isinstance(kind, StringType)),
    "partition": ("int", lambda kind: isinstance(kind, IntegerType)),
    "headers": (_HEADERS, _is_headers),
    "timestamp": ("timestamp", lambda kind: isinstance(kind, TimestampType)),
}
