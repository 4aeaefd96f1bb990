from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from blobmsg.errors import ConfigError
from blobmsg_spark.source_options import SourceOptions, parse_source_options

BASE = {"kafka.bootstrap.servers": "broker:9092", "blobmsg.store.url": "memory://x"}


def _parse(*, is_streaming: bool | None = None, **more: Any) -> SourceOptions:
    options = CaseInsensitiveDict({**BASE, "subscribe": "a", **more})
    return parse_source_options(options, is_streaming=is_streaming)


def test_options_are_read_whatever_their_case() -> None:
    options = _parse(
        MAXOFFSETSPERTRIGGER="10", maxbytespertrigger="64m", FailOnDataLoss="FALSE",
        includeheaders="true", minPartitions="3",
    )  # fmt: skip

    assert options.max_records == 10
    assert options.max_bytes == 64 << 20
    assert not options.fail_on_data_loss
    assert options.include_headers
    assert options.min_partitions == 3


def test_kafka_settings_lose_their_prefix_and_ours_keep_it() -> None:
    more: dict[str, Any] = {"kafka.client.id": "me", "blobmsg.fetch.threads": "2"}
    options = _parse(**more)

    assert options.conf == {
        "bootstrap.servers": "broker:9092",
        "client.id": "me",
        "blobmsg.store.url": "memory://x",
        "blobmsg.fetch.threads": "2",
        "group.id": "spark-blobmsg-source",
    }


def test_a_group_of_the_users_wins_over_the_prefix() -> None:
    assert _parse(groupIdPrefix="p").conf["group.id"] == "p"
    own: dict[str, Any] = {"kafka.group.id": "g"}
    assert _parse(groupIdPrefix="p", **own).conf["group.id"] == "g"


def test_secrets_are_not_shown() -> None:
    assert "broker" not in repr(_parse())


def test_options_travel_to_executors() -> None:
    options = _parse(startingOffsets='{"a":{"0":5}}')

    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301  (our own)


def test_streams_begin_at_the_end_and_batches_at_the_beginning() -> None:
    assert _parse(is_streaming=True).starting.kind == "latest"
    assert _parse(is_streaming=False).starting.kind == "earliest"
    assert _parse(is_streaming=False).ending.kind == "latest"


def test_a_time_of_all_goes_before_times_and_offsets() -> None:
    times = json.dumps({"a": {"0": 7}})
    options = _parse(
        startingTimestamp="9", startingOffsetsByTimestamp=times, startingOffsets="earliest"
    )
    assert options.starting.timestamp_ms == 9

    options = _parse(startingOffsetsByTimestamp=times, startingOffsets="earliest")
    assert dict(options.starting.places) == {("a", 0): 7}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        pytest.param({"subscribePattern": "a.*"}, "exactly one of", id="two subscriptions"),
        pytest.param({"startingOffset": "x"}, 'mean "startingOffsets"', id="misspelled"),
        pytest.param({"bootstrap.servers": "x"}, 'mean "kafka.bootstrap', id="no prefix"),
        pytest.param({"zzz": "x"}, "known are subscribe", id="nothing near"),
        pytest.param({"minOffsetsPerTrigger": "1"}, "not supported here", id="not here"),
        pytest.param({"kafka.auto.offset.reset": "earliest"}, "startingOffsets", id="reset"),
        pytest.param({"kafka.enable.auto.commit": "1"}, "checkpoint keeps", id="auto commit"),
        pytest.param({"maxOffsetsPerTrigger": "0"}, "at least 1", id="zero"),
        pytest.param({"maxOffsetsPerTrigger": "many"}, "whole number", id="no number"),
        pytest.param({"maxBytesPerTrigger": "64x"}, "number of bytes", id="no size"),
        pytest.param({"failOnDataLoss": "maybe"}, "true or false", id="no flag"),
        pytest.param({"startingOffsets": "oldest"}, "must be JSON like", id="no JSON"),
        pytest.param({"startingOffsets": '{"a":{"x":1}}'}, "must be JSON", id="no partition"),
        pytest.param({"startingOffsets": '{"a":{"0":-3}}'}, "no offset", id="below -2"),
        pytest.param({"startingOffsets": '{"a":{"0":true}}'}, "must be JSON", id="a flag"),
        pytest.param({"startingOffsets": '{"b":{"0":1}}'}, "is not read", id="other topic"),
        pytest.param({"endingOffsets": "earliest"}, "can't end at", id="end at the beginning"),
        pytest.param({"startingTimestamp": "-5"}, "ms since 1970", id="negative time"),
        pytest.param({"startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "no time", id="no time"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(more: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        _parse(**more)


def test_what_has_no_subscription_or_no_brokers_is_refused() -> None:
    with pytest.raises(ConfigError, match="given: none"):
        parse_source_options(BASE)
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source_options({"subscribe": "a"})


def test_a_stream_has_no_end_and_a_batch_does_not_start_at_it() -> None:
    with pytest.raises(ConfigError, match="for batches only"):
        _parse(is_streaming=True, endingOffsets="latest")
    with pytest.raises(ConfigError, match="can't start at the latest"):
        _parse(is_streaming=False, startingOffsets="latest")
    with pytest.raises(ConfigError, match="can't start at the latest"):
        _parse(is_streaming=False, startingOffsets='{"a":{"0":-1}}')


def test_assign_reads_exactly_these_partitions() -> None:
    options = parse_source_options({**BASE, "assign": '{"a":[0,2],"b":[1]}'})

    assert options.subscription.partitions == (("a", 0), ("a", 2), ("b", 1))
    for text in ("[]", "{}", '{"a":0}', '{"a":["0"]}', '{"a":[-1]}'):
        with pytest.raises(ConfigError, match="assign"):
            parse_source_options({**BASE, "assign": text})


@pytest.mark.parametrize(
    ("given", "is_read"), [("events-1", True), ("events-1-old", False), ("xevents-1", False)]
)
def test_a_pattern_matches_whole_names(given: str, is_read: bool) -> None:
    options = parse_source_options({**BASE, "subscribePattern": r"events-\d"})

    assert options.subscription.includes_topic(given) is is_read


def test_a_broken_pattern_is_refused() -> None:
    broken: dict[str, Any] = {**BASE, "subscribePattern": "("}
    with pytest.raises(ConfigError, match="no regular expression"):
        parse_source_options(broken)
