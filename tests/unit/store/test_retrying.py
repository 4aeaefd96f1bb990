from __future__ import annotations

import gc
import random
import threading
import uuid
import weakref
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from blobmsg.errors import (
    BlobmsgError,
    ConfigError,
    CorruptSegment,
    ObjectExpired,
    ObjectMissing,
    StoreDenied,
    StoreTimeout,
    StoreUnavailable,
    UnsupportedFormat,
)
from blobmsg.format.ranges import ByteRange
from blobmsg.store.instrumented import StoreCounters
from blobmsg.store.retrying import (
    FIRST_BACKOFF_MS,
    HANGS_AFTER_MS,
    MAX_BACKOFF_MS,
    NotWanted,
    RetryingStore,
    Verdict,
    backoff_ms,
    classify,
)
from blobmsg.testing import Fault, FaultStore, ManualClock, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from blobmsg.store.base import Body

REQUEST_TIMEOUT_MS = 30_000


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("scripted failure", key="k", status=500)


def slow_down() -> StoreUnavailable:
    return StoreUnavailable("slow down", slow_down=True)


class Rig:
    """A retrying store over a fault store over memory, on a clock in the test's hands."""

    def __init__(self, *, auto_advance: bool = True) -> None:
        self.clock = ManualClock(now_ms=0, auto_advance=auto_advance)
        self.faults = FaultStore(MemoryStore(uuid.uuid4().hex), self.clock)
        self.counters = StoreCounters()
        self.store = RetryingStore(
            self.faults,
            clock=self.clock,
            rng=random.Random(1),
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            max_concurrency=16,
            counters=self.counters,
        )


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (StoreUnavailable("x"), Verdict.RETRY),
        (StoreTimeout("x"), Verdict.RETRY),
        (StoreUnavailable("x", slow_down=True), Verdict.SLOW_DOWN),
        (StoreDenied("x"), Verdict.GIVE_UP),
        (StoreDenied("x", expired=True), Verdict.GIVE_UP),
        (ObjectMissing("x"), Verdict.GIVE_UP),
        (ObjectExpired("x"), Verdict.GIVE_UP),
        (CorruptSegment("x"), Verdict.GIVE_UP),
        (UnsupportedFormat("x"), Verdict.GIVE_UP),
        (ConfigError("x"), Verdict.GIVE_UP),
        (BlobmsgError("x"), Verdict.GIVE_UP),
        (ValueError("x"), Verdict.GIVE_UP),
        (RuntimeError("x"), Verdict.GIVE_UP),
    ],
)
def test_each_error_has_its_verdict(error: Exception, verdict: Verdict) -> None:
    assert classify(error) is verdict


def test_backoff_doubles_up_to_its_cap_and_jitters_from_zero() -> None:
    class Extremes(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    tops = [backoff_ms(attempt, Extremes()) for attempt in range(1, 9)]
    assert tops == [100, 200, 400, 800, 1600, 3200, MAX_BACKOFF_MS, MAX_BACKOFF_MS]
    assert backoff_ms(10_000, Extremes()) == MAX_BACKOFF_MS
    rng = random.Random(3)
    draws = [backoff_ms(1, rng) for _ in range(1000)]
    assert min(draws) < FIRST_BACKOFF_MS * 0.05
    assert max(draws) > FIRST_BACKOFF_MS * 0.95


def test_a_put_is_repeated_under_the_same_key_until_it_succeeds(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=3, error=unavailable))
    rig.store.put("k", b"data", deadline_ms=60_000)
    assert rig.faults.calls == [("put", "k")] * 4
    assert rig.faults.inner.get_tail("k", 10) == b"data"
    assert rig.counters.snapshot().retries == 3


def test_a_put_whose_answer_was_lost_is_repeated_under_the_same_key(rig: Rig) -> None:
    rig.faults.add(Fault("put", error=unavailable, after=True))
    rig.store.put("k", b"data", deadline_ms=60_000)
    assert rig.faults.calls == [("put", "k")] * 2
    assert [info.key for info in rig.faults.inner.list_keys()] == ["k"]


def test_trouble_lasts_from_the_first_failure_until_an_answer(rig: Rig) -> None:
    rig.clock.advance(7)
    rig.faults.add(Fault("put", times=100, error=unavailable))
    with pytest.raises(StoreUnavailable):
        rig.store.put("k", b"data", deadline_ms=2000)
    with pytest.raises(StoreUnavailable):
        rig.store.put("k", b"data", deadline_ms=rig.clock.now_ms() + 10)

    assert rig.store.trouble is not None
    assert rig.store.trouble.since_ms == 7
    assert "scripted failure" in str(rig.store.trouble.error)
    rig.faults.clear()
    rig.store.put("k", b"data", deadline_ms=60_000)
    assert rig.store.trouble is None


class Data(bytearray):
    """Data of which somebody can tell whether it is still there."""


class Refusing(MemoryStore):
    """Says so by a context manager, whose frame is in a cycle with the error."""

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable("refused") from error

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        with self._translated():
            raise ConnectionRefusedError(len(data))


def test_what_could_not_be_stored_is_freed_with_its_last_user() -> None:
    clock = ManualClock(now_ms=0, auto_advance=True)
    store = RetryingStore(
        Refusing("refusing"),
        clock=clock,
        rng=random.Random(1),
        request_timeout_ms=1000,
        max_concurrency=1,
    )
    wanted = iter([True, True, True, False])

    def give_up() -> weakref.ref[Data]:
        data = Data(100)
        with suppress(NotWanted):
            store.put("k", data, deadline_ms=60_000, is_wanted=lambda: next(wanted))
        return weakref.ref(data)

    gc.disable()
    try:
        assert give_up()() is None
        assert list(wanted) == []
    finally:
        gc.enable()


def test_errors_that_are_each_others_cause_are_no_trap(rig: Rig) -> None:
    first, second = unavailable(), ValueError("second")
    first.__cause__, second.__context__ = second, first
    rig.faults.add(Fault("put", error=lambda: first))

    rig.store.put("k", b"data", deadline_ms=10_000)

    assert second.__traceback__ is None


class Slow(MemoryStore):
    """Takes a while for each upload, and looks meanwhile what is said of it."""

    def __init__(self, clock: ManualClock, took_ms: int) -> None:
        super().__init__("slow")
        self._clock = clock
        self._took_ms = took_ms
        self.store: RetryingStore | None = None
        self.seen: list[str] = []

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        assert self.store is not None
        self._clock.advance(self._took_ms)
        trouble = self.store.trouble
        self.seen.append("none" if trouble is None else str(trouble.error))
        assert trouble is None or trouble.since_ms == self._clock.now_ms() - self._took_ms


@pytest.mark.parametrize(
    ("took_ms", "seen"),
    [
        (HANGS_AFTER_MS - 1, "none"),
        (HANGS_AFTER_MS, "memory://slow has answered nothing for 10 s"),
    ],
)
def test_a_request_that_hangs_is_trouble_before_it_has_failed(took_ms: int, seen: str) -> None:
    clock = ManualClock()
    slow = Slow(clock, took_ms)
    slow.store = RetryingStore(
        slow, clock=clock, rng=random.Random(1), request_timeout_ms=60_000, max_concurrency=1
    )
    slow.store.put("k", b"data", deadline_ms=10_000_000)

    assert slow.seen == [seen]
    assert slow.store.trouble is None


def test_a_refusal_is_an_answer(rig: Rig) -> None:
    rig.faults.add(Fault("put", error=unavailable))
    rig.faults.add(Fault("put", error=lambda: StoreDenied("no")))

    with pytest.raises(StoreDenied):
        rig.store.put("k", b"data", deadline_ms=60_000)

    assert rig.store.trouble is None


def test_the_checksum_goes_along_with_every_attempt() -> None:
    class Recording(MemoryStore):
        seen: list[int | None] = []  # noqa: RUF012

        def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
            self.seen.append(crc32)
            if len(self.seen) < 2:
                raise unavailable()

    store = RetryingStore(
        Recording("checksum"),
        clock=ManualClock(),
        rng=random.Random(1),
        request_timeout_ms=1000,
        max_concurrency=1,
    )
    store.put("k", b"data", deadline_ms=10_000_000, crc32=77)
    assert Recording.seen == [77, 77]


@pytest.mark.parametrize(
    "error", [StoreDenied("no"), ConfigError("no"), ObjectMissing("no"), CorruptSegment("no")]
)
def test_what_another_attempt_cannot_help_is_raised_at_once(rig: Rig, error: Exception) -> None:
    rig.faults.add(Fault("get_range", error=lambda: error))
    with pytest.raises(type(error)) as caught:
        rig.store.get_range("k", ByteRange(0, 1), deadline_ms=60_000)
    assert caught.value is error
    assert len(rig.faults.calls) == 1
    assert rig.clock.now_ms() == 0


def test_attempts_end_at_the_deadline_with_the_last_error(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=None, error=unavailable))
    with pytest.raises(StoreUnavailable, match=r"scripted failure \(gave up after \d+ attempts"):
        rig.store.put("k", b"data", deadline_ms=20_000)
    assert rig.clock.now_ms() < 20_000
    assert len(rig.faults.calls) > 6


def test_the_last_error_keeps_its_facts_and_its_cause(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=None, error=unavailable))
    with pytest.raises(StoreUnavailable) as caught:
        rig.store.put("k", b"data", deadline_ms=1_000)
    assert caught.value.details["status"] == 500
    assert caught.value.details["attempts"] == len(rig.faults.calls)
    assert caught.value.kafka_error.retriable()
    assert str(caught.value.__cause__) == "scripted failure"


def test_nothing_is_sent_after_the_deadline(rig: Rig) -> None:
    rig.clock.advance(5)
    with pytest.raises(StoreTimeout):
        rig.store.put("k", b"data", deadline_ms=5)
    assert rig.faults.calls == []


def test_one_attempt_takes_at_most_the_request_timeout(rig: Rig) -> None:
    rig.faults.add(Fault("put", delay_ms=1_000_000))
    rig.store.put("k", b"data", deadline_ms=200_000)
    assert len(rig.faults.calls) == 2
    assert REQUEST_TIMEOUT_MS <= rig.clock.now_ms() <= REQUEST_TIMEOUT_MS + FIRST_BACKOFF_MS


def test_an_attempt_never_outlives_the_deadline(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=None, delay_ms=1_000_000))
    with pytest.raises(StoreTimeout, match="after 1 attempt "):
        rig.store.put("k", b"data", deadline_ms=7_000)
    assert rig.clock.now_ms() == 7_000


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.size("k"),
        lambda store: store.get_tail("k", 4),
        lambda store: store.get_range("k", ByteRange(0, 4), deadline_ms=60_000),
        lambda store: list(store.list_keys()),
        lambda store: store.delete(["k"]),
    ],
    ids=["size", "get_tail", "get_range", "list_keys", "delete"],
)
def test_every_other_call_is_repeated_as_well(
    rig: Rig, call: Callable[[RetryingStore], object]
) -> None:
    rig.store.put("k", b"data", deadline_ms=60_000)
    expected = call(rig.store)
    rig.faults.inner.put("k", b"data", deadline_ms=0)
    for method in ("size", "get_tail", "get_range", "list_keys", "delete"):
        rig.faults.add(Fault(method, times=2, error=unavailable))
    assert call(rig.store) == expected


def test_calls_without_a_deadline_give_up_in_bounded_time(rig: Rig) -> None:
    rig.faults.add(Fault("size", times=None, error=unavailable))
    with pytest.raises(StoreUnavailable):
        rig.store.size("k")
    assert rig.clock.now_ms() <= 2 * REQUEST_TIMEOUT_MS


def test_a_listing_that_breaks_off_goes_on_behind_its_last_key(rig: Rig) -> None:
    for name in "abcd":
        rig.store.put(name, b"", deadline_ms=60_000)
    rig.faults.add(Fault("list_keys", times=3, error=unavailable, after=True))
    assert [info.key for info in rig.store.list_keys()] == ["a", "b", "c", "d"]


def test_slow_down_answers_limit_all_threads_of_the_store(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=1, error=slow_down))
    rig.store.put("k", b"data", deadline_ms=60_000)
    assert rig.store.limiter.limit is not None
    with pytest.raises(ObjectMissing):
        rig.store.get_range("other", ByteRange(0, 1), deadline_ms=60_000)


def test_other_failures_do_not_limit(rig: Rig) -> None:
    rig.faults.add(Fault("put", times=3, error=unavailable))
    rig.store.put("k", b"data", deadline_ms=60_000)
    assert rig.store.limiter.limit is None


def test_closing_ends_a_backoff_wait_with_the_last_error() -> None:
    rig = Rig(auto_advance=False)
    rig.faults.add(Fault("put", times=None, error=unavailable))
    raised: list[BaseException] = []

    def work() -> None:
        try:
            rig.store.put("k", b"data", deadline_ms=100_000_000)
        except StoreUnavailable as error:
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    rig.clock.wait_for_waiters()
    rig.store.close()
    thread.join(10)
    assert len(raised) == 1
    assert "scripted failure" in str(raised[0])


def test_after_close_calls_are_refused_and_a_second_close_is_fine(rig: Rig) -> None:
    rig.store.close()
    rig.store.close()
    with pytest.raises(RuntimeError, match="closed"):
        rig.store.put("k", b"", deadline_ms=60_000)
    with pytest.raises(RuntimeError, match="closed"):
        list(rig.store.list_keys())


def test_it_describes_the_store_inside(rig: Rig) -> None:
    assert rig.store.describe() == rig.faults.describe()
