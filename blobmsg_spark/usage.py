"""What an exchange cost: counted in the tasks, added up on the driver, printed as a table."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from blobmsg.core.cost import Usage, blob_bill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blobmsg.core.cost import PriceTable

__all__ = ["StageUsage", "UsageParam", "usage_table"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What the tasks of an exchange did; those that failed are not in it.

    Attributes:
        rows: Rows that went in.
        row_bytes: Their size as Arrow columns.
        segments: Segments written.
        objects: Objects written.
        inline_bytes: Bytes of segments that went through Spark's own shuffle, on local disk.
        notification_bytes: Bytes of all notifications, inline segments included.
        puts: PUT requests, repeated ones included.
        put_bytes: Bytes of the objects.
        gets: GET requests, repeated ones included.
        get_bytes: Bytes read.
        retries: Requests repeated after an error.
    """

    rows: int = 0
    row_bytes: int = 0
    segments: int = 0
    objects: int = 0
    inline_bytes: int = 0
    notification_bytes: int = 0
    puts: int = 0
    put_bytes: int = 0
    gets: int = 0
    get_bytes: int = 0
    retries: int = 0

    def __add__(self, other: StageUsage) -> StageUsage:
        """Both together."""
        return StageUsage(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))

    def __sub__(self, other: StageUsage) -> StageUsage:
        """What came since."""
        return StageUsage(*(getattr(self, name) - getattr(other, name) for name in _FIELDS))

    def usd(self, prices: PriceTable) -> float:
        """Its requests at these prices; traffic between the store and its region is free."""
        return blob_bill(Usage(puts=self.puts, gets=self.gets, kafka_bytes=0), prices).total_usd


_FIELDS = tuple(field.name for field in fields(StageUsage))


class UsageParam(AccumulatorParam[StageUsage]):
    """Adds up what tasks report."""

    def zero(self, value: StageUsage) -> StageUsage:
        """Nothing."""
        return StageUsage()

    def addInPlace(self, value1: StageUsage, value2: StageUsage) -> StageUsage:
        """Both together."""
        return value1 + value2


def usage_table(stages: Sequence[tuple[str, StageUsage]], prices: PriceTable) -> str:
    """A table of exchanges, one per line, and their sum."""
    total = StageUsage()
    for _, usage in stages:
        total += usage
    header = (
        "exchange", "rows", "MiB in", "objects", "PUTs", "MiB put", "GETs", "MiB got", "retries",
        "KiB by Spark", "USD",
    )  # fmt: skip
    lines = [header, *(_line(name, usage, prices) for name, usage in (*stages, ("total", total)))]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
    return f"{text}\nprices of {prices.as_of}: {prices.source}"


def _line(name: str, usage: StageUsage, prices: PriceTable) -> tuple[str, ...]:
    return (
        name,
        f"{usage.rows:,}",
        f"{usage.row_bytes / _MIB:,.1f}",
        f"{usage.objects:,}",
        f"{usage.puts:,}",
        f"{usage.put_bytes / _MIB:,.1f}",
        f"{usage.gets:,}",
        f"{usage.get_bytes / _MIB:,.1f}",
        f"{usage.retries:,}",
        f"{usage.notification_bytes / 1024:,.1f}",
        f"{usage.usd(prices):.6f}",
    )
