"""quixstreams, unmodified: keyed running totals with a state store, its changelog and transactions.

Every test runs on the stock client, too: what holds there must hold with ours.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.helpers.records import flush, produce, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.either import Either
    from tests.helpers.framework_environment import FrameworkProgram

    Start = Callable[..., FrameworkProgram]

_PARTITIONS = 3
_CUSTOMERS = 20
_COMMIT_EVERY = 150


class _Orders:
    """What was ordered so far, and what the totals must therefore be."""

    def __init__(self, either: Either, topic: str) -> None:
        self._either = either
        self._topic = topic
        self.count = 0

    def add(self, count: int) -> None:
        with self._either.producer() as producer:
            for number in range(self.count, self.count + count):
                order = json.dumps({"order": number, "amount": _amount(number)}).encode()
                key, headers = _customer(number), _headers(number)
                produce(producer, self._topic, order, key=key, headers=headers)
            flush(producer)
        self.count += count

    def expected(self) -> dict[bytes, list[tuple[Any, ...]]]:
        totals: dict[bytes, int] = defaultdict(int)
        records: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
        for number in range(self.count):
            key = _customer(number)
            totals[key] += _amount(number)
            total = {"order": number, "total": totals[key]}
            records[key].append((total, _headers(number)))
        return records


def _customer(number: int) -> bytes:
    return b"customer-%d" % (number % _CUSTOMERS)


def _headers(number: int) -> list[tuple[str, bytes | None]]:
    return [("trace", b"%d" % number), ("none", None), ("trace", b"")]


def _amount(number: int) -> int:
    return number * 31 % 997


def _totals(messages: list[Any]) -> dict[bytes, list[tuple[Any, ...]]]:
    places: dict[bytes, set[int]] = defaultdict(set)
    records: dict[bytes, list[tuple[Any, ...]]] = defaultdict(list)
    for message in messages:
        places[message.key()].add(message.partition())
        records[message.key()].append((json.loads(message.value()), message.headers()))
    assert all(len(numbers) == 1 for numbers in places.values())
    return records


def _plan(either: Either, orders: str, totals: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "patched": either.is_ours,
        "group": f"totals-of-{orders}",
        "orders": orders,
        "totals": totals,
        "commit_every": _COMMIT_EVERY,
        "consumer": {"session.timeout.ms": 6000},  # how long a killed one's partitions stay its own
        "state_dir": str(folder),
        **more,
    }


def test_totals_are_right_at_least_once_and_go_on_from_the_changelog(
    either: Either, start: Start, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    names = make_topic(_PARTITIONS, name="orders"), make_topic(_PARTITIONS, name="totals")
    orders, totals = _Orders(either, names[0]), names[1]
    plan = _plan(either, *names, tmp_path / "state", guarantee="at-least-once")
    processed = []
    for count in (800, 200):
        orders.add(count)
        program = start("quixstreams_totals", **plan, count=count)
        assert program.wait() == 0
        processed.append(program.wait_for("ended")["processed"])
        # As on a new machine: the state of the next one is what the changelog has.
        shutil.rmtree(tmp_path / "state")

    assert processed == [800, 200]
    assert _totals(either.records(totals, _PARTITIONS)) == orders.expected()
    assert either.committed(plan["group"], names[0], _PARTITIONS) == [0, 0, 0]
    either.check_route(names[0], _PARTITIONS, b'"amount": ')
    either.check_route(totals, _PARTITIONS, b'"total":')


def test_totals_are_exact_though_the_application_is_killed_in_a_transaction(
    either: Either, start: Start, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    names = make_topic(_PARTITIONS, name="orders"), make_topic(_PARTITIONS, name="totals")
    orders, totals = _Orders(either, names[0]), names[1]
    orders.add(1200)
    # The next one with this id ends what the killed one left open. Ours shows an open transaction's
    # notifications after a part of the records' time to live.
    producer = {"transactional.id": names[0], "message.timeout.ms": 8000}
    plan = _plan(either, *names, tmp_path / "state", guarantee="exactly-once", producer=producer)
    uncommitted = {"isolation.level": "read_uncommitted"}

    killed = start("quixstreams_totals", **plan, stops_at=500)
    killed.wait_for("stopped")
    wait_until(
        lambda: len(either.records(totals, _PARTITIONS, **uncommitted)) == 499,
        "what is not committed is there to be seen",
    )
    killed.kill()
    # An open transaction hides itself and all behind it.
    committed = _totals(either.records(totals, _PARTITIONS))
    rest = sum(either.committed(plan["group"], names[0], _PARTITIONS))
    assert sum(map(len, committed.values())) == 450
    assert rest == 1200 - 450

    shutil.rmtree(tmp_path / "state")
    program = start("quixstreams_totals", **plan, count=rest)
    assert program.wait() == 0

    assert _totals(either.records(totals, _PARTITIONS)) == orders.expected()
    assert len(either.records(totals, _PARTITIONS, **uncommitted)) == 1200 + 49
    assert either.committed(plan["group"], names[0], _PARTITIONS) == [0, 0, 0]
    either.check_route(totals, _PARTITIONS, b'"total":')
