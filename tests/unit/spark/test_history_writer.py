from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blobmsg.errors import StoreDenied
from blobmsg.testing import Fault, FaultStore
from blobmsg_spark import reconcile_task
from blobmsg_spark.history_keys import file_key
from blobmsg_spark.history_store import history_place
from blobmsg_spark.history_writer import COMPRESSIONS, HistoryWriter, WritePlan
from blobmsg_spark.reconcile_task import StreamTask, read_report
from blobmsg_spark.source_schema import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg_spark.history_manifest import HistoryFile

RUN = "ab" * 16
SCHEMA = arrow_schema(include_headers=True)


@pytest.fixture
def faults() -> Iterator[FaultStore]:
    store = FaultStore()
    yield store
    store.close()


def planned(faults: FaultStore, file_bytes: int = 1 << 20, compression: str = "zstd") -> WritePlan:
    place = history_place({"blobmsg.store.url": faults.url})
    return WritePlan(place, RUN, file_bytes, compression)


def records(first_offset: int, count: int, *, value_bytes: int = 100) -> pa.RecordBatch:
    """Records with timestamps that descend, as those of many producers do."""
    offsets = range(first_offset, first_offset + count)
    columns: list[Any] = [
        [None if offset % 3 else b"%d" % offset for offset in offsets],
        [b"" if offset % 5 == 0 else b"%d" % offset * value_bytes for offset in offsets],
        ["t"] * count,
        [4] * count,
        list(offsets),
        [(9_000_000 - offset) * 1000 for offset in offsets],
        [0] * count,
        [[{"key": "h", "value": None}] if offset % 4 == 0 else None for offset in offsets],
    ]
    arrays = [pa.array(cells, field.type) for cells, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def written(plan: WritePlan, *batches: pa.RecordBatch) -> list[HistoryFile]:
    writer = HistoryWriter(plan, "t", 4, 7)
    found = [*map(writer.add, batches), writer.finish()]
    return [file for file in found if file is not None]


def content(faults: FaultStore, file: HistoryFile) -> bytes:
    return faults.inner.get_tail(file_key("t", file.name), 1 << 30)


def table_of(faults: FaultStore, files: list[HistoryFile]) -> pa.Table:
    return pa.concat_tables(
        pq.read_table(pa.BufferReader(content(faults, file)), page_checksum_verification=True)
        for file in files
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_comes_in_is_in_the_file(faults: FaultStore, compression: str) -> None:
    batches = [records(10, 40), records(50, 1), records(70, 30)]

    (file,) = written(planned(faults, compression=compression), *batches)

    assert table_of(faults, [file]) == pa.Table.from_batches(batches)
    assert (file.partition, file.first_offset, file.end_offset) == (4, 10, 100)
    assert file.records == 71
    assert (file.min_timestamp_ms, file.max_timestamp_ms) == (9_000_000 - 99, 9_000_000 - 10)
    data = content(faults, file)
    assert (file.size_bytes, file.crc32) == (len(data), zlib.crc32(data))


def test_files_end_at_their_size_and_none_has_an_offset_of_another(faults: FaultStore) -> None:
    batches = [records(first, 50) for first in range(0, 1000, 50)]

    files = written(planned(faults, file_bytes=10_000, compression="none"), *batches)

    assert len(files) > 5
    assert all(10_000 <= file.size_bytes < 40_000 for file in files[:-1])
    places = [(file.first_offset, file.end_offset) for file in files]
    assert places[0][0] == 0
    assert places[-1][1] == 1000
    assert [end for _, end in places[:-1]] == [first for first, _ in places[1:]]
    assert table_of(faults, files) == pa.Table.from_batches(batches)


def test_readers_can_skip_by_offset_and_know_the_order(faults: FaultStore) -> None:
    (file,) = written(planned(faults), records(7, 20))

    parquet = pq.ParquetFile(pa.BufferReader(content(faults, file)))
    group = parquet.metadata.row_group(0)
    offset = group.column(4)
    assert offset.path_in_schema == "offset"
    assert (offset.statistics.min, offset.statistics.max) == (7, 26)
    assert [column.column_index for column in group.sorting_columns] == [4]
    assert parquet.schema_arrow == SCHEMA


def test_without_records_there_is_no_file(faults: FaultStore) -> None:
    assert written(planned(faults)) == []
    assert written(planned(faults), records(0, 0)) == []
    assert faults.keys() == []


def test_records_out_of_order_are_a_defect(faults: FaultStore) -> None:
    with pytest.raises(AssertionError, match="offset 9 comes after 19"):
        written(planned(faults), records(10, 10), records(9, 5))


def test_a_store_that_refuses_a_file_fails_the_task(faults: FaultStore) -> None:
    faults.add(Fault("put", error=lambda: StoreDenied("403")))

    with pytest.raises(StoreDenied):
        written(planned(faults), records(0, 5))


def test_what_a_micro_batch_brings_again_is_not_written_again(
    faults: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_task, "_attempt", lambda: 7)
    batches = [records(0, 10), records(10, 0), records(10, 10), records(20, 10)]
    # As a session in another zone gives them.
    zone = pa.timestamp("us", tz="Europe/Berlin")
    place = SCHEMA.get_field_index("timestamp")
    spark_schema = SCHEMA.set(place, pa.field("timestamp", zone))
    given = [batch.cast(spark_schema) for batch in batches]

    new = list(StreamTask({("t", 4): 13}, planned(faults))(iter(given)))
    none = list(StreamTask({("t", 4): 30}, planned(faults))(iter(given)))

    (file,) = read_report(pa.Table.from_batches(new))["t"]
    assert (file.first_offset, file.end_offset, file.records) == (13, 30, 17)
    assert table_of(faults, [file]) == pa.Table.from_batches(batches).slice(13)
    assert none == []


def test_records_of_two_partitions_in_one_task_are_a_defect(
    faults: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_task, "_attempt", lambda: 7)
    other = records(0, 3).set_column(3, SCHEMA.field(3), pa.array([5] * 3, pa.int32()))

    with pytest.raises(AssertionError, match=r"t \[4\].*5"):
        list(StreamTask({}, planned(faults))(iter([records(0, 3), other])))
