from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from blobmsg.errors import ConfigError
from blobmsg_spark.sink_options import SinkOptions, parse_sink_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9", "blobmsg.store.url": "memory://x"}


def _parse(**more: Any) -> SinkOptions:
    return parse_sink_options(CaseInsensitiveDict({**BASE, **more}))


def _refused(**more: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        _parse(**more)
    return str(raised.value)


def test_options_are_read_whatever_their_case() -> None:
    options = _parse(TOPIC="t", transactionalidprefix="mine")

    assert options.topic == "t"
    assert options.id_prefix == "mine"


def test_kafka_settings_lose_their_prefix_and_ours_keep_it() -> None:
    more: dict[str, Any] = {"kafka.partitioner": "murmur2_random", "blobmsg.route": "blob"}

    assert _parse(**more).conf == {
        "bootstrap.servers": "127.0.0.1:9",
        "partitioner": "murmur2_random",
        "blobmsg.store.url": "memory://x",
        "blobmsg.route": "blob",
    }


def test_what_spark_puts_among_the_options_of_a_stream_is_no_mistake() -> None:
    options = _parse(checkpointLocation="/c", queryName="q", topic="t")

    assert options.topic == "t"


def test_options_travel_to_executors_and_secrets_are_not_shown() -> None:
    more: dict[str, Any] = {"blobmsg.s3.access.key.id": "me", "blobmsg.s3.secret.access.key": "s3"}
    options = _parse(**more)

    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  (our own)
    assert "s3" not in repr(options)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("topik", "t", 'Did you mean "topic"'),
        ("subscribe", "t", "subscribe is one of reading"),
        ("includeHeaders", "true", "when there is a column headers"),
        ("topic", " ", "topic is empty"),
        ("kafka.transactional.id", "x", "transactionalIdPrefix"),
        ("kafka.enable.idempotence", "false", "always on"),
        ("kafka.value.serializer", "x", "binary or strings"),
        ("kafka.partitioner", "sticky", "consistent_random"),
        ("kafka.nonsense", "1", "nonsense"),
        ("kafka.acks", "1", "acks"),
        ("kafka.message.timeout.ms", "900000", "transaction.timeout.ms"),
        ("blobmsg.btach.size.bytes", "1", "blobmsg.batch.size.bytes"),
        ("blobmsg.route", "plain", "never plain records"),
    ],
)
def test_what_is_wrong_is_refused_with_its_remedy(option: str, value: str, text: str) -> None:
    assert text in _refused(**{option: value})


def test_brokers_and_a_store_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BLOBMSG_STORE_URL", raising=False)
    with pytest.raises(ConfigError, match=r"kafka.bootstrap.servers is missing"):
        parse_sink_options({"blobmsg.store.url": "memory://x"})
    with pytest.raises(ConfigError, match=r"blobmsg.store.url"):
        parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9"})


def test_a_topic_that_must_stay_plain_is_refused() -> None:
    more: dict[str, Any] = {"blobmsg.topics": "blob-.*", "topic": "other"}

    assert "must stay plain" in _refused(**more)
