"""What is measured: the variants of both clients, the sweep, and what must be reached.

Pure: names, settings and verdicts. Never runs anything.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "BATCH_BYTES",
    "CONSUMERS",
    "DURABLE",
    "LINKS_GBIT",
    "MEBIBYTE",
    "OURS",
    "ConsumeVariant",
    "Figures",
    "ProduceVariant",
    "Requirement",
    "blobmsg_sweep_variants",
    "fastest",
    "judge",
    "median",
    "medians_of",
    "produce_variants",
    "stock_settings",
    "sweep_variants",
    "through",
]

MEBIBYTE = 1 << 20
#: The default of blobmsg.batch.size.bytes.
BATCH_BYTES = 16 << 20
#: Networks of machines in the cloud, in 10^9 bits per second.
LINKS_GBIT = (1, 2, 4, 8)
# Like ours, which writes a notification only once and only to all in-sync replicas.
DURABLE: Mapping[str, Any] = {"acks": "all", "enable.idempotence": True}
# Room for a batch's own headers beside its records.
_BATCH_OVERHEAD_BYTES = 64 << 10
_DEFAULT_MESSAGE_MAX_BYTES = 1_000_000
_BATCH_SIZE = "blobmsg.batch.size.bytes"

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProduceVariant:
    """One way of producing.

    Attributes:
        name: In tables.
        client: `stock` or `blobmsg`.
        call: `produce` or `produce_batch`.
        with_callback: Whether every record has one.
        settings: Besides those that say where the cluster is.
    """

    name: str
    client: str
    call: str = "produce"
    with_callback: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def object_bytes(self) -> int:
        """Size of the objects that blobmsg makes of it."""
        return int(self.settings.get(_BATCH_SIZE, BATCH_BYTES))


#: Our defaults.
OURS = ProduceVariant("blobmsg", "blobmsg", settings=DURABLE)


@dataclass(frozen=True, slots=True)
class ConsumeVariant:
    """One way of consuming; `call` is `poll` or `consume`."""

    name: str
    client: str
    call: str


CONSUMERS = (
    ConsumeVariant("stock, poll", "stock", "poll"),
    ConsumeVariant("blobmsg, poll", "blobmsg", "poll"),
    ConsumeVariant("stock, consume(1000)", "stock", "consume"),
    ConsumeVariant("blobmsg, consume(1000)", "blobmsg", "consume"),
)


def stock_settings(linger_ms: int, batch_size_bytes: int) -> dict[str, Any]:
    """Settings of a stock producer in the sweep; larger batches need a larger message limit."""
    message_max_bytes = max(_DEFAULT_MESSAGE_MAX_BYTES, batch_size_bytes + _BATCH_OVERHEAD_BYTES)
    return {
        **DURABLE,
        "linger.ms": linger_ms,
        "batch.size": batch_size_bytes,
        "message.max.bytes": message_max_bytes,
    }


def sweep_variants() -> list[ProduceVariant]:
    """Every cell of the sweep that looks for stock's best."""
    return [
        ProduceVariant(
            f"linger.ms={linger_ms} batch.size={size_kibibytes}K {call}",
            "stock",
            call,
            settings=stock_settings(linger_ms, size_kibibytes << 10),
        )
        for call in ("produce", "produce_batch")
        for linger_ms in (0, 5, 50, 500)
        for size_kibibytes in (64, 256, 1024, 4096)
    ]


def blobmsg_sweep_variants() -> list[ProduceVariant]:
    """Every cell of the sweep that looks for our best; its defaults come first."""
    return [
        ProduceVariant(
            f"batch.size={mebibytes}M {call}",
            "blobmsg",
            call,
            settings={**DURABLE, _BATCH_SIZE: mebibytes << 20},
        )
        for mebibytes in (16, 32, 64)
        for call in ("produce", "produce_batch")
    ]


def through(gbit: int, what: str) -> str:
    """The name of what was measured while that much per second got to the store."""
    return f"{what}, {gbit} Gbit/s"


def fastest(
    variants: Iterable[ProduceVariant], runs: Mapping[str, Sequence[Figures]]
) -> list[ProduceVariant]:
    """Sort variants by the median of their wall throughput, highest first."""
    return sorted(variants, key=lambda variant: -median(runs[variant.name], "mib_per_s"))


def produce_variants(best: ProduceVariant, our_best: ProduceVariant) -> list[ProduceVariant]:
    """What is measured in every round.

    Args:
        best: Stock's best from its sweep.
        our_best: Ours.
    """
    return [
        ProduceVariant("stock, defaults", "stock", settings=DURABLE),
        ProduceVariant("stock, best", "stock", best.call, settings=best.settings),
        OURS,
        ProduceVariant("blobmsg, best", "blobmsg", our_best.call, settings=our_best.settings),
        ProduceVariant("stock, defaults, callbacks", "stock", "produce", True, DURABLE),
        ProduceVariant("stock, best, callbacks", "stock", best.call, True, best.settings),
        ProduceVariant("blobmsg, callbacks", "blobmsg", "produce", True, DURABLE),
    ]


def median(runs: Iterable[Figures], figure: str) -> float:
    """The middle one of a figure over the rounds."""
    return float(statistics.median(run[figure] for run in runs))


@dataclass(frozen=True, slots=True)
class Requirement:
    """One sentence of what must be reached, and whether it was.

    Attributes:
        text: What.
        limit: The border; None: a figure for comparison, nothing that must be reached.
        measured: None when this run did not measure it.
        is_minimum: Whether it must be at least the limit; else at most.
        shown: How to print measured and limit.
    """

    text: str
    limit: float | None
    measured: float | None
    is_minimum: bool
    shown: str = "{:.2f}"

    @property
    def verdict(self) -> str:
        """PASS, FAIL, `not measured`, or a dash where nothing must be reached."""
        if self.measured is None:
            return "not measured"
        if self.limit is None:
            return "-"
        holds = self.measured >= self.limit if self.is_minimum else self.measured <= self.limit
        return "PASS" if holds else "FAIL"

    @property
    def border(self) -> str:
        """The limit, with its sign."""
        if self.limit is None:
            return "-"
        return (">= " if self.is_minimum else "<= ") + self.shown.format(self.limit)

    @property
    def reached(self) -> str:
        """What was measured."""
        return "-" if self.measured is None else self.shown.format(self.measured)

    def line(self) -> str:
        """For the terminal."""
        return f"{self.verdict:12} {self.text}: {self.reached} ({self.border})"


def judge(medians: Mapping[str, Mapping[str, Figures]]) -> list[Requirement]:
    """Decide on everything that must be reached.

    Args:
        medians: `produce`, `consume` and `ceiling`: figures by variant; what was not measured is
            not there.
    """
    produce, consume = medians.get("produce", {}), medians.get("consume", {})
    stock_rates = [
        figures["mib_per_s"]
        for name, figures in produce.items()
        if name.startswith("stock") and "callbacks" not in name
    ]
    stock_best = max(stock_rates, default=None)
    defaults = produce.get("blobmsg", {})
    # As for stock, whose best may be its defaults.
    best = max(
        (produce[name] for name in ("blobmsg", "blobmsg, best") if name in produce),
        key=lambda figures: figures["mib_per_s"],
        default={},
    )

    def share_of_ceiling(ours: Figures) -> float | None:
        ceilings = [
            figures["mib_per_s"]
            for figures in medians.get("ceiling", {}).values()
            if figures["object_bytes"] == ours.get("object_bytes")
        ]
        return _ratio(ours.get("mib_per_s"), max(ceilings, default=None))

    def share_of_boto3() -> float | None:
        ceilings = medians.get("ceiling", {}).items()
        rates = [figures["mib_per_s"] for name, figures in ceilings if name.startswith("boto3")]
        return _ratio(defaults.get("mib_per_s"), max(rates, default=None))

    def share_of_link(gbit: int) -> float | None:
        link = medians.get("link", {})
        ours, raw = (link.get(through(gbit, what), {}) for what in ("blobmsg", "raw PUT"))
        return _ratio(ours.get("mib_per_s"), raw.get("mib_per_s"))

    def cpu_of_consuming(call: str) -> float | None:
        return _cpu_ratio(consume, f"blobmsg, {call}", f"stock, {call}")

    return [
        Requirement(
            "producing, wall, best of each, ours times stock's",
            5.0,
            _ratio(best.get("mib_per_s"), stock_best),
            True,
        ),
        Requirement(
            "producing, wall, our defaults, times stock's best",
            None,
            _ratio(defaults.get("mib_per_s"), stock_best),
            True,
        ),
        Requirement(
            "producing, wall, our best, share of the raw PUT ceiling",
            0.7,
            share_of_ceiling(best),
            True,
        ),
        Requirement(
            "producing, wall, our defaults, share of the raw PUT ceiling",
            None,
            share_of_ceiling(defaults),
            True,
        ),
        Requirement(
            "producing, wall, our defaults, share of raw PUTs with boto3",
            None,
            share_of_boto3(),
            True,
        ),
        *(
            Requirement(
                f"the same, share of raw PUTs while {gbit} Gbit/s get to the store",
                0.7,
                share_of_link(gbit),
                True,
            )
            for gbit in LINKS_GBIT
        ),
        Requirement(
            "tx_bytes of the inner producer, share of the payload",
            1 / 500,
            defaults.get("tx_share"),
            False,
            "{:.5f}",
        ),
        Requirement(
            "producing, client CPU, stock's best, times our best",
            2.0,
            _cpu_ratio(produce, "stock, best", "blobmsg, best"),
            True,
        ),
        Requirement(
            "producing, client CPU, stock's defaults, times ours",
            3.0,
            _cpu_ratio(produce, "stock, defaults", "blobmsg"),
            True,
        ),
        Requirement(
            "producing with callbacks, client CPU, stock's best, times our defaults",
            1.0,
            _cpu_ratio(produce, "stock, best, callbacks", "blobmsg, callbacks"),
            True,
        ),
        Requirement(
            "consume(1000), CPU per record, times stock's",
            1.0,
            cpu_of_consuming("consume(1000)"),
            False,
        ),
        Requirement("poll, CPU per record, times stock's", 1.0, cpu_of_consuming("poll"), False),
    ]


def _cpu_ratio(variants: Mapping[str, Figures], one: str, other: str) -> float | None:
    one_us, other_us = (variants.get(name, {}).get("cpu_us_per_record") for name in (one, other))
    return _ratio(one_us, other_us)


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else ours / theirs


def medians_of(runs: Sequence[Figures]) -> Figures:
    """The median of every number that all runs have."""
    names = [
        name
        for name, value in runs[0].items()
        if isinstance(value, (int, float)) and all(name in run for run in runs)
    ]
    return {name: median(runs, name) for name in names}
