"""The simulation's broker gives the results, errors and offsets that real Kafka gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests.helpers.kafka_histories import (
    RealHistory,
    Result,
    Step,
    VirtualHistory,
    draw_history,
)
from tests.helpers.metadata import difference_on_steady_leaders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HISTORIES = 240
AT_ONCE = 40
_THREADS = 8

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("first", range(0, HISTORIES, AT_ONCE))
def test_the_virtual_broker_does_as_real_kafka(
    first: int, bootstrap: str, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=AT_ONCE)
    conf = {"bootstrap.servers": bootstrap}
    admin = AdminClient({**conf, "log_level": 0})
    # Kept until all are done: a librdkafka that ends while it is being fenced has aborted the
    # process, once.
    kept: list[RealHistory] = []

    def places(number: int) -> Iterator[tuple[str, int]]:
        yield topic, number
        while True:
            yield make_topic(), 0

    def compare(seed: int, topic: str, partition: int) -> str:
        real = RealHistory(admin, conf, topic, partition, f"{topic}-{seed}")
        kept.append(real)
        return _difference(seed, real)

    def difference(number: int) -> str:
        return difference_on_steady_leaders(
            bootstrap, places(number), partial(compare, first + number)
        )

    with ThreadPoolExecutor(_THREADS) as pool:
        found = [text for text in pool.map(difference, range(AT_ONCE)) if text]

    for real in kept:
        real.close()
    assert not found, "\n".join(found)


def test_histories_have_every_kind_of_step() -> None:
    steps = [step for seed in range(HISTORIES) for step in draw_history(seed)]

    assert {step[0] for step in steps} == {
        "produce", "init", "begin", "send", "offsets", "end", "read", "commit", "committed",
        "watermarks", "delete",
    }  # fmt: skip
    assert any("fatal" in str(result) for _, result in _virtual(range(HISTORIES)))
    assert any("_AUTO_OFFSET_RESET" in str(result) for _, result in _virtual(range(HISTORIES)))


def _virtual(seeds: range) -> list[tuple[Step, Result]]:
    found: list[tuple[Step, Result]] = []
    for seed in seeds:
        virtual = VirtualHistory(seed)
        found += [(step, virtual.do(step)) for step in draw_history(seed)]
    return found


def _difference(seed: int, real: RealHistory) -> str:
    steps = draw_history(seed)
    virtual = VirtualHistory(seed)
    expected = [virtual.do(step) for step in steps]
    for place, step in enumerate(steps):
        result = real.do(step, expected[place])
        if result != expected[place]:
            done = zip(steps[:place], expected, strict=False)
            before = "\n    ".join(f"{step} -> {result}" for step, result in done)
            text = f"history {seed}, step {place} {step}: Kafka gives {result}, the virtual "
            return f"{text}broker {expected[place]}; before:\n    {before}"
    return ""
