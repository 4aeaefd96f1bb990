"""The librdkafka settings that we interpret, read as librdkafka reads them.

Knows the stock client's constructor forms, librdkafka's aliases, defaults and number formats.
Never judges a value: librdkafka does, in its own words, when the inner client is built
(`blobmsg.inner_config`). Nothing here knows a `blobmsg.` key; `blobmsg.config` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["INTERPRETED_NAMES", "KafkaView", "canonical_name", "collect_config", "without"]

_ALIASES: Final = {
    "bootstrap.servers": "metadata.broker.list",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "linger.ms": "queue.buffering.max.ms",
    "retries": "message.send.max.retries",
    "compression.type": "compression.codec",
    "acks": "request.required.acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
}
# librdkafka looks a name up among the global settings first and then, less a leading "topic.",
# among the topic's. So "topic.acks" is "acks", while "topic.metadata.refresh.interval.ms" is a
# global name of its own. Only the ones that we interpret are listed.
_TOPIC_SCOPE: Final = frozenset(
    {
        "request.required.acks",
        "message.timeout.ms",
        "partitioner",
        "auto.offset.reset",
        "queuing.strategy",
    }
)
_OFFSET_RESET: Final = {
    "smallest": "earliest",
    "earliest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "latest": "latest",
    "end": "latest",
    "error": "error",
}
_STICKY_LINGER_MAX_MS: Final = 900_000  # librdkafka's own ceiling
_DEFAULT_TRANSACTION_TIMEOUT_MS: Final = 60_000
_ACKS_ALL: Final = -1
_NO_GROUP: Final = "Failed to create consumer: group.id must be set"


# -- the dict ---------------------------------------------------------------------------------


def collect_config(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, is_consumer: bool = False
) -> dict[str, Any]:
    """Make one dict of a client's constructor arguments, as the stock classes do.

    `(dict)`, `(dict, **kw)` and `(**kw)` are accepted; keywords win. `default.topic.config` is
    folded in (it wins over the dict, as in stock). The user's dict is not changed.

    Args:
        args: Positional arguments.
        kwargs: Keyword arguments.
        is_consumer: Ask for `group.id`, which stock does before anything else.

    Raises:
        TypeError: No dict, or more than one argument.
        ValueError: A consumer without `group.id`, or with an empty one.
    """
    if len(args) > 1:
        raise TypeError("expected tuple containing single dict")
    if args and not isinstance(args[0], dict):
        raise TypeError("expected configuration dict")
    if not args and not kwargs:
        raise TypeError("expected configuration dict")
    conf: dict[str, Any] = {**(args[0] if args else {}), **kwargs}
    if is_consumer and "group.id" not in conf:
        raise ValueError(_NO_GROUP)
    topic_conf: Any = conf.get("default.topic.config")
    # Without keys() it stays in place and the stock class says what is wrong with it.
    if hasattr(topic_conf, "keys"):
        conf.update(topic_conf)
        del conf["default.topic.config"]
    if is_consumer and _text(conf["group.id"]) is None:
        # Stock takes an empty one and then aborts the whole process on an assertion (2.16.1).
        raise ValueError(_NO_GROUP)
    return conf


def canonical_name(name: object) -> str:
    """The name under which librdkafka keeps a setting: aliases and the `topic.` form resolved."""
    text = str(name)
    text = _ALIASES.get(text, text)
    if text.startswith("topic."):
        topic_name = text.removeprefix("topic.")
        topic_name = _ALIASES.get(topic_name, topic_name)
        if topic_name in _TOPIC_SCOPE:
            return topic_name
    return text


def without(conf: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A copy of `conf` that lacks these settings, whatever alias they were given under."""
    unwanted = {canonical_name(name) for name in names}
    return {key: value for key, value in conf.items() if canonical_name(key) not in unwanted}


# -- values, parsed as librdkafka parses them --------------------------------------------------

_STRTOL: Final = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_STRTOD: Final = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")


def _text(value: object) -> str | None:
    text = None if value is None else str(value)
    return text or None


def parse_librdkafka_int(value: object) -> int | None:
    """Parse as C's `strtol` with base 0: `0x10` is 16, `010` is 8, `5x` is 5; None: no number."""
    found = _STRTOL.match(_text(value) or "")
    if found is None:
        return None
    digits = found.group(2)
    if digits[:2] in ("0x", "0X"):
        number = int(digits, 16)
    elif digits[0] == "0":
        number = int(digits, 8)
    else:
        number = int(digits)
    return -number if found.group(1) == "-" else number


def parse_librdkafka_bool(value: object) -> bool | None:
    """`true`, `t`, `1` and `false`, `f`, `0` in any case; None: neither."""
    text = (_text(value) or "").lower()
    if text in ("true", "t", "1"):
        return True
    return False if text in ("false", "f", "0") else None


def _parse_float(value: object) -> float | None:
    found = _STRTOD.match(_text(value) or "")
    return None if found is None else float(found.group(1))


def _parse_acks(value: object) -> int | None:
    number = parse_librdkafka_int(value)
    if number is None and (_text(value) or "").lower() == "all":
        return _ACKS_ALL
    return number


def _parse_choice(value: object) -> str | None:
    return (_text(value) or "").strip().lower() or None


def _parse_offset_reset(value: object) -> str | None:
    return _OFFSET_RESET.get((_text(value) or "").strip().lower())


def _parse_bool_object(value: object) -> bool | None:
    # confluent-kafka reads this one itself and takes nothing but a bool.
    return value if isinstance(value, bool) else None


# Canonical name -> (field, parse). A value that librdkafka would refuse reads as the default: it
# is refused when the inner client is built, and reading must not fail before that.
_INTERPRETED: Final[dict[str, tuple[str, Callable[[object], object]]]] = {
    "metadata.broker.list": ("bootstrap_servers", _text),
    "client.id": ("client_id", _text),
    "client.rack": ("client_rack", _text),
    "group.id": ("group_id", _text),
    "message.max.bytes": ("message_max_bytes", parse_librdkafka_int),
    "topic.metadata.refresh.interval.ms": (
        "topic_metadata_refresh_interval_ms",
        parse_librdkafka_int,
    ),
    "topic.metadata.propagation.max.ms": (
        "topic_metadata_propagation_max_ms",
        parse_librdkafka_int,
    ),
    "statistics.interval.ms": ("statistics_interval_ms", parse_librdkafka_int),
    "queue.buffering.max.ms": ("linger_ms", _parse_float),
    "queue.buffering.max.kbytes": ("queue_buffering_max_kbytes", parse_librdkafka_int),
    "queue.buffering.max.messages": ("queue_buffering_max_messages", parse_librdkafka_int),
    "compression.codec": ("compression_type", _parse_choice),
    "request.required.acks": ("acks", _parse_acks),
    "enable.idempotence": ("enable_idempotence", parse_librdkafka_bool),
    "transactional.id": ("transactional_id", _text),
    "transaction.timeout.ms": ("transaction_timeout_ms", parse_librdkafka_int),
    "message.timeout.ms": ("message_timeout_ms", parse_librdkafka_int),
    "partitioner": ("partitioner", _text),
    "sticky.partitioning.linger.ms": ("sticky_partitioning_linger_ms", parse_librdkafka_int),
    "delivery.report.only.error": ("delivery_report_only_error", _parse_bool_object),
    "max.in.flight.requests.per.connection": ("max_in_flight", parse_librdkafka_int),
    "message.send.max.retries": ("retries", parse_librdkafka_int),
    "queue.buffering.backpressure.threshold": ("backpressure_threshold", parse_librdkafka_int),
    "queuing.strategy": ("queuing_strategy", _parse_choice),
    "enable.auto.commit": ("enable_auto_commit", parse_librdkafka_bool),
    "auto.commit.interval.ms": ("auto_commit_interval_ms", parse_librdkafka_int),
    "enable.auto.offset.store": ("enable_auto_offset_store", parse_librdkafka_bool),
    "auto.offset.reset": ("auto_offset_reset", _parse_offset_reset),
    "isolation.level": ("isolation_level", _parse_choice),
    "enable.partition.eof": ("enable_partition_eof", parse_librdkafka_bool),
    "partition.assignment.strategy": ("partition_assignment_strategy", _text),
    "group.protocol": ("group_protocol", _parse_choice),
    "max.poll.interval.ms": ("max_poll_interval_ms", parse_librdkafka_int),
}
#: Canonical names of the settings in `KafkaView`.
INTERPRETED_NAMES: Final = frozenset(_INTERPRETED)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaView:
    """The user's librdkafka settings that mean something to us, with librdkafka's defaults.

    `message_timeout_ms` is the user's T: 0 is no limit, and a transactional producer that does
    not set it has `transaction_timeout_ms`. `queue_buffering_max_messages` is None unless set:
    librdkafka's default of 100,000 would be a few seconds of small records here, where the bytes
    are what is bounded. `sticky_partitioning_linger_ms` is twice `linger_ms` unless set.
    `topic_metadata_refresh_interval_ms` of -1 and `auto_commit_interval_ms` of 0 mean never.

    Threads: any (frozen).
    """

    bootstrap_servers: str | None = None
    client_id: str = "rdkafka"
    client_rack: str | None = None
    group_id: str | None = None
    message_max_bytes: int = 1_000_000
    topic_metadata_refresh_interval_ms: int = 300_000
    topic_metadata_propagation_max_ms: int = 30_000
    statistics_interval_ms: int = 0
    linger_ms: float = 5.0
    queue_buffering_max_kbytes: int = 1_048_576
    queue_buffering_max_messages: int | None = None
    compression_type: str = "none"
    acks: int = _ACKS_ALL
    enable_idempotence: bool = False
    transactional_id: str | None = None
    transaction_timeout_ms: int = _DEFAULT_TRANSACTION_TIMEOUT_MS
    message_timeout_ms: int = 300_000
    partitioner: str = "consistent_random"
    sticky_partitioning_linger_ms: int = 10
    delivery_report_only_error: bool = False
    max_in_flight: int = 1_000_000
    retries: int = 2_147_483_647
    backpressure_threshold: int = 1
    queuing_strategy: str = "fifo"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    enable_auto_offset_store: bool = True
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_committed"
    enable_partition_eof: bool = False
    partition_assignment_strategy: str = "range,roundrobin"
    group_protocol: str = "classic"
    max_poll_interval_ms: int = 300_000
    explicit: frozenset[str] = frozenset()  # canonical names of what the user gave

    @property
    def queue_buffering_max_bytes(self) -> int:
        """The producer's memory limit in bytes."""
        return self.queue_buffering_max_kbytes * 1024

    @property
    def is_transactional(self) -> bool:
        """A `transactional.id` is set."""
        return self.transactional_id is not None

    def is_set(self, name: str) -> bool:
        """The user gave this setting, under whatever alias."""
        return canonical_name(name) in self.explicit

    @classmethod
    def parse(cls, conf: Mapping[str, Any]) -> KafkaView:
        """Read the settings out of a user's dict; of several aliases the last one counts.

        Args:
            conf: What `collect_config` returned. Other keys, ours included, are ignored.
        """
        values: dict[str, Any] = {}
        explicit: set[str] = set()
        for key, value in conf.items():
            name = canonical_name(key)
            if name not in _INTERPRETED:
                continue
            explicit.add(name)
            field_name, parse = _INTERPRETED[name]
            parsed = parse(value)
            if parsed is not None:
                values[field_name] = parsed
        if values.get("queue_buffering_max_messages") == 0:
            del values["queue_buffering_max_messages"]  # librdkafka's word for no limit
        if "transactional_id" in values and "message_timeout_ms" not in values:
            values["message_timeout_ms"] = values.get(
                "transaction_timeout_ms", _DEFAULT_TRANSACTION_TIMEOUT_MS
            )
        if "linger_ms" in values and "sticky_partitioning_linger_ms" not in values:
            values["sticky_partitioning_linger_ms"] = min(
                _STICKY_LINGER_MAX_MS, int(2 * values["linger_ms"])
            )
        return cls(**values, explicit=frozenset(explicit))
