"""The outcome of a demo as text, at most 100 columns wide, and as JSON.

Says of every figure whether it was measured or computed. Computes nothing but sums and ratios.
"""

from __future__ import annotations

import platform
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import blobmsg
from blobmsg.core.cost import GIB
from blobmsg.demo import figures
from blobmsg.demo.figures import Check
from blobmsg.demo.stage import PARTITIONS, RETENTION_MS, ZONES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from blobmsg.core.cost import Bill
    from blobmsg.demo.figures import RunFigures
    from blobmsg.demo.session import Outcome

__all__ = ["COLUMNS", "report_json", "report_text"]

#: No line is longer.
COLUMNS: Final = 100

_MIB: Final = 1 << 20
_HOURS: Final = RETENTION_MS // 3_600_000
_ITEMS: Final = (
    ("puts_usd", "PUT requests"),
    ("gets_usd", "GET requests"),
    ("crossing_usd", "crossing zones"),
    ("storage_usd", "keeping the records"),
)


def report_json(outcome: Outcome) -> dict[str, Any]:
    """All figures, for programs."""
    return {
        "version": blobmsg.__version__,
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "holds": outcome.holds,
        "stack": outcome.options.stack,
        "kafka": outcome.kafka,
        "store": outcome.store,
        "records": outcome.options.records,
        "payload_bytes": outcome.payload_bytes,
        "settings": outcome.settings,
        "prices": asdict(outcome.options.prices),
        "runs": [run.to_dict() for run in outcome.runs],
        "computed_plain_bill": figures.bill_to_dict(outcome.plain_bill),
    }


def report_text(outcome: Outcome) -> str:
    """The report."""
    paced = [run for run in outcome.runs if run.rate]
    flat_out = [run for run in outcome.runs if not run.rate]
    blocks = [_head(outcome), _checks(outcome.runs), _store(paced[0])]
    blocks.append(_kafka_and_latency(paced))
    if flat_out:
        blocks.append(_flat_out(flat_out))
    blocks += [_bill(outcome, paced), _end(outcome)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _head(outcome: Outcome) -> list[str]:
    options, settings = outcome.options, outcome.settings
    batch_mib = settings["blobmsg.batch.size.bytes"] / _MIB
    interval_ms = settings["blobmsg.batch.interval.ms"]
    return [
        f"{options.records:,} flights as JSON, {_size(outcome.payload_bytes)}; key: the aircraft",
        f"  zones  {', '.join(ZONES)}: a producer and a consumer each, processes of their own",
        f"  kafka  {outcome.kafka}, {PARTITIONS} partitions",
        f"  store  {outcome.store}",
        f"  pace   {options.rate:,.0f} records/s in each zone; no compression on either side",
        f"  batch  sealed at {batch_mib:g} MiB or {interval_ms:,} ms, for the zone that reads it",
    ]


def _client(run: RunFigures) -> str:
    return "blobmsg" if run.client == "blobmsg" else "plain Kafka"


def _checks(runs: Sequence[RunFigures]) -> list[str]:
    """The first run's in full, of the others what did not hold."""
    first, *others = runs
    lines = ["Every record checked against the source", *map(_check, first.checks)]
    for run in others:
        name = f"{_client(run)}, {f'{run.rate:,.0f}/s' if run.rate else 'flat out'}"
        failed = [check for check in run.checks if not check.holds]
        held = len(run.checks) - len(failed)
        summary = f"{held} of these {len(run.checks)} checks hold"
        lines.append(_check(Check(name, not failed, summary)))
        lines += map(_check, failed)
    return lines


def _check(check: Check) -> str:
    word = "ok" if check.holds else "FAILED"
    return _cut(f"  {word:<6}  {check.name:<31} {check.detail}")


def _cut(line: str) -> str:
    return line if len(line) <= COLUMNS else f"{line[: COLUMNS - 3]}..."


def _store(run: RunFigures) -> list[str]:
    rows = [
        (
            zone.zone,
            f"{zone.sent:,}",
            f"{zone.puts:,}",
            _size(zone.put_bytes),
            f"{zone.received:,}",
            f"{zone.gets:,}",
            _size(zone.get_bytes),
        )
        for zone in (*run.zones, run.all_zones)
    ]
    head = ("zone", "sent", "PUTs", "uploaded", "received", "GETs", "downloaded")
    mean = run.put_bytes / run.batches if run.batches else 0
    return [
        "Through the store (measured)",
        *_table(head, rows),
        (
            f"  {run.batches:,} batches of {_size(mean)} on average; "
            f"{run.gets / max(1, run.puts):.2f} GETs per PUT; each stored byte downloaded "
            f"{run.get_bytes / max(1, run.put_bytes):.2f} times;"
        ),
        f"  {run.retries:,} requests repeated",
    ]


def _kafka_and_latency(runs: Sequence[RunFigures]) -> list[str]:
    blob = runs[0]
    figures_of_runs: list[tuple[str, Callable[[RunFigures], str]]] = [
        ("bytes from producers to brokers", lambda run: _size(run.producer_tx_bytes)),
        ("bytes from brokers to consumers", lambda run: _size(run.consumer_rx_bytes)),
        ("latency p50", lambda run: f"{run.latency.p50_ms:,} ms"),
        ("latency p95", lambda run: f"{run.latency.p95_ms:,} ms"),
        ("latency p99", lambda run: f"{run.latency.p99_ms:,} ms"),
        ("records sent per second", lambda run: f"{run.records / run.send_s:,.0f}"),
        ("CPU of the producers", lambda run: f"{run.producer_cpu_s:.1f} s"),
        ("CPU of the consumers", lambda run: f"{run.consumer_cpu_s:.1f} s"),
    ]
    rows = [(label, *map(show, runs)) for label, show in figures_of_runs]
    return [
        "Through Kafka, and how long it takes (measured)",
        *_table(("", *map(_client, runs)), rows),
        (
            f"  The brokers got {_share(blob.producer_tx_bytes, blob.payload_bytes)} of the bytes: "
            f"{_carriers(blob)}."
        ),
        "  Bytes on the wire, from librdkafka's statistics. Latency: from produce() (the record's",
        "  timestamp) to the return of poll(), of all records, on one clock.",
    ]


def _carriers(run: RunFigures) -> str:
    carriers = [(run.notifications, "notifications")]
    if run.inline_segments:
        carriers.append((run.inline_segments, "inline segments"))
    if run.plain_records:
        carriers.append((run.plain_records, "plain records"))
    return ", ".join(f"{count:,} {name}" for count, name in carriers)


def _share(part: int, whole: int) -> str:
    return f"1/{whole / part:,.0f}" if part else "none"


def _flat_out(runs: Sequence[RunFigures]) -> list[str]:
    rows = [
        ("produced, to the last report", *(_speed(run, run.produce_s) for run in runs)),
        ("consumed, to the last record", *(_speed(run, run.consume_s) for run in runs)),
    ]
    return [
        "As fast as it goes (measured; one run each, default settings; with care: make bench)",
        *_table(("", *map(_client, runs)), rows),
    ]


def _speed(run: RunFigures, seconds: float) -> str:
    return f"{run.records / seconds:,.0f}/s {run.payload_bytes / _MIB / seconds:6.1f} MiB/s"


def _bill(outcome: Outcome, paced: Sequence[RunFigures]) -> list[str]:
    blob, *others = paced
    plain = others[0].bill if others else outcome.plain_bill
    basis = "its producers' measured bytes" if others else "payload and 12 bytes per record"
    prices = outcome.options.prices
    per_gib = GIB / outcome.payload_bytes
    rows: list[tuple[str, ...]] = [
        (label, _usd(getattr(blob.bill, item) * per_gib), _usd(getattr(plain, item) * per_gib))
        for item, label in _ITEMS
    ]
    for label, factor in (
        ("a GiB of records", per_gib),
        ("this run", 1.0),
        ("an hour at this pace", 3600 / blob.send_s),
    ):
        totals = blob.bill.total_usd * factor, plain.total_usd * factor
        rows.append((label, *map(_usd, totals)))
    return [
        f"The bill: {_comparison(blob.bill, plain)}",
        *_table(("USD", "blobmsg", "plain Kafka"), rows, rule_before=len(_ITEMS)),
        "  Items are per GiB of records. Computed from what was measured: requests, bytes on the",
        f"  wire, objects until the expiry in their names. Plain Kafka: {basis},",
        (
            f"  {prices.crossings:.2f} zone crossings, {_HOURS} h on {prices.replication_factor} "
            "brokers' disks. The brokers themselves are in neither column."
        ),
        *textwrap.wrap(
            f"Prices as of {prices.as_of}: {prices.source}.",
            COLUMNS,
            initial_indent="  ",
            subsequent_indent="  ",
        ),
    ]


def _comparison(blob: Bill, plain: Bill) -> str:
    if not plain.total_usd:
        return "plain Kafka costs nothing at these prices"
    saved = 1 - blob.total_usd / plain.total_usd
    if saved >= 0:
        return f"{saved:.0%} less than plain Kafka"
    return f"{-saved:.0%} MORE than plain Kafka: too few records per batch"


def _end(outcome: Outcome) -> list[str]:
    failed = sum(not check.holds for run in outcome.runs for check in run.checks)
    lines = [f"{failed} checks FAILED." if failed else "All checks hold."]
    if outcome.kept is not None:
        lines.append(f"The store: {outcome.kept} (blobmsg inspect explains its objects)")
    return lines


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, rule_before: int | None = None
) -> list[str]:
    """Columns aligned: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        others = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
        return "  " + "   ".join((first, *others)).rstrip()

    lines = [line(head), *map(line, rows)]
    if rule_before is not None:
        lines.insert(1 + rule_before, line(["-" * width for width in widths]))
    return lines


def _size(size_bytes: float) -> str:
    if size_bytes < _MIB:
        return f"{size_bytes / 1024:,.1f} KiB"
    return f"{size_bytes / _MIB:,.1f} MiB"


def _usd(amount: float) -> str:
    return f"{amount:,.6f}" if amount else "-"
