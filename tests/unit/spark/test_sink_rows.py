from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError, ConfigError
from blobmsg_spark.sink_rows import TopicRows, rows_by_topic
from blobmsg_spark.source_schema import HEADERS

NOW_MS = 1_700_000_000_000
_US = pa.timestamp("us", tz="UTC")


def _rows(
    topic: str | None = "t", /, *, max_record_bytes: int = 100, **columns: Any
) -> list[TopicRows]:
    batch = pa.RecordBatch.from_pydict(columns)
    return list(rows_by_topic(batch, topic, now_ms=NOW_MS, max_record_bytes=max_record_bytes))


def test_strings_are_their_bytes_and_null_differs_from_empty() -> None:
    (rows,) = _rows(key=["ä", None, ""], value=pa.array(["v", "", None], pa.large_string()))

    assert rows.records.to_pydict() == {
        "timestamp": [NOW_MS] * 3,
        "key": ["ä".encode(), None, b""],
        "value": [b"v", b"", None],
    }
    assert rows.sizes.tolist() == [3, 0, 0]


def test_times_are_rounded_down_to_ms_and_null_is_now() -> None:
    times = pa.array([1_999, -1, None], _US)

    (rows,) = _rows(value=[b"", b"", b""], timestamp=times)

    assert rows.records.column(0).to_pylist() == [1, -1, NOW_MS]


def test_rows_are_split_by_topic_in_order_and_the_option_wins() -> None:
    columns: dict[str, Any] = {
        "topic": ["a", "b", "a"],
        "value": [b"1", b"2", b"3"],
        "partition": pa.array([0, None, 2], pa.int32()),
    }

    split = {rows.topic: rows for rows in _rows(None, **columns)}

    assert split["a"].records.column(2).to_pylist() == [b"1", b"3"]
    assert split["b"].records.column(2).to_pylist() == [b"2"]
    places = {
        name: rows.partitions.tolist()
        for name, rows in split.items()
        if rows.partitions is not None
    }
    assert places == {"a": [0, 2], "b": [-1]}
    assert [rows.topic for rows in _rows("c", **columns)] == ["c"]


def test_headers_count_for_the_size_and_missing_ones_are_null() -> None:
    headers = pa.array(
        [[{"key": "name", "value": b"12"}, {"key": "n", "value": None}], None, []], HEADERS
    )

    (rows,) = _rows(value=[b"1", b"2", None], headers=headers)

    assert rows.sizes.tolist() == [8, 1, 0]
    assert rows.records.column(3).to_pylist()[1] is None


def test_columns_are_the_same_whether_a_batch_has_headers_or_not() -> None:
    (without,) = _rows(value=[b"1"], headers=pa.array([None], HEADERS))
    (with_some,) = _rows(value=[b"1"], headers=pa.array([[{"key": "n", "value": b""}]], HEADERS))

    assert without.records.schema == with_some.records.schema


def test_rows_that_can_not_be_records_are_refused() -> None:
    with pytest.raises(ConfigError, match="1 rows of 2 have no topic"):
        _rows(None, topic=["a", None], value=[b"1", b"2"])
    with pytest.raises(ConfigError, match="column partition has -1"):
        _rows(value=[b"1"], partition=pa.array([-1], pa.int32()))
    with pytest.raises(ConfigError, match="header 'blobmsg'"):
        _rows(value=[b"1"], headers=pa.array([[{"key": "blobmsg", "value": b""}]], HEADERS))
    with pytest.raises(ConfigError, match="header without a key"):
        _rows(value=[b"1"], headers=pa.array([[{"key": None, "value": b""}]], HEADERS))
    with pytest.raises(ConfigError, match="header without a key"):
        _rows(value=[b"1"], headers=pa.array([[None]], HEADERS))


def test_a_record_over_the_limit_is_refused_by_all_that_it_has() -> None:
    headers = pa.array([[{"key": "k", "value": b"12"}]], HEADERS)

    assert len(_rows(key=[b"1"], value=[b"2"], headers=headers, max_record_bytes=5)) == 1
    with pytest.raises(
        BlobmsgError, match=r"record of 5 bytes .*blobmsg.record.max.bytes"
    ) as raised:
        _rows(key=[b"1"], value=[b"2"], headers=headers, max_record_bytes=4)
    assert raised.value.kafka_error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_no_rows_are_no_mistake() -> None:
    empty = pa.array([], pa.binary())

    assert [len(rows.sizes) for rows in _rows(value=empty)] == [0]
    assert _rows(None, value=empty, topic=pa.array([], pa.string())) == []
