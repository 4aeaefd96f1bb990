"""Outcomes for tests of figures, report and command."""

from __future__ import annotations

from dataclasses import replace

from blobmsg.core.cost import Bill
from blobmsg.demo.figures import Check, Latency, RunFigures, ZoneFigures
from blobmsg.demo.session import Options, Outcome

GOOD = Check("none lost", True, "336,776 of 336,776 arrived")
BAD = Check("none lost", False, "2: id 17; id 18")


def run_of(client: str = "blobmsg", rate: float = 30_000.0, check: Check = GOOD) -> RunFigures:
    """A run with round figures."""
    return RunFigures(
        client=client,
        rate=rate,
        records=300_000,
        payload_bytes=100 << 20,
        send_s=10.0,
        produce_s=12.0,
        consume_s=15.0,
        latency=Latency(700, 1000, 1234, 2000),
        zones=tuple(
            ZoneFigures(zone, 100_000, 30, 35 << 20, 100_000, 30, 35 << 20)
            for zone in ("az1", "az2", "az3")
        ),
        batches=90,
        notifications=360,
        inline_segments=0,
        plain_records=0,
        producer_tx_bytes=100 << 10,
        consumer_rx_bytes=120 << 10,
        producer_cpu_s=2.5,
        consumer_cpu_s=2.25,
        retries=0,
        checks=(check,),
        bill=Bill(puts_usd=0.0005, gets_usd=0.0001, storage_usd=0.0001, crossing_usd=0.00001),
    )


def outcome_of(*runs: RunFigures) -> Outcome:
    """An outcome with these runs."""
    return Outcome(
        options=replace(Options(), records=300_000),
        kafka="librdkafka's mock cluster, 3 brokers in one process",
        store="a local folder",
        payload_bytes=100 << 20,
        settings={
            "blobmsg.destination": "static:az1,az2,az3",
            "blobmsg.batch.size.bytes": 16 << 20,
            "blobmsg.batch.interval.ms": 1000,
        },
        runs=runs or (run_of(),),
        plain_bill=Bill(storage_usd=0.0007, crossing_usd=0.0055),
        kept=None,
    )
