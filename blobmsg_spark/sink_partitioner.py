"""Partitions for the records of a topic, column by column: those of the Kafka producer's.

Decides the partition of each row: what the row says, else librdkafka's partitioner by its name, to
the bit where a hash decides. Where chance does, librdkafka stays with a partition for a time; here
records come as fast as they are taken, so it is for so many bytes.
"""

from __future__ import annotations

import random
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import KafkaError

from blobmsg.core.partitioner import create_partitioner, is_left_to_chance
from blobmsg.errors import BlobmsgError
from blobmsg.inner_config import key_hashes

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy.typing as npt

    from blobmsg.kafka_settings import KafkaView

__all__ = ["SinkPartitioner"]

# Far above the 8 KiB from which on a segment is worth its notification, and far below a batch, so
# that an object has something for many partitions.
_STICKY_BYTES: Final = 256 << 10


class SinkPartitioner:
    """Chooses partitions for the records of one topic in one task.

    Args:
        topic: Its name, for errors.
        view: The user's settings for librdkafka that we interpret.
        partition_count: How many it has.
        unavailable: Those without a leader, which chance avoids.
        rng: Where chance comes from.

    Threads: one.
    """

    def __init__(
        self,
        topic: str,
        view: KafkaView,
        partition_count: int,
        unavailable: Collection[int],
        rng: np.random.Generator,
    ) -> None:
        self._topic = topic
        self._name = view.partitioner
        self._count = partition_count
        self._rng = rng
        # Chance is ours, so it is only asked where a hash decides.
        self._hashing = create_partitioner(self._name, random.Random(), 0, **key_hashes())  # noqa: S311
        available = [number for number in range(partition_count) if number not in unavailable]
        self._available = np.array(available or range(partition_count), dtype=np.int32)
        self._is_sticky = view.sticky_partitioning_linger_ms > 0
        self._sticky_at = self._throw(1)[0]
        self._sticky_used = 0

    def partitions(
        self, keys: Any, sizes: npt.NDArray[np.int64], given: npt.NDArray[np.int32] | None
    ) -> npt.NDArray[np.int32]:
        """The partition of each record.

        Args:
            keys: Arrow's binaries.
            sizes: Of each record about how many bytes.
            given: What rows say, -1 where they don't; None: none does.

        Raises:
            BlobmsgError: A row names a partition that the topic does not have.
        """
        if given is None:
            return self._choose(keys, sizes)
        if int(given.max(initial=-1)) >= self._count:
            raise BlobmsgError(
                f"column partition has {int(given.max())}, but topic {self._topic} has "
                f"{self._count} partitions, from 0 on",
                code=KafkaError._UNKNOWN_PARTITION,
                topic=self._topic,
            )
        open_places = np.flatnonzero(given < 0)
        if not len(open_places):
            return given
        found = given.copy()
        found[open_places] = self._choose(keys.take(open_places), sizes[open_places])
        return found

    def _choose(self, keys: Any, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        found = np.empty(len(keys), dtype=np.int32)
        by_chance = self._by_chance(keys)
        if by_chance.all():
            hashed = by_chance[:0]
        else:
            hashed = ~by_chance
            found[hashed] = self._hash(keys.filter(hashed) if by_chance.any() else keys)
        if by_chance.any():
            found[by_chance] = self._draw(keys, sizes, by_chance)
        return found

    def _by_chance(self, keys: Any) -> npt.NDArray[np.bool_]:
        """Of each record whether chance decides."""
        found = np.full(len(keys), is_left_to_chance(self._name, b"a key"))
        for key in (None, b""):
            is_key = keys.is_null() if key is None else pc.equal(keys, b"").fill_null(False)
            places = is_key.to_numpy(zero_copy_only=False)
            found[places] = is_left_to_chance(self._name, key)
        return found

    def _hash(self, keys: Any) -> npt.NDArray[np.int32]:
        # The only place with an object per record: 0.10 us for a key of 20 bytes by CRC-32, 0.14
        # for 36. Byte after byte over whole columns numpy took 0.07 and 0.11, and loses beyond.
        cells = keys.fill_null(b"").to_pylist()
        if self._hashing.hashes_crc32:
            digests = np.fromiter(map(crc32, cells), np.uint32, len(cells))
            return (digests % np.uint32(self._count)).astype(np.int32)
        chosen = map(self._hashing.partition, cells, repeat(self._count), repeat(0))
        return np.fromiter(chosen, np.int32, len(cells))

    def _draw(
        self, keys: Any, sizes: npt.NDArray[np.int64], by_chance: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.int32]:
        if not self._is_sticky:
            return self._throw(int(by_chance.sum()))
        if self._name == "random":  # sticky without a key only, as librdkafka's
            with_key = keys.is_valid().to_numpy(zero_copy_only=False)
            found = self._throw(len(keys))
            found[~with_key] = self._stick(sizes[~with_key])
            return found
        return self._stick(sizes[by_chance])

    def _stick(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Another partition every so many bytes, also across batches."""
        if not len(sizes):
            return np.empty(0, dtype=np.int32)
        ends = self._sticky_used + np.cumsum(sizes)  # counted from where this run began
        runs = (ends - sizes) // _STICKY_BYTES
        thrown = self._throw(int(runs[-1]) + 1)
        thrown[0] = self._sticky_at
        self._sticky_at = thrown[-1]
        self._sticky_used = int(ends[-1] - runs[-1] * _STICKY_BYTES)
        found: npt.NDArray[np.int32] = thrown[runs]
        return found

    def _throw(self, count: int) -> npt.NDArray[np.int32]:
        places = self._rng.integers(len(self._available), size=count)
        thrown: npt.NDArray[np.int32] = self._available[places]
        return thrown
