"""The step in C: what it refuses, what it holds, and that it gives back what it took."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from typing import Any
from zlib import crc32

import pytest

from blobmsg.core.batcher import TopicLanes
from blobmsg.core.offsets import MAX_NOTIFICATION_RECORDS
from blobmsg.core.producer_core import BufferMemory
from blobmsg.core.segments import Lane, LaneKey, OpenSegment
from blobmsg.core.step_fields import (
    CHARGE_BYTES_PER_RECORD,
    ENCODED_BYTES_PER_RECORD,
    MemoryFields,
)
from blobmsg.format.object_key import retention_class
from blobmsg.format.rows import NARROW, WIDE, Rows
from blobmsg.native import native
from blobmsg.record_step import RecordStep
from blobmsg.reentrant import CoreLock

PARTITIONS = 5
needs_native = pytest.mark.skipif(native is None, reason="no compiler built blobmsg.native here")


class Stage:
    """A step with a topic whose segments are open, and no pipeline."""

    def __init__(self, *, width: int = NARROW, callback: Any = None) -> None:
        self.memory = BufferMemory(1 << 30, 0, None)
        self.core_lock = CoreLock()
        self.lanes = TopicLanes("orders")
        self.lanes.partition_count = PARTITIONS
        key = LaneKey("", retention_class(3_600_000), "")
        self.lane = Lane(key, 1 << 40, is_direct=False, now_ms=0)
        for partition in range(PARTITIONS):
            segment = OpenSegment(self.lanes, partition, self.lane, callback, 0, width=width)
            self.lanes.open_segments.append(segment)
        self.sealed: list[Lane] = []
        self.step = RecordStep({"orders": self.lanes}, self.memory, self.core_lock, self.seal, 1000)

    def seal(self, lane: Lane, is_urgent: bool) -> None:
        assert is_urgent is False
        self.sealed.append(lane)

    def join(
        self,
        *,
        topic: Any = "orders",
        key: Any = b"k",
        value: Any = b"v",
        partition: Any = -1,
        callback: Any = None,
        timestamp_ms: Any = 7,
        headers: Any = None,
    ) -> bool:
        return self.step(topic, key, value, partition, callback, timestamp_ms, headers)

    def rows(self, partition: int) -> Rows:
        segment = self.lanes.open_segments[partition]
        assert segment is not None
        return segment.rows


def test_a_record_is_counted_wherever_records_are() -> None:
    stage = Stage()

    assert stage.join(key=b"key", value=b"value", partition=2)

    segment = stage.lanes.open_segments[2]
    assert segment is not None
    assert segment.rows.record_count == 1
    assert segment.rows.record(0) == (b"key", b"value", 7, None)
    assert segment.records_left == MAX_NOTIFICATION_RECORDS - 1
    assert (segment.charged_bytes, stage.lane.size_bytes) == (8 + 128, 8 + 16)
    assert (stage.memory.records, stage.memory.records_bytes) == (1, 8 + 128)


def test_keys_go_where_crc32_says() -> None:
    rng = random.Random(1)
    stage = Stage()
    for length in (*range(1, 40), 255, 999):
        key = rng.randbytes(length)
        assert stage.join(key=key, value=b"")
        assert stage.rows(crc32(key) % PARTITIONS).keys[-1] == key


def test_without_a_timestamp_it_is_now() -> None:
    stage = Stage()
    for _ in range(1000):
        assert stage.join(timestamp_ms=0, partition=0)

    times = stage.rows(0).timestamps_ms
    assert times == sorted(times)
    assert 1_790_000_000_000 < times[0] <= times[-1] < 4_000_000_000_000


@pytest.mark.parametrize(
    "unusual",
    [
        {"topic": "other"},
        {"topic": b"orders"},
        {"topic": ["orders"]},
        {"key": None},
        {"key": b""},
        {"key": "text"},
        {"key": bytearray(b"k")},
        {"value": None},
        {"value": "text"},
        {"value": bytes(1000)},
        {"partition": -2},
        {"partition": PARTITIONS},
        {"partition": 1 << 70},
        {"partition": -(1 << 70)},
        {"partition": 1.0},
        {"partition": None},
        {"partition": True},
        {"timestamp_ms": 1.5},
        {"timestamp_ms": 1 << 63},
        {"timestamp_ms": -(1 << 63) - 1},
        {"timestamp_ms": None},
        {"headers": []},
        {"headers": {}},
        {"callback": print},
    ],
    ids=str,
)
def test_what_is_unusual_is_left_alone(unusual: dict[str, Any]) -> None:
    stage = Stage()

    assert stage.join(**unusual) is False

    assert (stage.memory.records, stage.memory.records_bytes, stage.lane.size_bytes) == (0, 0, 0)
    assert not any(stage.rows(partition).record_count for partition in range(PARTITIONS))


def test_nobody_joins_without_room_or_while_somebody_decides() -> None:
    stage = Stage()
    stage.memory.records_ceiling_bytes = 1
    assert not stage.join()
    stage.memory.records_ceiling_bytes = 2
    assert stage.join()
    stage.memory.records_ceiling_bytes = 1 << 40
    stage.memory.limit_records = 1
    assert not stage.join()
    stage.memory.limit_records = 2
    with stage.core_lock:
        assert not stage.join()
    assert stage.join()
    stage.memory.limit_records = 1 << 62
    segment = stage.lanes.open_segments[crc32(b"k") % PARTITIONS]
    assert segment is not None
    segment.records_left = 0
    assert not stage.join()
    segment.records_left = 1
    stage.lanes.open_segments[:] = [None] * PARTITIONS
    assert not stage.join()
    assert stage.memory.records == 2


def test_a_full_lane_is_sealed_behind_the_record_that_filled_it() -> None:
    stage = Stage()
    stage.lane.seal_at_bytes = 2 * (2 + 16)

    assert stage.join()
    assert stage.sealed == []
    assert stage.join()
    assert stage.sealed == [stage.lane]


def test_what_a_seal_raises_comes_out_and_the_record_has_joined() -> None:
    class Interrupted(BaseException):
        pass

    def fail(_lane: Lane, _is_urgent: bool) -> None:
        raise Interrupted

    stage = Stage()
    stage.lane.seal_at_bytes = 1
    stage.step = RecordStep({"orders": stage.lanes}, stage.memory, stage.core_lock, fail, 1000)

    with pytest.raises(Interrupted):
        stage.join()
    with pytest.raises(Interrupted):
        stage.step.join_messages("orders", [{"key": b"k", "value": b"v"}], 0, -1, None)
    assert stage.memory.records == 2


def test_a_wide_row_has_the_callback() -> None:
    stage = Stage(width=WIDE)

    assert stage.join(callback=print, partition=0)

    assert stage.rows(0).record(0) == (b"k", b"v", 7, None)
    assert stage.rows(0).callbacks == [print]


def test_a_method_is_the_same_callback_each_time() -> None:
    class Heard:
        def of(self, _error: object, _message: object) -> None:
            """Only told apart."""

    heard = Heard()
    stage = Stage(callback=heard.of)

    assert stage.join(callback=heard.of)
    assert not stage.join(callback=Heard().of)
    assert not stage.join(callback=None)


def test_messages_are_taken_until_one_is_unusual() -> None:
    stage = Stage()
    plain = {"key": b"k", "value": b"v"}
    for odd in (
        {"key": b"k"},
        {"key": b"k", "value": b"v", "partition": 1},
        {},
        {"key": b"k", 1: b"v"},
    ):
        messages: list[dict[str, Any]] = [plain, plain, odd, plain]  # type: ignore[list-item]
        assert stage.step.join_messages("orders", messages, 0, 3, None) == 2
        assert stage.step.join_messages("orders", messages, 3, 3, None) == 4
        assert stage.step.join_messages("orders", messages, 4, 3, None) == 4
    assert stage.rows(3).record_count == 12


class Trap:
    """A key of a dict that is looked for like "key", and empties the list when it is compared."""

    def __init__(self, messages: list[Any]) -> None:
        self._messages = messages

    def __hash__(self) -> int:
        return hash("key")

    def __eq__(self, other: object) -> bool:
        self._messages.clear()
        return True


def test_a_comparison_that_takes_the_messages_away_is_survived() -> None:
    stage = Stage()
    messages: list[dict[Any, Any]] = []
    messages += [{Trap(messages): b"k" * 50, "value": b"v" * 50}]

    assert stage.step.join_messages("orders", messages, 0, 0, None) in (0, 1)


@needs_native
@pytest.mark.parametrize("place", [-1, -(1 << 40), 5, 1 << 62])
def test_places_outside_of_the_list_are_nothing_to_take(place: int) -> None:
    stage = Stage()

    assert (
        stage.step.join_messages("orders", [{"key": b"k", "value": b"v"}], place, 0, None) == place
    )
    assert stage.memory.records == 0


@needs_native
def test_both_count_the_same() -> None:
    assert native is not None
    assert (native.NARROW, native.WIDE) == (NARROW, WIDE)
    assert native.CHARGE_BYTES_PER_RECORD == CHARGE_BYTES_PER_RECORD
    assert native.ENCODED_BYTES_PER_RECORD == ENCODED_BYTES_PER_RECORD


@needs_native
def test_wrong_arguments_are_type_errors() -> None:
    stage = Stage()

    with pytest.raises(TypeError):
        stage.step("orders", b"k", b"v")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        stage.step.join_messages(b"orders", [], 0, 0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        stage.step.join_messages("orders", (), 0, 0, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        RecordStep({}, MemoryFields(), object(), print, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        stage.memory.records = "many"  # type: ignore[assignment]


def test_nothing_is_held_beyond_the_rows() -> None:
    def callback() -> None:
        """Only counted."""

    stage = Stage(callback=callback)
    key, value, message = bytes([7] * 9), bytes([8] * 99), {"key": b"key", "value": b"value"}
    message["value"] = value
    held = [key, value, message, stage.lane, stage.lanes, stage.memory, callback]
    before = [sys.getrefcount(each) for each in held]

    for _ in range(100):
        assert stage.join(key=key, value=value, partition=0, callback=callback)
        stage.step.join_messages("orders", [message, {}], 0, 1, callback)
        stage.join(key=key, value=None)
        stage.join(key=key, topic="other")
    for segment in stage.lanes.open_segments:
        assert segment is not None
        segment.rows = Rows(NARROW)
    gc.collect()

    assert [sys.getrefcount(each) for each in held] == before


def test_a_cycle_through_the_step_is_collected() -> None:
    stage = Stage()
    gone = weakref.ref(stage)

    del stage
    gc.collect()

    assert gone() is None
