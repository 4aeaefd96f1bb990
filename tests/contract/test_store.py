"""What every store promises: one suite, run for memory, files and S3.

The tests in `StoreContract` are written against the Protocol alone; a class below it says how to
open a store. S3 has some more, about what only a real server does.
"""

from __future__ import annotations

import random
import threading
import uuid
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from blobmsg.clock import SystemClock
from blobmsg.config import parse_settings
from blobmsg.errors import (
    BlobmsgError,
    ConfigError,
    CorruptSegment,
    ObjectMissing,
    StoreDenied,
    StoreUnavailable,
)
from blobmsg.format.ranges import ByteRange
from blobmsg.store import ObjectInfo, StoreCounters, open_store
from blobmsg.store.open import open_raw_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from blobmsg.store import Store

CLOCK = SystemClock()


def soon() -> int:
    return CLOCK.now_ms() + 20_000


def put(store: Store, key: str, data: bytes = b"data") -> None:
    store.put(key, data, deadline_ms=soon())


def get(store: Store, key: str, start: int, length: int) -> bytes:
    return store.get_range(key, ByteRange(start, length), deadline_ms=soon())


def open_with(conf: dict[str, Any], **changed: str) -> Store:
    """A store as users open it."""
    conf = conf | {f"blobmsg.{name.replace('_', '.')}": value for name, value in changed.items()}
    settings = parse_settings(conf, {})[0]
    assert settings.store_url is not None
    return open_store(settings.store_url, settings)


class StoreContract:
    """The suite; a subclass gives `conf`."""

    @pytest.fixture
    def store_conf(self) -> dict[str, Any]:
        raise NotImplementedError

    @pytest.fixture
    def store(self, store_conf: dict[str, Any]) -> Iterator[Store]:
        store = open_with(store_conf)
        yield store
        store.close()

    def test_what_was_put_is_read_back_in_any_range(self, store: Store) -> None:
        data = bytes(range(256)) * 4
        put(store, "a/k", data)
        assert get(store, "a/k", 0, 1024) == data
        assert get(store, "a/k", 0, 1) == b"\x00"
        assert get(store, "a/k", 1023, 1) == b"\xff"
        assert get(store, "a/k", 100, 50) == data[100:150]
        assert isinstance(get(store, "a/k", 100, 50), bytes)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_buffer_can_be_put(self, store: Store, kind: type) -> None:
        store.put("k", kind(b"0123456789"), deadline_ms=soon())
        assert get(store, "k", 2, 3) == b"234"

    def test_a_view_of_a_part_is_put_as_that_part(self, store: Store) -> None:
        store.put("k", memoryview(b"0123456789")[2:5], deadline_ms=soon())
        assert store.get_tail("k", 10) == b"234"

    def test_the_buffer_belongs_to_the_caller_again_after_the_put(self, store: Store) -> None:
        buffer = bytearray(b"before")
        store.put("k", buffer, deadline_ms=soon())
        buffer[:] = b"after!"
        assert store.get_tail("k", 10) == b"before"

    def test_an_object_is_put_in_pieces(self, store: Store) -> None:
        rng = random.Random(7)
        sizes = [1, 0, 300_000, *(n % 50 for n in range(2500)), 0, 6 << 20, 7, 0]
        pieces: list[bytes | memoryview] = [rng.randbytes(size) for size in sizes]
        pieces[2] = memoryview(pieces[2])
        store.put("k", pieces, deadline_ms=soon())
        data = b"".join(pieces)
        assert store.size("k") == len(data)
        assert zlib.crc32(get(store, "k", 0, len(data))) == zlib.crc32(data)

    def test_no_pieces_are_an_empty_object(self, store: Store) -> None:
        store.put("k", [], deadline_ms=soon())
        assert store.size("k") == 0

    def test_an_object_of_batch_size_survives(self, store: Store) -> None:
        data = random.Random(5).randbytes(17 << 20)
        store.put("k", data, deadline_ms=soon(), crc32=zlib.crc32(data))
        assert get(store, "k", 0, len(data)) == data
        assert get(store, "k", 9 << 20, 3 << 20) == data[9 << 20 : 12 << 20]

    def test_a_range_is_read_into_memory_of_the_caller(self, store: Store) -> None:
        data = random.Random(6).randbytes(300_000)
        put(store, "k", data)
        pieces = [bytearray(length) for length in (1, 100_000, 0, 70_000, 5)]
        wanted = ByteRange(17, 170_006)
        store.read_range("k", wanted, [memoryview(p) for p in pieces], deadline_ms=soon())
        assert b"".join(pieces) == data[17 : 17 + 170_006]
        assert store.size("k") == 300_000  # the connection is of use again

    def test_a_range_that_is_not_there_is_not_read(self, store: Store) -> None:
        put(store, "k", b"0123456789")
        target = [memoryview(bytearray(8))]
        with pytest.raises(CorruptSegment):
            store.read_range("k", ByteRange(5, 8), target, deadline_ms=soon())
        with pytest.raises(ObjectMissing):
            store.read_range("none", ByteRange(0, 8), target, deadline_ms=soon())

    def test_an_empty_object_is_there(self, store: Store) -> None:
        put(store, "k", b"")
        assert store.size("k") == 0
        assert store.get_tail("k", 5) == b""
        with pytest.raises(CorruptSegment):
            get(store, "k", 0, 1)

    def test_putting_the_same_object_again_is_harmless(self, store: Store) -> None:
        put(store, "k")
        put(store, "k")
        assert store.get_tail("k", 10) == b"data"
        assert len(list(store.list_keys())) == 1

    def test_only_the_first_object_of_a_name_is_stored(self, store: Store) -> None:
        assert store.put_if_absent("a/k", [b"fir", b"st"], deadline_ms=soon())
        assert not store.put_if_absent("a/k", b"second", deadline_ms=soon())
        assert store.get_tail("a/k", 10) == b"first"
        put(store, "b")
        assert not store.put_if_absent("b", b"second", deadline_ms=soon())
        assert [info.key for info in store.list_keys()] == ["a/k", "b"]
        store.delete(["b"])
        assert store.put_if_absent("b", b"second", deadline_ms=soon())

    def test_of_many_that_store_a_name_at_once_one_succeeds(self, store: Store) -> None:
        together = threading.Barrier(6)
        outcomes: list[tuple[bool, bytes]] = []

        def work(data: bytes) -> None:
            together.wait(20)
            outcomes.append((store.put_if_absent("k", data, deadline_ms=soon()), data))

        threads = [
            threading.Thread(target=work, args=(bytes([number]) * 5000,), daemon=True)
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert sorted(is_stored for is_stored, _ in outcomes) == [False] * 5 + [True]
        assert store.get_tail("k", 9999) == dict(outcomes)[True]

    def test_the_tail_is_the_end_or_all_of_a_shorter_object(self, store: Store) -> None:
        put(store, "k", b"0123456789")
        assert store.get_tail("k", 3) == b"789"
        assert store.get_tail("k", 10) == b"0123456789"
        assert store.get_tail("k", 999) == b"0123456789"
        assert store.get_tail("k", 0) == b""

    def test_the_size_is_the_objects_length(self, store: Store) -> None:
        put(store, "k", b"0123456789")
        assert store.size("k") == 10

    def test_a_missing_object_says_which_and_where(self, store: Store) -> None:
        with pytest.raises(ObjectMissing) as caught:
            get(store, "no/such", 5, 10)
        assert caught.value.details["key"] == "no/such"
        assert (caught.value.details["start"], caught.value.details["length"]) == (5, 10)
        assert store.describe() in str(caught.value)
        with pytest.raises(ObjectMissing):
            store.size("no/such")
        with pytest.raises(ObjectMissing):
            store.get_tail("no/such", 1)

    @pytest.mark.parametrize(("start", "length"), [(5, 6), (0, 11), (10, 1), (500, 5)])
    def test_a_range_that_the_object_has_not_is_corrupt_never_short(
        self, store: Store, start: int, length: int
    ) -> None:
        put(store, "k", b"0123456789")
        with pytest.raises(CorruptSegment) as caught:
            get(store, "k", start, length)
        assert caught.value.details["key"] == "k"
        assert caught.value.details["start"] == start

    @pytest.mark.parametrize("key", ["", "/k", "k/", "a//b", "../k", "a/../b", "a/./b", "a\nb"])
    def test_keys_that_lead_elsewhere_are_refused(self, store: Store, key: str) -> None:
        with pytest.raises(ValueError, match="object key"):
            put(store, key)
        with pytest.raises(ValueError, match="object key"):
            get(store, key, 0, 1)

    @pytest.mark.parametrize("key", ["a b+c%2F=&?#~", "é/ü…", "a..b/.c", "x" * 200])
    def test_any_other_key_works(self, store: Store, key: str) -> None:
        put(store, key)
        assert get(store, key, 0, 4) == b"data"
        assert [info.key for info in store.list_keys()] == [key]
        store.delete([key])
        assert list(store.list_keys()) == []

    def test_a_listing_is_in_the_order_of_bytes(self, store: Store) -> None:
        keys = ["a", "a-b", "a/b", "a/b-c", "a/b/c", "a0", "b/a", "é", "z"]
        keys.remove("a")
        keys.remove("a/b")  # a file can't be a folder, too
        for key in random.Random(2).sample(keys, len(keys)):
            put(store, key, key.encode())
        expected = sorted(keys, key=str.encode)
        assert list(store.list_keys()) == [ObjectInfo(k, len(k.encode())) for k in expected]

    def test_a_listing_can_be_narrowed_by_any_prefix(self, store: Store) -> None:
        for key in ("a/1", "a/2", "ab/1", "b/1"):
            put(store, key)
        for prefix in ("a", "a/", "a/2", "ab", "b/1x", "c", "a/1/"):
            expected = [k for k in ("a/1", "a/2", "ab/1", "b/1") if k.startswith(prefix)]
            assert [info.key for info in store.list_keys(prefix)] == expected

    def test_a_listing_can_start_behind_any_key(self, store: Store) -> None:
        keys = ["a/1", "a/2", "ab/1", "b/1"]
        for key in keys:
            put(store, key)
        for start in (*keys, "a", "a/", "a/15", "aa", "a0", "zz"):
            found = [info.key for info in store.list_keys(start_after=start)]
            assert found == [k for k in keys if k > start], start
        assert [info.key for info in store.list_keys("a", start_after="a/1")] == ["a/2", "ab/1"]

    def test_deleted_objects_are_gone_and_missing_ones_do_not_matter(self, store: Store) -> None:
        for key in ("a/1", "a/2", "b"):
            put(store, key)
        store.delete(["a/1", "no/such", "b"])
        assert [info.key for info in store.list_keys()] == ["a/2"]
        with pytest.raises(ObjectMissing):
            get(store, "a/1", 0, 1)
        store.delete([])

    def test_threads_share_a_store(self, store: Store) -> None:
        errors: list[BaseException] = []

        def work(number: int) -> None:
            rng = random.Random(number)
            try:
                for turn in range(10):
                    key, data = f"{number}/{turn}", rng.randbytes(rng.randint(1, 200_000))
                    put(store, key, data)
                    start = rng.randrange(len(data))
                    assert get(store, key, start, len(data) - start) == data[start:]
            except BaseException as error:  # noqa: BLE001  (reported by the main thread)
                errors.append(error)

        threads = [
            threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(25)
        assert errors == []
        assert len(list(store.list_keys())) == 80

    def test_a_closed_store_refuses_calls_and_closes_twice(self, store: Store) -> None:
        store.close()
        store.close()
        with pytest.raises(RuntimeError, match="closed"):
            put(store, "k")
        with pytest.raises(RuntimeError, match="closed"):
            get(store, "k", 0, 1)
        with pytest.raises(RuntimeError, match="closed"):
            list(store.list_keys())

    def test_two_stores_at_one_place_see_the_same_objects(
        self, store: Store, store_conf: dict[str, Any]
    ) -> None:
        other = open_with(store_conf)
        put(store, "k")
        assert get(other, "k", 0, 4) == b"data"
        other.close()


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store_conf(self) -> dict[str, Any]:
        return {"blobmsg.store.url": f"memory://{uuid.uuid4().hex}"}


class TestFileStore(StoreContract):
    @pytest.fixture
    def store_conf(self, tmp_path: Path) -> dict[str, Any]:
        return {"blobmsg.store.url": f"file://{tmp_path}/root"}


@pytest.mark.integration
@pytest.mark.timeout(120)
class TestS3Store(StoreContract):
    @pytest.fixture
    def store_conf(self, s3_conf: dict[str, Any]) -> dict[str, Any]:
        return s3_conf

    def test_a_listing_longer_than_a_page_is_whole_and_each_page_is_counted(
        self, s3_conf: dict[str, Any]
    ) -> None:
        settings = parse_settings(s3_conf, {})[0]
        assert settings.store_url is not None
        counters = StoreCounters()
        store = open_store(settings.store_url, settings, counters=counters)
        keys = [f"k{number:04}" for number in range(1005)]
        for key in keys:
            put(store, key, b"")
        assert [info.key for info in store.list_keys()] == keys
        assert counters.snapshot().lists == 2
        store.delete(keys)
        assert list(store.list_keys()) == []
        assert counters.snapshot().deletes == 2
        store.close()

    def test_an_upload_damaged_on_its_way_is_refused(self, s3_conf: dict[str, Any]) -> None:
        settings = parse_settings(s3_conf, {})[0]
        assert settings.store_url is not None
        store = open_raw_store(settings.store_url, settings, clock=CLOCK)
        data = random.Random(3).randbytes(1 << 20)
        checksum = zlib.crc32(data)
        damaged = bytearray(data)
        damaged[12345] ^= 1
        with pytest.raises(StoreUnavailable) as caught:
            store.put("k", damaged, deadline_ms=soon(), crc32=checksum)
        assert caught.value.details["status"] == 400
        with pytest.raises(ObjectMissing):
            store.size("k")
        store.put("k", data, deadline_ms=soon(), crc32=checksum)
        assert store.size("k") == len(data)
        store.close()

    @pytest.mark.parametrize("size", [0, 100, 20 << 20])
    @pytest.mark.parametrize(
        ("changed", "error", "says"),
        [
            ({"s3_secret_access_key": "wrong-secret"}, StoreDenied, "SignatureDoesNotMatch"),
            ({"s3_access_key_id": "wrong-key"}, StoreDenied, "InvalidAccessKeyId.*wrong-key"),
            ({"store_url": "s3://no-such-bucket-here/p"}, ConfigError, "create the bucket"),
        ],
        ids=["secret", "key", "bucket"],
    )
    def test_a_wrong_setting_is_told_at_once_whatever_the_size_of_the_upload(
        self,
        s3_conf: dict[str, Any],
        changed: dict[str, str],
        error: type[BlobmsgError],
        says: str,
        size: int,
    ) -> None:
        store = open_with(s3_conf, **changed)
        started_ms = CLOCK.now_ms()
        with pytest.raises(error, match=says):
            put(store, "k", bytes(size))
        with pytest.raises(error, match=says):
            get(store, "k", 0, 1)
        with pytest.raises(error, match=says):
            list(store.list_keys())
        with pytest.raises(error, match=says):
            store.delete(["k"])
        assert CLOCK.now_ms() - started_ms < 10_000
        store.close()

    def test_a_clock_that_is_an_hour_off_is_told_at_once(self, s3_conf: dict[str, Any]) -> None:
        class WrongClock(SystemClock):
            def timestamp_ms(self) -> int:
                return super().timestamp_ms() - 3_600_000

        settings = parse_settings(s3_conf, {})[0]
        assert settings.store_url is not None
        store = open_store(settings.store_url, settings, clock=WrongClock())
        with pytest.raises(StoreDenied, match=r"clock is 3\d\d\d s behind the store's"):
            put(store, "k")
        store.close()

    @pytest.mark.parametrize("sse", ["AES256", "aws:kms"])
    def test_encryption_works_or_the_setting_to_fix_is_named(
        self, s3_conf: dict[str, Any], sse: str
    ) -> None:
        store = open_with(s3_conf, s3_sse=sse)
        refused: ConfigError | None = None
        try:
            put(store, "k")
        except ConfigError as error:  # a server without keys
            refused = error
        if refused is None:
            assert store.get_tail("k", 9) == b"data"
        else:
            assert "blobmsg.s3.*" in str(refused)
            with pytest.raises(ObjectMissing):
                store.size("k")
        store.close()
