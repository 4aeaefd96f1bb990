"""What rows are ordered by: columns with their directions, which Spark keeps to itself.

The only place that looks into Spark's private parts, which differ between classic and Connect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from blobmsg_spark.columns import as_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

__all__ = ["SortKey", "sort_keys"]


@dataclass(frozen=True, slots=True)
class SortKey:
    """One of the columns that rows are ordered by.

    Attributes:
        value: Without its direction.
        is_ascending: Its direction.
        are_nulls_first: Whether nulls come before all else.
    """

    value: Column
    is_ascending: bool
    are_nulls_first: bool

    def order_of(self, column: Column) -> Column:
        """A column ordered like this key, for `orderBy`."""
        if self.is_ascending:
            return column.asc_nulls_first() if self.are_nulls_first else column.asc_nulls_last()
        return column.desc_nulls_first() if self.are_nulls_first else column.desc_nulls_last()

    def is_less(self, left: Column, right: Column) -> Column:
        """Whether a value comes before another one."""
        first = left < right if self.is_ascending else left > right
        if self.are_nulls_first:
            of_nulls = left.isNull() & right.isNotNull()
        else:
            of_nulls = left.isNotNull() & right.isNull()
        return of_nulls | F.coalesce(first, F.lit(False))


def sort_keys(columns: Sequence[Column | str]) -> list[SortKey]:
    """What to order rows by.

    Args:
        columns: Names or columns, with or without `asc()`, `desc()` and their kin.
    """
    return [_sort_key(as_column(one)) for one in columns]


def _sort_key(column: Column) -> SortKey:
    # Not by an attribute: a column has one of every name.
    is_remote = type(column).__module__.startswith("pyspark.sql.connect.")
    return _of_connect(column) if is_remote else _of_classic(column)


def _of_connect(column: Any) -> SortKey:
    from pyspark.sql.connect.column import Column as ConnectColumn
    from pyspark.sql.connect.expressions import SortOrder

    order = column._expr
    if not isinstance(order, SortOrder):
        return SortKey(column, is_ascending=True, are_nulls_first=True)
    parts: Any = order
    value: Any = ConnectColumn(parts._child)
    return SortKey(value, parts._ascending, parts._nullsFirst)


def _of_classic(column: Any) -> SortKey:
    from pyspark.sql.classic.column import Column as ClassicColumn

    node = column._jc.node()
    if _name(node) != "SortOrder":
        return SortKey(column, is_ascending=True, are_nulls_first=True)
    session: Any = SparkSession.active()
    value = ClassicColumn(session._jvm.org.apache.spark.sql.Column(node.child()))
    return SortKey(
        value,
        is_ascending=_name(node.sortDirection()).startswith("Ascending"),
        are_nulls_first=_name(node.nullOrdering()).startswith("NullsFirst"),
    )


def _name(of_java: Any) -> str:
    name: str = of_java.getClass().getSimpleName()
    return name
