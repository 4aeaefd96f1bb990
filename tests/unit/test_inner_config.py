from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from blobmsg.config import Settings, parse_settings
from blobmsg.core.partitioner import create_partitioner
from blobmsg.inner_config import (
    KafkaCallbacks,
    TimeBudget,
    admin_config,
    inner_consumer_config,
    inner_producer_config,
    key_hashes,
    plain_producer_config,
)
from blobmsg.kafka_settings import KafkaView

GROUP = {"group.id": "g"}


def settings(**given: object) -> Settings:
    conf = {"blobmsg.store.url": "memory://test"}
    ours = {f"blobmsg.{name.replace('_', '.')}": value for name, value in given.items()}
    return parse_settings({**conf, **ours}, {})[0]


def inner_producer(conf: dict[str, Any]) -> dict[str, Any]:
    return inner_producer_config(conf, settings(), KafkaView.parse(conf))


def inner_consumer(conf: dict[str, Any]) -> dict[str, Any]:
    return inner_consumer_config(conf, settings(), KafkaView.parse(conf))


def budget(conf: dict[str, Any], **given: object) -> TimeBudget:
    return TimeBudget.of(settings(**given), KafkaView.parse(conf))


# -- time --------------------------------------------------------------------------------------


def test_the_inner_producer_gets_half_of_the_time_and_the_wrapper_the_rest() -> None:
    split = budget({"message.timeout.ms": 10_001})

    assert split.inner_message_timeout_ms == 5000
    assert split.wrapper_deadline_ms == 5001
    assert split.message_timeout_ms == 10_001


def test_the_interval_is_capped_at_a_quarter_and_requests_at_what_is_left() -> None:
    split = budget({"message.timeout.ms": 800})

    assert split.batch_interval_ms == 100
    assert split.request_timeout_ms == 200


def test_the_users_shorter_times_are_kept() -> None:
    split = budget({}, batch_interval_ms=7, request_timeout_ms=90)

    assert (split.batch_interval_ms, split.request_timeout_ms) == (7, 90)


def test_no_limit_stays_no_limit() -> None:
    split = budget({"message.timeout.ms": 0})

    assert split.inner_message_timeout_ms == 0
    assert split.wrapper_deadline_ms is None
    assert split.batch_interval_ms == 1000
    assert split.request_timeout_ms == 30_000


@pytest.mark.parametrize("timeout_ms", [1, 2, 3, 7])
def test_a_tiny_timeout_never_becomes_no_limit(timeout_ms: int) -> None:
    split = budget({"message.timeout.ms": timeout_ms})

    assert split.inner_message_timeout_ms >= 1
    assert split.wrapper_deadline_ms is not None
    assert split.wrapper_deadline_ms >= 1
    assert split.request_timeout_ms >= 1


def test_a_transactional_producer_splits_its_transactions_timeout() -> None:
    assert budget({"transactional.id": "t"}).inner_message_timeout_ms == 30_000


# -- the inner producer ------------------------------------------------------------------------


def test_the_inner_producer_is_idempotent_with_half_of_the_time() -> None:
    assert inner_producer({"bootstrap.servers": "b:1", "linger.ms": 3}) == {
        "bootstrap.servers": "b:1",
        "linger.ms": 1000,
        "enable.idempotence": True,
        "acks": -1,
        "message.timeout.ms": 150_000,
        "queue.buffering.max.kbytes": 131_072,
    }


def test_settings_that_are_not_ours_go_down_untouched() -> None:
    conf = {
        "compression.type": "lz4",
        "statistics.interval.ms": 5,
        "partitioner": "murmur2",
        "message.max.bytes": 2_000_000,
        "debug": "conf",
    }

    inner = inner_producer(conf)

    assert {key: inner[key] for key in conf} == conf


@pytest.mark.parametrize(
    ("conf", "kbytes"),
    [
        ({}, 1_048_576 // 8),
        ({"queue.buffering.max.kbytes": 80_000}, 10_000),
        # At least one record of the largest size: (1,000,000 + 65,536) / 1024, rounded up.
        ({"queue.buffering.max.kbytes": 10}, 1041),
        ({"message.max.bytes": 500_000_000}, 488_346),
    ],
    ids=repr,
)
def test_the_inner_queue_is_an_eighth_but_holds_the_largest_record(
    conf: dict[str, Any], kbytes: int
) -> None:
    inner = inner_producer(conf)

    assert inner["queue.buffering.max.kbytes"] == kbytes
    confluent_kafka.Producer(inner)


def test_the_largest_record_fits_into_the_smallest_inner_queue() -> None:
    inner = inner_producer({"queue.buffering.max.kbytes": 1, "test.mock.num.brokers": 1})
    producer = confluent_kafka.Producer(inner)

    producer.produce("topic", b"x" * 999_000)

    assert producer.flush(10) == 0


@pytest.mark.parametrize(
    ("wish", "told"),
    [
        ({"acks": 1}, "acks=all"),
        ({"topic.request.required.acks": "0"}, "acks=all"),
        ({"enable.idempotence": False}, "enable.idempotence=true"),
        ({"max.in.flight": 100}, "max.in.flight=5"),
        ({"retries": 0}, "retries"),
        ({"queuing.strategy": "lifo"}, "queuing.strategy=fifo"),
    ],
    ids=repr,
)
def test_a_weaker_wish_is_raised_with_one_warning(
    wish: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    inner = inner_producer(wish)

    confluent_kafka.Producer(inner)  # stock accepts what came out
    assert KafkaView.parse(inner).acks == -1
    assert KafkaView.parse(inner).enable_idempotence
    (warning,) = caplog.records
    assert told in warning.getMessage()


@pytest.mark.parametrize(
    "wish",
    [{}, {"acks": "all"}, {"acks": -1}, {"max.in.flight": 3}, {"enable.idempotence": True}],
    ids=repr,
)
def test_nothing_is_said_about_wishes_that_are_kept(
    wish: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    inner = inner_producer(wish)

    assert caplog.records == []
    assert KafkaView.parse(inner).max_in_flight == wish.get("max.in.flight", 1_000_000)


def test_a_backpressure_threshold_that_idempotence_forbids_is_dropped() -> None:
    conf = {"queue.buffering.backpressure.threshold": 5}

    inner = inner_producer(conf)

    confluent_kafka.Producer(inner)
    assert "queue.buffering.backpressure.threshold" not in inner


@pytest.mark.parametrize("name", ["batch.size", "batch.num.messages"])
def test_what_is_handed_over_is_not_cut_by_settings_that_stock_accepts(name: str) -> None:
    assert inner_producer({name: "1000"}) == inner_producer({})
    with pytest.raises(confluent_kafka.KafkaException, match=name):
        inner_producer({name: 0})


def test_what_is_handed_over_waits_for_the_flush_that_follows_it() -> None:
    assert inner_producer({})["linger.ms"] == 1000
    assert inner_producer({"queue.buffering.max.ms": 0}) == inner_producer({})

    short = inner_producer({"message.timeout.ms": 8, "linger.ms": 7})
    confluent_kafka.Producer(short)
    assert short["message.timeout.ms"] == 4
    assert short["linger.ms"] == 2


@pytest.mark.parametrize(
    "contradiction",
    [
        {"transactional.id": "t", "message.timeout.ms": 70_000},
        {"transactional.id": "t", "delivery.timeout.ms": 6000, "transaction.timeout.ms": 5000},
        {"transactional.id": "t", "enable.idempotence": False},
        {"transactional.id": "t", "acks": 1},
        {"enable.idempotence": True, "acks": 1},
        {"enable.idempotence": True, "max.in.flight": 6},
        {"enable.idempotence": True, "retries": 0},
        {"message.timeout.ms": 1000, "linger.ms": 1000},
        {"delivery.timeout.ms": 5, "queue.buffering.max.ms": 5},
    ],
    ids=repr,
)
def test_contradictions_are_left_for_stock_to_refuse_in_its_own_words(
    contradiction: dict[str, Any],
) -> None:
    with pytest.raises(KafkaException) as theirs:
        confluent_kafka.Producer(contradiction)
    with pytest.raises(KafkaException) as ours:
        confluent_kafka.Producer(inner_producer(contradiction))

    assert str(ours.value) == str(theirs.value)


BAD_VALUES: list[dict[str, Any]] = [
    {"message.timeout.ms": "soon"},
    {"message.timeout.ms": -1},
    {"delivery.timeout.ms": None},
    {"acks": "some"},
    {"enable.idempotence": "yes"},
    {"enable.auto.commit": "yes"},
    {"queue.buffering.max.kbytes": 0},
    {"queue.buffering.max.messages": ""},
    {"partitioner": "round_robin"},
    {"compression.type": "brotli"},
    {"error_cb": 5},
    {"error_cb": None},
    {"stats_cb": "x"},
    {"throttle_cb": 5},
]


@pytest.mark.parametrize(
    "bad", [*BAD_VALUES, {"on_delivery": 5}, {"delivery.report.only.error": "true"}], ids=repr
)
def test_a_producers_bad_values_are_refused_by_stock(bad: dict[str, Any]) -> None:
    with pytest.raises((KafkaException, TypeError, ValueError)) as theirs:
        confluent_kafka.Producer(bad)
    with pytest.raises(type(theirs.value)) as ours:
        inner_producer(bad)

    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "bad", [*BAD_VALUES, {"on_commit": 5}, {"auto.offset.reset": "x"}], ids=repr
)
def test_a_consumers_bad_values_are_refused_by_stock(bad: dict[str, Any]) -> None:
    with pytest.raises((KafkaException, TypeError, ValueError)) as theirs:
        confluent_kafka.Consumer({**GROUP, **bad})
    with pytest.raises(type(theirs.value)) as ours:
        inner_consumer({**GROUP, **bad})

    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


def test_settings_that_stock_does_not_know_are_left_for_it_to_refuse() -> None:
    inner = inner_producer({"no.such": 1, "on_commit": print})

    assert inner["no.such"] == 1
    with pytest.raises(KafkaException, match="No such configuration property"):
        confluent_kafka.Producer(inner)


def test_callbacks_are_taken_out_and_handed_over() -> None:
    callbacks = {
        name: (lambda *_args: None)
        for name in ("error_cb", "stats_cb", "throttle_cb", "on_delivery")
    }
    conf = {**callbacks, "logger": object(), "delivery.report.only.error": True, "client.id": "c"}

    taken = KafkaCallbacks.of(conf)

    assert set(inner_producer(conf)) & set(conf) == {"client.id"}
    assert {name: getattr(taken, name) for name in callbacks} == callbacks
    assert taken.logger is conf["logger"]
    assert taken.on_commit is None


def test_a_consumers_callbacks_are_taken_out_and_handed_over() -> None:
    conf = {**GROUP, "on_commit": print, "error_cb": repr}

    taken = KafkaCallbacks.of(conf, is_consumer=True)

    assert not set(inner_consumer(conf)) & {"on_commit", "error_cb"}
    assert (taken.on_commit, taken.error_cb, taken.on_delivery) == (print, repr, None)


def test_judging_the_settings_does_not_keep_a_callback_alive() -> None:
    class Callback:
        def __call__(self, *_args: object) -> None: ...

    callback = Callback()
    alive = weakref.ref(callback)

    inner_producer({"error_cb": callback, "on_delivery": callback})
    del callback
    gc.collect()

    assert alive() is None


def test_the_users_dict_is_not_changed() -> None:
    conf = {**GROUP, "acks": 1, "error_cb": print, "enable.auto.commit": True}
    before = dict(conf)

    inner_producer(conf)
    inner_consumer(conf)

    assert conf == before


# -- the others --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {
            "enable.auto.commit": True,
            "enable.auto.offset.store": "true",
            "enable.partition.eof": False,
        },
    ],
    ids=repr,
)
def test_the_inner_consumer_neither_stores_nor_commits_and_is_told_ends(
    wish: dict[str, Any],
) -> None:
    inner = inner_consumer({**GROUP, "auto.offset.reset": "earliest", **wish})

    assert inner == {
        **GROUP,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
    }
    confluent_kafka.Consumer(inner).close()


def test_plain_topics_keep_the_users_settings() -> None:
    conf = {"acks": 1, "retries": 0, "linger.ms": 3, "error_cb": print, "on_delivery": print}

    assert plain_producer_config(conf) == {"acks": 1, "retries": 0, "linger.ms": 3}


def test_the_admin_client_gets_what_it_needs_to_connect() -> None:
    conf = {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "ssl.ca.location": "/ca",
        "https.ca.location": "/token-ca",
        "group.id": "g",
        "acks": 1,
        "on_delivery": print,
        "transactional.id": "t",
        "test.mock.num.brokers": 1,
    }

    assert admin_config(conf) == {
        "bootstrap.servers": "b:1",
        "security.protocol": "SASL_SSL",
        "sasl.username": "u",
        "ssl.ca.location": "/ca",
        "https.ca.location": "/token-ca",
        "log_level": 0,
        "allow.auto.create.topics": False,
    }


def test_hashes_of_the_installed_client_fit_the_partitioners() -> None:
    rng = random.Random(0)

    for name in ("murmur2", "fnv1a"):
        native = create_partitioner(name, rng, 0, **key_hashes())
        pure = create_partitioner(name, rng, 0)
        assert native.partition(b"key", 97, 0) == pure.partition(b"key", 97, 0)


def test_an_older_client_without_hashes_is_served_by_the_pure_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(confluent_kafka, "murmur2", raising=False)
    monkeypatch.delattr(confluent_kafka, "fnv1a", raising=False)

    assert key_hashes() == {}
