from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from blobmsg.kafka_settings import (
    KafkaView,
    canonical_name,
    collect_config,
    parse_librdkafka_bool,
    parse_librdkafka_int,
    without,
)

# -- constructor forms: each compared with the stock class -------------------------------------


@pytest.mark.parametrize("is_consumer", [False, True])
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((None,), {}),
        (([],), {}),
        ((5,), {}),
        (({}, {}), {}),
        (({}, None), {}),
        (({},), {}),
        (({"client.id": "a"},), {}),
        (({"group.id": "a"},), {}),
        ((), {"group.id": "a"}),
        ((), {"client.id": "a"}),
        (({"client.id": "a"},), {"group.id": "b"}),
        (({"default.topic.config": {"group.id": "a"}},), {}),
    ],
)
def test_constructor_forms_are_taken_and_refused_as_by_stock(
    args: tuple[Any, ...], kwargs: dict[str, Any], is_consumer: bool
) -> None:
    stock: Any = confluent_kafka.Consumer if is_consumer else confluent_kafka.Producer
    refusal: Exception | None = None
    try:
        stock(*args, **kwargs)
    except (TypeError, ValueError) as error:
        refusal = error

    if refusal is None:
        collect_config(args, kwargs, is_consumer=is_consumer)
    else:
        with pytest.raises(type(refusal)) as caught:
            collect_config(args, kwargs, is_consumer=is_consumer)
        assert str(caught.value) == str(refusal)


@pytest.mark.parametrize("stock", [confluent_kafka.Producer, confluent_kafka.Consumer])
def test_no_arguments_at_all_are_refused_as_by_stock(stock: Any) -> None:
    with pytest.raises(TypeError) as theirs:
        stock()
    with pytest.raises(TypeError) as ours:
        collect_config((), {}, is_consumer=stock is confluent_kafka.Consumer)

    assert str(ours.value) == str(theirs.value) == "expected configuration dict"


@pytest.mark.parametrize(
    "conf",
    [
        {"group.id": None},
        {"group.id": ""},
        {"group.id": "g", "default.topic.config": {"group.id": ""}},
    ],
    ids=repr,
)
def test_an_empty_group_is_refused_where_stock_aborts_the_process(conf: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        collect_config((conf,), {}, is_consumer=True)


def test_keywords_win_and_the_users_dict_is_not_changed() -> None:
    conf = {"client.id": "a", "linger.ms": 5}

    collected = collect_config((conf,), {"client.id": "b"})
    collected["x"] = 1

    assert collected == {"client.id": "b", "linger.ms": 5, "x": 1}
    assert conf == {"client.id": "a", "linger.ms": 5}


def test_default_topic_config_is_folded_in_and_wins() -> None:
    topic_conf = {"acks": "1"}
    conf = {"acks": "all", "default.topic.config": topic_conf}

    assert collect_config((conf,), {}) == {"acks": "1"}
    assert topic_conf == {"acks": "1"}
    assert "default.topic.config" in conf


def test_a_default_topic_config_that_is_no_dict_is_left_for_stock_to_refuse() -> None:
    assert collect_config(({"default.topic.config": 5},), {}) == {"default.topic.config": 5}


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("bootstrap.servers", "metadata.broker.list"),
        ("linger.ms", "queue.buffering.max.ms"),
        ("acks", "request.required.acks"),
        ("topic.acks", "request.required.acks"),
        ("topic.request.required.acks", "request.required.acks"),
        ("delivery.timeout.ms", "message.timeout.ms"),
        ("topic.delivery.timeout.ms", "message.timeout.ms"),
        ("topic.partitioner", "partitioner"),
        ("compression.type", "compression.codec"),
        ("max.in.flight", "max.in.flight.requests.per.connection"),
        ("retries", "message.send.max.retries"),
        # Global names that begin with "topic.", and global ones that have no such form.
        ("topic.metadata.refresh.interval.ms", "topic.metadata.refresh.interval.ms"),
        ("topic.linger.ms", "topic.linger.ms"),
        ("client.id", "client.id"),
    ],
)
def test_aliases_and_topic_forms_have_one_canonical_name(alias: str, name: str) -> None:
    assert canonical_name(alias) == name


def test_a_setting_is_taken_out_under_every_alias() -> None:
    conf = {"acks": 1, "topic.acks": 2, "request.required.acks": 3, "linger.ms": 4}

    assert without(conf, ["acks"]) == {"linger.ms": 4}


# -- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (5, 5),
        ("5", 5),
        (" 5", 5),
        ("+5", 5),
        ("-1", -1),
        ("5x", 5),
        ("5.9", 5),
        (5.9, 5),
        ("0x10", 16),
        ("-0X10", -16),
        ("010", 8),
        ("08", 0),
        ("0", 0),
        ("0x", 0),
        ("", None),
        (None, None),
        ("x5", None),
        (True, None),
        ([5], None),
    ],
    ids=repr,
)
def test_integers_are_read_as_strtol_reads_them(value: object, number: int | None) -> None:
    assert parse_librdkafka_int(value) == number


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (False, False),
        ("true", True),
        ("TRUE", True),
        ("t", True),
        ("1", True),
        (1, True),
        ("f", False),
        (0, False),
        ("yes", None),
        ("", None),
        (None, None),
        (2, None),
    ],
    ids=repr,
)
def test_booleans_are_read_as_librdkafka_reads_them(value: object, expected: bool | None) -> None:
    assert parse_librdkafka_bool(value) is expected


@pytest.mark.parametrize(
    "value",
    [5, "5", " 5", "+5", "5x", "5.9", 5.9, "0x10", "010", "08", "", None, "x5", True, [5]],
    ids=repr,
)
def test_what_is_no_integer_here_is_none_to_librdkafka(value: object) -> None:
    accepted = True
    try:
        confluent_kafka.Producer({"queue.buffering.max.messages": value})
    except confluent_kafka.KafkaException:
        accepted = False

    assert (parse_librdkafka_int(value) is not None) is accepted


# -- the view ----------------------------------------------------------------------------------


def test_defaults_are_librdkafkas() -> None:
    view = KafkaView.parse({})

    assert view == KafkaView()
    assert view.message_timeout_ms == 300_000
    assert view.queue_buffering_max_bytes == 1 << 30
    assert view.queue_buffering_max_messages is None
    assert view.partitioner == "consistent_random"
    assert view.linger_ms == 5
    assert view.sticky_partitioning_linger_ms == 10
    assert view.enable_auto_commit is True
    assert view.auto_commit_interval_ms == 5000
    assert view.auto_offset_reset == "latest"
    assert view.isolation_level == "read_committed"
    assert view.acks == -1
    assert not view.is_transactional


def test_values_are_read_under_any_alias() -> None:
    view = KafkaView.parse(
        {
            "metadata.broker.list": "b:1",
            "delivery.timeout.ms": "1000",
            "queue.buffering.max.ms": "0.5",
            "topic.acks": "all",
            "compression.codec": " GZIP ",
            "topic.partitioner": "murmur2_random",
            "enable.auto.commit": "f",
            "auto.offset.reset": "smallest",
            "queue.buffering.max.messages": 7,
            "delivery.report.only.error": True,
        }
    )

    assert view.bootstrap_servers == "b:1"
    assert view.message_timeout_ms == 1000
    assert view.linger_ms == 0.5
    assert view.sticky_partitioning_linger_ms == 1
    assert view.acks == -1
    assert view.compression_type == "gzip"
    assert view.partitioner == "murmur2_random"
    assert view.enable_auto_commit is False
    assert view.auto_offset_reset == "earliest"
    assert view.queue_buffering_max_messages == 7
    assert view.delivery_report_only_error is True


def test_no_messages_at_most_is_no_limit() -> None:
    assert KafkaView.parse({"queue.buffering.max.messages": 0}).queue_buffering_max_messages is None


def test_of_several_aliases_the_last_one_counts() -> None:
    assert KafkaView.parse({"linger.ms": 1, "queue.buffering.max.ms": 2}).linger_ms == 2
    assert KafkaView.parse({"queue.buffering.max.ms": 2, "linger.ms": 1}).linger_ms == 1


def test_what_the_user_gave_is_known_under_any_alias() -> None:
    view = KafkaView.parse({"delivery.timeout.ms": 5, "blobmsg.route": "plain", "client.id": None})

    assert view.is_set("message.timeout.ms")
    assert view.is_set("delivery.timeout.ms")
    assert not view.is_set("linger.ms")
    assert view.explicit == {"message.timeout.ms", "client.id"}


def test_a_transactional_producer_has_its_transactions_timeout_unless_set() -> None:
    transactional = {"transactional.id": "t"}

    assert KafkaView.parse(transactional).message_timeout_ms == 60_000
    assert (
        KafkaView.parse({**transactional, "transaction.timeout.ms": 9000}).message_timeout_ms
        == 9000
    )
    assert KafkaView.parse({**transactional, "message.timeout.ms": 5000}).message_timeout_ms == 5000
    assert KafkaView.parse({"transactional.id": ""}).message_timeout_ms == 300_000


def test_the_sticky_linger_is_bounded_and_can_be_set() -> None:
    assert KafkaView.parse({"linger.ms": 900_000}).sticky_partitioning_linger_ms == 900_000
    assert (
        KafkaView.parse(
            {"linger.ms": 100, "sticky.partitioning.linger.ms": 0}
        ).sticky_partitioning_linger_ms
        == 0
    )


def test_a_value_that_librdkafka_refuses_reads_as_the_default() -> None:
    view = KafkaView.parse(
        {
            "message.timeout.ms": "soon",
            "linger.ms": "x",
            "enable.auto.commit": "yes",
            "auto.offset.reset": "middle",
            "acks": "some",
            "delivery.report.only.error": "true",
            "compression.type": None,
        }
    )

    assert view == KafkaView(explicit=view.explicit)
    assert len(view.explicit) == 7
