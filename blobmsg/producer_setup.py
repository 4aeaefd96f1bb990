"""The producer's core as its settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.core.batcher import Batcher
from blobmsg.core.fallback import InlineFallback
from blobmsg.core.kafka_presence import AWAY_AFTER_MS, KafkaPresence
from blobmsg.core.notifier import Notifier
from blobmsg.core.producer_core import BufferMemory, ProducerCore
from blobmsg.core.router import Router
from blobmsg.core.transaction import Transaction
from blobmsg.format.rows import keep_free
from blobmsg.inner_config import TimeBudget
from blobmsg.outbox import refuses_batch, refuses_keyless
from blobmsg.producer_topics import ENVELOPE_BYTES
from blobmsg.store.retrying import HANGS_AFTER_MS

if TYPE_CHECKING:
    from blobmsg.config import Settings
    from blobmsg.kafka_settings import KafkaView

__all__ = ["create_producer_core"]


def create_producer_core(settings: Settings, view: KafkaView, producer_id: bytes) -> ProducerCore:
    """Make a core.

    Args:
        settings: Ours.
        view: The user's librdkafka settings that we interpret.
        producer_id: 16 bytes, unique to this producer.
    """
    budget = TimeBudget.of(settings, view)
    inline_max_bytes = view.message_max_bytes - ENVELOPE_BYTES
    router = Router(
        settings.route,
        settings.price_table,
        settings.cost_groups,
        interval_ms=budget.batch_interval_ms,
        inline_max_bytes=inline_max_bytes,
    )
    batcher = Batcher(
        router,
        batch_size_bytes=settings.batch_size_bytes,
        batch_interval_ms=budget.batch_interval_ms,
        deadline_after_ms=budget.wrapper_deadline_ms,
        isolation=settings.isolation,
        writer_zone=settings.zone or "",
        writer_id=producer_id.hex(),
    )
    limit_bytes = view.queue_buffering_max_bytes
    # A batch fills while the one before it becomes an object.
    keep_free(min(2 * settings.batch_size_bytes, limit_bytes // 8))
    memory = BufferMemory(
        # The inner producer's queue has the other eighth (`inner_producer_config`).
        limit_bytes - limit_bytes // 8,
        settings.upload_threads * (settings.batch_size_bytes + settings.batch_size_bytes // 8),
        view.queue_buffering_max_messages,
    )
    return ProducerCore(
        batcher,
        Notifier(
            KafkaError(KafkaError._MSG_TIMED_OUT),
            refuses_batch,
            refuses_keyless,
            Transaction(view.transaction_timeout_ms, budget.hold_ms),
        ),
        memory,
        KafkaPresence(AWAY_AFTER_MS),
        InlineFallback(
            budget.fallback_after_ms if settings.on_store_failure == "inline" else None,
            settings.inline_max_bytes_per_second,
            inline_max_bytes,
            HANGS_AFTER_MS,
        ),
    )
