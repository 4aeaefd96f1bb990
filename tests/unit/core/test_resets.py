"""When it is believed that a position is gone."""

from __future__ import annotations

import pytest

from blobmsg.core.flow import Flow
from blobmsg.core.resets import Resets, Restart, inner_offset_reset

FULL = 1 << 20
PATIENCE_MS = 5000


def flow_at(kafka_offset: int | None) -> Flow:
    return Flow(("orders", 0), None if kafka_offset is None else kafka_offset * FULL)


def resets_of(policy: str = "earliest", log_start: int = 0) -> Resets:
    return Resets(policy, lambda _key: log_start)


def arrive(resets: Resets, flow: Flow, kafka_offset: int) -> bool:
    is_in_place = resets.is_in_place(flow, kafka_offset)
    if is_in_place:
        flow.next_offset = kafka_offset + 1
    return is_in_place


@pytest.mark.parametrize(
    ("policy", "inner"), [("earliest", "earliest"), ("latest", "earliest"), ("error", "error")]
)
def test_the_inner_client_begins_where_it_shows(policy: str, inner: str) -> None:
    assert inner_offset_reset(policy) == inner


def test_what_comes_in_order_is_taken_gaps_included() -> None:
    resets, flow = resets_of(), flow_at(7)

    assert [arrive(resets, flow, offset) for offset in (7, 8, 20)] == [True] * 3
    assert flow.next_offset == 21
    assert resets.due(0) == []


def test_where_nobody_knows_the_position_the_first_record_says_it() -> None:
    resets, flow = resets_of(), flow_at(None)

    assert arrive(resets, flow, 3)
    assert not arrive(resets, flow, 2)


def test_what_lies_before_the_position_is_dropped_and_the_client_sent_back() -> None:
    resets, flow = resets_of(), flow_at(7)

    assert [arrive(resets, flow, offset) for offset in (0, 1, 2)] == [False] * 3
    assert resets.due(1000) == [Restart(flow, 7)]
    assert resets.due(1100) == []  # its answer takes a while
    assert not arrive(resets, flow, 0)
    assert resets.due(1300) == [Restart(flow, 7)]

    assert arrive(resets, flow, 7)
    assert resets.due(9999) == []


def test_an_end_before_the_position_is_dropped_too() -> None:
    resets, flow = resets_of(), flow_at(7)

    assert not resets.is_in_place(flow, 5)
    assert resets.due(0) == [Restart(flow, 7)]
    assert resets.is_in_place(flow, 7)
    assert resets.due(9999) == []


def send_back(resets: Resets, now_ms: int) -> list[Restart]:
    due = resets.due(now_ms)
    for restart in due:
        resets.restarted(restart)
    return due


def test_in_the_end_it_is_believed() -> None:
    resets, flow = resets_of(), flow_at(7)
    for at_ms in range(1000, 1000 + PATIENCE_MS, 1000):
        assert not arrive(resets, flow, 0)
        assert send_back(resets, at_ms) == [Restart(flow, 7)]
    assert not arrive(resets, flow, 0)
    assert resets.due(1000 + PATIENCE_MS - 1) == [Restart(flow, 7)]

    assert not arrive(resets, flow, 0)
    assert resets.due(1000 + PATIENCE_MS) == [Restart(flow, None)]
    assert send_back(resets, 1001 + PATIENCE_MS) == [Restart(flow, None)]  # it was not sent yet

    assert resets.due(9999) == []
    assert flow.needed_position is None
    assert arrive(resets, flow, 0)


def test_a_client_that_can_not_be_sent_back_has_not_been_asked() -> None:
    resets, flow = resets_of(), flow_at(7)
    arrive(resets, flow, 0)
    assert resets.due(0) == [Restart(flow, 7)]  # and is not told `restarted`

    assert resets.due(PATIENCE_MS) == [Restart(flow, 7)]
    assert resets.due(2 * PATIENCE_MS) == [Restart(flow, 7)]


def test_silence_says_nothing() -> None:
    resets, flow = resets_of(), flow_at(7)
    arrive(resets, flow, 0)
    assert send_back(resets, 1000) == [Restart(flow, 7)]

    assert resets.due(1000 + PATIENCE_MS) == []  # it may be paused, or have no leader
    arrive(resets, flow, 0)
    assert send_back(resets, 1000 + PATIENCE_MS) == [Restart(flow, 7)]
    arrive(resets, flow, 0)
    assert send_back(resets, 2000 + PATIENCE_MS) == [Restart(flow, 7)]
    arrive(resets, flow, 0)
    assert send_back(resets, 1000 + 2 * PATIENCE_MS) == [Restart(flow, None)]


def test_patience_begins_anew_when_all_was_well_meanwhile() -> None:
    resets, flow = resets_of(), flow_at(7)
    for at_ms in (0, PATIENCE_MS - 1):
        arrive(resets, flow, 0)
        assert send_back(resets, at_ms) == [Restart(flow, 7)]
    assert arrive(resets, flow, 7)
    arrive(resets, flow, 0)

    assert resets.due(PATIENCE_MS) == [Restart(flow, 8)]


def test_each_partition_is_doubted_by_itself() -> None:
    resets = resets_of()
    given_up, quiet, told = flows = [Flow(("orders", number), 7 * FULL) for number in range(3)]
    for flow in flows:
        arrive(resets, flow, 0)
    assert send_back(resets, 0) == [Restart(flow, 7) for flow in flows]
    given_up.generation += 1
    arrive(resets, told, 0)

    assert resets.due(PATIENCE_MS - 1) == [Restart(told, 7)]
    assert arrive(resets, quiet, 7)
    arrive(resets, told, 0)
    assert send_back(resets, PATIENCE_MS) == [Restart(told, None)]


def test_who_seeks_or_gives_the_partition_up_ends_the_doubt() -> None:
    resets, flow = resets_of(), flow_at(7)
    arrive(resets, flow, 0)
    flow.generation += 1
    assert resets.due(0) == []

    arrive(resets, flow, 0)
    resets.due(0)
    flow.generation += 1
    arrive(resets, flow, 0)
    assert resets.due(PATIENCE_MS) == [Restart(flow, 7)]  # of this one it has just heard


@pytest.mark.parametrize(
    ("policy", "log_start", "is_taken"),
    [
        ("latest", 9, False),  # it is what Kafka has not deleted
        ("latest", 8, False),
        ("latest", 7, True),  # markers of transactions
        ("latest", 10, True),  # it was read before Kafka deleted it
        ("latest", -1001, True),
        ("earliest", 9, True),
        ("error", 9, True),
    ],
)
def test_behind_a_position_that_kafka_has_deleted_the_policy_decides(
    policy: str, log_start: int, is_taken: bool
) -> None:
    resets, flow = resets_of(policy, log_start), flow_at(7)

    assert arrive(resets, flow, 9) is is_taken
    assert resets.due(0) == ([] if is_taken else [Restart(flow, None)])


def test_a_position_that_is_gone_is_gone_whatever_was_doubted_before() -> None:
    resets, flow = resets_of("latest", 9), flow_at(7)
    arrive(resets, flow, 0)
    arrive(resets, flow, 9)
    arrive(resets, flow, 0)

    assert resets.due(0) == [Restart(flow, None)]
