"""Objects past the expiry hour in their name: found without listing what lives on, and deleted.

Decides by the name alone (`format/object_key.py`): no object is read, Kafka is not asked, and what
has no such name is left alone.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from blobmsg.format.errors import FormatError
from blobmsg.format.object_key import RESERVED_ISOLATIONS, ObjectKey

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from blobmsg.clock import Clock
    from blobmsg.store.base import ObjectInfo, Store

__all__ = ["ExpiredObjects", "delete_paced"]

# As many as S3 deletes with one request.
_DELETE_AT_ONCE: Final = 1000
# Sorts right behind the slash: behind everything in a folder, before everything behind it.
_BEHIND_SLASH: Final = "0"


class ExpiredObjects:
    """The objects of a store that are past their expiry hour, in the order of their names.

    Names sort by isolation, shard and expiry hour, so the first that lives ends its shard and is
    never followed by another: a listing takes one request for each shard and each 1,000 expired
    objects, however many live.

    Args:
        store: Where; asked anew by each iteration.
        timestamp_ms: Wall time, ms since 1970 UTC.

    Attributes:
        foreign_keys: Names seen that are no object's; they are left alone.

    Threads: one.
    """

    def __init__(self, store: Store, timestamp_ms: int) -> None:
        self._store = store
        self._timestamp_ms = timestamp_ms
        self.foreign_keys = 0

    def __iter__(self) -> Iterator[ObjectInfo]:
        self.foreign_keys = 0
        start_after: str | None = ""
        while start_after is not None:
            start_after = yield from self._until_living(start_after)

    def _until_living(self, start_after: str) -> Generator[ObjectInfo, None, str | None]:
        """Give expired objects up to one that lives; where to go on, None: nowhere."""
        for found in self._store.list_keys(start_after=start_after):
            try:
                key = ObjectKey.decode(found.key)
            except FormatError:
                isolation = found.key.partition("/")[0]
                if isolation in RESERVED_ISOLATIONS:
                    return isolation + _BEHIND_SLASH
                self.foreign_keys += 1
                continue
            expiry_ms = key.expiry_ms()
            if expiry_ms is None or expiry_ms > self._timestamp_ms:
                return f"{key.isolation}/{key.shard}{_BEHIND_SLASH}"
            yield found
        return None


def delete_paced(
    store: Store, expired: ExpiredObjects, clock: Clock, objects_per_second: float
) -> Iterator[list[ObjectInfo]]:
    """Delete objects, not faster than asked; a program that was ended goes on where it was.

    Args:
        store: Theirs.
        expired: Which.
        clock: Time.
        objects_per_second: Deleted at most, over the whole run.

    Yields:
        Those that are gone, as many as one request deletes.
    """
    started_ms, deleted = clock.now_ms(), 0
    found = iter(expired)
    at_once = max(1, min(_DELETE_AT_ONCE, int(objects_per_second)))
    while objects := list(islice(found, at_once)):
        due_ms = started_ms + deleted * 1000 / objects_per_second
        clock.sleep(max(0.0, due_ms - clock.now_ms()))
        store.delete([each.key for each in objects])
        deleted += len(objects)
        yield objects
