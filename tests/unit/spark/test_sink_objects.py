"""Lanes of the sink become objects and notifications; the store is a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from blobmsg.core.segments import LaneKey
from blobmsg.errors import StoreUnavailable
from blobmsg.format.batch_object import decode_batch_object_index
from blobmsg.format.notification import Limits, Notification, decode_notification
from blobmsg.format.object_key import RETENTION_CLASSES, ObjectKey, expiry_hour
from blobmsg.format.segment import MAX_SEGMENT_RECORDS, decode_segment
from blobmsg.topic_directory import TopicFacts
from blobmsg_spark.sink_lane import SinkLane
from blobmsg_spark.sink_objects import SinkObjects, commit_time_ms
from blobmsg_spark.worker import Worker, worker

if TYPE_CHECKING:
    from pathlib import Path

    from blobmsg_spark.sink_message import SinkNotification

WRITER = bytes(range(16))
WEEK = RETENTION_CLASSES[3]
_LIMITS = Limits()


def _facts(partitions: int = 4, segment_ms: int = 1000) -> TopicFacts:
    return TopicFacts(("",) * partitions, frozenset(), WEEK, segment_ms, False, 1 << 20, True)


def _records(values: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(len(values), dtype=np.int64)),
            pa.nulls(len(values), pa.binary()),
            pa.array(values, pa.binary()),
        ],
        names=["timestamp", "key", "value"],
    )


def _lane(segment_bytes: int = 1 << 20) -> SinkLane:
    return SinkLane(LaneKey("shared", WEEK, ""), 16 << 20, segment_bytes)


def _add(
    lane: SinkLane, topic: str, values: list[bytes | None], partitions: list[int], **more: Any
) -> None:
    lane.add(
        topic, _facts(**more), _records(values), np.array(partitions, dtype=np.int32), 1_000_000
    )


def _here(folder: Path, **settings: Any) -> Worker:
    conf = {"blobmsg.store.url": f"file://{folder}", "blobmsg.request.timeout.ms": 1000}
    return worker({**conf, **{f"blobmsg.{key}": value for key, value in settings.items()}}, {})


def _write(
    folder: Path, lane: SinkLane, **settings: Any
) -> tuple[SinkObjects, list[SinkNotification]]:
    objects = SinkObjects(_here(folder, **settings), WRITER, lambda: True)
    return objects, objects.write(lane.seal())


def _decoded(found: list[SinkNotification]) -> list[Notification]:
    return [decode_notification(one.value, _LIMITS) for one in found]


def _objects(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_records_of_several_topics_share_an_object_in_order(tmp_path: Path) -> None:
    lane = _lane()
    _add(lane, "b", [b"b0", b"b3", b"b00"], [0, 3, 0])
    _add(lane, "a", [b"a1", b"a0"], [1, 0])
    _add(lane, "b", [b"b000"], [0])

    objects, found = _write(tmp_path, lane, route="blob")

    assert {(one.topic, one.partition): one.records for one in found} == {
        ("a", 0): 1, ("a", 1): 1, ("b", 0): 3, ("b", 3): 1
    }  # fmt: skip
    (path,) = _objects(tmp_path)
    data = path.read_bytes()
    for one, notification in zip(found, _decoded(found), strict=True):
        (part,) = notification.parts
        assert notification.key == str(path.relative_to(tmp_path))
        assert notification.producer_id == WRITER
        assert len(one.value) < 150
        segment = decode_segment(
            data, start=part.byte_range.start, length=part.byte_range.length, records=one.records
        )
        values = [segment.value(index) for index in range(one.records)]
        assert values == {
            ("a", 0): [b"a0"], ("a", 1): [b"a1"], ("b", 0): [b"b0", b"b00", b"b000"],
            ("b", 3): [b"b3"],
        }[one.topic, one.partition]  # fmt: skip
    index = decode_batch_object_index(data, len(data))
    assert [(entry.topic, entry.partition) for entry in index] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 3)
    ]  # fmt: skip
    assert objects.commit_by_ms is not None


def test_sequences_of_a_partition_count_over_objects(tmp_path: Path) -> None:
    objects = SinkObjects(_here(tmp_path, route="blob"), WRITER, lambda: True)
    sequences, keys = [], []
    for _ in range(3):
        lane = _lane()
        _add(lane, "t", [b"1", b"2"], [0, 1])
        written = _decoded(objects.write(lane.seal()))
        sequences += [one.sequence for one in written]
        keys += [one.key for one in written]

    assert sequences == [0, 0, 1, 1, 2, 2]
    assert [ObjectKey.decode(key or "").number for key in keys] == [0, 0, 1, 1, 2, 2]


def test_what_is_too_small_for_the_store_travels_in_its_notification(tmp_path: Path) -> None:
    lane = _lane()
    _add(lane, "t", [b"small", b"x" * 400_000], [0, 1])

    _, found = _write(tmp_path, lane)

    inline = {
        one.partition: notification.inline
        for one, notification in zip(found, _decoded(found), strict=True)
    }
    assert decode_segment(inline[0] or b"", records=1).value(0) == b"small"
    assert inline[1] is None
    assert len(_objects(tmp_path)) == 1


def test_a_small_remainder_makes_no_object(tmp_path: Path) -> None:
    lane = _lane()
    _add(lane, "t", [b"x" * 20_000, b"x" * 20_000], [0, 1])

    objects, found = _write(tmp_path, lane)

    assert [notification.key for notification in _decoded(found)] == [None, None]
    assert _objects(tmp_path) == []
    assert objects.commit_by_ms is None


def test_inline_only_what_fits_into_a_kafka_record(tmp_path: Path) -> None:
    lane = _lane()
    lane.add("t", _facts(), _records([b"1", b"x" * 5000]), np.array([0, 1], dtype=np.int32), 4000)

    _, found = _write(tmp_path, lane, route="inline")

    assert [notification.inline is None for notification in _decoded(found)] == [False, True]


def test_segments_are_cut_by_bytes_and_by_records() -> None:
    lane = _lane(segment_bytes=100_000)
    _add(lane, "t", [b"x" * 50_000] * 4, [2] * 4)
    assert [segment.records.num_rows for segment in lane.seal().segments] == [1, 1, 1, 1]

    many = SinkLane(LaneKey("shared", WEEK, ""), 1 << 30, 1 << 30)
    _add(many, "t", [None] * (MAX_SEGMENT_RECORDS + 2), [1] * (MAX_SEGMENT_RECORDS + 2))
    assert [one.records.num_rows for one in many.seal().segments] == [MAX_SEGMENT_RECORDS, 2]


def test_objects_live_long_enough_for_the_job_to_be_done(tmp_path: Path) -> None:
    lane = _lane()
    _add(lane, "t", [b"1"], [0], segment_ms=5)

    objects, found = _write(tmp_path, lane, route="blob")

    assert objects.commit_by_ms is not None
    key = ObjectKey.decode(_decoded(found)[0].key or "")
    # As if it were stored at the last moment at which it may be notified.
    assert key.expiry_hour == expiry_hour(objects.commit_by_ms, 0, WEEK, 5)
    assert [commit_time_ms(kept) // 3_600_000 for kept in RETENTION_CLASSES[:4]] == [1, 1, 3, 21]


def test_a_store_that_is_not_there_leaves_no_notification(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lane = _lane()
    _add(lane, "t", [b"1"], [0])

    with pytest.raises(StoreUnavailable):
        _write(tmp_path / "file", lane, route="blob")


def test_an_empty_lane_makes_nothing() -> None:
    assert _lane().seal().segments == []
