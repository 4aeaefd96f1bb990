"""Gaps in the sequences that producers give their notifications (DESIGN.md, rule 10).

Decides what counts as a gap: the sequence of a partition's next notification from one producer is
more than one higher than that of the last. Never an error, for aborts, timeouts and retention make
gaps too; nothing is dropped because of one, and a repeat is the inner producer's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blobmsg.core.flow import FlowKey

__all__ = ["Sequences"]

# Partition and producer pairs to remember, about 150 bytes each: 1,000 partitions of 64 producers.
_MAX_LAST: Final = 65_536


class Sequences:
    """The last sequence of every producer in every partition. Threads: under the consumer's lock.

    Args:
        max_last: How many to remember. Beyond it a producer of the partition where nothing came
            for longest is forgotten; its next notification begins anew and is no gap.
    """

    def __init__(self, max_last: int = _MAX_LAST) -> None:
        self._max_last = max_last
        # Both levels in the order of the last arrival.
        self._last: dict[FlowKey, dict[bytes, int]] = {}
        self._count = 0
        self.gaps = 0

    def received(self, key: FlowKey, producer_id: bytes, sequence: int) -> None:
        """A notification came.

        Args:
            key: Topic and partition.
            producer_id: Who gave the sequence.
            sequence: Not negative.
        """
        producers = self._last.pop(key, None) or {}
        self._last[key] = producers
        last = producers.pop(producer_id, None)
        producers[producer_id] = sequence
        if last is None:
            self._count += 1
            if self._count > self._max_last:
                self._forget_oldest()
        elif sequence > last + 1:
            self.gaps += 1

    def _forget_oldest(self) -> None:
        key, producers = next(iter(self._last.items()))
        del producers[next(iter(producers))]
        if not producers:
            del self._last[key]
        self._count -= 1

    def forget(self, key: FlowKey) -> None:
        """What comes next of this partition need not follow what came (a seek, an assignment)."""
        self._count -= len(self._last.pop(key, ()))
