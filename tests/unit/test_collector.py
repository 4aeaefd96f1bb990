from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blobmsg.collector import ExpiredObjects, delete_paced
from blobmsg.store.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from blobmsg.store.base import ObjectInfo

WRITER = "0123456789abcdef" * 2
NOW_MS = 1_763_766_000_000  # 2025-11-21 23:00 UTC


def key(
    hour: str, number: int = 0, *, isolation: str = "default", shard: str = "3", zone: str = "az1"
) -> str:
    return f"{isolation}/{shard}/{hour}/{zone}/{WRITER}-{number}"


class CountingStore(MemoryStore):
    """Counts how often it is listed, and what listings gave."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.listings = 0
        self.listed: list[str] = []
        self.deletions: list[int] = []

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        self.listings += 1
        for found in super().list_keys(prefix, start_after):
            self.listed.append(found.key)
            yield found

    def delete(self, keys: Sequence[str]) -> None:
        self.deletions.append(len(keys))
        super().delete(keys)


def filled(*keys: str) -> CountingStore:
    store = CountingStore()
    for each in keys:
        store.put(each, b"12345", deadline_ms=1 << 60)
    return store


def expired(store: CountingStore) -> list[str]:
    return [found.key for found in ExpiredObjects(store, NOW_MS)]


def test_an_object_expires_with_the_start_of_its_hour() -> None:
    store = filled(key("2025112122"), key("2025112123", 1), key("2025112200", 2), key("forever", 3))

    assert expired(store) == [key("2025112122"), key("2025112123", 1)]


def test_what_lives_is_not_listed_beyond_the_first_of_each_shard() -> None:
    living = [
        key(hour, number, shard=shard)
        for shard in "0123456789abcdef"
        for hour in ("2025112200", "2030010100", "forever")
        for number in range(50)
    ]
    old = [key("2020010100", number, shard="7") for number in range(30)]
    store = filled(*living, *old)

    assert expired(store) == sorted(old)
    assert len(store.listed) == 16 + 30
    assert store.listings == 17


def test_names_that_are_not_blobmsgs_are_counted_and_left_alone() -> None:
    strange = ["default/3/2020010100/az1/readme.txt", "default/9/2020010199/az1/x-1", "zzz", "a/b"]
    store = filled(*strange, key("2020010100"))
    objects = ExpiredObjects(store, NOW_MS)

    assert [found.key for found in objects] == [key("2020010100")]
    assert objects.foreign_keys == 4


def test_history_is_not_even_listed() -> None:
    store = filled(
        *(f"history/orders/{number}.parquet" for number in range(50)),
        key("2020010100", isolation="after-history"),
        key("2020010100", isolation="zoo"),
    )
    objects = ExpiredObjects(store, NOW_MS)

    assert len(list(objects)) == 2
    assert objects.foreign_keys == 0
    assert len(store.listed) == 3


ISOLATIONS = ["a", "a-b", "a.b", "a0", "a_b", "ab"]  # around the slash, as names sort


@given(
    st.lists(
        st.tuples(
            st.sampled_from(ISOLATIONS),
            st.sampled_from("0fa"),
            st.sampled_from(["2020010100", "2025112123", "2025112200", "forever", "2025139900"]),
            st.integers(0, 3),
        )
    )
)
def test_exactly_the_expired_are_found(names: list[tuple[str, str, str, int]]) -> None:
    keys = {key(hour, n, isolation=name, shard=shard) for name, shard, hour, n in names}
    store = filled(*keys)

    assert expired(store) == sorted(
        each for each in keys if each.split("/")[2] in ("2020010100", "2025112123")
    )


class FakeClock:
    def __init__(self) -> None:
        self.time_ms = 5_000.0

    def now_ms(self) -> int:
        return int(self.time_ms)

    def sleep(self, duration_ms: float) -> None:
        self.time_ms += duration_ms


@pytest.mark.parametrize(
    ("rate", "deletions", "times"),
    [
        (1000, [1000, 1000, 500], [0, 1, 2]),
        (2000, [1000, 1000, 500], [0, 0.5, 1]),
        (1250.9, [1000, 1000, 500], [0, 0.799, 1.599]),
        (900, [900, 900, 700], [0, 1, 2]),
        (0.001, [1] * 2500, [1000 * n for n in range(2500)]),
    ],
)
def test_deleting_keeps_its_pace_and_asks_for_a_thousand_at_a_time(
    rate: float, deletions: list[int], times: list[float]
) -> None:
    store = filled(*(key("2020010100", number) for number in range(2500)), key("forever"))
    clock = FakeClock()

    seconds = [
        (clock.now_ms() - 5_000) / 1000
        for _ in delete_paced(store, ExpiredObjects(store, NOW_MS), clock, rate)  # type: ignore[arg-type]
    ]

    assert store.deletions == deletions
    assert seconds == pytest.approx(times)
    assert [found.key for found in store.list_keys()] == [key("forever")]


def test_a_run_that_was_ended_goes_on_where_it_was() -> None:
    store = filled(*(key("2020010100", number) for number in range(1500)))
    deletion = delete_paced(store, ExpiredObjects(store, NOW_MS), FakeClock(), 1e9)  # type: ignore[arg-type]
    next(deletion)

    assert len(expired(store)) == 500


@pytest.mark.parametrize("hour", ["2025112123", "2025112200"])
def test_an_empty_store_and_one_object_are_fine(hour: str) -> None:
    assert expired(filled()) == []
    assert len(expired(filled(key(hour)))) == (hour == "2025112123")
