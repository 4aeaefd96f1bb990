"""The inline fallback: which segments go through Kafka because the store fails, and when.

Decides: whether the store fails, which waiting segments leave it to Kafka, and how fast. Never: how
a segment is cut or encoded, nor its order: its partition's queue has that (`notifier`).

An object counts as *failing* from the start of its first failed attempt; the store from the first
failure since it last took an object, or since what is under way hangs. An object is *due* when it,
or it and the store, have failed for `after_ms`, or when it was not even tried for that long while
the store fails. Its segments are *taken* then, oldest first, one after the other within the rate.
Whoever uploads goes on trying as long as a segment waits for the object, and every new object is
tried: so the first one that is stored ends it.

States of an object: waiting (`sealed`) -> under way (`begun`) -> failing (`attempt_failed`) ->
ended (`stored`, `ended`). A segment too long for a notification is taken to be cut; its pieces wait
for an object of their own (`cut`), and leave it one by one before anything that was sealed later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from blobmsg.core.events import CutSegment, EncodeInline
from blobmsg.core.segments import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from blobmsg.core.segments import Batch, SealedSegment

__all__ = ["InlineFallback"]

# Uploads are under way at once: so long does each MiB of theirs take on a slow line of 13 Mbit/s.
_SLOW_MS_PER_MIB: Final = 625
# Segments may leave earlier than the rate has them by so much, so that small ones need no timer of
# a millisecond each.
_SLICE_MS: Final = 100
# An object that nobody has tried yet is given so long, whatever `after_ms` is: else none would ever
# be tried again, and the store never be found well.
_LEAST_WAIT_MS: Final = 1000


class _Object:
    """A batch that is not stored yet."""

    __slots__ = ("batch", "failed_ms", "failing_since_ms", "next_segment", "sealed_ms")

    def __init__(self, batch: Batch, sealed_ms: int | None) -> None:
        self.batch = batch
        self.sealed_ms = sealed_ms  # None: of pieces, which have waited long enough
        self.failing_since_ms: int | None = None
        self.failed_ms = 0  # when it last did
        self.next_segment = 0  # none before it waits


class InlineFallback:
    """Threads: under the producer's lock. All times are monotonic.

    Args:
        after_ms: How long an object fails until its segments go inline; None: they never do.
        bytes_per_second: How much of them may be handed to Kafka.
        max_bytes: Longest encoded segment that may travel in a notification, whatever its topic.
        hangs_after_ms: What is under way hangs when nothing was stored for so long; longer where
            much is under way.

    Attributes:
        is_on: Whether something was taken since the store last took an object.
    """

    def __init__(
        self, after_ms: int | None, bytes_per_second: int, max_bytes: int, hangs_after_ms: int
    ) -> None:
        self._after_ms = after_ms
        self._bytes_per_ms = bytes_per_second / 1000
        self._max_bytes = max_bytes
        self._hangs_after_ms = hangs_after_ms
        self._objects: dict[int, _Object] = {}  # by number
        self._waiting: dict[int, _Object] = {}  # those of which something may be taken, in order
        self._begun: dict[int, int] = {}  # when, by number; the first has been under way longest
        self._begun_bytes = 0
        self._failing = 0  # objects
        self._failing_since_ms: int | None = None  # the store; None: it took the last object
        self._stored_ms = 0  # when it did
        self._cutting: set[SealedSegment] = set()
        self._free_ms = 0.0  # when what was taken has used up its share of the rate
        self.is_on = False

    def sealed(self, batch: Batch, now_ms: int) -> None:
        """A batch waits for its upload."""
        if self._after_ms is not None:
            found = _Object(batch, now_ms)
            self._objects[batch.number] = self._waiting[batch.number] = found

    def begun(self, batch: Batch, now_ms: int) -> None:
        """Its upload has begun."""
        if batch.number in self._objects:
            self._begun[batch.number] = now_ms
            self._begun_bytes += batch.size_bytes

    def attempt_failed(self, batch: Batch, begun_ms: int, now_ms: int) -> None:
        """The store did not take it, or did not say so; it is going to be tried again.

        Args:
            batch: Under way.
            begun_ms: When the attempt began.
            now_ms: When it failed.
        """
        found = self._objects.get(batch.number)
        if found is None:
            return
        found.failed_ms = now_ms
        if found.failing_since_ms is None:
            found.failing_since_ms = begun_ms
            self._failing += 1
        if self._failing_since_ms is None:
            self._failing_since_ms = now_ms

    def stored(self, batch: Batch, now_ms: int) -> None:
        """The store has confirmed it."""
        self._failing_since_ms = None
        self._stored_ms = now_ms
        self.is_on = False
        self.ended(batch)

    def ended(self, batch: Batch) -> None:
        """Nobody uploads it any more."""
        found = self._objects.pop(batch.number, None)
        self._waiting.pop(batch.number, None)
        if self._begun.pop(batch.number, None) is not None:
            self._begun_bytes -= batch.size_bytes
        if found is not None and found.failing_since_ms is not None:
            self._failing -= 1

    def take(
        self, now_ms: int, may_take: Callable[[SealedSegment], bool] = lambda _segment: True
    ) -> list[EncodeInline | CutSegment]:
        """The segments that are due and that the rate has room for; they wait for no object.

        Args:
            now_ms: Monotonic time.
            may_take: Whether there is memory for it.
        """
        taken: list[EncodeInline | CutSegment] = []
        for segment in self._due(now_ms, may_take):
            # One cut after the other: the records may be in memory once more meanwhile.
            if self._cutting or self._free_ms >= now_ms + _SLICE_MS:
                break
            self.is_on = True
            segment.route = Route.INLINE
            segment.has_fallen_back = True
            max_bytes = self.max_bytes_of(segment)
            if segment.length_bytes > max_bytes:
                taken.append(self.cutting(segment, max_bytes))
            else:
                self._free_ms = max(self._free_ms, now_ms)
                self._free_ms += segment.length_bytes / self._bytes_per_ms
                taken.append(EncodeInline(segment))
        return taken

    def max_bytes_of(self, segment: SealedSegment) -> int:
        """How long it may be, encoded, to travel in a notification."""
        return min(self._max_bytes, segment.inline_max_bytes)

    def cutting(self, segment: SealedSegment, max_bytes: int) -> CutSegment:
        """Have a segment of several records cut."""
        self._cutting.add(segment)
        return CutSegment(segment, max_bytes)

    def cut(self, segment: SealedSegment, batch: Batch | None) -> None:
        """A segment is cut, or will not be.

        Args:
            segment: Any.
            batch: Of its pieces, which wait for their upload now; None: there are none.
        """
        self._cutting.discard(segment)
        if batch is not None:
            found = self._objects[batch.number] = _Object(batch, None)
            self._waiting = {batch.number: found, **self._waiting}

    def encoded(self, taken_bytes: int, length_bytes: int) -> None:
        """How long a segment became that was taken for what it is before compression."""
        self._free_ms -= (taken_bytes - length_bytes) / self._bytes_per_ms

    def next_ms(self, now_ms: int) -> int | None:
        """When `take` may have more; None: not before something happens."""
        if self._after_ms is None or self._cutting:
            return None
        due_ms = self._next_due_ms(now_ms)
        return None if due_ms is None else max(due_ms, int(self._free_ms))

    def _next_due_ms(self, now_ms: int) -> int | None:
        failing_since_ms = self._store_failing_since(now_ms)
        if not self._failing and failing_since_ms is None:
            return self._hangs_at_ms()
        due_ms = [self._due_ms(found, failing_since_ms) for found in self._waiting.values()]
        return min((ms for ms in due_ms if ms is not None), default=None)

    def _due(
        self, now_ms: int, may_take: Callable[[SealedSegment], bool]
    ) -> Iterator[SealedSegment]:
        """What is due, oldest first; whoever asks for the next one has taken the last."""
        failing_since_ms = self._store_failing_since(now_ms)
        if not self._failing and failing_since_ms is None:
            return
        for found in list(self._waiting.values()):
            due_ms = self._due_ms(found, failing_since_ms)
            if due_ms is None or now_ms < due_ms:
                continue
            segments = found.batch.segments
            is_refused = False
            for index in range(found.next_segment, len(segments)):
                segment = segments[index]
                if self._may_be_sent(segment, found.batch):
                    if may_take(segment):
                        yield segment
                    else:
                        is_refused = True
                if not is_refused:
                    found.next_segment = index + 1
            if not is_refused:
                del self._waiting[found.batch.number]

    def _may_be_sent(self, segment: SealedSegment, batch: Batch) -> bool:
        # A single record that is too long for Kafka needs an object.
        is_too_long = segment.length_bytes > self.max_bytes_of(segment)
        return segment.waits_for(batch) and not (is_too_long and segment.record_count == 1)

    def _due_ms(self, found: _Object, failing_since_ms: int | None) -> int | None:
        """When an object's segments are due, as things stand; None: not at all."""
        after_ms = self._after_ms
        if after_ms is None:
            return None
        if found.sealed_ms is None and failing_since_ms is not None:
            return failing_since_ms
        own_since_ms = found.failing_since_ms
        if own_since_ms is not None and found.failed_ms >= self._stored_ms:
            if failing_since_ms is not None:
                own_since_ms = min(own_since_ms, failing_since_ms)
            return own_since_ms + after_ms
        if failing_since_ms is None or found.sealed_ms is None:
            return None
        return max(found.sealed_ms, failing_since_ms) + max(after_ms, _LEAST_WAIT_MS)

    def _store_failing_since(self, now_ms: int) -> int | None:
        """Since when the store fails; None: it does not, as far as anybody knows."""
        hangs_at_ms = self._hangs_at_ms()
        if self._failing_since_ms is None and hangs_at_ms is not None and now_ms >= hangs_at_ms:
            return hangs_at_ms - self._hangs_after_ms
        return self._failing_since_ms

    def _hangs_at_ms(self) -> int | None:
        """When what is under way hangs, unless the store takes something before."""
        begun_ms = next(iter(self._begun.values()), None)
        if begun_ms is None:
            return None
        slow_ms = self._begun_bytes * _SLOW_MS_PER_MIB >> 20
        return max(begun_ms, self._stored_ms) + max(self._hangs_after_ms, slow_ms)
