"""Repeats what may succeed later, until the caller's deadline.

Decides whether an error is worth another attempt (`classify`), how long to wait before it
(capped exponential back-off with full jitter, so that many clients do not return in step) and
when to stop. A PUT is repeated under the same key, because an attempt that failed here may
have been stored there. It never repeats refusals, missing objects or damaged ones: those need
the caller.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from blobmsg.errors import BlobmsgError, StoreTimeout, StoreUnavailable
from blobmsg.store.slow_down import SlowDownLimiter

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from blobmsg.clock import Clock
    from blobmsg.format.ranges import ByteRange
    from blobmsg.store.base import Body, ObjectInfo, Store
    from blobmsg.store.instrumented import StoreCounters

__all__ = ["NotWanted", "RetryingStore", "Verdict", "backoff_ms", "classify"]

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

# S3 recovers from a 503 or a reset within a few hundred ms as a rule; 5 s keeps the number of
# billed requests of an outage small and the return after it quick.
FIRST_BACKOFF_MS = 100
MAX_BACKOFF_MS = 5_000
# Calls without a deadline of their own (size, list, delete): one attempt may hang for a whole
# request timeout and still be repeated.
DEADLINE_IN_TIMEOUTS = 2
# A request without an answer may be a large one on a slow line: 16 MiB at 13 Mbit/s take so long.
HANGS_AFTER_MS = 10_000


class NotWanted(Exception):
    """Nobody waits for the object any more."""


class Verdict(Enum):
    """What an error asks for."""

    RETRY = "retry"
    SLOW_DOWN = "slow_down"  # retry, and send fewer requests at once
    GIVE_UP = "give_up"


def classify(error: BaseException) -> Verdict:
    """Whether another attempt can help. Pure; the only place that decides it.

    Expired credentials are renewed inside the S3 store, once, before they come here.
    """
    if isinstance(error, StoreUnavailable):
        return Verdict.SLOW_DOWN if error.details.get("slow_down") else Verdict.RETRY
    if isinstance(error, StoreTimeout):
        return Verdict.RETRY
    return Verdict.GIVE_UP


def backoff_ms(attempt: int, rng: random.Random) -> float:
    """How long to wait after failed attempt number `attempt` (from 1): full jitter."""
    # The exponent is bounded only to keep the power small.
    return rng.uniform(0, min(MAX_BACKOFF_MS, FIRST_BACKOFF_MS * 2 ** min(attempt - 1, 16)))


@dataclass(frozen=True, slots=True)
class Trouble:
    """No request has got an answer for a while.

    Attributes:
        error: Of the last one that failed.
        since_ms: When the first one began, monotonic.
    """

    error: BlobmsgError
    since_ms: int


class RetryingStore:
    """A store that repeats failed requests.

    Args:
        inner: Does the work; one request per call.
        clock: Measures deadlines and waits between attempts.
        rng: Jitter.
        request_timeout_ms: Longest time for one attempt.
        max_concurrency: Threads that may call at once (upload plus fetch threads).
        counters: Gets `retries`.

    Threads: any. `_closing` is an Event; `close` ends every wait.
    """

    def __init__(
        self,
        inner: Store,
        *,
        clock: Clock,
        rng: random.Random,
        request_timeout_ms: int,
        max_concurrency: int,
        counters: StoreCounters | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._request_timeout_ms = request_timeout_ms
        self._counters = counters
        self._limiter = SlowDownLimiter(clock, max_concurrency)
        self._closing = threading.Event()
        self._trouble: Trouble | None = None  # None: the last request has got an answer
        self._under_way: dict[object, int] = {}  # when each attempt began
        self._answered_ms = 0

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong now: requests fail, or they hang; None: nothing that is known."""
        if self._trouble is not None:
            return self._trouble
        begun_ms = tuple(self._under_way.values())  # looked at once: others come and go
        since_ms = max(self._answered_ms, min(begun_ms, default=0))
        waited_ms = self._clock.now_ms() - since_ms
        if not begun_ms or waited_ms < HANGS_AFTER_MS:
            return None
        text = f"{self.describe()} has answered nothing for {waited_ms // 1000} s"
        return Trouble(StoreTimeout(text), since_ms)

    @property
    def limiter(self) -> SlowDownLimiter:
        """The limiter that all threads of this store share."""
        return self._limiter

    def put(
        self,
        key: str,
        data: Body,
        *,
        deadline_ms: int,
        crc32: int | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
        failed: Callable[[int], None] = lambda _begun_ms: None,
    ) -> None:
        """See `Store.put`; attempts end at the deadline.

        Args:
            key: As there.
            data: As there.
            deadline_ms: As there.
            crc32: As there.
            is_wanted: Asked before each attempt, and after one that failed.
            failed: Called after each attempt that is worth another one, with when it began.

        Raises:
            NotWanted: It was not; the object may be there, if it was not the first attempt.
        """
        begun_ms = 0

        def attempt(until_ms: int) -> None:
            nonlocal begun_ms
            if not is_wanted():
                raise NotWanted
            begun_ms = self._clock.now_ms()
            self._inner.put(key, data, deadline_ms=until_ms, crc32=crc32)

        def tell() -> None:
            failed(begun_ms)
            if not is_wanted():
                raise NotWanted

        self._repeat(attempt, deadline_ms, tell)

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; attempts end at the deadline."""
        return self._repeat(
            lambda until_ms: self._inner.put_if_absent(key, data, deadline_ms=until_ms),
            deadline_ms,
        )

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`; attempts end at the deadline."""
        return self._repeat(
            lambda until_ms: self._inner.get_range(key, byte_range, deadline_ms=until_ms),
            deadline_ms,
        )

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`; attempts end at the deadline."""
        self._repeat(
            lambda until_ms: self._inner.read_range(key, byte_range, targets, deadline_ms=until_ms),
            deadline_ms,
        )

    def size(self, key: str) -> int:
        """See `Store.size`."""
        return self._repeat(lambda _: self._inner.size(key))

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        return self._repeat(lambda _: self._inner.get_tail(key, length_bytes))

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; after an error it goes on behind the last key it gave."""
        listing = _Listing(self._inner, prefix, start_after)
        while (info := self._repeat(listing.next_info)) is not None:
            yield info

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`."""
        self._repeat(lambda _: self._inner.delete(keys))

    def describe(self) -> str:
        """The inner store's."""
        return self._inner.describe()

    def close(self) -> None:
        """End back-off waits of other threads with their last error, then close the inner store."""
        self._closing.set()
        self._limiter.close()
        self._inner.close()

    def _repeat(
        self,
        request: Callable[[int], _T],
        deadline_ms: int | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> _T:
        if self._closing.is_set():
            raise RuntimeError(f"store {self.describe()} has been closed")
        started_ms = self._clock.now_ms()
        if deadline_ms is None:
            deadline_ms = started_ms + DEADLINE_IN_TIMEOUTS * self._request_timeout_ms
        attempt = 0
        while True:
            attempt += 1
            try:
                done = self._attempt(request, deadline_ms)
            except BlobmsgError as error:
                if classify(error) is Verdict.GIVE_UP:
                    self._answered()
                    raise
                before = self._trouble
                since_ms = started_ms if before is None else before.since_ms
                self._trouble = Trouble(error, since_ms)
                _forget_way(error)
                failed()
                pause_ms = backoff_ms(attempt, self._rng)
                now_ms = self._clock.now_ms()
                if self._closing.is_set() or now_ms + pause_ms >= deadline_ms:
                    raise _gave_up(error, attempt, now_ms - started_ms) from error
                _logger.debug("attempt %d failed, next in %d ms: %s", attempt, pause_ms, error)
                if self._clock.wait(self._closing, pause_ms):
                    now_ms = self._clock.now_ms()
                    raise _gave_up(error, attempt, now_ms - started_ms) from error
            else:
                self._answered()
                return done
            if self._counters is not None:
                self._counters.add(retries=1)

    def _answered(self) -> None:
        self._trouble = None
        self._answered_ms = self._clock.now_ms()

    def _attempt(self, request: Callable[[int], _T], deadline_ms: int) -> _T:
        now_ms = self._clock.now_ms()
        if now_ms >= deadline_ms:
            raise StoreTimeout(f"no time is left for a request to {self.describe()}")
        started_ms = self._limiter.acquire(deadline_ms)
        ok = slow_down = False
        token = object()
        self._under_way[token] = started_ms
        try:
            result = request(min(deadline_ms, started_ms + self._request_timeout_ms))
            ok = True
        except BlobmsgError as error:
            slow_down = classify(error) is Verdict.SLOW_DOWN
            raise
        finally:
            del self._under_way[token]
            self._limiter.release(started_ms, slow_down=slow_down, ok=ok)
        return result


class _Listing:
    """A listing that starts again behind its last key after an error."""

    def __init__(self, store: Store, prefix: str, start_after: str) -> None:
        self._store = store
        self._prefix = prefix
        self._start_after = start_after
        self._infos: Iterator[ObjectInfo] | None = None

    def next_info(self, _until_ms: int) -> ObjectInfo | None:
        # A generator that raised is finished for good: taken out while it runs.
        infos, self._infos = self._infos, None
        if infos is None:
            infos = self._store.list_keys(self._prefix, self._start_after)
        info = next(infos, None)
        self._infos = infos
        if info is not None:
            self._start_after = info.key
        return info


def _forget_way(error: BaseException) -> None:
    """Free what the calls have through which an error came: an object of many MiB, say.

    It would live as long as the trouble, and behind `contextlib`'s frames until garbage is
    collected. Texts and causes stay.
    """
    causes, seen = [error], {id(error)}  # there may be cycles
    while causes:
        cause = causes.pop()
        cause.__traceback__ = None
        for before in (cause.__cause__, cause.__context__):
            if before is not None and id(before) not in seen:
                seen.add(id(before))
                causes.append(before)


def _gave_up(error: BlobmsgError, attempts: int, elapsed_ms: int) -> BlobmsgError:
    details = {**error.details, "attempts": attempts}
    return type(error)(
        f"{error.message} (gave up after {attempts} attempt{'s' if attempts > 1 else ''} in "
        f"{elapsed_ms} ms)",
        code=error.kafka_error.code(),
        **details,
    )
