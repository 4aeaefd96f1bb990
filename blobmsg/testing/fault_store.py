"""A store that fails as a test's script says, around any other store.

It decides, call by call, which scripted fault applies: the first one that names the method,
matches the key and has calls left. Faults act where a network would: before the inner store sees
the call, on the bytes of an answer, or after the inner store has done it (the answer is lost). It
never invents data.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from blobmsg.errors import StoreTimeout
from blobmsg.store.base import check_key, fill_targets, object_missing, pieces_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from blobmsg.clock import Clock
    from blobmsg.format.ranges import ByteRange
    from blobmsg.store.base import Body, ObjectInfo, Store

__all__ = ["Fault", "FaultStore", "Method"]

Method: TypeAlias = Literal["put", "get_range", "size", "get_tail", "list_keys", "delete"]


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
            raises `StoreTimeout`.
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

    Args:
        inner: Does the work.
        clock: Delays pass on it.

    Attributes:
        calls: Every call as (method, key), in the order they came, failed ones included.
        arrived: Set when a call waits at a gate.

    Threads: any. `_lock` guards `_faults`, their counts and `calls`.
    """

    def __init__(self, inner: Store, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._closing = threading.Event()
        self.calls: list[tuple[Method, str]] = []
        self.arrived: threading.Event = threading.Event()

    @property
    def inner(self) -> Store:
        """The store behind the faults: what is really there."""
        return self._inner

    def add(self, *faults: Fault) -> None:
        """Script faults; earlier ones go first."""
        with self._lock:
            self._faults.extend(faults)

    def clear(self) -> None:
        """Forget all faults that are left: the network is well again."""
        with self._lock:
            self._faults.clear()

    def put(self, key: str, data: Body, *, deadline_ms: int, crc32: int | None = None) -> None:
        """See `Store.put`."""
        fault = self._next("put", key)
        self._before(fault, key, deadline_ms=deadline_ms)
        if fault is not None and fault.corrupt is not None:
            data, crc32 = fault.corrupt(b"".join(pieces_of(data))), None
        self._inner.put(key, data, deadline_ms=deadline_ms, crc32=crc32)
        _after(fault)

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
        """End delays, then close the inner store."""
        self._closing.set()
        self._inner.close()

    def _next(self, method: Method, key: str) -> Fault | None:
        with self._lock:
            self.calls.append((method, key))
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
            left_ms = float("inf") if deadline_ms is None else deadline_ms - self._clock.now_ms()
            self._clock.wait(self._closing, min(fault.delay_ms, left_ms))
            if fault.delay_ms >= left_ms:
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
