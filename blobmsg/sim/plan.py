"""What a simulation does, drawn from its seed: sizes, settings, habits, faults.

A plan is a value: the shrinker takes one, leaves faults and records out, and runs it again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

__all__ = ["Fault", "Plan", "dense", "draw_plan"]

STORE_FAULTS = ("outage", "hang", "lost", "slow", "corrupt")
NETWORK_FAULTS = ("net-lost", "net-slow", "net-leader", "net-calls")
# One seed in so many has many records in each step, where batches, runs and queues are long.
_DENSE_SHARE = 0.05
_DENSITY = 10
# Of those with faults and transformers. Longer than a session, shorter than a transaction.
_STALL_SHARE = 0.3
_STALL_MS = 4000
# Of those with faults.
_FORGE_SHARE = 0.15
_STALE_SHARE = 0.2
_STALE_MS = (50, 3000)  # consumers believe it after five seconds, and brokers need less
PROCESS_FAULTS = (
    "kill-producer",
    "kill-consumer",
    "pause-producer",
    "pause-consumer",
    "join-consumer",
    "leave-consumer",
    "hide",
    "retention",
    "fence",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: One of the names above.
        at_ms: When, from the start.
        duration_ms: For how long.
        share: Of the requests it meets.
        target: Which process, counted modulo those that there are.
    """

    kind: str
    at_ms: int
    duration_ms: int
    share: float
    target: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One simulation.

    Attributes:
        seed: Of chance while it runs, too.
        records: How many are produced in all.
        span_ms: Over how long.
        partitions: Of each topic.
        topics: How many topics.
        producers: How many at the start.
        consumers: How many at the start, per group.
        groups: How many groups.
        is_transactional: Producers use transactions.
        route: `blobmsg.route`.
        second_route: That of every second producer.
        batch_bytes: `blobmsg.batch.size.bytes`.
        interval_ms: `blobmsg.batch.interval.ms`.
        message_timeout_ms: `message.timeout.ms`.
        queue_kbytes: `queue.buffering.max.kbytes`.
        prefetch_bytes: `blobmsg.prefetch.max.bytes`.
        compression: `blobmsg.compression.type`.
        on_missing: `blobmsg.on.missing`.
        isolation: Of the consumers.
        commits: Of the consumers.
        value_bytes: The largest value.
        commit_ms: `auto.commit.interval.ms`.
        flush_share: How often producers flush.
        seek_share: How often consumers seek.
        pause_share: How often they pause.
        fallback_ms: `blobmsg.fallback.after.ms`; negative: records wait for the store.
        inline_bytes_per_second: `blobmsg.inline.max.bytes.per.second`.
        message_bytes: `message.max.bytes`.
        expires: At the end all objects expire, and a new group reads what is left.
        is_cooperative: Rebalances take from members only what others get.
        revoke_share: How often consumers commit when they hear that partitions are taken from them.
        transformers: How many processes copy all of it to another topic, exactly once.
        density: How many times as many records applications produce and consume in each step.
        faults: What goes wrong.
    """

    seed: int
    records: int
    span_ms: int
    partitions: int
    topics: int
    producers: int
    consumers: int
    groups: int
    is_transactional: bool
    route: str
    second_route: str
    batch_bytes: int
    interval_ms: int
    message_timeout_ms: int
    queue_kbytes: int
    prefetch_bytes: int
    compression: str
    on_missing: str
    isolation: str
    commits: str
    value_bytes: int
    commit_ms: int
    flush_share: float
    seek_share: float
    pause_share: float
    fallback_ms: int
    inline_bytes_per_second: int
    message_bytes: int
    expires: bool
    is_cooperative: bool
    revoke_share: float
    transformers: int
    density: int
    faults: tuple[Fault, ...]


def draw_plan(seed: int, records: int | None = None) -> Plan:
    """The plan of a seed.

    Args:
        seed: Any.
        records: How many; None: chance decides.
    """
    rng = random.Random(f"plan {seed}")  # noqa: S311  (a simulation has to be repeatable)
    drawn = rng.choice((20, 40, 60, 100, 200))
    span_ms = rng.choice((300, 1000, 3000, 8000))
    is_transactional = rng.random() < 0.3
    batch_bytes = rng.choice((1024, 4096, 16384, 65536))
    faults: list[Fault] = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 8))):
        kind = rng.choice(STORE_FAULTS + NETWORK_FAULTS + PROCESS_FAULTS)
        faults.append(
            Fault(
                kind,
                rng.randint(0, span_ms * 3 // 2),
                rng.choice((50, 300, 1000, 3000, 12_000)),
                rng.choice((0.1, 0.5, 1.0)),
                rng.randint(0, 9),
            )
        )
    route = rng.choice(("blob", "blob", "blob", "auto", "inline", "plain"))
    plan = Plan(
        seed=seed,
        records=drawn if records is None else records,
        span_ms=span_ms,
        partitions=rng.randint(1, 6),
        topics=rng.choice((1, 1, 2)),
        producers=rng.choice((1, 1, 2)),
        consumers=rng.choice((1, 1, 2, 3)),
        groups=rng.choice((1, 1, 1, 2)),
        is_transactional=is_transactional,
        route=route,
        second_route=rng.choice((route, "blob", "plain")),
        batch_bytes=batch_bytes,
        interval_ms=rng.choice((1, 10, 100, 500)),
        message_timeout_ms=rng.choice((2000, 10_000, 30_000)),
        queue_kbytes=rng.choice((16, 64, 16384)),
        prefetch_bytes=rng.choice((1 << 20, 1 << 16, 8192)),
        compression=rng.choice(("none", "none", "zstd")),
        on_missing=rng.choice(("fail", "fail", "fail", "skip")),
        isolation=rng.choice(("read_committed", "read_committed", "read_uncommitted")),
        commits=rng.choice(("auto", "auto", "sync", "async", "stored")),
        value_bytes=rng.choice((10, 100, 1000, 4000)),
        commit_ms=rng.choice((20, 100, 500)),
        flush_share=rng.choice((0.0, 0.05, 0.3)),
        seek_share=rng.choice((0.0, 0.0, 0.05)),
        pause_share=rng.choice((0.0, 0.0, 0.1)),
        fallback_ms=rng.choice((-1, 0, 50, 500)),
        inline_bytes_per_second=rng.choice((2000, 50_000, 5 << 20)),
        message_bytes=rng.choice((1_000_000, 8000)),
        expires=rng.random() < 0.1,
        is_cooperative=rng.random() < 0.4,
        revoke_share=rng.choice((0.0, 0.0, 0.5)),
        transformers=rng.choice((0, 1, 2)),
        density=1,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )
    if plan.isolation != "read_committed" or plan.on_missing == "skip":
        plan = replace(plan, transformers=0)  # they can't be exact there
    elif plan.transformers and faults and rng.random() < _STALL_SHARE:
        stall = Fault("stall-transformer", rng.randint(0, span_ms), _STALL_MS, 1.0, 0)
        plan = replace(plan, faults=(*plan.faults, stall))
    if faults and not plan.expires and rng.random() < _FORGE_SHARE:
        forgeries = [
            Fault("forge", rng.randint(0, span_ms), 0, 1.0, rng.randint(0, 9))
            for _ in range(rng.randint(1, 3))
        ]
        plan = replace(plan, faults=(*plan.faults, *forgeries))
    if faults and rng.random() < _STALE_SHARE:
        stale = Fault(
            "net-stale", rng.randint(0, span_ms * 3 // 2), rng.randint(*_STALE_MS), 1.0, 0
        )
        plan = replace(plan, faults=(*plan.faults, stale))
    return dense(plan, _DENSITY) if records is None and rng.random() < _DENSE_SHARE else plan


def dense(plan: Plan, times: int) -> Plan:
    """The same steps at the same times with so many times as many records in each.

    Args:
        plan: Of any seed.
        times: What the number of records, and all limits of bytes, are multiplied with.
    """
    return replace(
        plan,
        records=plan.records * times,
        batch_bytes=plan.batch_bytes * times,
        queue_kbytes=plan.queue_kbytes * times,
        prefetch_bytes=plan.prefetch_bytes * times,
        inline_bytes_per_second=plan.inline_bytes_per_second * times,
        density=plan.density * times,
    )
