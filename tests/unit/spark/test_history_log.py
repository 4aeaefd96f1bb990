from __future__ import annotations

import uuid
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError

from blobmsg.errors import (
    BlobmsgError,
    ConfigError,
    CorruptSegment,
    ObjectMissing,
    StoreDenied,
    UnsupportedFormat,
)
from blobmsg.testing import Fault, FaultStore
from blobmsg_spark.history import clean_history, history_files
from blobmsg_spark.history_keys import file_key, file_name, manifest_key
from blobmsg_spark.history_log import HistoryLog
from blobmsg_spark.history_manifest import HistoryFile
from blobmsg_spark.history_store import HistoryStore, history_place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def faults() -> Iterator[FaultStore]:
    store = FaultStore()
    yield store
    store.close()


@pytest.fixture
def opened(faults: FaultStore) -> HistoryStore:
    return history_place({"blobmsg.store.url": faults.url}).open()


def write(opened: HistoryStore, first_offset: int, end_offset: int) -> HistoryFile:
    """A file that is no Parquet, of a run of its own."""
    run = uuid.uuid4().hex
    name = file_name(0, first_offset, end_offset, run, 0)
    data = name.encode()
    opened.put(file_key("t", name), [data], zlib.crc32(data))
    return HistoryFile(
        name, 0, first_offset, end_offset, 1, len(data), zlib.crc32(data), 0, 0
    )  # fmt: skip


def add(log: HistoryLog, opened: HistoryStore, end_offset: int, topic_id: str = "id") -> None:
    """Commit a file from where the history ends."""
    file = write(opened, log.ends.get(0, 0), end_offset)
    log.commit(uuid.uuid4().hex, topic_id, {0: end_offset}, [file])


def looked(opened: HistoryStore) -> HistoryLog:
    log = HistoryLog(opened, "t")
    log.refresh()
    return log


def test_what_is_committed_is_seen_by_others(opened: HistoryStore) -> None:
    mine, other = looked(opened), looked(opened)
    assert other.newest is None
    assert other.ends == {}

    add(mine, opened, 5)
    add(mine, opened, 9)
    other.refresh()

    assert other.newest == mine.newest
    assert other.ends == {0: 9}
    assert [(file.first_offset, file.end_offset) for file in other.files()] == [(0, 5), (5, 9)]


def test_all_of_many_manifests_are_read_with_few_requests(
    opened: HistoryStore, faults: FaultStore
) -> None:
    log = looked(opened)
    for number in range(1, 291):
        add(log, opened, number)
    faults.calls.clear()

    files = looked(opened).files()

    assert [file.end_offset for file in files] == list(range(1, 291))
    # 256 + 2 * 16 + 2, and the newest is one of them.
    assert sum(method == "get_range" for method, _ in faults.calls) == 1 + 2 + 2


def test_of_two_that_began_alike_one_commits_and_the_other_says_so(opened: HistoryStore) -> None:
    one, other = looked(opened), looked(opened)
    add(one, opened, 5)

    with pytest.raises(BlobmsgError, match="another run has committed manifest 1") as caught:
        add(other, opened, 7)

    assert caught.value.kafka_error.code() == KafkaError._CONFLICT
    assert [file.end_offset for file in looked(opened).files()] == [5]
    other.refresh()
    add(other, opened, 7)
    assert looked(opened).ends == {0: 7}


def test_a_commit_whose_answer_was_lost_is_known_as_ones_own(
    opened: HistoryStore, faults: FaultStore
) -> None:
    log = looked(opened)
    file = write(opened, 0, 5)
    faults.lose_answers()

    log.commit(uuid.uuid4().hex, "id", {0: 5}, [file])

    assert looked(opened).newest == log.newest
    assert [key for method, key in faults.calls if method == "put"].count(manifest_key("t", 1)) == 2


def test_a_store_that_does_not_refuse_a_second_object_is_refused(
    opened: HistoryStore, faults: FaultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = looked(opened)
    add(log, opened, 5)

    def ignore_the_condition(key: str, data: Any, *, deadline_ms: int) -> bool:
        faults.inner.put(key, data, deadline_ms=deadline_ms)
        return True

    monkeypatch.setattr(faults.inner, "put_if_absent", ignore_the_condition)
    with pytest.raises(ConfigError, match="If-None-Match"):
        add(log, opened, 7)

    assert looked(opened).ends == {0: 5}


def test_a_store_that_refuses_the_manifest_leaves_the_history_as_it_was(
    opened: HistoryStore, faults: FaultStore
) -> None:
    log = looked(opened)
    add(log, opened, 5)
    faults.add(Fault("put", key_part="manifest/0000000002", error=lambda: StoreDenied("403")))

    with pytest.raises(StoreDenied):
        add(log, opened, 7)

    assert looked(opened).ends == {0: 5}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda data: data[:-1], CorruptSegment, "restore it"),
        (lambda data: data.replace(b'"number":1', b'"number":3'), CorruptSegment, "checksum"),
        (lambda _: b"", CorruptSegment, "0 bytes"),
    ],
)
def test_a_damaged_manifest_is_named(
    opened: HistoryStore, faults: FaultStore, change: Any, error: type[Exception], says: str
) -> None:
    add(looked(opened), opened, 5)
    key = manifest_key("t", 1)
    data = faults.inner.get_tail(key, 1 << 20)
    faults.inner.put(key, change(data), deadline_ms=opened.deadline_ms())

    with pytest.raises(error, match=f"{key}.*{says}"):
        looked(opened)


def test_a_manifest_of_another_version_asks_for_an_upgrade(
    opened: HistoryStore, faults: FaultStore
) -> None:
    add(looked(opened), opened, 5)
    key = manifest_key("t", 1)
    body = faults.inner.get_tail(key, 1 << 20).partition(b"\n")[0]
    later = body.replace(b'"version":1', b'"version":2')
    data = later + b'\n{"crc32":%d}\n' % zlib.crc32(later)
    faults.inner.put(key, data, deadline_ms=opened.deadline_ms())

    with pytest.raises(UnsupportedFormat, match="upgrade blobmsg"):
        looked(opened)


def test_a_manifest_of_another_topic_is_refused(opened: HistoryStore, faults: FaultStore) -> None:
    add(looked(opened), opened, 5)
    data = faults.inner.get_tail(manifest_key("t", 1), 1 << 20)
    faults.inner.put(manifest_key("u", 1), data, deadline_ms=opened.deadline_ms())

    with pytest.raises(CorruptSegment, match="number 1 of topic t"):
        HistoryLog(opened, "u").refresh()


def test_a_manifest_that_is_gone_is_missing(opened: HistoryStore, faults: FaultStore) -> None:
    log = looked(opened)
    for end_offset in (5, 7, 9):
        add(log, opened, end_offset)
    faults.inner.delete([manifest_key("t", 2)])

    with pytest.raises(ObjectMissing, match="manifest/0000000002"):
        looked(opened).files()


def test_what_no_manifest_will_name_is_left_over(opened: HistoryStore, faults: FaultStore) -> None:
    log = looked(opened)
    write(opened, 0, 3)  # of a run that was killed
    add(log, opened, 5)
    write(opened, 2, 5)  # of one that was beaten
    write(opened, 5, 9)  # of one that is under way
    faults.inner.put("history/t/data/0/notes.txt", b"x", deadline_ms=opened.deadline_ms())

    kept = {key for key in faults.keys() if "-" not in key}  # noqa: SIM118  (no dict)
    left = clean_history(faults.url, "t", delete=False)
    before = faults.keys()
    deleted = clean_history(faults.url, "t")

    assert len(left) == 2
    assert deleted == left
    assert len(before) - len(faults.keys()) == 2
    assert kept <= set(faults.keys())
    assert len([key for key in faults.keys() if "/0000000000000000005-" in key]) == 1  # noqa: SIM118
    assert clean_history(faults.url, "t") == []


def test_the_files_of_a_folder_are_paths_and_others_urls(tmp_path: Path) -> None:
    folder = f"file://{tmp_path}/with%20space"
    opened = history_place({"blobmsg.store.url": folder}).open()
    add(looked(opened), opened, 5)

    (path,) = history_files(folder, "t")

    assert path.startswith(f"{tmp_path}/with space/history/t/data/0/")
    place = history_place({"blobmsg.store.url": "s3://bucket/prefix/"})
    assert place.path_of("history/k") == "s3://bucket/prefix/history/k"


def test_a_topic_without_a_history_is_named(opened: HistoryStore, faults: FaultStore) -> None:
    add(looked(opened), opened, 5)

    with pytest.raises(ConfigError, match="no history of u"):
        history_files(faults.url, "t", "u")
    with pytest.raises(ConfigError, match="at least one topic"):
        history_files(faults.url)


def test_a_file_is_checked_against_its_manifest(opened: HistoryStore, faults: FaultStore) -> None:
    file = write(opened, 0, 5)
    key = file_key("t", file.name)
    data = faults.inner.get_tail(key, 1 << 20)

    assert opened.read(key, file.size_bytes, file.crc32) == data
    with pytest.raises(CorruptSegment, match="bytes"):
        opened.read(key, file.size_bytes + 1, file.crc32)
    faults.flip_bits()
    with pytest.raises(CorruptSegment, match="checksum"):
        opened.read(key, file.size_bytes, file.crc32)
    faults.inner.delete([key])
    with pytest.raises(ObjectMissing):
        opened.read(key, file.size_bytes, file.crc32)


def test_a_history_needs_a_place() -> None:
    with pytest.raises(ConfigError, match=r"blobmsg.store.url"):
        history_place({})
    with pytest.raises(ConfigError, match="Did you mean"):
        history_place({"blobmsg.store.ur": "memory://a"})
