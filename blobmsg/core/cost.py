"""What a byte costs through Kafka and through the store.

Decides nothing by itself: the router and the meter ask. Never reads a file, a clock or a setting;
the caller hands in the prices. All amounts are USD, all sizes bytes unless a name says GiB.

The model, per payload byte written once:

* through Kafka: (zones - 1) / zones to the leader, one crossing per further replica, nothing to a
  rack-aware consumer;
* through the store: one PUT per object whatever its size, the GETs of its readers, and the
  crossing of its notifications. Traffic between the store and its region is free.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BUILT_IN_PRICES",
    "GIB",
    "HOURS_PER_MONTH",
    "NEVER_BYTES",
    "NOTIFICATION_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "Bill",
    "PriceTable",
    "Usage",
    "blob_bill",
    "break_even_bytes",
    "marginal_segment_bytes",
    "object_usd",
    "plain_bill",
    "plain_usd",
]

GIB: Final = 1 << 30
#: As clouds bill it: 365 days of 24 h over 12 months.
HOURS_PER_MONTH: Final = 730.0
#: A notification on the wire to one broker: value, header, record batch, request and response.
#: Times the 2.67 crossings of replication factor 3 in three zones it is the 0.9 KB that a
#: notification was measured to cross.
NOTIFICATION_BYTES: Final = 340
#: A record in a Kafka batch beside its key, value and headers: lengths, offset and timestamp
#: deltas, attributes, its share of the batch's 61 bytes. Typical, not a bound.
RECORD_OVERHEAD_BYTES: Final = 12
#: Larger than any batch: the store never pays.
NEVER_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class PriceTable:
    """List prices and the cluster's shape, as of a date.

    Args:
        as_of: Date of the prices, `YYYY-MM-DD`.
        source: Where they were read.
        put_usd: One PUT, whatever its size.
        get_usd: One GET, ranged or not.
        store_usd_per_gib_month: Keeping a GiB in the store.
        broker_disk_usd_per_gib_month: Keeping a GiB on one broker's disk.
        crossing_usd_per_gib: A GiB from one zone to another, both directions of billing together.
        replication_factor: Replicas of the topic, each in a zone of its own.
        zones: Zones that producers, brokers and consumers are spread over.

    Raises:
        ValueError: A price is negative or not finite, or a count is below 1.
    """

    as_of: str
    source: str
    put_usd: float
    get_usd: float
    store_usd_per_gib_month: float
    broker_disk_usd_per_gib_month: float
    crossing_usd_per_gib: float
    replication_factor: int = 3
    zones: int = 3

    def __post_init__(self) -> None:
        for name in _PRICE_FIELDS:
            price = getattr(self, name)
            if not (math.isfinite(price) and price >= 0):
                raise ValueError(f"{name} is {price}: expected a price of 0 or more")
        for name in ("replication_factor", "zones"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")

    @property
    def crossings(self) -> float:
        """Zone crossings of one byte written to Kafka and read by rack-aware consumers.

        2.67 for replication factor 3 in three zones; 2.76 to 2.78 were measured, which is this
        and the protocol's own bytes.
        """
        to_leader = (self.zones - 1) / self.zones
        to_replicas = min(self.replication_factor, self.zones) - 1
        # Replicas beyond the number of zones share one with another; where the extra ones fall
        # relative to the leader is as even as for the producer.
        extra = max(0, self.replication_factor - self.zones) * (self.zones - 1) / self.zones
        return to_leader + to_replicas + extra

    @property
    def kafka_usd_per_byte(self) -> float:
        """Crossing cost of one byte written through Kafka."""
        return self.crossings * self.crossing_usd_per_gib / GIB

    @classmethod
    def from_mapping(cls, prices: Mapping[str, object]) -> PriceTable:
        """Make a table from plain values; what is left out is as built in.

        `as_of` and `source` are required, so that no bill shows prices of unknown age.

        Raises:
            ValueError: A name is unknown, a value has the wrong type or is out of range.
        """
        known = {field.name: getattr(BUILT_IN_PRICES, field.name) for field in fields(cls)}
        unknown = sorted(set(prices) - set(known))
        if unknown:
            raise ValueError(f"unknown price {unknown[0]!r}: one of {', '.join(known)}")
        for name in ("as_of", "source"):
            if not isinstance(prices.get(name), str) or not prices[name]:
                raise ValueError(f"{name} is missing: say how old the prices are and whose")
        for name, value in prices.items():
            if name in _PRICE_FIELDS and not _is_number(value):
                raise ValueError(f"{name} is {value!r}: expected a number")
            if name in ("replication_factor", "zones") and (
                not isinstance(value, int) or isinstance(value, bool)
            ):
                raise ValueError(f"{name} is {value!r}: expected a whole number")
        values: dict[str, Any] = {**known, **prices}
        return cls(**values)

    @classmethod
    def from_json(cls, text: str | bytes) -> PriceTable:
        """Make a table from a JSON object with the names of this class.

        Raises:
            ValueError: Not JSON, not an object, or as `from_mapping`.
        """
        try:
            prices: Any = json.loads(text)
        except RecursionError:
            raise ValueError("the price table is nested too deeply") from None
        if not isinstance(prices, dict):
            raise ValueError("the price table is not a JSON object")  # noqa: TRY004  (bad data)
        return cls.from_mapping(cast("dict[str, object]", prices))


_PRICE_FIELDS: Final = (
    "put_usd",
    "get_usd",
    "store_usd_per_gib_month",
    "broker_disk_usd_per_gib_month",
    "crossing_usd_per_gib",
)

BUILT_IN_PRICES: Final = PriceTable(
    as_of="2026-06-01",
    source="AWS list prices, us-east-1: S3 Standard, EBS gp3, 0.01 USD/GB each way between zones",
    put_usd=5e-6,
    get_usd=4e-7,
    store_usd_per_gib_month=0.023,
    broker_disk_usd_per_gib_month=0.08,
    crossing_usd_per_gib=0.02,
)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def plain_usd(payload_bytes: int, records: int, prices: PriceTable = BUILT_IN_PRICES) -> float:
    """Crossing cost of records as Kafka records, or of an inline segment (`records=1`)."""
    return (payload_bytes + records * RECORD_OVERHEAD_BYTES) * prices.kafka_usd_per_byte


def object_usd(
    notifications: int,
    prices: PriceTable = BUILT_IN_PRICES,
    *,
    groups: int = 1,
    gets_per_group: float = 1.0,
) -> float:
    """Cost of one batch object: its PUT, its readers' GETs, its notifications' crossing.

    Args:
        notifications: How many notifications point into it, at least one for each partition.
        prices: The prices.
        groups: Consumer groups that read it.
        gets_per_group: GETs that one group needs for the whole object: per zone with a zone
            tier, per consumer without; less than 1 when the reader still has it in memory.
    """
    return (
        prices.put_usd
        + groups * gets_per_group * prices.get_usd
        + notifications * NOTIFICATION_BYTES * prices.kafka_usd_per_byte
    )


def break_even_bytes(
    prices: PriceTable = BUILT_IN_PRICES,
    *,
    groups: int = 1,
    gets_per_group: float = 1.0,
    notifications: int = 1,
) -> int:
    """Smallest batch that is not dearer as an object than through Kafka.

    About 110 KiB at list prices; `NEVER_BYTES` where crossing is free of charge.
    """
    return _worth_bytes(
        object_usd(notifications, prices, groups=groups, gets_per_group=gets_per_group), prices
    )


def marginal_segment_bytes(
    prices: PriceTable = BUILT_IN_PRICES, *, groups: int = 1, gets_per_group: float = 1.0
) -> int:
    """Smallest segment worth putting into an object that is written anyway.

    Its own cost is its readers' ranged GETs and its notification; about 8 KiB for one reader.
    """
    return _worth_bytes(
        object_usd(1, prices, groups=groups, gets_per_group=gets_per_group) - prices.put_usd,
        prices,
    )


def _worth_bytes(cost_usd: float, prices: PriceTable) -> int:
    per_byte = prices.kafka_usd_per_byte
    if per_byte * NEVER_BYTES <= cost_usd:
        return NEVER_BYTES
    return math.ceil(cost_usd / per_byte)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a run used, as its counters tell.

    Args:
        puts: PUTs to the store, retries included (LISTs are billed alike: add them).
        gets: GETs, retries included.
        kafka_bytes: Bytes written through Kafka: notifications, inline and plain records, once,
            as sent (the producers' `tx_bytes`).
        stored_gib_hours: Size times time kept in the store.
    """

    puts: int
    gets: int
    kafka_bytes: int
    stored_gib_hours: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """USD by what it was paid for."""

    puts_usd: float = 0.0
    gets_usd: float = 0.0
    storage_usd: float = 0.0
    crossing_usd: float = 0.0

    @property
    def total_usd(self) -> float:
        """The sum of the items."""
        return self.puts_usd + self.gets_usd + self.storage_usd + self.crossing_usd

    def per_hour(self, duration_ms: int) -> Bill:
        """The same rate kept for an hour.

        Raises:
            ValueError: The duration is not above 0.
        """
        if duration_ms <= 0:
            raise ValueError(f"duration_ms is {duration_ms}: expected more than 0")
        scale = 3_600_000 / duration_ms
        return Bill(*(getattr(self, field.name) * scale for field in fields(self)))


def blob_bill(usage: Usage, prices: PriceTable = BUILT_IN_PRICES) -> Bill:
    """What a run through the store costs."""
    return Bill(
        puts_usd=usage.puts * prices.put_usd,
        gets_usd=usage.gets * prices.get_usd,
        storage_usd=usage.stored_gib_hours / HOURS_PER_MONTH * prices.store_usd_per_gib_month,
        crossing_usd=usage.kafka_bytes * prices.kafka_usd_per_byte,
    )


def plain_bill(
    payload_bytes: int,
    records: int,
    prices: PriceTable = BUILT_IN_PRICES,
    *,
    stored_gib_hours: float = 0.0,
) -> Bill:
    """What the same records cost through plain Kafka.

    Args:
        payload_bytes: Keys, values and headers, compressed as Kafka would carry them.
        records: How many they are.
        prices: The prices.
        stored_gib_hours: Size times retention of *one* replica.
    """
    return Bill(
        storage_usd=stored_gib_hours
        * prices.replication_factor
        / HOURS_PER_MONTH
        * prices.broker_disk_usd_per_gib_month,
        crossing_usd=plain_usd(payload_bytes, records, prices),
    )
