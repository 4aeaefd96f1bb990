"""What a debatcher is fed with: notifications into made-up objects, and decoded records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from blobmsg.core.debatcher import Debatcher, Entry, Failure, FailureKind, FetchSection, Run
from blobmsg.format import ByteRange, Codec, Notification, ObjectKey, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

PRODUCER_ID = bytes(range(16))
BYTES_PER_RECORD = 64
#: Header and records of a segment; enough for the format whatever the count.
HEADER_BYTES = 64

TRANSIENT = Failure(FailureKind.TRANSIENT, "away")
ABSENT = Failure(FailureKind.ABSENT, "not there")
MISSING = Failure(FailureKind.MISSING, "gone")
EXPIRED = Failure(FailureKind.EXPIRED, "too late")
REFUSED = Failure(FailureKind.REFUSED, "not allowed")


def object_key(number: int = 0) -> str:
    return ObjectKey("shared", f"{number & 15:x}", "forever", "az1", "ab" * 16, number).encode()


def part_bytes(records: int) -> int:
    return HEADER_BYTES + BYTES_PER_RECORD * records


def part(records: int, start: int = 0, *, stored_bytes: int | None = None) -> Part:
    """A part of `part_bytes(records)`; `stored_bytes` makes it a compressed one."""
    size = part_bytes(records)
    return Part(
        byte_range=ByteRange(start, size if stored_bytes is None else stored_bytes),
        records=records,
        codec=Codec.NONE if stored_bytes is None else Codec.ZSTD,
        uncompressed_bytes=size,
        checksum=0,
        first_timestamp_ms=0,
        last_timestamp_ms=0,
        producer_id=PRODUCER_ID,
    )


def notification(*parts: Part, key: str | None = None, store: str = "") -> Notification:
    return Notification(
        parts=parts,
        sequence=0,
        producer_id=PRODUCER_ID,
        key=key or object_key(),
        store=store,
    )


@dataclass(slots=True)
class FakeRecords:
    """Decoded records of one part, told apart by their place."""

    partition: int
    kafka_offset: int
    first_record_index: int
    records: int

    def label(self, index: int) -> tuple[int, int, int]:
        """Partition, Kafka offset, index in the notification."""
        return (self.partition, self.kafka_offset, self.first_record_index + index)


def decode(entry: Entry, part_index: int) -> FakeRecords:
    """What a fetcher would make of a part."""
    assert entry.notification is not None
    parts = entry.notification.parts
    return FakeRecords(
        entry.flow.key[1],
        entry.kafka_offset,
        sum(earlier.records for earlier in parts[:part_index]),
        parts[part_index].records,
    )


def decoded(section: FetchSection) -> list[Any]:
    """The answer to a section when all goes well."""
    return [decode(entry, part_index) for entry, part_index, _ in section.parts]


def answer_all(core: Debatcher, sections: Sequence[FetchSection], now_ms: int = 0) -> None:
    for section in sections:
        core.fetched(section, decoded(section), now_ms)


def inline_records(
    partition: int, kafka_offset: int, counts: Sequence[int]
) -> tuple[list[FakeRecords], int]:
    """Sources of an inline or plain Kafka record, and how many records they have."""
    sources: list[FakeRecords] = []
    for count in counts:
        before = sum(source.records for source in sources)
        sources.append(FakeRecords(partition, kafka_offset, before, count))
    return sources, sum(counts)


def take(core: Debatcher, most: int = 1_000_000) -> list[Any]:
    """Records (their labels) and entries as the core hands them out, as a shell takes them."""
    taken: list[Any] = []
    while len(taken) < most:
        upcoming = core.next_run()
        if upcoming is None:
            break
        if not isinstance(upcoming, Run):
            taken.append(upcoming)
            continue
        while upcoming.index < upcoming.end and len(taken) < most:
            taken.append(upcoming.source.label(upcoming.index))
            upcoming.index += 1
    return taken
