"""Which notifications are fetched next, which ranges share a GET, and what that holds in memory.

Decides: the order of fetches (of arrival), what fits into the memory limit, which parts of one
object become one section. Never: what a failure leads to, in which order records are handed out
(`debatcher`), how bytes are fetched.

An entry waits here from `wait` until `plan` or `begin` starts its fetch, or `withdraw` takes it
back. What it holds is charged when the fetch begins and released once, by `release`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from blobmsg.core.flow import Entry, EntryState
from blobmsg.format.codec import Codec
from blobmsg.format.ranges import ByteRange, coalesce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from blobmsg.format.notification import Notification, Part

__all__ = ["FetchSection", "Prefetch"]

_ObjectName: TypeAlias = tuple[str, str]  # store name, key
_Item: TypeAlias = "tuple[Entry, int, Part]"

# Ranges of one object closer than this share a GET: 256 KiB is about 3 ms at 100 MB/s, less than a
# request's own latency, and a GET is what costs money.
_COALESCE_GAP_BYTES: Final = 256 * 1024
# While a consumer reads what has piled up, notifications of one object come partition after
# partition: of 33 objects in 120 partitions within 0.3 s (3,960 notifications, Intel Xeon VM). An
# object waits for so many times `gather_ms` at most.
_GATHER_MOST_TIMES: Final = 20
# When memory is short only neighbours do: segments begin at multiples of 8.
_NEIGHBOUR_GAP_BYTES: Final = 7


@dataclass(frozen=True, slots=True, eq=False)
class FetchSection:
    """One GET: a section of one object and the parts that lie in it.

    Args:
        store: The notification's store name; "" for the default.
        key: The object's key below the store's prefix.
        section: The bytes to get.
        parts: Entry, index of the part in its notification, the part.
    """

    store: str
    key: str
    section: ByteRange
    parts: tuple[tuple[Entry, int, Part], ...]


class Prefetch:
    """Entries that wait for a fetch, and the memory of those that don't any more.

    Args:
        max_bytes: Limit of decoded and in-flight bytes.
        fetch_slots: With this many GETs in flight no further object is begun.
        max_section_bytes: Largest GET made by merging neighbours.
        gather_ms: An object is begun when no notification of it has come for so long: they come
            from different brokers, and each that comes in time saves a GET. At most 20 times as
            long.

    Threads: under the consumer's lock.
    """

    def __init__(
        self, *, max_bytes: int, fetch_slots: int, max_section_bytes: int, gather_ms: int
    ) -> None:
        self.max_bytes = max_bytes
        self._gather_ms = gather_ms
        self._fetch_slots = fetch_slots
        self._max_section_bytes = max_section_bytes
        # Entries of one object share its GETs; in order of first arrival.
        self._waiting: dict[_ObjectName, _WaitingObject] = {}
        self.fetches_in_flight = 0
        self.held_bytes = 0

    def wait(self, entry: Entry) -> None:
        """Take an entry that is to be fetched."""
        entry.state = EntryState.WAITING
        self._waiting.setdefault(_object_of(entry), _WaitingObject()).add(entry)
        waiting = entry.flow.waiting
        place = len(waiting)
        # A fetch that failed, or a resumed partition, brings back what lies before the others.
        while place and waiting[place - 1].kafka_offset > entry.kafka_offset:
            place -= 1
        waiting.insert(place, entry)

    def withdraw(self, entry: Entry) -> None:
        """An entry that waits is not to be fetched, for now or for ever."""
        entry.flow.waiting.remove(entry)
        name = _object_of(entry)
        waiting = self._waiting[name]
        waiting.remove(entry)
        if not waiting.entries:
            del self._waiting[name]

    @property
    def has_waiting(self) -> bool:
        """Whether an entry waits that may be begun."""
        return any(any(map(_is_front, waiting.entries)) for waiting in self._waiting.values())

    def waiting(self) -> Iterator[Entry]:
        """The entries that wait, in the order in which they are begun."""
        for waiting in self._waiting.values():
            yield from waiting.entries

    def hold(self, entry: Entry, size_bytes: int) -> None:
        """Charge more bytes for an entry."""
        entry.held_bytes += size_bytes
        self.held_bytes += size_bytes

    def release(self, entry: Entry) -> None:
        """Let go of what an entry holds."""
        self.held_bytes -= entry.held_bytes
        entry.held_bytes = 0
        entry.sources = []

    def would_overflow(self, entry: Entry) -> bool:
        """Whether the entry does not fit into what memory is left."""
        return self.held_bytes + entry.size_bytes > self.max_bytes

    def plan(self, now_ms: int) -> list[FetchSection]:
        """The GETs to begin now, within slots and memory, in the order in which objects came.

        Those that still gather hold nobody back. The first that does not fit does, else large ones
        would never come. One of more than half of the limit is begun in portions: while half of it
        is begun, the other half keeps the user busy.
        """
        for waiting in self._waiting.values():
            waiting.look(now_ms)
        sections: list[FetchSection] = []
        while self.fetches_in_flight < self._fetch_slots:
            first = self.first_gathered(now_ms)
            if first is None or not self._is_roomy_for(first):
                break
            sections += self.begin(first)
        return sections

    def _is_roomy_for(self, first: Entry) -> bool:
        """Whether there is room for its whole object, or at least for a large part of it."""
        if self.would_overflow(first):
            return False
        whole_bytes = self._waiting[_object_of(first)].whole_bytes(self._max_section_bytes)
        return self.held_bytes + min(whole_bytes, self.max_bytes // 2) <= self.max_bytes

    def first_gathered(self, now_ms: int) -> Entry | None:
        """The first entry to begin whose object has gathered.

        Only the front of a flow: what lies behind it could not be handed out before it, and would
        hold memory that the fronts of other flows need. So there is none behind a head that failed.
        """
        for waiting in self._waiting.values():
            if waiting.is_gathered(now_ms, self._gather_ms):
                front = next(filter(_is_front, waiting.entries), None)
                if front is not None:
                    return front
        return None

    def begin(self, first: Entry) -> list[FetchSection]:
        """Begin a flow's front, whether it fits or not, and with it what of its object fits.

        In the order of their bytes, from the front on, so that what is begun are neighbours.
        """
        store, key = name = _object_of(first)
        waiting = self._waiting[name]
        entries = sorted(waiting.entries, key=_start_of)
        place = entries.index(first)
        taken: list[Entry] = []
        for entry in entries[place:] + entries[:place]:
            if entry is not first and self.would_overflow(entry):
                break
            if _is_front(entry):
                self.hold(entry, entry.size_bytes)
                entry.flow.waiting.popleft()
                taken.append(entry)
        items = _begin_all(taken)
        waiting.keep_waiting()
        if not waiting.entries:
            del self._waiting[name]
        sections = [
            FetchSection(store, key, section, tuple(items))
            for section, items in self._sections(items)
        ]
        self.fetches_in_flight += len(sections)
        return sections

    def _sections(self, items: list[_Item]) -> list[tuple[ByteRange, list[_Item]]]:
        """Merge the parts' ranges; the bytes between them are charged like those in them."""
        sections = _merge(items, _COALESCE_GAP_BYTES, self._max_section_bytes)
        gaps = [_gaps(section, inside) for section, inside in sections]
        if self.held_bytes + sum(map(sum, gaps)) > self.max_bytes:
            return _merge(items, _NEIGHBOUR_GAP_BYTES, self._max_section_bytes)
        for (_, inside), section_gaps in zip(sections, gaps, strict=True):
            for (entry, _, _), gap_bytes in zip(inside, section_gaps, strict=True):
                self.hold(entry, gap_bytes)
        return sections


class _WaitingObject:
    """The entries of one object that wait, and how long they have been coming."""

    __slots__ = ("_first_ms", "_has_more", "_last_ms", "_whole_bytes", "entries")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._has_more = False  # since the last look
        self._first_ms: int | None = None
        self._last_ms = 0
        self._whole_bytes: int | None = None  # computed when asked for

    def add(self, entry: Entry) -> None:
        """One more waits."""
        self.entries.append(entry)
        self._has_more = True
        self._whole_bytes = None

    def remove(self, entry: Entry) -> None:
        """One waits no more."""
        self.entries.remove(entry)
        self._whole_bytes = None

    def keep_waiting(self) -> None:
        """Those that have been begun wait no more."""
        self.entries = [entry for entry in self.entries if entry.state is EntryState.WAITING]
        self._whole_bytes = None

    def whole_bytes(self, max_section_bytes: int) -> int:
        """What all of them would hold, the bytes between them included."""
        if self._whole_bytes is None:
            sections = _merge(_items_of(self.entries), _COALESCE_GAP_BYTES, max_section_bytes)
            gap_bytes = sum(sum(_gaps(section, inside)) for section, inside in sections)
            self._whole_bytes = gap_bytes + sum(entry.size_bytes for entry in self.entries)
        return self._whole_bytes

    def look(self, now_ms: int) -> None:
        """See whether more have come since the last look."""
        if self._first_ms is None:
            self._first_ms = now_ms
        if self._has_more:
            self._has_more = False
            self._last_ms = now_ms

    def is_gathered(self, now_ms: int, gather_ms: int) -> bool:
        """Whether none has come for so long, or they have been coming for too long."""
        if self._first_ms is None:
            return False
        waited_ms = now_ms - self._first_ms
        return now_ms - self._last_ms >= gather_ms or waited_ms >= _GATHER_MOST_TIMES * gather_ms


def _start_of(entry: Entry) -> int:
    return _notification_of(entry).parts[0].byte_range.start


def _is_front(entry: Entry) -> bool:
    flow = entry.flow
    return flow.waiting[0] is entry and flow.entries[0].state is not EntryState.FAILED


def _begin_all(entries: list[Entry]) -> list[_Item]:
    """Move entries to FETCHING; their parts in the order of their place."""
    for entry in entries:
        parts = _notification_of(entry).parts
        entry.state = EntryState.FETCHING
        entry.failure = None
        entry.sources = [None] * len(parts)
        entry.parts_in_flight = len(parts)
    return _items_of(entries)


def _items_of(entries: list[Entry]) -> list[_Item]:
    """Their parts, in the order of their place."""
    items = [
        (entry, index, part)
        for entry in entries
        for index, part in enumerate(_notification_of(entry).parts)
    ]
    return sorted(items, key=lambda item: item[2].byte_range)


def _merge(
    items: list[_Item], max_gap_bytes: int, max_section_bytes: int
) -> list[tuple[ByteRange, list[_Item]]]:
    """Parts, in the order of their place, in sections of at most so much."""
    ranges = [part.byte_range for _, _, part in items]
    sections: list[tuple[ByteRange, list[_Item]]] = []
    left = items
    for section in coalesce(ranges, max_gap_bytes, max_section_bytes):
        # Sections may overlap when parts do; each part is fetched once all the same.
        inside = [item for item in left if section.contains(item[2].byte_range)]
        left = [item for item in left if not section.contains(item[2].byte_range)]
        sections.append((section, inside))
    return [(section, inside) for section, inside in sections if inside]


def _gaps(section: ByteRange, items: list[_Item]) -> list[int]:
    """For each part, the bytes between the part before it and itself."""
    gaps: list[int] = []
    reached = section.start
    for _, _, part in items:
        gaps.append(max(0, part.byte_range.start - reached))
        reached = max(reached, part.byte_range.end)
    return gaps


def size_bytes_of(notification: Notification) -> int:
    """Memory its parts take: the bytes as fetched and, where compressed, as decoded too."""
    return sum(
        part.uncompressed_bytes + (0 if part.codec is Codec.NONE else part.byte_range.length)
        for part in notification.parts
    )


def _object_of(entry: Entry) -> _ObjectName:
    notification = _notification_of(entry)
    if notification.key is None:
        raise AssertionError("an inline notification waits for a fetch")
    return notification.store, notification.key


def _notification_of(entry: Entry) -> Notification:
    if entry.notification is None:
        raise AssertionError("an entry without a notification waits for a fetch")
    return entry.notification
