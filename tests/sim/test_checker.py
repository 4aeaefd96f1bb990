"""Each kind of violation is noticed, on histories made by hand; a good one passes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from blobmsg.sim.checker import (
    check_cost,
    check_deadlines,
    check_log,
    check_readings,
    check_reports,
    check_sequences,
    check_transactions,
    check_transformed,
)
from blobmsg.sim.history import History, Reading, Sent, SimTransaction, committed_position
from blobmsg.sim.truth import Fact
from blobmsg.sim.world import Violation, World

PLACE = ("t", 0)
FULL = 1 << 20


def history_of(*sent: Sent) -> History:
    history = History(World("test"))
    for record in sent:
        history.accepted(record)
    return history


def sent(number: int, source: str = "p", **more: Any) -> Sent:
    return Sent(
        source=source,
        number=number,
        topic="t",
        partition=0,
        key=f"{source}/{number}".encode(),
        value=b"%d" % number,
        headers=None,
        timestamp_ms=1,
        accepted_ms=0,
        **more,
    )


def fact(kafka_offset: int, number: int, source: str = "p", **more: Any) -> Fact:
    fields: dict[str, Any] = {
        "offset": ((kafka_offset + 1) << 20) - 1,
        "kafka_offset": kafka_offset,
        "key": f"{source}/{number}".encode(),
        "value": b"%d" % number,
        "timestamp_ms": 1,
        "state": "plain",
        "object_key": None,
        **more,
    }
    return Fact(**fields)


def report(offset: int | None = None, partition: int | None = 0) -> Any:
    return SimpleNamespace(partition=lambda: partition, offset=lambda: offset)


def message(number: int, offset: int, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "key": b"p/%d" % number,
        "value": b"%d" % number,
        "headers": None,
        "offset": offset,
        "timestamp": (1, 1),
        **more,
    }
    return SimpleNamespace(**{name: lambda value=value: value for name, value in fields.items()})


def log_of(*facts: Fact) -> dict[tuple[str, int], list[Fact]]:
    return {PLACE: list(facts)}


# --- producers --------------------------------------------------------------------------------


def test_a_good_history_passes() -> None:
    first, second = sent(0), sent(1)
    history = history_of(first, second)
    history.reported(first, None, report(FULL - 1))
    history.reported(second, None, report(2 * FULL - 1))

    check_reports(history)
    check_log(history, log_of(fact(0, 0), fact(1, 1)))


def test_a_record_without_a_report() -> None:
    with pytest.raises(Violation, match="never reported"):
        check_reports(history_of(sent(0)))


def test_a_record_of_a_killed_process_needs_no_report() -> None:
    history = history_of(sent(0))
    history.dead.add("p")

    check_reports(history)


def test_a_probe_that_fails() -> None:
    record = sent(0, is_probe=True)
    history = history_of(record)
    history.reported(record, KafkaError(KafkaError._MSG_TIMED_OUT), report())

    with pytest.raises(Violation, match="all was well"):
        check_reports(history)


def test_a_second_report() -> None:
    record = sent(0)
    history = history_of(record)
    history.reported(record, None, report(5))

    with pytest.raises(Violation, match="reported 2 times"):
        history.reported(record, None, report(5))


def test_a_report_of_a_killed_process() -> None:
    record = sent(0)
    history = history_of(record)
    history.dead.add("p")

    with pytest.raises(Violation, match="was killed"):
        history.reported(record, None, report(5))


def test_reports_out_of_order() -> None:
    first, second = sent(0), sent(1)
    history = history_of(first, second)
    history.reported(second, None, report(5))

    with pytest.raises(Violation, match="behind number 1"):
        history.reported(first, None, report(4))


def test_a_report_that_comes_too_late() -> None:
    record = sent(0)

    check_deadlines([record], {record.key: 1100}, 1000, 200)
    with pytest.raises(Violation, match="after 1300 ms"):
        check_deadlines([record], {record.key: 1300}, 1000, 200)


# --- the log ----------------------------------------------------------------------------------


def test_a_record_that_is_acknowledged_and_not_there() -> None:
    record = sent(0)
    history = history_of(record)
    history.reported(record, None, report(FULL - 1))

    with pytest.raises(Violation, match="not in the log"):
        check_log(history, log_of())


def test_a_record_that_is_there_twice() -> None:
    with pytest.raises(Violation, match="twice"):
        check_log(history_of(sent(0)), log_of(fact(0, 0), fact(1, 0)))


def test_records_that_are_swapped() -> None:
    with pytest.raises(Violation, match="lies behind"):
        check_log(history_of(sent(0), sent(1)), log_of(fact(0, 1), fact(1, 0)))


def test_a_record_that_nobody_has_sent() -> None:
    with pytest.raises(Violation, match="never taken"):
        check_log(history_of(), log_of(fact(0, 0)))


def test_a_record_that_says_something_else() -> None:
    with pytest.raises(Violation, match="otherwise"):
        check_log(history_of(sent(0)), log_of(fact(0, 0, value=b"other")))


def test_a_record_that_is_acknowledged_elsewhere() -> None:
    record = sent(0)
    history = history_of(record)
    history.reported(record, None, report(7 * FULL - 1))

    with pytest.raises(Violation, match="acknowledged at"):
        check_log(history, log_of(fact(0, 0)))


@pytest.mark.parametrize("found", [[0, 2], [1], [0, 0], [0, 1, 1]])
def test_sequences_that_are_wrong(found: list[int]) -> None:
    with pytest.raises(Violation, match="comes behind"):
        check_sequences(PLACE, {b"p": found}, {b"q"})


def test_sequences_may_have_gaps_where_something_failed() -> None:
    check_sequences(PLACE, {b"p": [0, 2, 5]}, {b"p"})
    check_sequences(PLACE, {b"p": [0, 1, 2]}, set())


# --- transactions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "states", "problem"),
    [
        ("committed", ["committed", "committed"], ""),
        ("committed", ["committed", "nowhere"], "was committed"),
        ("committed", ["committed", "aborted"], "was committed"),
        ("aborted", ["aborted", "nowhere"], ""),
        ("aborted", ["aborted", "committed"], "is aborted"),
        ("open", ["committed", "committed"], "is open"),
        ("unknown", ["committed", "committed"], ""),
        ("unknown", ["aborted", "nowhere"], ""),
        ("unknown", ["committed", "aborted"], "torn"),
    ],
)
def test_transactions_are_whole_or_not_there(outcome: str, states: list[str], problem: str) -> None:
    transaction = SimTransaction("x", outcome)
    history = history_of(*(sent(n, transaction=transaction) for n in range(len(states))))
    history.transactions.append(transaction)
    facts = [fact(n, n, state=state) for n, state in enumerate(states) if state != "nowhere"]

    if not problem:
        check_transactions(history, log_of(*facts))
        return
    with pytest.raises(Violation, match=problem):
        check_transactions(history, log_of(*facts))


# --- consumers --------------------------------------------------------------------------------


def reading(start: int | None, *numbers: int) -> Reading:
    found = Reading("g", "c", PLACE, start)
    found.records += [((number + 1) * FULL - 1, b"p/%d" % number) for number in numbers]
    return found


FOUR = log_of(*(fact(n, n) for n in range(4)))


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (reading(0, 0, 1, 2, 3), ""),
        (reading(2 * FULL, 2, 3), ""),
        (reading(2 * FULL, 3), "has skipped"),
        (reading(0, 1), "has skipped"),
        (reading(0, 0, 2), "has skipped"),
        (reading(0, 0, 0), "again"),
        (reading(0, 1, 0), "has skipped"),
        (reading(2 * FULL, 1), "again"),
        (reading(0, 0, 7), "none for it"),
    ],
)
def test_readings_have_no_gap_and_no_repeat(found: Reading, problem: str) -> None:
    if not problem:
        check_readings([found], FOUR, log_starts={})
        return
    with pytest.raises(Violation, match=problem):
        check_readings([found], FOUR, log_starts={})


def test_what_retention_has_deleted_may_be_passed_over() -> None:
    check_readings([reading(0, 2, 3)], FOUR, log_starts={PLACE: 2})


def test_what_is_missing_may_be_passed_over_by_who_skips() -> None:
    facts = log_of(fact(0, 0), fact(1, 1, object_key="k"), fact(2, 2))

    check_readings([reading(0, 0, 2)], facts, may_miss=frozenset({"k"}), log_starts={})
    with pytest.raises(Violation, match="has skipped"):
        check_readings([reading(0, 0, 2)], facts, log_starts={})


def test_a_record_of_a_partition_that_is_not_owned() -> None:
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)
    history.ended("c", PLACE)

    with pytest.raises(Violation, match="does not own"):
        history.delivered("c", message(0, FULL - 1))


def test_a_record_that_comes_otherwise_than_sent() -> None:
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)

    with pytest.raises(Violation, match="otherwise"):
        history.delivered("c", message(0, FULL - 1, value=b"x"))


def test_a_record_that_comes_again() -> None:
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)
    history.delivered("c", message(0, FULL - 1))

    with pytest.raises(Violation, match="behind"):
        history.delivered("c", message(0, FULL - 1))


def test_a_commit_of_more_than_was_handed_out() -> None:
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)
    history.delivered("c", message(0, FULL - 2))

    history.checked_commit("g", "c-1", PLACE, 0, "blobmsg1:1")
    with pytest.raises(Violation, match="it has got"):
        history.checked_commit("g", "c-1", PLACE, 1, "")


def test_a_commit_by_who_does_not_own_the_partition() -> None:
    with pytest.raises(Violation, match="does not own"):
        history_of().checked_commit("g", "c-1", PLACE, 1, "")


def test_a_seek_does_not_take_back_what_was_stored() -> None:
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)
    history.delivered("c", message(0, FULL - 1))
    history.began("g", "c", PLACE, 0)

    history.checked_commit("g", "c-1", PLACE, 1, "")


@pytest.mark.parametrize(
    ("offset", "metadata", "position"),
    [
        (3, "", 3 * FULL),
        (3, "blobmsg1:1", 4 * FULL - 1),
        (3, "blobmsg1:5;mine", 4 * FULL - 5),
        (3, "blobmsg1:5,name=x;mine", 4 * FULL - 5),
        (3, "blobmsg1:", None),
        (3, "blobmsg1:0", None),
    ],
)
def test_committed_positions_are_read_by_the_page(
    offset: int, metadata: str, position: int | None
) -> None:
    assert committed_position(offset, metadata) == position


def told(history: History, offset: int) -> None:
    history.told_of_failure("c", PLACE, offset, KafkaError(KafkaError._BAD_MSG))


def reader(*wrong: int) -> History:
    """Of a consumer that has a first record, where these virtual offsets are wrong."""
    history = history_of(sent(0))
    history.began("g", "c", PLACE, None)
    history.delivered("c", message(0, FULL - 1))
    history.may_fail = lambda _place, offset: offset in wrong
    history.may_pass = lambda _place, first, end: first >= end
    return history


def test_an_error_of_the_next_record_is_as_it_should_be() -> None:
    told(reader(FULL), FULL)


@pytest.mark.parametrize(
    ("wrong", "offset", "what"),
    [
        (FULL + 1, FULL, "nothing is wrong there"),
        (FULL + 1, FULL + 1, "the next one is at"),
        (FULL - 1, FULL - 1, "the next one is at"),
    ],
)
def test_an_error_of_another_record_is_noticed(wrong: int, offset: int, what: str) -> None:
    with pytest.raises(Violation, match=what):
        told(reader(wrong), offset)


def test_an_error_of_a_partition_that_is_not_owned_is_noticed() -> None:
    with pytest.raises(Violation, match="does not own"):
        told(history_of(), 0)


@pytest.mark.parametrize("sizes", [[115_000], [200_000, 9000, 8000]])
def test_an_object_that_pays_passes(sizes: list[int]) -> None:
    check_cost("o", sizes)


@pytest.mark.parametrize("sizes", [[107_000], [40_000, 40_000], [2000] * 60])
def test_an_object_that_does_not_pay_is_noticed(sizes: list[int]) -> None:
    with pytest.raises(Violation, match="costs"):
        check_cost("o", sizes)


# --- exactly once -----------------------------------------------------------------------------


def test_each_record_has_one_copy_and_what_retention_took_may_have_one() -> None:
    check_transformed([b"a", b"b"], {b"a": True, b"b": False, b"c": False})


@pytest.mark.parametrize(
    ("copies", "what"),
    [
        ([b"a", b"b", b"a"], "copied 2 times"),
        ([b"a"], "b'b' was not copied"),
        ([b"a", b"b", b"x"], "copy of b'x', which is not committed"),
    ],
)
def test_copies_that_are_not_exact_are_noticed(copies: list[bytes | None], what: str) -> None:
    with pytest.raises(Violation, match=what):
        check_transformed(copies, {b"a": True, b"b": True})
