"""A store that fails as a test's script says, around any other store.

Clients of this process reach it by its url; whoever holds it looks at what is in it and makes it
fail.

It decides, call by call, which scripted fault applies: the first one that names the method,
matches the key and has calls left. Faults act where a network would: before the inner store sees
the call, on the bytes of an answer, or after the inner store has done it (the answer is lost). It
never invents data.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from blobmsg.clock import SystemClock
from blobmsg.errors import ConfigError, StoreDenied, StoreTimeout, StoreUnavailable
from blobmsg.store.base import check_key, fill_targets, object_missing, pieces_of
from blobmsg.store.memory import MemoryStore
from blobmsg.store.open import register_scheme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blobmsg.clock import Clock
    from blobmsg.format.ranges import ByteRange
    from blobmsg.store.base import Body, ObjectInfo, Store

__all__ = ["Fault", "FaultStore", "Method"]

Method: TypeAlias = Literal["put", "get_range", "size", "get_tail", "list_keys", "delete"]

_SCHEME: Final = "faults"
# "For ever" for a call without a deadline: longer than any test, short enough for a lock.
_NEVER_MS: Final = 3_600_000.0


@dataclass(slots=True)
class Fault:
    """One scripted fault. Its parts combine: a delay, then an error, for example.

    Attributes:
        method: The calls it is for.
        times: How many calls it hits; None: all, until it is removed.
        key_part: Only keys that contain this text.
        error: Makes the error to raise.
        after: The inner store does the call first, then the error is raised: a PUT that was
            stored though its answer was lost.
        delay_ms: Waits so long on the store's clock, but not past the call's deadline, where it
            raises `StoreTimeout`. `FaultStore.clear` ends it early.
        gate: Waits until this event is set; `FaultStore.arrived` tells that a call waits.
        corrupt: Changes the bytes of an answer (or those that a PUT stores).
        missing: The object counts as not there.
        hits: Calls hit so far.
    """

    method: Method
    times: int | None = 1
    key_part: str = ""
    error: Callable[[], Exception] | None = None
    after: bool = False
    delay_ms: float = 0
    gate: threading.Event | None = None
    corrupt: Callable[[bytes], bytes] | None = None
    missing: bool = False
    hits: int = field(default=0, init=False)


class FaultStore:
    """A store with faults on demand; without any it is the inner store.

    Set `blobmsg.store.url` to its `url`, and every client of this process that has it uses this
    store. The calls of a client are repeated as on a real store: it sees a fault only if it lasts,
    or if it is one that is not tried again (denied, missing, damaged).

    Args:
        inner: Does the work; a `MemoryStore` of its own by default.
        clock: Delays pass on it; the machine's by default.

    Attributes:
        calls: Every call as (method, key), in the order they came, failed ones included.
        arrived: Set when a call waits at a gate or in a delay.

    Threads: any. The lock of `_called` guards `_faults`, their counts, `calls` and `_healed`.
    """

    def __init__(self, inner: Store | None = None, clock: Clock | None = None) -> None:
        self._name = uuid.uuid4().hex
        self._inner: Store = MemoryStore(self._name) if inner is None else inner
        self._clock: Clock = SystemClock() if clock is None else clock
        self._called = threading.Condition()
        self._faults: list[Fault] = []
        self._healed = threading.Event()
        self._is_closed = False
        self.calls: list[tuple[Method, str]] = []
        self.arrived: threading.Event = threading.Event()
        _by_name[self._name] = self

    @property
    def url(self) -> str:
        """For `blobmsg.store.url`, in this process and while this object lives."""
        return f"{_SCHEME}://{self._name}"

    @property
    def inner(self) -> Store:
        """The store behind the faults: what is really there."""
        return self._inner

    def keys(self) -> list[str]:
        """The keys of what is really there, in order."""
        return [info.key for info in self._inner.list_keys()]

    def add(self, *faults: Fault) -> None:
        """Script faults; earlier ones go first."""
        with self._called:
            self._faults.extend(faults)

    def clear(self) -> None:
        """Forget all faults that are left, end delays: the network is well again."""
        with self._called:
            self._faults.clear()
            self._healed.set()
            self._healed = threading.Event()

    def refuse(self, method: Method, times: int | None = 1) -> None:
        """Answer the next calls 503, too many requests; `times=None`: until `clear`."""
        self.add(Fault(method, times, error=_slow_down))

    def time_out(self, method: Method, times: int | None = 1) -> None:
        """Let the next calls time out at once; the inner store never hears of them."""
        self.add(Fault(method, times, error=_no_answer))

    def deny(self, method: Method, times: int | None = 1) -> None:
        """Answer the next calls 403, which clients do not try again."""
        self.add(Fault(method, times, error=_denied))

    def hang(self, method: Method, times: int | None = 1) -> None:
        """Answer the next calls only after `clear`, or time out when they have waited enough."""
        self.add(Fault(method, times, delay_ms=_NEVER_MS))

    def lose_answers(self, times: int | None = 1) -> None:
        """Store what the next PUTs bring, but let them time out."""
        self.add(Fault("put", times, error=_no_answer, after=True))

    def hide(self, times: int | None = 1, key_part: str = "") -> None:
        """Let the next reads find no object, as if it were deleted before its time."""
        self.add(Fault("get_range", times, key_part, missing=True))

    def flip_bits(self, times: int | None = 1) -> None:
        """Flip a bit in what the next reads get."""
        self.add(Fault("get_range", times, corrupt=_with_a_flipped_bit))

    def wait_for_calls(self, method: Method, count: int = 1, timeout_s: float = 30.0) -> None:
        """Block until so many calls of this method have come since the beginning.

        Raises:
            TimeoutError: They did not come.
        """
        with self._called:
            if not self._called.wait_for(lambda: self._count(method) >= count, timeout_s):
                raise TimeoutError(
                    f"{self._count(method)} of {count} calls of {method} after {timeout_s} s"
                )

    def _count(self, method: Method) -> int:
        return sum(called == method for called, _ in self.calls)

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`."""
        fault = self._next("put", key)
        self._before(fault, key, deadline_ms=deadline_ms)
        if fault is not None and fault.corrupt is not None:
            data, crc32 = fault.corrupt(b"".join(pieces_of(data))), None
        self._inner.put(key, data, deadline_ms=deadline_ms, crc32=crc32)
        _after(fault)

    def put_if_absent(self, key: str, data: Body, *, deadline_ms: int) -> bool:
        """See `Store.put_if_absent`; a fault for `put` hits it, too."""
        fault = self._next("put", key)
        self._before(fault, key, deadline_ms=deadline_ms)
        if fault is not None and fault.corrupt is not None:
            data = fault.corrupt(b"".join(pieces_of(data)))
        is_stored = self._inner.put_if_absent(key, data, deadline_ms=deadline_ms)
        _after(fault)
        return is_stored

    def get_range(self, key: str, byte_range: ByteRange, *, deadline_ms: int) -> bytes:
        """See `Store.get_range`."""
        fault = self._next("get_range", key)
        self._before(fault, key, byte_range, deadline_ms=deadline_ms)
        data = self._inner.get_range(key, byte_range, deadline_ms=deadline_ms)
        _after(fault)
        return _corrupted(fault, data)

    def read_range(
        self,
        key: str,
        byte_range: ByteRange,
        targets: Sequence[memoryview],
        *,
        deadline_ms: int,
    ) -> None:
        """See `Store.read_range`; a fault for `get_range` hits it, too.

        What `corrupt` makes of the bytes must be as long as they are: the targets are.
        """
        fault = self._next("get_range", key)
        self._before(fault, key, byte_range, deadline_ms=deadline_ms)
        self._inner.read_range(key, byte_range, targets, deadline_ms=deadline_ms)
        _after(fault)
        if fault is None or fault.corrupt is None:
            return
        fill_targets(targets, _corrupted(fault, b"".join(targets)))

    def size(self, key: str) -> int:
        """See `Store.size`."""
        fault = self._next("size", key)
        self._before(fault, key)
        size = self._inner.size(key)
        _after(fault)
        return size

    def get_tail(self, key: str, length_bytes: int) -> bytes:
        """See `Store.get_tail`."""
        fault = self._next("get_tail", key)
        self._before(fault, key)
        data = self._inner.get_tail(key, length_bytes)
        _after(fault)
        return _corrupted(fault, data)

    def list_keys(self, prefix: str = "", start_after: str = "") -> Iterator[ObjectInfo]:
        """See `Store.list_keys`; with `after`, the error comes behind the first key."""
        fault = self._next("list_keys", prefix)
        self._before(fault, prefix)
        for info in self._inner.list_keys(prefix, start_after):
            yield info
            _after(fault)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store.delete`; a fault's `key_part` is looked for in the first key."""
        fault = self._next("delete", keys[0] if keys else "")
        self._before(fault, keys[0] if keys else "")
        self._inner.delete(keys)
        _after(fault)

    def describe(self) -> str:
        """The inner store's, marked."""
        return f"{self._inner.describe()} (with faults)"

    def close(self) -> None:
        """End delays, then close the inner store; its url leads nowhere from now on."""
        _by_name.pop(self._name, None)
        with self._called:
            self._is_closed = True
            self._healed.set()
        self._inner.close()

    def _next(self, method: Method, key: str) -> Fault | None:
        with self._called:
            self.calls.append((method, key))
            self._called.notify_all()
            for fault in self._faults:
                has_calls_left = fault.times is None or fault.hits < fault.times
                if fault.method == method and fault.key_part in key and has_calls_left:
                    fault.hits += 1
                    return fault
        return None

    def _before(
        self,
        fault: Fault | None,
        key: str,
        byte_range: ByteRange | None = None,
        *,
        deadline_ms: int | None = None,
    ) -> None:
        if fault is None:
            return
        if fault.delay_ms:
            left_ms = _NEVER_MS if deadline_ms is None else deadline_ms - self._clock.now_ms()
            with self._called:
                healed = self._healed
            self.arrived.set()
            is_early = self._clock.wait(healed, min(fault.delay_ms, left_ms))
            if fault.delay_ms >= left_ms and (self._is_closed or not is_early):
                raise StoreTimeout(f"no answer in time for {key!r} in {self.describe()}", key=key)
        if fault.gate is not None:
            self.arrived.set()
            fault.gate.wait()
        if fault.missing:
            check_key(key)
            raise object_missing(self.describe(), key, byte_range)
        if fault.error is not None and not fault.after:
            raise fault.error()


def _after(fault: Fault | None) -> None:
    if fault is not None and fault.error is not None and fault.after:
        raise fault.error()


def _corrupted(fault: Fault | None, data: bytes) -> bytes:
    return data if fault is None or fault.corrupt is None else fault.corrupt(data)


class _OpenFaultStore:
    """A client's share of a `FaultStore`: all of it, except that closing it closes nothing."""

    def __init__(self, shared: FaultStore) -> None:
        self.put = shared.put
        self.put_if_absent = shared.put_if_absent
        self.get_range = shared.get_range
        self.read_range = shared.read_range
        self.size = shared.size
        self.get_tail = shared.get_tail
        self.list_keys = shared.list_keys
        self.delete = shared.delete
        self.describe = shared.describe

    def close(self) -> None:
        """Whoever made the store closes it."""


# A store that its test has forgotten may go.
_by_name: weakref.WeakValueDictionary[str, FaultStore] = weakref.WeakValueDictionary()


def _open(name: str) -> Store:
    shared = _by_name.get(name)
    if shared is None:
        raise ConfigError(
            f"no FaultStore of this process has the url {_SCHEME}://{name}: it was closed, or it "
            "is another process's"
        )
    return _OpenFaultStore(shared)


register_scheme(_SCHEME, _open)


def _slow_down() -> StoreUnavailable:
    return StoreUnavailable("503 SlowDown (scripted)", slow_down=True)


def _no_answer() -> StoreTimeout:
    return StoreTimeout("no answer in time (scripted)")


def _denied() -> StoreDenied:
    return StoreDenied("403 AccessDenied (scripted)")


def _with_a_flipped_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1]) if data else data
