"""How far everybody is, as the journals tell it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.chaos.children import Progress, behind

_CHILD: Any = SimpleNamespace(instance="transformer-0.1")


def _tell(progress: Progress, event: str, *runs: tuple[str, int, int]) -> None:
    """Runs of partition 2: a writer, its last number, the place in the log."""
    told = {"2": [["", writer, 0, last, offset] for writer, last, offset in runs]}
    progress.take(_CHILD, {"event": event, "runs": told})


def test_only_what_is_committed_is_copied() -> None:
    progress = Progress()
    _tell(progress, "committing", ("writer-0.1", 9, 100))

    assert behind(progress.copied, {("writer-0.1", 2): 9}) == ["writer-0.1 [2]: -1 of 9"]

    _tell(progress, "committed", ("writer-0.1", 9, 100))
    assert behind(progress.copied, {("writer-0.1", 2): 9}) == []


def test_a_transaction_without_an_end_is_settled_by_a_later_one_of_its_partition() -> None:
    progress = Progress()
    _tell(progress, "committing", ("writer-0.1", 9, 100), ("writer-1.1", 5, 300))

    _tell(progress, "committed", ("writer-0.2", 3, 200))

    assert progress.copied == {("writer-0.2", 2): 3, ("writer-0.1", 2): 9}
    assert behind(progress.copied, {("writer-1.1", 2): 5}) == ["writer-1.1 [2]: -1 of 5"]
