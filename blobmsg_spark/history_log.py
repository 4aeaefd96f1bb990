"""The history of one topic in a store: its manifests read, a new one committed, what is left over.

A shell around the store; what a manifest is stands in `history_manifest`. A commit is one request
that succeeds only where the next manifest is not there yet, so of two runs that began alike one
fails, whatever they do otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from blobmsg.errors import BlobmsgError, ConfigError, CorruptSegment, UnsupportedFormat
from blobmsg.format.errors import FormatError, UnsupportedFormatError
from blobmsg.format.ranges import ByteRange
from blobmsg_spark.history_keys import (
    files_prefix,
    manifest_key,
    manifest_number,
    manifests_prefix,
    name_of_file,
    parse_file_name,
)
from blobmsg_spark.history_manifest import (
    MOST_MANIFEST_BYTES,
    check_order,
    decode_manifest,
    encode_manifest,
    first_of_rolled_up,
    next_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from blobmsg.store.base import ObjectInfo
    from blobmsg_spark.history_manifest import HistoryFile, Manifest
    from blobmsg_spark.history_store import HistoryStore

__all__ = ["HistoryLog"]


class HistoryLog:
    """What a topic's history is now, as far as this run has looked.

    Args:
        opened: The store that the history is in.
        topic: Whose history.

    Attributes:
        topic: Likewise.
        newest: The newest manifest that was seen; None: there was none.

    Threads: one.
    """

    def __init__(self, opened: HistoryStore, topic: str) -> None:
        self.topic = topic
        self.newest: Manifest | None = None
        self._opened = opened
        self._size_bytes: dict[int, int] = {}  # of the manifests, by number

    @property
    def ends(self) -> Mapping[int, int]:
        """By partition: virtual offset behind all that the history has."""
        return {} if self.newest is None else self.newest.ends

    def refresh(self) -> None:
        """Look for manifests that are newer than those seen.

        Raises:
            CorruptSegment: The newest one is damaged.
            UnsupportedFormat: Only a later version of blobmsg knows it.
            BlobmsgError: The store refuses or does not answer.
        """
        seen = 0 if self.newest is None else self.newest.number
        after = manifest_key(self.topic, seen) if seen else ""
        for info in self._opened.store.list_keys(manifests_prefix(self.topic), after):
            number = manifest_number(self.topic, info.key)
            if number is not None:
                self._size_bytes[number] = info.size_bytes
        number = max(self._size_bytes, default=0)
        if number > seen:
            self.newest = self._read(number)

    def manifests(self, since: int = 1) -> Iterator[Manifest]:
        """Newest first: manifests that together have all files, of those from `since` on.

        Raises:
            ObjectMissing: One is not there.
            CorruptSegment: One is damaged.
        """
        found = self.newest
        while found is not None:
            yield found
            number = found.since - 1
            found = self._read(number) if number >= since else None

    def files(self) -> list[HistoryFile]:
        """All files, in the order of partition and offset.

        Raises:
            CorruptSegment: Two of them have an offset in common, or a manifest is damaged.
        """
        files = self._sorted(file for manifest in self.manifests() for file in manifest.files)
        try:
            check_order(files)
        except FormatError as error:
            place = self._opened.store.describe()
            raise CorruptSegment(
                f"the history of {self.topic} in {place} is damaged: {error}; its manifests were "
                "changed, or the store took two of one name"
            ) from error
        return files

    def commit(
        self, run: str, topic_id: str, ends: Mapping[int, int], files: Sequence[HistoryFile]
    ) -> Manifest:
        """Make files visible, all at once; what was seen last must still be the newest.

        Args:
            run: Who wrote them.
            topic_id: Kafka's id of the topic.
            ends: Of the partitions that were read, where the history ends now.
            files: In the store already.

        Raises:
            BlobmsgError: `_CONFLICT`: another run has committed since; nothing of this one counts.
            ConfigError: The store does not refuse a second object of one name.
        """
        number = 1 if self.newest is None else self.newest.number + 1
        since = first_of_rolled_up(number)
        earlier: list[HistoryFile] = []
        if since < number:
            for manifest in self.manifests(since):
                earlier += manifest.files
        manifest = next_manifest(
            self.newest,
            topic=self.topic,
            topic_id=topic_id,
            run=run,
            timestamp_ms=self._opened.now_timestamp_ms(),
            ends=ends,
            files=files,
            earlier=earlier,
        )
        self._check_store()
        data = encode_manifest(manifest)
        if not self._put_manifest(number, data):
            # An earlier attempt whose answer was lost looks like another's manifest.
            there = self._opened.store.get_tail(manifest_key(self.topic, number), len(data) + 1)
            if there != data:
                raise BlobmsgError(
                    f"another run has committed manifest {number} of the history of {self.topic} "
                    f"in {self._opened.store.describe()} while this one ran: nothing of this one "
                    "is visible; run it again, it goes on where the other one ended (and see that "
                    "only one runs at a time)",
                    code=KafkaError._CONFLICT,
                    topic=self.topic,
                )
        self.newest = manifest
        self._size_bytes[number] = len(data)
        return manifest

    def _check_store(self) -> None:
        """Refuse a store that ignores the condition: two runs at once could lose records there.

        Asked with a manifest that is there; the same bytes again would do no harm.
        """
        if self.newest is None:
            return
        number = self.newest.number
        key = manifest_key(self.topic, number)
        # Read again, for a later version may have written what this one leaves out.
        there = self._opened.store.get_tail(key, self._size_bytes[number])
        if self._put_manifest(number, there):
            raise ConfigError(
                f"{self._opened.store.describe()} stores an object again that must be stored only "
                "if it is absent (If-None-Match): it is too old to keep a history; upgrade the "
                "store, or name another one"
            )

    def _put_manifest(self, number: int, data: bytes) -> bool:
        deadline_ms = self._opened.deadline_ms()
        key = manifest_key(self.topic, number)
        return self._opened.store.put_if_absent(key, data, deadline_ms=deadline_ms)

    def left_over(self) -> Iterator[ObjectInfo]:
        """Files that no manifest names and none will: of failed, killed and beaten runs.

        A run begins where the newest manifest ends, and commits only directly behind that one. So
        what begins before that place and is not in a manifest never will be; what begins behind
        it may be of a run that is under way.

        Raises:
            CorruptSegment: A manifest is damaged.
        """
        named = {file.name for file in self.files()}
        ends = self.ends
        for info in self._opened.store.list_keys(files_prefix(self.topic)):
            name = name_of_file(self.topic, info.key)
            try:
                partition, first_offset, _ = parse_file_name(name)
            except FormatError:
                continue  # not ours
            if name not in named and first_offset < ends.get(partition, 0):
                yield info

    @staticmethod
    def _sorted(files: Iterator[HistoryFile]) -> list[HistoryFile]:
        return sorted(files, key=lambda found: (found.partition, found.first_offset))

    def _read(self, number: int) -> Manifest:
        key = manifest_key(self.topic, number)
        store = self._opened.store
        try:
            return self._decoded(number, self._size_bytes.get(number) or store.size(key))
        except UnsupportedFormatError as error:
            raise UnsupportedFormat(
                f"manifest {key!r} in {store.describe()} can't be read here: {error}; upgrade "
                "blobmsg",
                key=key,
            ) from error
        except FormatError as error:
            raise CorruptSegment(
                f"manifest {key!r} in {store.describe()} is damaged: {error}; restore it, or let "
                "a new history begin elsewhere",
                key=key,
            ) from error

    def _decoded(self, number: int, size_bytes: int) -> Manifest:
        if not 0 < size_bytes <= MOST_MANIFEST_BYTES:
            raise FormatError(f"it has {size_bytes} bytes")
        data = self._opened.store.get_range(
            manifest_key(self.topic, number),
            ByteRange(0, size_bytes),
            deadline_ms=self._opened.deadline_ms(),
        )
        manifest = decode_manifest(data)
        if (manifest.topic, manifest.number) != (self.topic, number):
            raise FormatError(f"it is number {manifest.number} of topic {manifest.topic}")
        return manifest
