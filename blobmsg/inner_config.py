"""What the user's settings mean for the inner clients, which are the stock ones.

Decides how time and memory are split between the wrapper and the inner client, raises guarantees
that are weaker than ours, and takes the callbacks out, because the wrapper sets its own. Never
judges a value itself: stock does, in its own words, so what stock refuses is refused by stock's
own exception (`_let_stock_judge`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka

# Bound at import, so that an application that patches confluent_kafka.Producer with ours does not
# make us find ourselves.
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as StockProducer

from blobmsg.core.resets import inner_offset_reset
from blobmsg.kafka_settings import INTERPRETED_NAMES, KafkaView, canonical_name, without

if TYPE_CHECKING:
    from collections.abc import Mapping

    from blobmsg.config import Settings
    from blobmsg.core.partitioner import KeyHash

__all__ = [
    "KafkaCallbacks",
    "TimeBudget",
    "admin_config",
    "inner_consumer_config",
    "inner_producer_config",
    "key_hashes",
    "plain_producer_config",
]

logger = logging.getLogger("blobmsg.config")

Callback = Callable[..., Any]

_PRODUCER_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "on_delivery", "logger")
_CONSUMER_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb", "on_commit", "logger")
# What an inner queue must hold beside one record of the largest size: librdkafka refuses a record
# that is larger than its queue even when the queue is empty.
_INNER_QUEUE_SLACK_BYTES: Final = 64 * 1024
# An eighth of the user's memory: notifications are under 1/500 of the payload, so this is for the
# plain and inline ones; the rest is for records that wait for their batch.
_INNER_QUEUE_SHARE: Final = 8
_IDEMPOTENT_MAX_IN_FLIGHT: Final = 5  # librdkafka's limit for an idempotent producer
_ACKS_ALL: Final = -1
# An application that waits for its records' reports before it commits waits that long. Readers of
# other transactions wait for uploads that take longer.
_HOLD_MS: Final = 10_000
# No setting of anybody. As the last key of a dict it makes stock stop after it has judged every
# other key and before it starts a thread or opens a socket.
_SENTINEL: Final = "blobmsg.every.value.was.accepted"


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCallbacks:
    """The callbacks in a user's settings; None where there is none.

    `logger` is the user's `logging.Logger`; hand it to the inner client as it is (it is not
    called under our locks, and librdkafka's messages would go to stderr without it).
    """

    error_cb: Callback | None = None
    stats_cb: Callback | None = None
    throttle_cb: Callback | None = None
    on_delivery: Callback | None = None
    on_commit: Callback | None = None
    logger: Any = None

    @classmethod
    def of(cls, user_conf: Mapping[str, Any], *, is_consumer: bool = False) -> KafkaCallbacks:
        """Take the callbacks of this kind of client out of the user's settings.

        They are judged by `inner_producer_config` and `inner_consumer_config`, not here.
        """
        names = _CONSUMER_CALLBACKS if is_consumer else _PRODUCER_CALLBACKS
        return cls(**{name: user_conf.get(name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBudget:
    """How a record's time to live is shared out (DESIGN.md, *The inner clients*).

    With T the user's `message.timeout.ms`, the inner producer gets T/2 and the wrapper the rest:
    whatever was handed to the inner producer still has half of the time, so what we time out was
    never sent and what was sent is never timed out by us.

    Attributes:
        message_timeout_ms: T; 0: no limit.
        inner_message_timeout_ms: `message.timeout.ms` of the inner producer; 0: no limit.
        wrapper_deadline_ms: A segment whose oldest record is older than this is not notified any
            more; None: no limit.
        batch_interval_ms: Age at which a batch is sealed; at most a quarter of that deadline.
        request_timeout_ms: Longest single request to the store: at most what interval and
            `fallback_after_ms` leave of the deadline, so that one that hangs is tried again. The
            segment's own deadline cuts it further.
        fallback_after_ms: How long an object fails before its segments go inline; at most a
            quarter of that deadline.
        hold_ms: How long an open transaction's notifications are held back at most; at most a
            quarter of that deadline.
    """

    message_timeout_ms: int
    inner_message_timeout_ms: int
    wrapper_deadline_ms: int | None
    batch_interval_ms: int
    request_timeout_ms: int
    fallback_after_ms: int
    hold_ms: int

    @classmethod
    def of(cls, settings: Settings, view: KafkaView) -> TimeBudget:
        """Share out the time that these settings give."""
        timeout_ms = view.message_timeout_ms
        if timeout_ms == 0:
            return cls(
                message_timeout_ms=0,
                inner_message_timeout_ms=0,
                wrapper_deadline_ms=None,
                batch_interval_ms=settings.batch_interval_ms,
                request_timeout_ms=settings.request_timeout_ms,
                fallback_after_ms=settings.fallback_after_ms,
                hold_ms=_HOLD_MS,
            )
        # Never 0, which would mean "no limit" to librdkafka: T = 1 gives 1 and 1.
        inner_ms = max(1, timeout_ms // 2)
        deadline_ms = max(1, timeout_ms - inner_ms)
        quarter_ms = deadline_ms // 4
        interval_ms = min(settings.batch_interval_ms, quarter_ms)
        fallback_ms = min(settings.fallback_after_ms, quarter_ms)
        return cls(
            message_timeout_ms=timeout_ms,
            inner_message_timeout_ms=inner_ms,
            wrapper_deadline_ms=deadline_ms,
            batch_interval_ms=interval_ms,
            request_timeout_ms=min(
                settings.request_timeout_ms, max(1, deadline_ms - interval_ms - fallback_ms)
            ),
            fallback_after_ms=fallback_ms,
            hold_ms=min(_HOLD_MS, quarter_ms),
        )


def inner_producer_config(
    user_conf: Mapping[str, Any], settings: Settings, view: KafkaView
) -> dict[str, Any]:
    """Settings of the inner producer that carries notifications and the plain records with them.

    Idempotent with `acks=all` whatever the user wished, half of the time, an eighth of the queue,
    no callbacks and no sticky or hashing to do: we always give the partition. Where the user's
    own values contradict each other they are left as they are, for stock to refuse.

    Args:
        user_conf: librdkafka's part of the user's settings (`parse_settings`' second result).
        settings: Ours.
        view: `KafkaView.parse(user_conf)`.

    Raises:
        KafkaException, TypeError, ValueError: What stock raises for a bad value or callback.
    """
    _let_stock_judge(user_conf, is_consumer=False)
    ours: dict[str, Any] = {
        "queue.buffering.max.kbytes": _inner_queue_kbytes(view),
        **_idempotence(view),
        **_inner_times(settings, view),
    }
    dropped = {*_PRODUCER_CALLBACKS, *_NOT_PASSED_ON}
    return {
        **without(user_conf, {*dropped, *ours}),
        **{name: value for name, value in ours.items() if value is not None},
    }


def inner_consumer_config(
    user_conf: Mapping[str, Any],
    settings: Settings,
    view: KafkaView,
) -> dict[str, Any]:
    """Settings of the inner consumer: it neither stores nor commits offsets, and no callbacks.

    librdkafka commits a stored offset only when its number grows, so positions inside one
    notification would be lost; the wrapper commits itself (DESIGN.md, *Offsets*). It tells where
    a partition ends, for positions behind what nobody sees; whether the user hears of it is ours.
    Where it has to begin elsewhere it does so in a way that shows (`core.resets`).

    Args:
        user_conf: librdkafka's part of the user's settings.
        settings: Ours.
        view: `KafkaView.parse(user_conf)`.

    Raises:
        KafkaException, TypeError, ValueError: What stock raises for a bad value or callback.
    """
    _let_stock_judge(user_conf, is_consumer=True)
    ours = {
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": inner_offset_reset(view.auto_offset_reset),
    }
    return {**without(user_conf, {*_CONSUMER_CALLBACKS, *ours}), **ours}


def plain_producer_config(user_conf: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the second inner producer, for topics outside `blobmsg.topics`.

    The user's own, unchanged, less the callbacks that the wrapper sets.
    """
    return without(user_conf, {*_PRODUCER_CALLBACKS, "delivery.report.only.error"})


def admin_config(user_conf: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the AdminClient that a process' clients share: how to connect, and no more.

    It writes no log lines, for the inner client says where the user wants it what is wrong with
    Kafka; and makes no topic by asking for it, for whether that happens is the inner client's.
    """
    how = {key: value for key, value in user_conf.items() if str(key).startswith(_CONNECTION)}
    return {**how, "log_level": 0, "allow.auto.create.topics": False}


_CONNECTION: Final = (
    "bootstrap.servers",
    "metadata.broker.list",
    "security.",
    "sasl.",
    "ssl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "socket.",
    "broker.",
    "client.id",
    "client.rack",
    "client.dns.",
    "reconnect.",
    "oauth_cb",
)


def key_hashes() -> dict[str, KeyHash]:
    """The hash functions of the installed confluent-kafka, as arguments for `create_partitioner`.

    Empty before the version that brought them; the partitioners' own, slower ones have the same
    results.
    """
    return {
        name: getattr(confluent_kafka, name)
        for name in ("murmur2", "fnv1a")
        if hasattr(confluent_kafka, name)
    }


def _inner_queue_kbytes(view: KafkaView) -> int:
    floor_bytes = view.message_max_bytes + _INNER_QUEUE_SLACK_BYTES
    return max(view.queue_buffering_max_kbytes // _INNER_QUEUE_SHARE, -(-floor_bytes // 1024))


def _idempotence(view: KafkaView) -> dict[str, Any]:
    """Settings that make the inner producer idempotent; None: leave the setting out.

    With an idempotence of the user's own, stock knows which combinations it refuses, and does.
    """
    wished = view.enable_idempotence or view.is_transactional
    if wished:
        return {} if view.is_set("enable.idempotence") else {"enable.idempotence": True}
    ours: dict[str, Any] = {"enable.idempotence": True, "acks": _ACKS_ALL}
    raised: list[str] = []
    if view.is_set("enable.idempotence"):
        raised.append("enable.idempotence=true")
    if view.acks != _ACKS_ALL:
        raised.append("acks=all")
    if view.is_set("max.in.flight") and view.max_in_flight > _IDEMPOTENT_MAX_IN_FLIGHT:
        ours["max.in.flight"] = _IDEMPOTENT_MAX_IN_FLIGHT
        raised.append(f"max.in.flight={_IDEMPOTENT_MAX_IN_FLIGHT}")
    if view.retries < 1:
        ours["retries"] = None
        raised.append("retries (the default: as long as message.timeout.ms lasts)")
    if view.backpressure_threshold > 1:
        ours["queue.buffering.backpressure.threshold"] = None
    if view.queuing_strategy != "fifo":
        ours["queuing.strategy"] = None
        raised.append("queuing.strategy=fifo")
    if raised:
        logger.warning(
            "blobmsg keeps the order and the durability of acks=all for all records of the topics "
            "it handles: %s instead of what was set",
            ", ".join(raised),
        )
    return ours


# The first is read by confluent-kafka's own report callback, which is replaced; the others would
# cut what is handed over together.
_NOT_PASSED_ON: Final = ("delivery.report.only.error", "batch.size", "batch.num.messages")
# What is handed over between two flushes of the inner producer is one batch for each partition: so
# it must not leave by itself while our thread is held up. Flushing ends the lingering.
_LINGER_MS: Final = 1000


def _inner_times(settings: Settings, view: KafkaView) -> dict[str, Any]:
    if _is_refused_by_stock(view):
        return {}
    budget = TimeBudget.of(settings, view)
    inner_ms = budget.inner_message_timeout_ms
    # librdkafka insists on linger < timeout.
    linger_ms = min(_LINGER_MS, inner_ms / 2) if inner_ms else _LINGER_MS
    return {"message.timeout.ms": inner_ms, "linger.ms": linger_ms}


def _is_refused_by_stock(view: KafkaView) -> bool:
    """The user's times contradict each other, which halving ours would hide from stock."""
    timeout_ms = view.message_timeout_ms
    if view.is_transactional and timeout_ms > view.transaction_timeout_ms:
        return True
    return timeout_ms != 0 and view.is_set("linger.ms") and timeout_ms <= view.linger_ms


def _let_stock_judge(user_conf: Mapping[str, Any], *, is_consumer: bool) -> None:
    """Have the stock class check the values that we replace, which it would never see."""
    callbacks = _CONSUMER_CALLBACKS if is_consumer else _PRODUCER_CALLBACKS
    judged: dict[str, Any] = {}
    for key, value in user_conf.items():
        if key in callbacks:
            # Not the user's object: a client that fails to start must not keep it alive.
            judged[key] = _ignore if callable(value) else value
        elif canonical_name(key) in INTERPRETED_NAMES or key in _NOT_PASSED_ON:
            judged[key] = value
    stock_class = StockConsumer if is_consumer else StockProducer
    try:
        stock_class({**judged, _SENTINEL: ""})
    except KafkaException as error:
        if f'"{_SENTINEL}"' not in str(error):
            raise
    else:
        raise AssertionError(f"{stock_class.__name__} accepted {_SENTINEL!r}")


def _ignore(*_args: object) -> None:
    """Stands for a user's callback while stock judges the settings."""
