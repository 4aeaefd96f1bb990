"""Both stages of an exchange, run in this process: where rows stay while a disk fills."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest

from blobmsg.format.notification import Limits, decode_notification
from blobmsg_spark import map_task, reduce_task
from blobmsg_spark.exchange import Exchange
from blobmsg_spark.map_task import MapTask
from blobmsg_spark.reduce_task import ReduceTask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_LIMITS = Limits(1 << 20, 1 << 20, max_parts=1)
_RESERVE_BYTES = 1000
_ROWS, _BATCHES = 100, 6


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    for module in (map_task, reduce_task):
        monkeypatch.setattr(module, "partition_id", lambda: 0)
    return Exchange(
        conf={"blobmsg.store.url": f"file://{tmp_path}"},
        environment={},
        name="token-1",
        partitions=1,
        isolation="shared.token",
        expiry_hour="forever",
        begun_ms=5,
        producer_id=bytes(range(16)),
        batch_bytes=1,
        segment_bytes=1 << 20,
        prefetch_bytes=1 << 20,
        disk_reserve_bytes=_RESERVE_BYTES,
        is_dealt=False,
    )


def _batch(number: int) -> pa.RecordBatch:
    ids = list(range(number * _ROWS, (number + 1) * _ROWS))
    return pa.record_batch({"_partition": pa.array([0] * _ROWS, pa.int32()), "id": ids})


def _disk(frees: list[int]) -> Callable[[str], _Usage]:
    """A disk that has so much room, asked once for each object."""
    return lambda _folder: _Usage(1 << 40, 0, frees.pop(0))


def _objects(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


def test_rows_go_to_the_store_while_the_disk_is_full_and_then_stay_again(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy, full = 1 << 30, _RESERVE_BYTES
    monkeypatch.setattr(shutil, "disk_usage", _disk([roomy, roomy, full, full, roomy, roomy]))
    whole = replace(exchange, batch_bytes=_batch(0).nbytes)

    notifications = list(MapTask(whole, None)(map(_batch, range(_BATCHES))))

    values = [value.as_py() for batch in notifications for value in batch.column(1)]
    is_inline = [decode_notification(value, _LIMITS).inline is not None for value in values]
    assert is_inline == [True, True, False, False, True, True]
    assert _objects(tmp_path) == 2
    rows = list(ReduceTask(whole, None)(iter(notifications)))
    ids = Counter(number for batch in rows for number in batch.column(0).to_pylist())
    assert ids == Counter(range(_BATCHES * _ROWS))


def test_what_is_written_may_not_break_into_the_reserve(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(exchange, batch_bytes=_batch(0).nbytes)
    # The segment has more than 100 bytes beside what is free over the reserve.
    monkeypatch.setattr(shutil, "disk_usage", _disk([_RESERVE_BYTES + 100]))

    list(MapTask(whole, None)(iter([_batch(0)])))

    assert _objects(tmp_path) == 1


def test_the_folder_with_the_least_room_decides(
    exchange: Exchange, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/roomy,/full")
    frees = {"/roomy": 1 << 30, "/full": _RESERVE_BYTES}
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: _Usage(1 << 40, 0, frees[folder]))

    list(MapTask(replace(exchange, batch_bytes=1 << 20), None)(iter([_batch(0)])))

    assert _objects(tmp_path) == 1
