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
        gather_ms: How long an object's first notification waits for others of the same object:
            they come from different brokers, and each that comes in time saves a GET.

    Threads: under the consumer's lock.
    """

    def __init__(
        self, *, max_bytes: int, fetch_slots: int, max_section_bytes: int, gather_ms: int
    ) -> None:
        self.max_bytes = max_bytes
        self._gather_ms = gather_ms
        self._gathering_since: dict[_ObjectName, int] = {}  # objects that `plan` has seen wait
        self._fetch_slots = fetch_slots
        self._max_section_bytes = max_section_bytes
        # By object, for entries of one object share its GETs; in order of first arrival.
        self._waiting: dict[_ObjectName, list[Entry]] = {}
        self.fetches_in_flight = 0
        self.held_bytes = 0

    def wait(self, entry: Entry) -> None:
        """Take an entry that is to be fetched."""
        entry.state = EntryState.WAITING
        self._waiting.setdefault(_object_of(entry), []).append(entry)
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
        entries = self._waiting[name]
        entries.remove(entry)
        if not entries:
            self._forget(name)

    def _forget(self, name: _ObjectName) -> None:
        del self._waiting[name]
        self._gathering_since.pop(name, None)

    @property
    def has_waiting(self) -> bool:
        """Whether an entry waits that may be begun."""
        return any(any(map(_is_front, entries)) for entries in self._waiting.values())

    def waiting(self) -> Iterator[Entry]:
        """The entries that wait, in the order in which they are begun."""
        for entries in self._waiting.values():
            yield from entries

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
        """The GETs to begin now, within slots and memory, in order of arrival.

        The first that does not fit holds back those behind it, else large ones would never come.
        """
        for name in self._waiting:
            self._gathering_since.setdefault(name, now_ms)
        sections: list[FetchSection] = []
        while self.fetches_in_flight < self._fetch_slots:
            first = self.first_gathered(now_ms)
            if first is None or self.would_overflow(first):
                break
            sections += self.begin(first)
        return sections

    def first_gathered(self, now_ms: int) -> Entry | None:
        """The first entry to begin, unless it is still time to wait for its neighbours.

        Only the front of a flow: what lies behind it could not be handed out before it, and would
        hold memory that the fronts of other flows need. So there is none behind a head that failed.
        """
        for name, entries in self._waiting.items():
            front = next(filter(_is_front, entries), None)
            if front is not None:
                since_ms = self._gathering_since.get(name, now_ms)
                return front if now_ms - since_ms >= self._gather_ms else None
        return None

    def begin(self, first: Entry) -> list[FetchSection]:
        """Begin a flow's front, whether it fits or not, and all others of its object that fit."""
        store, key = name = _object_of(first)
        taken = [first]
        self.hold(first, first.size_bytes)
        first.flow.waiting.popleft()
        kept: list[Entry] = []
        for entry in self._waiting[name]:
            if entry is first:
                continue
            if self.would_overflow(entry) or not _is_front(entry):
                kept.append(entry)
            else:
                self.hold(entry, entry.size_bytes)
                entry.flow.waiting.popleft()
                taken.append(entry)
        if kept:
            self._waiting[name] = kept
        else:
            self._forget(name)
        sections = [
            FetchSection(store, key, section, tuple(items))
            for section, items in self._sections(_begin_all(taken))
        ]
        self.fetches_in_flight += len(sections)
        return sections

    def _sections(self, items: list[_Item]) -> list[tuple[ByteRange, list[_Item]]]:
        """Merge the parts' ranges; the bytes between them are charged like those in them."""
        sections = self._merge(items, _COALESCE_GAP_BYTES)
        gaps = [_gaps(section, inside) for section, inside in sections]
        if self.held_bytes + sum(map(sum, gaps)) > self.max_bytes:
            return self._merge(items, _NEIGHBOUR_GAP_BYTES)
        for (_, inside), section_gaps in zip(sections, gaps, strict=True):
            for (entry, _, _), gap_bytes in zip(inside, section_gaps, strict=True):
                self.hold(entry, gap_bytes)
        return sections

    def _merge(self, items: list[_Item], max_gap_bytes: int) -> list[tuple[ByteRange, list[_Item]]]:
        ranges = [part.byte_range for _, _, part in items]
        sections: list[tuple[ByteRange, list[_Item]]] = []
        left = items
        for section in coalesce(ranges, max_gap_bytes, self._max_section_bytes):
            # Sections may overlap when parts do; each part is fetched once all the same.
            inside = [item for item in left if section.contains(item[2].byte_range)]
            left = [item for item in left if not section.contains(item[2].byte_range)]
            sections.append((section, inside))
        return [(section, inside) for section, inside in sections if inside]


def _is_front(entry: Entry) -> bool:
    flow = entry.flow
    return flow.waiting[0] is entry and flow.entries[0].state is not EntryState.FAILED


def _begin_all(entries: list[Entry]) -> list[_Item]:
    """Move entries to FETCHING; their parts in the order of their place."""
    items: list[_Item] = []
    for entry in entries:
        parts = _notification_of(entry).parts
        entry.state = EntryState.FETCHING
        entry.failure = None
        entry.sources = [None] * len(parts)
        entry.parts_in_flight = len(parts)
        items += [(entry, index, part) for index, part in enumerate(parts)]
    return sorted(items, key=lambda item: item[2].byte_range)


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
