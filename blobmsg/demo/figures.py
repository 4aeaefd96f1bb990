"""Counts, percentiles and bills of a run: numbers from what was measured, no text.

The bill takes its quantities from the run (requests, bytes on the wire, objects and their expiry)
and its prices from a `PriceTable`. What plain Kafka would cost is computed from the payload where
no plain run was made, and measured in the same way where one was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from blobmsg.core.cost import GIB, Bill, PriceTable, Usage, blob_bill, plain_bill
from blobmsg.format.object_key import ObjectKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from blobmsg.demo.job import Arrivals
    from blobmsg.demo.oracle import Verdict

__all__ = [
    "Check",
    "Latency",
    "RunFigures",
    "ZoneFigures",
    "bill_of_blob",
    "bill_of_plain",
    "bill_to_dict",
    "check_of_store",
    "checks_of",
    "stored_gib_hours",
]

_MS_PER_HOUR: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that had to hold."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Latency:
    """From `produce` to the return of `poll`, in ms."""

    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int

    @classmethod
    def of(cls, arrivals: Iterable[Arrivals]) -> Latency:
        """Nearest-rank percentiles over all records."""
        latencies = sorted(ms for consumer in arrivals for ms in consumer.latencies_ms)
        if not latencies:
            return cls(0, 0, 0, 0)

        def percentile(share: float) -> int:
            return latencies[min(len(latencies) - 1, int(share * len(latencies)))]

        return cls(percentile(0.5), percentile(0.95), percentile(0.99), latencies[-1])


@dataclass(frozen=True, slots=True)
class ZoneFigures:
    """What went through the clients of one zone."""

    zone: str
    sent: int
    puts: int
    put_bytes: int
    received: int
    gets: int
    get_bytes: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run, measured.

    Attributes:
        client: `blobmsg` or `plain`.
        rate: Records per second that were to be sent; 0: as many as possible.
        records: Sent.
        payload_bytes: Their keys and values.
        send_s: From `go` to the last `produce`.
        produce_s: From `go` to the last delivery report.
        consume_s: From `go` to the last record handed out.
        latency: From `produce` to `poll`.
        zones: By zone.
        batches: Objects that the producers made.
        notifications: Of segments in objects.
        inline_segments: Segments that the router sent through Kafka.
        plain_records: Records that it sent as they are.
        producer_tx_bytes: On the wire from producers to brokers.
        consumer_rx_bytes: On the wire from brokers to consumers.
        producer_cpu_s: CPU of the producers' processes, start included.
        consumer_cpu_s: CPU of the consumers' processes, start included.
        retries: Store requests repeated.
        checks: All that had to hold.
        bill: What it costs.
    """

    client: str
    rate: float
    records: int
    payload_bytes: int
    send_s: float
    produce_s: float
    consume_s: float
    latency: Latency
    zones: tuple[ZoneFigures, ...]
    batches: int
    notifications: int
    inline_segments: int
    plain_records: int
    producer_tx_bytes: int
    consumer_rx_bytes: int
    producer_cpu_s: float
    consumer_cpu_s: float
    retries: int
    checks: tuple[Check, ...]
    bill: Bill

    @property
    def all_zones(self) -> ZoneFigures:
        """The zones' sums."""
        names = [item.name for item in fields(ZoneFigures) if item.name != "zone"]
        return ZoneFigures(
            "all", **{name: sum(getattr(zone, name) for zone in self.zones) for name in names}
        )

    @property
    def puts(self) -> int:
        """PUT requests, repeated ones included."""
        return self.all_zones.puts

    @property
    def gets(self) -> int:
        """GET requests, repeated ones included."""
        return self.all_zones.gets

    @property
    def put_bytes(self) -> int:
        """Into the store."""
        return self.all_zones.put_bytes

    @property
    def get_bytes(self) -> int:
        """Out of the store."""
        return self.all_zones.get_bytes

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the fields, the sums, and the bill's total."""
        sums = asdict(self.all_zones)
        return {
            **asdict(self),
            **{name: sums[name] for name in ("puts", "gets", "put_bytes", "get_bytes")},
            "bill": bill_to_dict(self.bill),
        }


def bill_to_dict(bill: Bill) -> dict[str, float]:
    """For JSON: the items and their sum, in USD."""
    return {**asdict(bill), "total_usd": bill.total_usd}


def checks_of(
    verdict: Verdict,
    *,
    expected: int,
    keyless: int,
    partition_count: int,
    producers: Sequence[Mapping[str, Any]],
    consumers: Sequence[Mapping[str, Any]],
) -> list[Check]:
    """What holds for the stock class and for the drop-in alike."""

    def none(name: str, count: int, examples: Sequence[str], proof: str) -> Check:
        detail = proof if not count else f"{count:,}: {'; '.join(examples)}"
        return Check(name, count == 0, detail)

    delivered = sum(producer["delivered"] for producer in producers)
    not_delivered = expected - delivered
    refusals = [reason for producer in producers for reason in producer["reasons"]]
    errors = sum(consumer["errors"] for consumer in consumers)
    reasons = [reason for consumer in consumers for reason in consumer["reasons"]]
    falling = sum(consumer["falling_offsets"] for consumer in consumers)
    unique = expected - verdict.lost.count
    return [
        none("none lost", verdict.lost.count, verdict.lost.examples,
             f"{unique:,} of {expected:,} arrived"),
        none("none doubled", verdict.doubled.count, verdict.doubled.examples,
             f"{verdict.arrived:,} arrivals in all"),
        none("none altered", verdict.altered.count, verdict.altered.examples,
             "hash of key and value = hash of the source"),
        none("none reordered", verdict.reordered.count, verdict.reordered.examples,
             "per producer and partition, so per key"),
        none("each key in its partition", verdict.misplaced.count, verdict.misplaced.examples,
             f"crc32(key) mod {partition_count}; {keyless:,} records have no key"),
        none("offsets only rise", falling, [], "per partition"),
        none("all reported delivered", not_delivered, refusals,
             f"{delivered:,} reports without an error"),
        none("no error at a consumer", errors, reasons, "poll() returned records only"),
    ]  # fmt: skip


def check_of_store(*, objects: Mapping[str, int], batches: int, put_bytes: int) -> Check:
    """Whether the store has what the drop-in's counters say, which the bill rests on."""
    stored_bytes = sum(objects.values())
    holds = len(objects) == batches and stored_bytes == put_bytes
    found = f"{len(objects):,} objects with {stored_bytes:,} bytes there"
    counted = "" if holds else f", {batches:,} with {put_bytes:,} counted"
    return Check("the store has what was counted", holds, found + counted)


def stored_gib_hours(objects: Mapping[str, int], now_ms: int) -> float:
    """Size times time kept, until the expiry hour that each object's key names."""
    byte_ms = 0
    for key, size_bytes in objects.items():
        expiry_ms = ObjectKey.decode(key).expiry_ms()
        if expiry_ms is None:
            raise AssertionError(f"{key} never expires, but the topic's retention is finite")
        byte_ms += size_bytes * max(0, expiry_ms - now_ms)
    return byte_ms / _MS_PER_HOUR / GIB


def bill_of_blob(
    *,
    puts: int,
    gets: int,
    kafka_tx_bytes: int,
    gib_hours: float,
    prices: PriceTable,
) -> Bill:
    """What a run of the drop-in costs."""
    return blob_bill(Usage(puts, gets, kafka_tx_bytes, gib_hours), prices)


def bill_of_plain(
    *,
    payload_bytes: int,
    records: int,
    retention_ms: int,
    prices: PriceTable,
    tx_bytes: int | None = None,
) -> Bill:
    """What the same records cost through plain Kafka.

    Args:
        payload_bytes: Keys and values.
        records: How many.
        retention_ms: How long the brokers keep them.
        prices: The prices.
        tx_bytes: What producers sent, where that was measured; else computed.
    """
    gib_hours = payload_bytes / GIB * retention_ms / _MS_PER_HOUR
    computed = plain_bill(payload_bytes, records, prices, stored_gib_hours=gib_hours)
    if tx_bytes is None:
        return computed
    crossing_usd = tx_bytes * prices.kafka_usd_per_byte
    return Bill(storage_usd=computed.storage_usd, crossing_usd=crossing_usd)
