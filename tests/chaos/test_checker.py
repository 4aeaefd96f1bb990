"""The checker on hand-made journals: nothing on whole ones, and each violation that is planted."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from tests.chaos.checker import check_copies, check_group, check_log
from tests.chaos.history import GroupHistory, Log, WriterHistory, late_calls, transactions_of
from tests.chaos.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable

N = 1 << 20  # virtual offsets of one notification
# Two notifications of ten records and one of five, from one producer, all in partition 0.
OFFSETS = [*range(N - 10, N), *range(2 * N - 10, 2 * N), *range(3 * N - 5, 3 * N)]


def event(name: str, t: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "t": t, **facts}


def writer_events() -> list[dict[str, Any]]:
    return [
        event("constructed", 0.0, rss=1),
        event("asking", 1.0, p=0, first=0, last=19),
        event("reported", 2.0, runs=[[0, 0, 19, 0, OFFSETS[19]]]),
        event("asking", 3.0, p=0, first=20, last=29),
        event("refused", 3.5, p=0, first=25, last=29),
        event("reported", 4.0, runs=[[0, 20, 24, 0, OFFSETS[24]]]),
        event("closing", 5.0),
        event("closed", 6.0),
    ]


def log() -> Log:
    return Log(
        {0: [Run("-", "w", 0, 9, N - 10), Run("-", "w", 10, 19, 2 * N - 10),
             Run("-", "w", 20, 24, 3 * N - 5)]},
        raw={0: {0: 10, 1: 10, 2: 5}},
    )  # fmt: skip


def kinds_of_log(events: list[dict[str, Any]], log: Log) -> list[str]:
    return [v.kind for v in check_log("t", [WriterHistory.of("w", events)], log)]


def test_a_whole_log_has_no_violation() -> None:
    assert kinds_of_log(writer_events(), log()) == []


def _replace_last_report(events: list[dict[str, Any]], runs: list[list[int]]) -> None:
    events[5]["runs"] = runs


@pytest.mark.parametrize("cut", range(8))
def test_a_journal_may_end_anywhere(cut: int) -> None:
    # What was produced after the last line that survived can't be there without an `asking`.
    events = writer_events()[:cut]
    asked = max((e["last"] for e in events if e["event"] == "asking"), default=-1)
    found = log()
    found.runs[0] = [run for run in found.runs[0] if run.last <= asked]
    found.raw = {}

    assert kinds_of_log(events, found) == []


def test_what_was_not_reported_may_be_there_or_not() -> None:
    killed = writer_events()[:4]
    without = log()
    del without.runs[0][2], without.raw[0][2]

    assert kinds_of_log(killed, log()) == []
    assert kinds_of_log(killed, without) == []


def test_what_was_reported_failed_may_be_there_or_not() -> None:
    events = writer_events()
    _replace_last_report(events, [[0, 20, 24, -192, -1]])
    without = log()
    del without.runs[0][2], without.raw[0][2]

    assert kinds_of_log(events, log()) == []
    assert kinds_of_log(events, without) == []


def _lose(log: Log) -> None:
    log.runs[0][1] = Run("-", "w", 11, 19, 2 * N - 9)
    log.raw[0][1] = 9


def _repeat_a_notification(log: Log) -> None:
    log.runs[0].append(Run("-", "w", 20, 24, 4 * N - 5))
    log.raw[0][3] = 5


def _repeat_a_record(log: Log) -> None:
    log.runs[0].append(Run("-", "w", 3, 3, 4 * N - 1))
    log.raw[0][3] = 1


def _swap(log: Log) -> None:
    # Two notifications change places. The reports of both name a wrong offset then.
    log.runs[0][:2] = [Run("-", "w", 10, 19, N - 10), Run("-", "w", 0, 9, 2 * N - 10)]


def _damage(log: Log) -> None:
    log.corrupt.append("[0] at 7")


def _invent_a_record(log: Log) -> None:
    log.runs[0].append(Run("-", "w", 25, 25, 4 * N - 1))
    log.raw[0][3] = 1


def _invent_a_producer(log: Log) -> None:
    log.runs[0].append(Run("-", "nobody", 0, 0, 4 * N - 1))
    log.raw[0][3] = 1


def _read_less_than_promised(log: Log) -> None:
    log.raw[0][2] = 6


def _read_more_than_promised(log: Log) -> None:
    del log.raw[0][2]


@pytest.mark.parametrize(
    ("plant", "kinds"),
    [
        (_lose, {"lost"}),
        (_repeat_a_notification, {"duplicated"}),
        (_repeat_a_record, {"duplicated"}),
        (_swap, {"reordered", "misreported"}),
        (_damage, {"corrupt"}),
        (_invent_a_record, {"phantom"}),
        (_invent_a_producer, {"phantom"}),
        (_read_less_than_promised, {"lost"}),
        (_read_more_than_promised, {"phantom"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_wrong_with_a_log_is_named(plant: Callable[[Log], None], kinds: set[str]) -> None:
    found = log()
    plant(found)

    assert set(kinds_of_log(writer_events(), found)) == kinds


@pytest.mark.parametrize(
    ("runs", "kind"),
    [
        ([[0, 20, 23, 0, OFFSETS[23]]], "unreported"),
        ([[0, 20, 24, 0, OFFSETS[24]], [0, 24, 24, 0, OFFSETS[24]]], "misreported"),
        ([[0, 22, 24, 0, OFFSETS[24]], [0, 20, 21, 0, OFFSETS[21]]], "misreported"),
        ([[0, 20, 24, 0, OFFSETS[23]]], "misreported"),
        ([[0, 20, 24, 0, -1]], "misreported"),
    ],
    ids=["one not reported", "twice", "out of order", "elsewhere", "nowhere"],
)
def test_what_is_wrong_with_reports_is_named(runs: list[list[int]], kind: str) -> None:
    events = writer_events()
    _replace_last_report(events, runs)

    assert kinds_of_log(events, log()) == [kind]


def reader_events() -> dict[str, list[dict[str, Any]]]:
    """`a` reads 15 records, commits 12 of them and is killed; `b` goes on behind the commit."""
    one = [
        event("assigned", 1.0, partitions=[0]),
        event("received", 2.0,
              runs={"0": [["-", "w", 0, 9, N - 10], ["-", "w", 10, 11, 2 * N - 10]]}),
        event("committing", 3.0, positions={"0": OFFSETS[12]}),
        event("committed", 4.0, positions={"0": OFFSETS[12]}),
        event("received", 5.0, runs={"0": [["-", "w", 12, 14, OFFSETS[12]]]}),
    ]  # fmt: skip
    other = [
        event("assigned", 11.0, partitions=[0]),
        event("received", 12.0,
              runs={"0": [["-", "w", 12, 19, OFFSETS[12]], ["-", "w", 20, 24, 3 * N - 5]]}),
        event("revoked", 13.0, partitions=[0]),
    ]  # fmt: skip
    return {"a": one, "b": other}


def kinds_of_group(readers: dict[str, list[dict[str, Any]]]) -> list[str]:
    group = GroupHistory()
    for name, events in readers.items():
        group.add(name, events)
    return [v.kind for v in check_group("t", group, log())]


def test_records_again_after_a_kill_are_no_violation() -> None:
    assert kinds_of_group(reader_events()) == []


def test_a_commit_that_was_not_confirmed_may_count_or_not() -> None:
    readers = reader_events()
    del readers["a"][3]
    assert kinds_of_group(readers) == []

    readers["b"][1]["runs"]["0"][0] = ["-", "w", 0, 9, N - 10]
    readers["b"][1]["runs"]["0"].insert(1, ["-", "w", 10, 19, 2 * N - 10])
    assert kinds_of_group(readers) == []


def _b_gets(*runs: list[Any]) -> Callable[[dict[str, Any]], None]:
    def plant(readers: dict[str, Any]) -> None:
        readers["b"][1]["runs"]["0"] = list(runs)

    return plant


def _b_has_a_damaged_one(readers: dict[str, Any]) -> None:
    readers["b"].insert(2, event("corrupt", 12.5, p=0, offset=7))


def _a_has_committed_further(readers: dict[str, Any]) -> None:
    for number in (2, 3):
        readers["a"][number]["positions"]["0"] = OFFSETS[14]


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_b_gets(["-", "w", 12, 19, OFFSETS[12]]), "lost"),
        (_b_gets(["-", "w", 12, 19, OFFSETS[12]], ["-", "w", 21, 24, 3 * N - 4]), "skipped"),
        (_b_gets(["-", "w", 13, 19, OFFSETS[13]], ["-", "w", 20, 24, 3 * N - 5]), "skipped"),
        (_b_gets(["-", "w", 12, 19, OFFSETS[12]], ["-", "w", 19, 19, OFFSETS[19]],
                 ["-", "w", 20, 24, 3 * N - 5]), "duplicated"),
        (_b_gets(["-", "w", 12, 19, OFFSETS[12]], ["-", "w", 20, 24, 3 * N - 5],
                 ["-", "w", 25, 25, 4 * N - 1]), "phantom"),
        (_b_gets(["-", "w", 12, 19, OFFSETS[12]], ["-", "w", 20, 24, 3 * N - 5],
                 ["-", "v", 20, 20, OFFSETS[20]]), "phantom"),
        (_b_has_a_damaged_one, "corrupt"),
        (_a_has_committed_further, "rewound"),
    ],
    ids=["not the last", "left one out", "began too late", "one twice", "one too many",
         "another's", "damaged", "began too early"],
)  # fmt: skip
def test_what_is_wrong_with_a_group_is_named(
    plant: Callable[[dict[str, Any]], None], kind: str
) -> None:
    readers = reader_events()
    plant(readers)

    assert kind in kinds_of_group(readers)
    assert set(kinds_of_group(readers)) <= {kind, "lost"}


def transformer_events() -> list[dict[str, Any]]:
    """Two transactions that are committed, between them one that is aborted and tried again."""
    first = {"0": [["", "w", 0, 9, N - 10], ["", "w", 10, 14, 2 * N - 10]]}
    rest = {"0": [["", "w", 15, 19, OFFSETS[15]], ["", "w", 20, 24, 3 * N - 5]]}
    return [
        event("beginning", 1.0, transaction="x/1"),
        event("committing", 2.0, transaction="x/1", runs=first),
        event("committed", 3.0, transaction="x/1", runs=first),
        event("beginning", 4.0, transaction="x/2"),
        event("committing", 5.0, transaction="x/2", runs=rest),
        event("failed", 5.5, transaction="x/2", text="no store"),
        event("aborted", 6.0, transaction="x/2"),
        event("beginning", 7.0, transaction="x/3"),
        event("committing", 8.0, transaction="x/3", runs=rest),
        event("committed", 9.0, transaction="x/3", runs=rest),
    ]


def copies() -> Log:
    # Offsets of the copies: notifications 0 and 3; between them markers and what was aborted.
    return Log({0: [Run("x/1", "w", 0, 14, N - 15), Run("x/3", "w", 15, 24, 4 * N - 10)]})


def kinds_of_copies(events: list[dict[str, Any]], copies: Log) -> list[str]:
    return [v.kind for v in check_copies("t", transactions_of(events), log(), copies)]


def test_exact_copies_have_no_violation() -> None:
    assert kinds_of_copies(transformer_events(), copies()) == []


def test_a_commit_of_unknown_end_may_be_there_or_not() -> None:
    events = [e for e in transformer_events() if e["event"] != "aborted"]
    assert kinds_of_copies(events, copies()) == []

    there = copies()
    there.runs[0][1] = Run("x/2", "w", 15, 24, 3 * N - 10)
    assert kinds_of_copies(events[:-3], there) == []


def _copies_with(*runs: Run) -> Log:
    return Log({0: list(runs)})


@pytest.mark.parametrize(
    ("planted", "kinds"),
    [
        (_copies_with(Run("x/1", "w", 0, 14, N - 15)), {"lost"}),
        (_copies_with(Run("x/1", "w", 0, 14, N - 15), Run("x/3", "w", 15, 23, 4 * N - 9)),
         {"lost", "torn"}),
        (_copies_with(Run("x/1", "w", 0, 14, N - 15), Run("x/2", "w", 15, 24, 3 * N - 10),
                      Run("x/3", "w", 15, 24, 4 * N - 10)), {"aborted", "duplicated"}),
        (_copies_with(Run("x/3", "w", 15, 24, N - 10), Run("x/1", "w", 0, 14, 2 * N - 15)),
         {"reordered"}),
        (_copies_with(Run("x/1", "w", 0, 14, N - 15), Run("x/3", "w", 15, 24, 4 * N - 10),
                      Run("x/9", "w", 3, 3, 5 * N - 1)), {"phantom", "duplicated"}),
        (_copies_with(Run("x/1", "w", 0, 14, N - 15), Run("x/3", "w", 15, 25, 4 * N - 11)),
         {"phantom", "torn"}),
        (_copies_with(Run("x/1", "w", 0, 14, N - 15), Run("x/3", "v", 15, 24, 4 * N - 10)),
         {"phantom", "lost"}),
    ],
    ids=["none of one", "part of one", "aborted too", "swapped", "of no transaction",
         "one too many", "of no original"],
)  # fmt: skip
def test_what_is_wrong_with_copies_is_named(planted: Log, kinds: set[str]) -> None:
    assert set(kinds_of_copies(transformer_events(), planted)) == kinds


def test_a_damaged_copy_is_named() -> None:
    found = copies()
    found.corrupt.append("[0] at 3")

    assert kinds_of_copies(transformer_events(), found) == ["corrupt"]


def test_a_transaction_that_nobody_asked_to_commit_must_not_be_seen() -> None:
    events = deepcopy(transformer_events())
    del events[8:]

    assert "aborted" in kinds_of_copies(events, copies())


@pytest.mark.parametrize(
    ("took", "excused", "starved", "is_late"),
    [
        (1.1, [], 0.0, False),
        (1.3, [], 0.0, True),
        (9.0, [(0.0, 9.0)], 0.0, False),  # stopped by SIGSTOP for nearly as long
        (9.0, [(0.0, 2.0)], 0.0, True),
        (9.0, [(20.0, 30.0)], 0.0, True),
        (9.0, [(1.0, 7.0), (2.0, 8.0), (3.0, 5.0)], 0.0, True),  # once, not three times
        (9.0, [(1.0, 7.0), (2.0, 9.0), (3.0, 5.0)], 0.0, False),
        (1.3, [], 0.2, False),  # other programs had the processor
        (1.3, [], 0.05, True),
    ],
)
def test_a_call_may_take_a_second_longer_than_it_was_told(
    took: float, excused: list[tuple[float, float]], starved: float, is_late: bool
) -> None:
    events = [event("late", 10.0, call="poll", limit=0.2, took=took, starved=starved)]

    assert bool(late_calls("w", events, excused)) == is_late
