"""Defects to plant in what the simulation drives: each breaks one guarantee, in one line or two."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools import planted

TOP = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True, slots=True)
class LineDefect:
    """A line of the code, and what stands there instead.

    Attributes:
        name: What is broken.
        file: Below `blobmsg/`.
        before: Stands there once.
        after: The defect.
    """

    name: str
    file: str
    before: str
    after: str

    def plant(self, tree: Path) -> None:
        """Plant it in a copy of the repository."""
        path = tree / "blobmsg" / self.file
        text = path.read_text()
        assert text.count(self.before) == 1, f"{self.name}: the code has changed"
        path.write_text(text.replace(self.before, self.after))


DEFECTS = (
    LineDefect(
        "a sealed segment is dropped",
        "core/batcher.py",
        "            if segment.record_count:\n",
        "            if segment.record_count and (segment is lane.segments[0] or self._next_batch_number != 2):\n",
    ),
    LineDefect(
        "an object's name is used twice",
        "core/batcher.py",
        "        self._next_batch_number += 1\n",
        "        self._next_batch_number = 1\n",
    ),
    LineDefect(
        "lanes don't come of age",
        "core/batcher.py",
        "            if lane.segments and (lane.is_direct or now_ms >= lane.opened_ms + self._interval_ms)\n",
        "            if lane.segments and now_ms < 0\n",
    ),
    LineDefect(
        "reports overtake those before them",
        "core/notifier.py",
        "        while queue.unreported and queue.unreported[0].is_settled:\n",
        "        queue.unreported = deque(sorted(queue.unreported, key=lambda s: not s.is_settled))\n"
        "        while queue.unreported and queue.unreported[0].is_settled:\n",
    ),
    LineDefect(
        "delivery is reported before Kafka has answered",
        "core/producer_core.py",
        "        return self.notifier.ready(stored, now_ms)\n",
        "        actions = self.notifier.ready(stored, now_ms)\n"
        "        for a in list(actions):\n"
        "            if isinstance(a, Notify) and self.notifier.unsettled_segments % 3 == 0:\n"
        "                actions.remove(a)\n"
        "                actions += self.notifier.acknowledged(a.segment, None, now_ms)\n"
        "        return actions\n",
    ),
    LineDefect(
        "a segment that failed holds up those behind it",
        "core/notifier.py",
        "                unnotified.popleft()  # it has failed\n                continue\n",
        "                break\n",
    ),
    LineDefect(
        "a sequence is left out",
        "core/notifier.py",
        "            queue.next_sequence += 1\n",
        "            queue.next_sequence += 1 + (queue.next_sequence == 2)\n",
    ),
    LineDefect(
        "a reservation is kept",
        "core/producer_core.py",
        "            self.memory.charge_object(-batch.size_bytes)\n",
        "            self.memory.charge_object(0)\n",
    ),
    LineDefect(
        "an abort leaves what waits for its upload",
        "core/notifier.py",
        "            actions += self.failed(queue.unnotified, error, now_ms)\n"
        "            queue.unnotified.clear()\n",
        "",
    ),
    LineDefect(
        "a commit does not wait for deliveries",
        "core/transaction.py",
        "        return CommitStep.DELIVER if undelivered else CommitStep.END\n",
        "        return CommitStep.END\n",
    ),
    LineDefect(
        "the position inside a notification is not kept to",
        "core/offsets.py",
        "    return 0 if remaining is None else max(0, records - remaining)\n",
        "    return 0 if remaining is None else max(0, records - remaining - 1)\n",
    ),
    LineDefect(
        "one record too many is skipped",
        "core/offsets.py",
        "    return 0 if remaining is None else max(0, records - remaining)\n",
        "    return 0 if remaining is None else min(records, records - remaining + 1)\n",
    ),
    LineDefect(
        "what was stored is committed for the next owner",
        "core/positions.py",
        "        self._stored.pop(key, None)\n",
        "",
    ),
    LineDefect(
        "a seek keeps what was read ahead",
        "core/debatcher.py",
        "        self._drop_read_ahead(flow)\n        flow.settled_position = None\n",
        "        flow.settled_position = None\n",
    ),
    LineDefect(
        "what was read ahead outlives its assignment",
        "core/debatcher.py",
        "        if flow is not None:\n            self._drop_read_ahead(flow)\n",
        "        if flow is not None and not flow.entries:\n            self._drop_read_ahead(flow)\n",
    ),
    LineDefect(
        "missing objects are passed over",
        "core/debatcher.py",
        "        if failure.kind in self._skipped_kinds:\n",
        "        if failure.kind in self._skipped_kinds or failure.kind is FailureKind.MISSING:\n",
    ),
    LineDefect(
        "what failed is not fetched again",
        "core/debatcher.py",
        "            else:\n                self._wait(entry)\n",
        "            else:\n                self._retrying.append(entry)\n",
    ),
    LineDefect(
        "an entry is passed over when it is fetched late",
        "core/debatcher.py",
        "            entry.state = EntryState.READY\n            self._queue_if_ready(entry.flow)\n\n    def _fail(",
        "            entry.state = EntryState.READY if entry.flow.entries[0] is entry"
        " else EntryState.SKIPPED\n            self._queue_if_ready(entry.flow)\n\n    def _fail(",
    ),
    LineDefect(
        "a partition that we paused is not resumed",
        "core/debatcher.py",
        "                if self._may_resume(flow):\n",
        "                if self._may_resume(flow) and flow.needed_position is not None:\n",
    ),
    LineDefect(
        "memory of a fetch is never given back",
        "core/prefetch.py",
        "        self.held_bytes -= entry.held_bytes\n",
        "        self.held_bytes -= entry.held_bytes // 2\n",
    ),
    LineDefect(
        "fetches of one object are answered in the order of their places",
        "core/debatcher.py",
        "                entry.sources[part_index] = outcome\n",
        "                entry.sources[part_index] = section.parts and outcomes[0]\n",
    ),
    LineDefect(
        "an end moves the position before the records that came before it",
        "core/debatcher.py",
        "            if not flow.entries:\n                _pass(",
        "            if True:\n                _pass(",
    ),
    LineDefect(
        "an error names the record before",
        "core/flow.py",
        "        first = to_virtual(self.kafka_offset)\n        if",
        "        first = to_virtual(max(0, self.kafka_offset - 1))\n        if",
    ),
    LineDefect(
        "a notification's key is taken as it comes",
        "format/notification.py",
        "        if self.key is not None:\n            ObjectKey.decode(self.key)\n",
        "",
    ),
    LineDefect(
        "whatever store a notification names, the default one is read",
        "fetcher.py",
        "self._stores.get(section.store)",
        "self._stores.get()",
    ),
    LineDefect(
        "objects are stored whatever they cost",
        "core/router.py",
        "    return [pays and size >= least_bytes for size in sizes]\n",
        "    return [pays or size > 0 for size in sizes]\n",
    ),
    LineDefect(
        "positions don't go with their transaction",
        "transactions.py",
        "            self._notifier_thread.inner.send_offsets_to_transaction(\n"
        "                partitions, group_metadata, patience_s\n"
        "            )\n",
        "            del patience_s\n",
    ),
)

_NOT_SEEN = {
    "28-close-without-end",  # of `close`, which waits: not simulated
    "14-fallback-without-limit",  # outages are too short, and batches too small, for their rate
    "14-no-fallback",  # no rule says that records must leave before the store is back
    "11-never-pauses",  # nobody has so much payload of so many records
    "30-old-destinations",  # there are no zones, and no topic gets more partitions
}

# Of the shells that the simulation drives.
_SEEN_IN_SHELLS = {
    "03-not-looked-for-again",
    "03-skip-missing",
    "06-abort-commits",
    "06-abort-keeps-records",
    "06-dirty-read",
    "07-commit-in-spite-of-failures",
    "07-commit-without-uploads",
    "08-commit-what-is-read-ahead",
    "09-position-without-metadata",
    "10-cooperative-forgets-the-rest",
    "10-delivered-after-revoke",
    "10-keep-what-was-read-ahead",
    "15-no-checksum",
    "24-expired-in-silence",
    "24-expired-is-missing",
}

#: Of `tests/planted`, those that a simulation can see.
PATCHES = tuple(
    defect
    for defect in planted.read_defects()
    if defect.name in _SEEN_IN_SHELLS
    or ("b/blobmsg/core/" in defect.path.read_text() and defect.name not in _NOT_SEEN)
)

#: Where to begin with what few seeds find: there one found it when this was written.
FIRST_SEEDS = {
    "05-pieces-swapped": 753,
    "08-silence-is-believed": 739,
    "10-keep-what-was-read-ahead": 708,
    "26-no-prefetch-limit": 661,
}
