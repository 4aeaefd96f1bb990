"""What an exchange cost: counted in the tasks, added up on the driver, printed as tables."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from pyspark.accumulators import AccumulatorParam

from blobmsg.core.cost import GIB, Usage, blob_bill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from blobmsg.core.cost import PriceTable

__all__ = ["ExchangeUsage", "StageUsage", "UsageParam", "usage_table"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StageUsage:
    """What some tasks of an exchange did; those that failed are not in it.

    Attributes:
        tasks: How many.
        rows: Rows that went in, or came out of reduce tasks.
        row_bytes: Their size as Arrow columns.
        segments: Segments written or read.
        objects: Objects written.
        inline_bytes: Bytes of segments that went through Spark's own shuffle, on local disk.
        notification_bytes: Bytes of all notifications, inline segments included.
        puts: PUT requests, repeated ones included.
        put_bytes: Bytes of the objects.
        gets: GET requests, repeated ones included.
        get_bytes: Bytes read.
        foreign_bytes: Of segments read from the store, those that were written in another zone, as
            far as both zones are known: Spark's own shuffle would have carried them there.
        retries: Requests repeated after an error.
    """

    tasks: int = 0
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
    foreign_bytes: int = 0
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


_FIELDS = tuple(one.name for one in fields(StageUsage))


@dataclass(frozen=True, slots=True)
class ExchangeUsage:
    """What the two stages of an exchange did.

    Attributes:
        map: The tasks that wrote.
        reduce: The tasks that read.
        zones: Both, by the zone of the executor; "" is one that does not know its own.
        map_stages: Spark's numbers of the stages, one more for each time it ran.
        reduce_stages: Likewise.
    """

    map: StageUsage = StageUsage()
    reduce: StageUsage = StageUsage()
    zones: Mapping[str, StageUsage] = field(default_factory=dict)
    map_stages: frozenset[int] = frozenset()
    reduce_stages: frozenset[int] = frozenset()

    @classmethod
    def of_map_task(cls, usage: StageUsage, zone: str | None, stage: int) -> ExchangeUsage:
        """What a map task of a stage did, in an executor in this zone."""
        return cls(map=usage, zones={zone or "": usage}, map_stages=frozenset((stage,)))

    @classmethod
    def of_reduce_task(cls, usage: StageUsage, zone: str | None, stage: int) -> ExchangeUsage:
        """Likewise a reduce task."""
        return cls(reduce=usage, zones={zone or "": usage}, reduce_stages=frozenset((stage,)))

    @property
    def total(self) -> StageUsage:
        """Both stages together; rows and segments are in it twice."""
        return self.map + self.reduce

    def __add__(self, other: ExchangeUsage) -> ExchangeUsage:
        """Both together."""
        zones = dict(self.zones)
        for zone, usage in other.zones.items():
            zones[zone] = zones.get(zone, StageUsage()) + usage
        return ExchangeUsage(
            self.map + other.map,
            self.reduce + other.reduce,
            zones,
            self.map_stages | other.map_stages,
            self.reduce_stages | other.reduce_stages,
        )


class UsageParam(AccumulatorParam[ExchangeUsage]):
    """Adds up what tasks report."""

    def zero(self, value: ExchangeUsage) -> ExchangeUsage:
        """Nothing."""
        return ExchangeUsage()

    def addInPlace(self, value1: ExchangeUsage, value2: ExchangeUsage) -> ExchangeUsage:
        """Both together."""
        return value1 + value2


def usage_table(exchanges: Sequence[tuple[str, ExchangeUsage]], prices: PriceTable) -> str:
    """A table of stages, one per line, and their sum; then one of zones, if any is known."""
    total = ExchangeUsage()
    stages: list[tuple[str, StageUsage]] = []
    for name, usage in exchanges:
        total += usage
        stages += [(f"{name}: map", usage.map), (f"{name}: reduce", usage.reduce)]
    stages.append(("total", total.total))
    header = (
        "stage", "tasks", "rows", "MiB", "objects", "PUTs", "MiB put", "GETs", "MiB got", "retries",
        "KiB by Spark", "USD",
    )  # fmt: skip
    tables = [_aligned([header, *(_line(name, usage, prices) for name, usage in stages)])]
    if any(total.zones):
        tables.append(_zone_table(total, prices))
    return "\n".join([*tables, f"prices of {prices.as_of}: {prices.source}"])


def _line(name: str, usage: StageUsage, prices: PriceTable) -> tuple[str, ...]:
    is_total = name == "total"
    return (
        name,
        f"{usage.tasks:,}",
        "" if is_total else f"{usage.rows:,}",
        "" if is_total else _mib(usage.row_bytes),
        f"{usage.objects:,}",
        f"{usage.puts:,}",
        _mib(usage.put_bytes),
        f"{usage.gets:,}",
        _mib(usage.get_bytes),
        f"{usage.retries:,}",
        f"{usage.notification_bytes / 1024:,.1f}",
        f"{usage.usd(prices):.6f}",
    )


def _zone_table(usage: ExchangeUsage, prices: PriceTable) -> str:
    lines = [("zone", "tasks", "MiB put", "MiB got", "written in other zones")]
    for zone, one in sorted(usage.zones.items()):
        cells = (_mib(one.put_bytes), _mib(one.get_bytes), _mib(one.foreign_bytes))
        lines.append((zone or "unknown", f"{one.tasks:,}", *cells))
    crossing = usage.reduce.foreign_bytes
    usd = crossing / GIB * prices.crossing_usd_per_gib
    return (
        f"{_aligned(lines)}\nSpark's own shuffle would have carried {_mib(crossing)} MiB from zone "
        f"to zone, for {usd:.6f} USD"
    )


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:,.1f}"


def _aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Columns: the first to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
