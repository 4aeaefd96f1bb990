"""FastStream, unmodified: awaited and batched publishing, subscribers that ack, nack and batch.

The test runs on the stock client, too: what holds there must hold with ours.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.either import Either
    from tests.helpers.framework_environment import FrameworkProgram

_PARTITIONS = 2
_COUNT = 40
_CUSTOMERS = 5


def _orders_by_key(messages: list[Any]) -> dict[bytes, list[int]]:
    """The numbers of each customer's orders, who are all in one partition."""
    partitions: dict[bytes, set[int]] = {}
    numbers: dict[bytes, list[int]] = {}
    for message in messages:
        partitions.setdefault(message.key(), set()).add(message.partition())
        numbers.setdefault(message.key(), []).append(json.loads(message.value())["order"])
    assert all(len(places) == 1 for places in partitions.values())
    return numbers


def test_orders_go_through_the_chain_in_order_and_one_that_failed_is_read_again(
    either: Either, start: Callable[..., FrameworkProgram], make_topic: Callable[..., str]
) -> None:
    topics = {n: make_topic(_PARTITIONS, name=n) for n in ("orders", "priced", "shipped")}
    group = f"group-of-{topics['orders']}"
    program = start(
        "faststream_chain", patched=either.is_ours, group=group, count=_COUNT, fails_at=7, **topics
    )
    ended = program.wait_for("ended")
    assert program.wait() == 0

    assert ended["failures"] == [7]
    assert sorted(ended["shipped"]) == list(range(_COUNT))
    found = {name: either.records(topic, _PARTITIONS) for name, topic in topics.items()}
    by_key = _orders_by_key(found["priced"])
    assert {key: sorted(numbers) for key, numbers in by_key.items()} == {
        b"customer-%d" % c: list(range(c, _COUNT, _CUSTOMERS)) for c in range(_CUSTOMERS)
    }
    # The one that failed comes again before those behind it: order holds through all of the chain.
    assert by_key == _orders_by_key(found["orders"]) == _orders_by_key(found["shipped"])
    for message in found["orders"] + found["priced"]:
        number = json.loads(message.value())["order"]
        headers = dict(message.headers())
        assert headers["trace"] == b"trace-%d" % number
        assert headers["correlation_id"] == b"correlation-%d" % number
        assert headers["content-type"] == b"application/json"
    for message in found["shipped"]:
        order = json.loads(message.value())
        amount = order["order"] * 31 % 997
        assert order == {"order": order["order"], "price": amount * 2, "shipped": True}
        assert dict(message.headers())["stage"] == b"shipped"
    assert either.committed(group, topics["orders"], _PARTITIONS) == [0, 0]
    assert either.committed(f"{group}-shipping", topics["priced"], _PARTITIONS) == [0, 0]
    for topic in topics.values():
        either.check_route(topic, _PARTITIONS, b'"order":')
