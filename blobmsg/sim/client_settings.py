"""The settings that a plan's clients have, and their inner clients: parsed as users' are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from blobmsg.config import Settings, parse_settings
from blobmsg.inner_config import inner_consumer_config, inner_producer_config
from blobmsg.kafka_settings import KafkaView

if TYPE_CHECKING:
    from blobmsg.sim.plan import Plan

__all__ = ["TRANSACTION_MS", "UPLOAD_THREADS", "ClientSettings", "settings_of"]

#: `transaction.timeout.ms`.
TRANSACTION_MS: Final = 10_000
UPLOAD_THREADS: Final = 3


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What clients go by.

    Attributes:
        ours: blobmsg's.
        view: The user's for librdkafka that we interpret.
        inner_producer: What the inner producer gets of them.
        inner_consumer: What the inner consumer gets of them.
    """

    ours: Settings
    view: KafkaView
    inner_producer: KafkaView
    inner_consumer: KafkaView


@lru_cache(maxsize=4096)
def _parsed(conf: tuple[tuple[str, Any], ...]) -> ClientSettings:
    settings, kafka_conf = parse_settings(dict(conf), {})
    view = KafkaView.parse(kafka_conf)
    return ClientSettings(
        settings,
        view,
        KafkaView.parse(inner_producer_config(kafka_conf, settings, view)),
        KafkaView.parse(inner_consumer_config(kafka_conf, settings, view)),
    )


def settings_of(plan: Plan, route: str, *, is_transformer: bool = False) -> ClientSettings:
    """Of the clients of a plan.

    Args:
        plan: Whose.
        route: `blobmsg.route`.
        is_transformer: Positions go with transactions, and not by themselves.
    """
    conf: dict[str, Any] = {
        "blobmsg.store.url": "memory://simulated",
        "blobmsg.route": route,
        "blobmsg.batch.size.bytes": plan.batch_bytes,
        "blobmsg.batch.interval.ms": plan.interval_ms,
        "blobmsg.prefetch.max.bytes": plan.prefetch_bytes,
        "blobmsg.compression.type": plan.compression,
        "blobmsg.on.missing": plan.on_missing,
        "blobmsg.on.store.failure": "wait" if plan.fallback_ms < 0 else "inline",
        "blobmsg.fallback.after.ms": max(0, plan.fallback_ms),
        "blobmsg.inline.max.bytes.per.second": plan.inline_bytes_per_second,
        "blobmsg.upload.threads": UPLOAD_THREADS,
        "blobmsg.fetch.threads": 3,
        "blobmsg.cache.memory.bytes": 0,
        "message.timeout.ms": plan.message_timeout_ms,
        "message.max.bytes": plan.message_bytes,
        "queue.buffering.max.kbytes": plan.queue_kbytes,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": plan.commit_ms,
        "isolation.level": plan.isolation,
        "enable.auto.commit": plan.commits == "auto",
        "group.id": "g",
    }
    if is_transformer:
        conf["enable.auto.commit"] = False
    if plan.is_transactional or is_transformer:
        conf["transactional.id"] = "p"
        conf["transaction.timeout.ms"] = TRANSACTION_MS
        conf["message.timeout.ms"] = min(plan.message_timeout_ms, TRANSACTION_MS)
    return _parsed(tuple(conf.items()))
