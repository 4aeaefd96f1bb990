"""The object store: objects, latency, and what can go wrong with both.

Decides nothing but when an object is there and what an answer is. Faults are windows of time and
single objects, set by the schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from blobmsg.errors import StoreTimeout, StoreUnavailable
from blobmsg.format.errors import FormatError
from blobmsg.format.object_key import ObjectKey
from blobmsg.resources import StoreLease
from blobmsg.sim.world import RequestClock, Violation
from blobmsg.store.base import fill_targets, object_missing, pieces_of, range_outside_object
from blobmsg.store.instrumented import StoreCounters
from blobmsg.store.open import resolve_store_url
from blobmsg.store.retrying import RetryingStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from blobmsg.config import Settings
    from blobmsg.format.ranges import ByteRange
    from blobmsg.sim.world import Process, World
    from blobmsg.store.base import Body, ObjectInfo
    from blobmsg.store.retrying import Trouble

__all__ = ["StoreFault", "StoreRequests", "VirtualStore"]

_PLACE: Final = "the virtual store"
_REQUEST_TIMEOUT_MS: Final = 2000


@dataclass(frozen=True, slots=True)
class StoreFault:
    """What goes wrong in a window of time.

    Attributes:
        kind: `outage` (503), `hang` (no answer), `lost` (done, but the answer is lost), `slow`,
            `corrupt` (a byte of an answer is another).
        start_ms: From here on, monotonic.
        end_ms: Until here.
        share: Of the requests, 0 to 1.
    """

    kind: str
    start_ms: int
    end_ms: int
    share: float


class VirtualStore:
    """Objects by key.

    Args:
        world: Its world.
        latency_ms: The least and the most of a request without faults.

    Attributes:
        objects: Those that are there.
        hidden_until_ms: Objects that are missing for a while, by key.
        faults: Windows.
        deleted: Keys that were there and have expired.
        corrupted: Keys of which somebody was given wrong bytes.
    """

    def __init__(self, world: World, latency_ms: tuple[int, int]) -> None:
        self.world = world
        self._latency_ms = latency_ms
        self.objects: dict[str, bytes] = {}
        self.hidden_until_ms: dict[str, int] = {}
        self.faults: list[StoreFault] = []
        self.deleted: set[str] = set()
        self.corrupted: set[str] = set()
        self.puts_of: dict[str, int] = {}
        self.overwritten: list[str] = []

    def store(self, key: str, data: bytes) -> None:
        """An object is there from now on."""
        before = self.objects.get(key)
        if before is not None and before != data:
            self.overwritten.append(key)
        self.objects[key] = data
        self.puts_of[key] = self.puts_of.get(key, 0) + 1
        self.world.note("stored", key, len(data))

    def expire(self, timestamp_ms: int) -> None:
        """Delete what is past the expiry hour in its key, as `blobmsg gc` does."""
        for key in list(self.objects):
            expiry_ms = ObjectKey.decode(key).expiry_ms()
            if expiry_ms is not None and timestamp_ms >= expiry_ms:
                del self.objects[key]
                self.deleted.add(key)

    def latency_ms(self) -> int:
        """How long a request takes."""
        return self.world.rng.randint(*self._latency_ms)

    def fault(self, kind: str, now_ms: int) -> bool:
        """Whether a fault of this kind meets a request at this time."""
        return any(
            fault.kind == kind
            and fault.start_ms <= now_ms < fault.end_ms
            and self.world.rng.random() < fault.share
            for fault in self.faults
        )


class StoreRequests:
    """A process' requests: `Stores` and the `Store` below the retries, computed ahead.

    Args:
        store: The store.
        process: Who asks.
        settings: Of who asks.
    """

    def __init__(self, store: VirtualStore, process: Process, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._process = process
        self._rng: random.Random = store.world.rng
        self.clock = RequestClock(store.world)
        self._counters = StoreCounters()
        self._lease = self._opened()

    def _opened(self) -> StoreLease:
        retrying = RetryingStore(
            self,
            clock=self.clock,
            rng=self._rng,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            max_concurrency=1 << 20,
            counters=self._counters,
        )
        return StoreLease(_PLACE, retrying, self._counters)

    # --- as `Stores` --------------------------------------------------------------------------

    def begin(self) -> None:
        """A request begins now.

        Requests are computed one after the other though they overlap in virtual time, so each has
        retries of its own and none hears of another's trouble.
        """
        self.clock.begin()
        self._lease = self._opened()

    def get(self, name: str = "") -> StoreLease:
        """The store; others are refused as `Stores` does it."""
        resolve_store_url(name, self._settings)
        return self._lease

    @property
    def trouble(self) -> Trouble | None:
        """Not simulated: requests that overlap don't know of each other."""
        return None

    def totals(self) -> dict[str, int]:
        """Nobody counts."""
        return {}

    # --- as `Store` ---------------------------------------------------------------------------

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`; the object is there when its time has come."""
        begun_ms = self.clock.now_ms()
        content = b"".join(pieces_of(data))
        latency_ms = self._latency_ms(begun_ms, deadline_ms)
        stored_ms = begun_ms + max(1, latency_ms * 3 // 4)
        self._store.world.at(stored_ms, lambda: self._stored(key, content, begun_ms))
        self._answer(begun_ms, latency_ms, deadline_ms)

    def _stored(self, key: str, content: bytes, begun_ms: int) -> None:
        died_ms = self._process.died_ms
        if died_ms is None or begun_ms < died_ms:  # what is on the wire arrives
            self._store.store(key, content)

    def _latency_ms(self, begun_ms: int, deadline_ms: int) -> int:
        store = self._store
        latency_ms = store.latency_ms()
        if store.fault("slow", begun_ms):
            latency_ms *= 10
        if store.fault("outage", begun_ms):
            self.clock.sleep(min(latency_ms, max(0, deadline_ms - begun_ms)))
            raise StoreUnavailable(f"503 from {_PLACE}", slow_down=self._rng.random() < 0.5)
        if store.fault("hang", begun_ms):
            self._time_out(deadline_ms)
        return latency_ms

    def _answer(self, begun_ms: int, latency_ms: int, deadline_ms: int) -> None:
        if begun_ms + latency_ms >= deadline_ms or self._store.fault("lost", begun_ms):
            self._time_out(deadline_ms)
        self.clock.sleep(latency_ms)

    def _time_out(self, deadline_ms: int) -> None:
        self.clock.sleep(max(0, deadline_ms - self.clock.now_ms()))
        raise StoreTimeout(f"no answer from {_PLACE}")

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`."""
        target = bytearray(byte_range.length)
        self.read_range(key, byte_range, [memoryview(target)], deadline_ms=deadline_ms)
        return bytes(target)

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`; whatever is asked for is an object's name (rule 8)."""
        try:
            ObjectKey.decode(key)
        except FormatError as problem:
            raise Violation(f"{self._process.name} asks the store for {key!r}") from problem
        begun_ms = self.clock.now_ms()
        latency_ms = self._latency_ms(begun_ms, deadline_ms)
        self._answer(begun_ms, latency_ms, deadline_ms)
        content = self._store.objects.get(key)
        if content is None or begun_ms < self._store.hidden_until_ms.get(key, 0):
            raise object_missing(_PLACE, key, byte_range)
        data = content[byte_range.start : byte_range.end]
        if len(data) != byte_range.length:
            raise range_outside_object(_PLACE, key, byte_range, len(content))
        if self._store.fault("corrupt", begun_ms):
            self._store.corrupted.add(key)
            place = self._rng.randrange(len(data))
            data = data[:place] + bytes([data[place] ^ 0x20]) + data[place + 1 :]
        fill_targets(targets, data)

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """Nobody asks."""
        raise NotImplementedError(key, data, deadline_ms)

    def size(self, key: str) -> int:
        """Nobody asks."""
        raise NotImplementedError(key)

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """Nobody asks."""
        raise NotImplementedError(key, length_bytes)

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """Nobody asks."""
        raise NotImplementedError(prefix, start_after)

    def delete(self, keys: Sequence[str]) -> None:
        """Nobody asks."""
        raise NotImplementedError(keys)

    def describe(self) -> str:
        """For error texts."""
        return _PLACE

    def close(self) -> None:
        """It holds nothing."""

    def later(self, action: Callable[[], object]) -> None:
        """Have the process do something when the request that was computed ends."""
        self._process.after(self.clock.now_ms() - self._store.world.now_ms, action)
