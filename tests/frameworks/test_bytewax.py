"""bytewax, unmodified: keyed totals, and offsets that are kept in its own recovery store.

The test runs on the stock client, too: what holds there must hold with ours.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from tests.helpers.records import flush, produce

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.either import Either
    from tests.helpers.framework_environment import FrameworkProgram

_PARTITIONS = 2
_COUNT = 1000
_CUSTOMERS = 20


def _order(either: Either, topic: str) -> None:
    with either.producer() as producer:
        for number in range(_COUNT):
            order = json.dumps({"order": number, "amount": number * 31 % 997}).encode()
            key, headers = b"customer-%d" % (number % _CUSTOMERS), _headers(number)
            produce(producer, topic, order, key=key, headers=headers)
        flush(producer)


def _headers(number: int) -> list[tuple[str, bytes | None]]:
    return [("trace", b"%d" % number), ("none", None)]


def _expected() -> dict[bytes, list[tuple[int, int]]]:
    totals: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for number in range(_COUNT):
        customer = totals[b"customer-%d" % (number % _CUSTOMERS)]
        before = customer[-1][1] if customer else 0
        customer.append((number, before + number * 31 % 997))
    return totals


def _totals(messages: list[Any]) -> dict[bytes, list[tuple[int, int]]]:
    """Each customer's orders and totals, without those that came once more after the crash."""
    totals: dict[bytes, dict[int, int]] = defaultdict(dict)
    for message in messages:
        found = json.loads(message.value())
        assert message.headers() == _headers(found["order"])
        # What comes again says the same: the state went back together with the offsets.
        assert totals[message.key()].setdefault(found["order"], found["total"]) == found["total"]
    return {key: list(found.items()) for key, found in totals.items()}


def test_a_killed_dataflow_goes_on_in_the_middle_of_a_batch_from_its_own_offsets(
    either: Either,
    start: Callable[..., FrameworkProgram],
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    orders, totals = (make_topic(_PARTITIONS, name=name) for name in ("orders", "totals"))
    _order(either, orders)
    plan = {"patched": either.is_ours, "orders": orders, "totals": totals}
    plan["state_dir"] = str(tmp_path / "recovery")

    killed = start("bytewax_totals", **plan, stops_at=500)
    killed.wait_for("stopped")
    killed.kill()
    written = len(either.records(totals, _PARTITIONS))
    program = start("bytewax_totals", **plan)
    processed = program.wait_for("ended")["processed"]
    assert program.wait() == 0

    assert 0 < written < 500
    # It went on where it was, at most a few batches before, and none of them is left out.
    assert len(processed) < _COUNT
    assert _totals(either.records(totals, _PARTITIONS)) == _expected()
    either.check_route(orders, _PARTITIONS, b'"amount": ')
    either.check_route(totals, _PARTITIONS, b'"total": ')
