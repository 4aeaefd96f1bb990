"""The journals as the checker wants them; pure, and tolerant of a journal that ends anywhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.chaos.runs import Intervals, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self


@dataclass(slots=True)
class WriterHistory:
    """What one producer process did.

    Attributes:
        instance: Its name.
        asked: Numbers that it may have produced, by partition.
        reports: What was reported, in order: partition, first, last, error code (0: delivered),
            offset of the last (-1: none).
        is_closed: It ended by `close`, so every record must have been reported.
    """

    instance: str
    asked: dict[int, Intervals] = field(default_factory=dict)
    reports: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    is_closed: bool = False

    @classmethod
    def of(cls, instance: str, events: Iterable[Mapping[str, Any]]) -> Self:
        """From its journal."""
        history = cls(instance)
        refused: dict[int, Intervals] = {}
        for event in events:
            match event["event"]:
                case "asking":
                    asked = history.asked.setdefault(event["p"], Intervals())
                    asked.add(event["first"], event["last"])
                case "refused":
                    refused.setdefault(event["p"], Intervals()).add(event["first"], event["last"])
                case "reported":
                    history.reports += [tuple(run) for run in event["runs"]]
                case "closed":
                    history.is_closed = True
                case _:
                    pass
        for partition, intervals in refused.items():
            history.asked[partition] = Intervals(history.asked[partition].minus(intervals))
        return history


@dataclass(slots=True)
class Session:
    """One partition in the hands of one reader, from its assignment to its revocation.

    Attributes:
        reader: The process.
        partition: Of the topic.
        assigned_at: When.
        first_at: When the first record came.
        runs: The records, in the order they came.
    """

    reader: str
    partition: int
    assigned_at: float
    first_at: float = 0.0
    runs: list[Run] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Commit:
    """A position that was to be committed, or was.

    Attributes:
        partition: Of the topic.
        position: Offset of the next record.
        at: When it was asked for, or confirmed.
        is_confirmed: Whether it is an answer.
    """

    partition: int
    position: int
    at: float
    is_confirmed: bool


@dataclass(slots=True)
class GroupHistory:
    """What all readers of one group did."""

    sessions: list[Session] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    corrupt: list[str] = field(default_factory=list)

    def add(self, reader: str, events: Iterable[Mapping[str, Any]]) -> None:
        """Take in the journal of one reader."""
        current: dict[int, Session] = {}
        for event in events:
            at: float = event["t"]
            match event["event"]:
                case "assigned":
                    for partition in event["partitions"]:
                        current[partition] = Session(reader, partition, at)
                        self.sessions.append(current[partition])
                case "received":
                    for text, runs in event["runs"].items():
                        session = current.get(int(text))
                        if session is None:  # not assigned: the checker must see it
                            session = current[int(text)] = Session(reader, int(text), at)
                            self.sessions.append(session)
                        session.first_at = session.first_at or at
                        session.runs += [Run(*run) for run in runs]
                case "committing" | "committed" as name:
                    self.commits += [
                        Commit(int(text), position, at, name == "committed")
                        for text, position in event["positions"].items()
                    ]
                case "corrupt":
                    self.corrupt.append(f"{reader}: partition {event['p']} at {event['offset']}")
                case _:
                    pass


@dataclass(slots=True)
class TransactionHistory:
    """One transaction of a transformer.

    Attributes:
        name: As its records say it.
        runs: What it had when its commit was asked for, by partition; empty before that.
        outcome: `begun`, `asked` (nobody knows how the commit ended), `committed`, `aborted`.
    """

    name: str
    runs: dict[int, list[Run]] = field(default_factory=dict)
    outcome: str = "begun"

    @property
    def count(self) -> int:
        """How many records it had."""
        return sum(run.size for runs in self.runs.values() for run in runs)


def transactions_of(events: Iterable[Mapping[str, Any]]) -> list[TransactionHistory]:
    """The transactions in a transformer's journal."""
    found: dict[str, TransactionHistory] = {}
    for event in events:
        match event["event"]:
            case "beginning":
                found[event["transaction"]] = TransactionHistory(event["transaction"])
            case "committing":
                transaction = found[event["transaction"]]
                transaction.outcome = "asked"
                transaction.runs = {
                    int(text): [Run(*run) for run in runs] for text, runs in event["runs"].items()
                }
            case "committed" | "aborted" as outcome:
                found[event["transaction"]].outcome = outcome
            case _:
                pass
    return list(found.values())


@dataclass(slots=True)
class Log:
    """The final read of one topic.

    Attributes:
        runs: By partition, in log order.
        corrupt: Places of records that are not as they were made.
        raw: How many records each Kafka record stands for, by partition and Kafka offset, as a
            stock client sees it; empty: not looked at.
    """

    runs: dict[int, list[Run]] = field(default_factory=dict)
    corrupt: list[str] = field(default_factory=list)
    raw: dict[int, dict[int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many records."""
        return sum(run.size for runs in self.runs.values() for run in runs)


def late_calls(
    child: str, events: Iterable[Mapping[str, Any]], excused: Sequence[tuple[float, float]]
) -> list[str]:
    """Calls that took more than a second longer than they may.

    Args:
        child: Its name.
        events: Its journal.
        excused: Times in which this process stood still, or the whole machine did.
    """
    found: list[str] = []
    for event in events:
        if event["event"] != "late":
            continue
        ended, began = event["t"], event["t"] - event["took"]
        stood_still = _covered_s(began, ended, excused)
        waited = max(stood_still, event["starved"])
        if event["took"] - waited > event["limit"] + 1.0:
            found.append(f"{child}: {event['call']}({event['limit']}) took {event['took']} s")
    return found


def _covered_s(began: float, ended: float, times: Sequence[tuple[float, float]]) -> float:
    """How much of a time lies within any of some others."""
    covered_s, behind = 0.0, began
    for first, last in sorted(times):
        first, last = max(behind, first), min(ended, last)
        if first < last:
            covered_s += last - first
            behind = last
    return covered_s
