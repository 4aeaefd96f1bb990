"""The simulation's groups rebalance, commit and read on as groups of real Kafka do."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, not re-exported
    AdminClient,
    NewTopic,
)

from blobmsg.lab import create_topics
from tests.helpers.group_histories import VirtualGroupHistory, draw_group_history
from tests.helpers.metadata import difference_on_steady_leaders, wait_until_all_know
from tests.helpers.stock_group import StockGroupHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.helpers.group_histories import Step, View

HISTORIES = 72
# Each waits most of its time, for sessions that end and heartbeats.
_THREADS = 16

pytestmark = pytest.mark.timeout(900)


def test_the_virtual_group_does_as_one_of_real_kafka(
    bootstrap: str, make_topic: Callable[..., str]
) -> None:
    conf = {"bootstrap.servers": bootstrap}
    admin = AdminClient({**conf, "log_level": 0})
    topics = _make_topics(admin, bootstrap)

    def places(seed: int) -> Iterator[tuple[str, int]]:
        yield topics[seed], 0
        while True:
            yield make_topic(partitions=draw_group_history(seed).partitions), 0

    def compare(seed: int, topic: str, _partition: int) -> str:
        history = draw_group_history(seed)
        expected = _virtual(seed)
        with StockGroupHistory(admin, conf, topic, history) as stock:
            for place, (step, view) in enumerate(expected):
                found = stock.do(step, view)
                if found != view:
                    return _difference(seed, expected[:place], (step, view), found)
        return ""

    def difference(seed: int) -> str:
        return difference_on_steady_leaders(bootstrap, places(seed), partial(compare, seed))

    with ThreadPoolExecutor(_THREADS) as pool:
        found = [text for text in pool.map(difference, range(HISTORIES)) if text]

    assert not found, "\n".join(found)


def test_group_histories_have_every_kind_of_step_and_result() -> None:
    histories = [_virtual(seed) for seed in range(HISTORIES)]
    seen = [found for history in histories for found in history]
    outcomes = {(step[0], str(view["outcome"])) for step, view in seen}
    heard = [event for _, view in seen for events in view["heard"].values() for event in events]
    readings = [found for _, view in seen for found in view["reading"].values()]
    partitions = [found for reading in readings for found in reading.values()]

    assert {step[0] for step, _ in seen} == {
        "join", "leave", "die", "end", "pause", "back", "idle", "late", "serve", "produce",
        "commit", "outside", "committed", "transaction",
    }  # fmt: skip
    assert {step[2] for step, _ in seen if step[0] == "back"} == {"", "first", "lost"}
    assert {view["group"][0] for _, view in seen} == {"EMPTY", "STABLE", "PREPARING_REBALANCING"}
    assert outcomes >= {
        ("commit", "ok"),
        ("back", "UNKNOWN_MEMBER_ID"),
        ("outside", "ok"),
        ("outside", "UNKNOWN_MEMBER_ID"),
        ("transaction", "['ok', 'ok']"),
        ("transaction", "['ILLEGAL_GENERATION', 'ILLEGAL_GENERATION', 'ok']"),
        ("transaction", "['UNKNOWN_MEMBER_ID', 'UNKNOWN_MEMBER_ID', 'ok']"),
    }
    assert {str(event) for event in heard} >= {
        "('revoke', [])", "('lost', [])", "('lost', [0, 1])", "('committed', 'ok')",
        "('committed', 'UNKNOWN_MEMBER_ID')",
    }  # fmt: skip
    assert any(errors == ["_AUTO_OFFSET_RESET"] for _, _, errors in partitions)
    assert any(records and records[0][0] > 0 for records, _, _ in partitions)
    # Gone while it waits for a rebalance to end, and so a member until then.
    assert any(
        step[0] == kind and step[1] in view["group"][1]
        for kind in ("die", "leave")
        for step, view in seen
    )
    assert sum(map(_has_rebalance, histories)) >= 60


def _has_rebalance(history: list[tuple[Step, View]]) -> bool:
    """Whether partitions were taken from a member that stayed."""
    return any(
        event[0] in ("revoke", "lost")
        for _, view in history
        for events in view["heard"].values()
        for event in events
    )


def _virtual(seed: int) -> list[tuple[Step, View]]:
    history = draw_group_history(seed)
    virtual = VirtualGroupHistory(seed, history)
    return [(step, virtual.do(step)) for step in history.steps]


def _make_topics(admin: AdminClient, bootstrap: str) -> list[str]:
    """One for each history; a group's members read all partitions of theirs."""
    unique = uuid.uuid4().hex[:12]
    names = [f"group-{unique}-{seed}" for seed in range(HISTORIES)]
    sizes = [draw_group_history(seed).partitions for seed in range(HISTORIES)]
    create_topics(admin, [NewTopic(name, size, 1) for name, size in zip(names, sizes, strict=True)])
    for name, size in zip(names, sizes, strict=True):
        wait_until_all_know(bootstrap, name, size)
    return names


def _difference(
    seed: int, before: list[tuple[Step, View]], expected: tuple[Step, View], found: View
) -> str:
    step, view = expected
    lines = [f"history {seed}, step {len(before)} {step}"]
    lines += [
        f"  {what}: Kafka gives {found[what]}, the virtual group {view[what]}"
        for what in view
        if found[what] != view[what]
    ]
    lines += [f"    {earlier} -> {seen['outcome']} {seen['heard']}" for earlier, seen in before]
    return "\n".join(lines)
